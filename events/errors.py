"""The errors of this library, and the helper that suggests the nearest name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TrainbusError(Exception):
    """Base of all errors of this library. Catch it to catch them all."""


class ArgumentError(TrainbusError, ValueError):
    """An argument has an invalid value. The message names the argument, the reason and the remedy."""


class SubscriptionError(TrainbusError, TypeError):
    """A handler or callback cannot be attached: unknown name, wrong annotation, taken id, invalid order."""


class DataError(TrainbusError, ValueError):
    """A dataset or a batch cannot be used for training."""


class ModelError(TrainbusError, ValueError):
    """The model does not accept the batch, or does not return a loss."""


class NonFiniteError(TrainbusError, ArithmeticError):
    """A loss, gradient or metric is NaN or infinite, and the run is set to raise an error for it."""


class CheckpointError(TrainbusError, OSError):
    """A checkpoint cannot be written or read."""


class EvaluationStopped(TrainbusError):
    """A handler of `on_prediction_step` ends an evaluation. In training, the run continues without its metrics."""


class RankFailure(TrainbusError, ConnectionError):
    """Another rank failed, exited or hangs. The message names the rank, and what this rank was waiting for."""


class RankDivergence(TrainbusError):
    """The ranks are about to do different things. They would deadlock, or their weights would diverge."""


class MissingExtra(TrainbusError, ImportError):
    """A feature needs a package that is not installed. The message names the extra to install."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: `; did you mean 'x'?` if one is similar, else a full stop."""
    close = closest(name, known)
    return f"; did you mean {close!r}?" if close else "."


def closest(name: str, known: Iterable[str]) -> str:
    """Return the name in `known` that is most similar to `name`; empty if none is similar."""
    close = difflib.get_close_matches(str(name), [str(candidate) for candidate in known], n=1, cutoff=0.6)
    return close[0] if close else ""

"""Every error this project raises on purpose, and the one helper that suggests the nearest name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TrainbusError(Exception):
    """Base of all errors raised on purpose: catch this one to catch them all."""


class ArgumentError(TrainbusError, ValueError):
    """A value given by the user cannot be used; the message says which, why, and what would do."""


class SubscriptionError(TrainbusError, TypeError):
    """A handler or callback cannot be attached: unknown hook or parameter, clashing id, impossible order."""


class DataError(TrainbusError, ValueError):
    """A dataset or a batch cannot be trained on as it is."""


class ModelError(TrainbusError, ValueError):
    """The model does not do what training needs of it: accept the batch, return a loss."""


class NonFiniteError(TrainbusError, ArithmeticError):
    """A loss, gradient or metric became NaN or infinite and the run was told to refuse that."""


class CheckpointError(TrainbusError, OSError):
    """A checkpoint cannot be written or read."""


class EvaluationStopped(TrainbusError):
    """A handler of `on_prediction_step` ends an evaluation; in training the run goes on without its metrics."""


class RankFailure(TrainbusError, ConnectionError):
    """Another process of the run failed, is gone or hangs; the message says which, and where it was waited for."""


class RankDivergence(TrainbusError):
    """The processes of a run are about to do different things, and would wait for each other or drift apart."""


class MissingExtra(TrainbusError, ImportError):
    """A feature was asked for whose package is not installed; the message names the extra to install."""


def nearest(name: str, known: Iterable[str]) -> str:
    """End a sentence about an unknown name: with `; did you mean 'x'?` if one is close, else with a full stop."""
    close = closest(name, known)
    return f"; did you mean {close!r}?" if close else "."


def closest(name: str, known: Iterable[str]) -> str:
    """Return the name among those `known` that is spelt most like `name`; empty if none is close."""
    close = difflib.get_close_matches(str(name), [str(candidate) for candidate in known], n=1, cutoff=0.6)
    return close[0] if close else ""

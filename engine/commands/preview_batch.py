"""The dry batch of `trainbus preview --batch`: run one batch without a step, to check a training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ...events.stages import Stage
from .first_training import Enough

_ROOMS = ("callbacks.model.", "callbacks.optimizer.", "callbacks.parallel.", "callbacks.precision.", "engine.")
"""The modules whose callbacks build the model and the optimizer. These callbacks stay attached in the dry batch."""
_DECIDING = ("Evaluate", "KeepBest", "EarlyStopping")
"""The classes of other callbacks that stay attached. The dry batch checks that evaluations measure the metrics that
these callbacks read."""


def batch_of(trainer: Any, train: Callable[..., Any], resume: Any) -> dict[str, Any]:
    """Begin the training, run the dry batch, and end the training before its first step.

    The dry batch is a forward and a backward of the largest batch. Callbacks of trainbus that build the model or the
    optimizer, or that decide from metrics, stay attached. The function detaches all other callbacks, because they might
    write, report or save. The trainer cannot be used afterwards.

    Args:
        trainer: the Trainer.
        train: the `train()` of this trainer.
        resume: the value of `resume_from_checkpoint`.

    Returns:
        A dict with two keys. `report`: a `DryBatchReport`, or None if the dry batch did not run. `error`: the text of
        the error that ended the training, or an empty string.
    """
    from ..search.hyperparameters import with_values  # it imports torch, which other commands do not need

    args = with_values(trainer.args, {"dry_batch": True, "auto_find_batch_size": False})
    dry = next(each for each in trainer.compose(args) if type(each).__name__ == "DryBatch")
    outside = []
    for owner_id, each in trainer.bus.subscribers.items():
        if not _stays(each):
            trainer.bus.detach(owner_id)
            outside += [owner_id] if not type(each).__module__.startswith(f"{_LIBRARY}.") else []
    found: dict[str, Any] = {"report": None, "error": ""}

    def look(run: Any) -> None:
        found["report"] = dry.look(run)
        raise Enough

    trainer.bus.on("on_train_begin", look, stage=Stage.RELEASE)
    try:
        with suppress(Enough), _without_notes_on_callback_states():
            train(resume_from_checkpoint=resume)
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    if found["report"] is not None and outside:
        found["report"].skipped.append(f"The callbacks of the program: {', '.join(outside)}. They may write files.")
    return found


_LIBRARY = __name__.partition(".")[0]


@contextmanager
def _without_notes_on_callback_states() -> Iterator[None]:
    """Log nothing about restored callback states inside the `with` block.

    The preview logs warnings about callback states before the dry batch. In the dry batch, such warnings would be
    wrong, because they would name callbacks that `batch_of` has detached.
    """
    from ..checkpoint import callback_states, pending_stops  # they import torch, which other commands do not need

    loggers = callback_states.logger, pending_stops.logger
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _stays(callback: Any) -> bool:
    kind = type(callback)
    name = kind.__module__.partition(".")[2]
    of_library = kind.__module__.partition(".")[0] == _LIBRARY
    return of_library and (name.startswith(_ROOMS) or kind.__name__ in _DECIDING) and kind.__name__ != "ExportModel"

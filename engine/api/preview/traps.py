"""Find traps: settings of a run that have no effect or an unexpected effect. A preview warns about them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ....events.capabilities import Capability
from ....events.composition import providers, provides
from ....events.recording.rows import Row
from ....events.triggers import Both, Either, EveryEpochs, Trigger, never
from .virtual import LearningRates

_FLAT = ("constant", "constant_with_warmup", "reduce_lr_on_plateau", "greedy")
"""Schedules that do not decay by themselves."""


@dataclass
class Seen:
    """The values of a preview that the function `traps` reads."""

    args: Any
    """The training arguments."""
    callbacks: dict[str, Any]
    """The callbacks that took part in the preview, by id."""
    rows: list[Row]
    """The rows of the preview, as in `Preview.rows`."""
    steps: int
    """The step at which the run ends."""
    max_steps: int
    """The planned number of steps."""
    epochs: int
    """The planned number of epochs."""
    endless: bool
    """Whether the training data is a stream of unknown length. The preview then has one epoch."""
    rates: LearningRates
    """The learning rates of the steps that this session makes."""
    clocked: bool
    """Whether the seconds of a step are known. If not, the virtual clock does not advance."""
    best: dict[int, float]
    """Step of a checkpoint -> value of the metric that chooses the best model. Empty if the user gave no values of this
    metric."""
    greater: bool
    """Whether a greater value of the metric in `best` is better."""

    @property
    def fresh(self) -> bool:
        """Whether the run starts at step 0, not from a checkpoint."""
        return self.rates.steps == self.steps


def traps(seen: Seen) -> Iterator[str]:
    """Yield one warning for each setting that has no effect or an unexpected effect in a preview."""
    yield from _streams(seen)
    yield from _dead_triggers(seen)
    yield from _saves(seen)
    yield from _evaluations(seen)
    yield from _rotation(seen)
    yield from _schedule(seen)


def _streams(seen: Seen) -> Iterator[str]:
    by_epoch = [name for name, each in seen.callbacks.items() if _counts_epochs(getattr(each, "trigger", never()))]
    if seen.endless and by_epoch:
        yield (
            f"The training data is a stream without a length, so the preview does not know where epochs end, and shows "
            f"one epoch. {', '.join(by_epoch)}: due at the end of epochs. Pass `stream_rows`, the number of samples of "
            "one epoch."
        )


def _counts_epochs(trigger: Trigger) -> bool:
    if isinstance(trigger, (Either, Both)):
        return _counts_epochs(trigger.left) or _counts_epochs(trigger.right)
    return isinstance(trigger, EveryEpochs)


def _dead_triggers(seen: Seen) -> Iterator[str]:
    for name, callback in seen.callbacks.items():
        trigger = getattr(callback, "trigger", never())
        if trigger == never() or not hasattr(callback, "last_due"):
            continue
        does = getattr(callback, "flag", "") or "act"
        for part in _parts(trigger):
            if part.priced:
                yield (
                    f"{name}: {part!r} depends on the measured cost of the work. The preview does not know this cost, "
                    "and shows at most the first time."
                )
            elif part.clocked and not seen.clocked:
                yield (
                    f"{name}: {part!r} depends on the clock, so the preview cannot tell when it is due. Pass "
                    "`step_seconds`, or `measure=True`."
                )
            elif _is_dead(part, seen):
                then = "" if callback.last_due is None else f" Only other triggers and requests make it {does}."
                yield f"{name}: {part!r} is never due, the run has {_length(part, seen)}.{then}"


def _parts(trigger: Trigger) -> Iterator[Trigger]:
    if isinstance(trigger, Either):
        yield from _parts(trigger.left)
        yield from _parts(trigger.right)
    else:
        yield trigger


def _is_dead(part: Trigger, seen: Seen) -> bool:
    after = getattr(part, "after", 0)
    if isinstance(part, EveryEpochs):
        return part.epochs > seen.epochs or after > seen.epochs
    if isinstance(part, Both) or part.places != {"step"} or part.clocked:
        return False
    return part.wakes(0, seen.max_steps) > seen.max_steps or after > seen.max_steps


def _length(part: Trigger, seen: Seen) -> str:
    return f"{seen.epochs} epochs" if isinstance(part, EveryEpochs) else f"{seen.max_steps} steps"


def _saves(seen: Seen) -> Iterator[str]:
    saved = [row["step"] for row in seen.rows if row["what"] == "save"]
    if saved and max(saved) < seen.steps:
        yield (
            f"The last checkpoint is of step {max(saved)}, and the run ends at step {seen.steps}: the last "
            f"{seen.steps - max(saved)} steps are not saved. Add `| at_end()` to the trigger of Checkpoint."
        )
    elif seen.fresh and not saved and provides(seen.callbacks.values(), Capability.WRITES_CHECKPOINTS):
        yield "The run is configured to save, but it writes no checkpoint."


def _evaluations(seen: Seen) -> Iterator[str]:
    evaluations = len({row["step"] for row in seen.rows if row["what"] == "evaluate" and row["step"] > 0})
    choosers = providers(seen.callbacks.values(), Capability.CHOOSES_BEST_MODEL)
    if seen.fresh and choosers and not evaluations:
        yield f"{type(choosers[0]).__name__} chooses the best model, but no evaluation measures one."
    for name, callback in seen.callbacks.items():
        patience = getattr(callback, "patience", None) or getattr(callback, "early_stopping_patience", None)
        stopped = any(row["what"] == "stop" and name in row["by"] for row in seen.rows)
        if isinstance(patience, int) and seen.fresh and not stopped and evaluations <= patience:
            yield (
                f"{name}: a patience of {patience} needs {patience + 1} evaluations, but the run makes {evaluations}. "
                "The callback cannot stop the run."
            )


def _rotation(seen: Seen) -> Iterator[str]:
    deleted = [row["checkpoint"] for row in seen.rows if row["what"] == "delete"]
    if not deleted:
        return
    if seen.best:
        measured = [step for step, value in seen.best.items() if value == value]
        best = sorted(measured, key=lambda step: seen.best[step], reverse=seen.greater)[:1]
        if best and best[0] in deleted:
            yield f"The checkpoint of step {best[0]}, with the best metric, is deleted. Add KeepBest, or Keep(best=1)."
        return
    keeps = any(getattr(getattr(callback, "keep", None), "best", 0) for callback in seen.callbacks.values())
    evaluates = any(row["what"] == "evaluate" for row in seen.rows)
    if evaluates and not keeps and not provides(seen.callbacks.values(), Capability.CHOOSES_BEST_MODEL):
        yield (
            "Checkpoints are deleted by age, and nothing keeps the best one. Set `load_best_model_at_end`, or add "
            "Keep(best=1)."
        )


def _schedule(seen: Seen) -> Iterator[str]:
    rates, args = seen.rates, seen.args
    warmup = args.get_warmup_steps(seen.max_steps)
    kind = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    if warmup >= seen.max_steps > 0 and kind != "constant":
        yield (
            f"The warmup has {warmup} steps, but the run has {seen.max_steps}: it never reaches the full learning rate."
        )
    elif rates.steps > 1 and math.isclose(rates.last, rates.highest) and kind not in _FLAT:
        yield f"The learning rate never decays: it is {rates.last:.4g} in the last step. lr_scheduler_type is {kind!r}."
    elif kind == "reduce_lr_on_plateau" and rates.last == rates.first and rates.steps > 1:
        yield "The schedule reduce_lr_on_plateau never reduces the learning rate with this metric."


def describe_absent(names: Iterable[str]) -> Iterator[str]:
    """Yield a warning that lists the callbacks that the preview does not run. Yield nothing if `names` is empty."""
    if listed := ", ".join(names):
        yield (
            f"Not in the preview: {listed}. They may request work or a stop. If a callback decides from the state and "
            "the metrics alone, set `previews = True` in its class."
        )

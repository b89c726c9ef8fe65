"""The deliberate differences that cases meet: what each is, and how a comparison leaves out just that."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from parity_case import RESUMED_AT, TRAIN_ROWS
from parity_outcome import Outcome

Pair = tuple[Outcome, Outcome]


@dataclass(frozen=True)
class Difference:
    """Something that our trainer does otherwise on purpose."""

    row: str
    """How its row in docs/differences.md begins."""
    left_out: Callable[[Outcome, Outcome], Pair]
    """From their outcome and ours to the same two without it; an `AssertionError` if it did not occur."""


def last_window(theirs: Outcome, ours: Outcome) -> Pair:
    """Ours has one entry more: the mean of the steps since the last log."""
    end = ours.steps["planned"]
    logged = [[entry for entry in run.history if "loss" in entry] for run in (theirs, ours)]
    assert logged[1][-1]["step"] == end
    assert not logged[0] or logged[0][-1]["step"] < end
    return theirs, replace(ours, history=[entry for entry in ours.history if entry is not logged[1][-1]])


def not_a_number(theirs: Outcome, ours: Outcome) -> Pair:
    """Where one of our losses is not a number, theirs is; no other values are left out."""

    def without(mine: Any, other: Any) -> tuple[Any, Any]:
        if isinstance(mine, dict):
            both = {name: without(value, other[name]) for name, value in mine.items()}
            kept = {name: pair for name, pair in both.items() if not (name in LOSSES and _told_apart(*pair))}
            return {name: pair[0] for name, pair in kept.items()}, {name: pair[1] for name, pair in kept.items()}
        if isinstance(mine, list):
            pairs = [without(*pair) for pair in zip(mine, other)]
            return [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        return mine, other

    assert _told_apart(ours.steps["loss"], theirs.steps["loss"])
    assert _told_apart(ours.evaluated["eval_loss"], theirs.evaluated["eval_loss"])
    assert any(_told_apart(*(entry.get("loss", 0.0) for entry in pair)) for pair in zip(ours.history, theirs.history))
    fields = {name: without(getattr(ours, name), getattr(theirs, name)) for name in ("steps", "history", "evaluated")}
    metrics = without(ours.predicted[2], theirs.predicted[2])
    return (
        replace(
            theirs, **{name: pair[1] for name, pair in fields.items()}, predicted=(*theirs.predicted[:2], metrics[1])
        ),
        replace(ours, **{name: pair[0] for name, pair in fields.items()}, predicted=(*ours.predicted[:2], metrics[0])),
    )


def loss_of_a_resumed_run(theirs: Outcome, ours: Outcome) -> Pair:
    """Our training loss is the mean over all steps, theirs over those since the resumption; nothing else differs."""
    steps = [entry["loss"] for entry in ours.history if "loss" in entry]
    assert len(steps) == ours.steps["done"]
    assert math.isclose(ours.steps["loss"], mean(steps), rel_tol=1e-6)
    assert math.isclose(theirs.steps["loss"], mean(steps[RESUMED_AT:]), rel_tol=1e-6)

    def without(outcome: Outcome) -> Outcome:
        result = {name: value for name, value in outcome.steps["result"].items() if name != "train_loss"}
        steps = {**outcome.steps, "loss": None, "result": result}
        history = [{name: value for name, value in entry.items() if name != "train_loss"} for entry in outcome.history]
        return replace(outcome, steps=steps, history=history)

    return without(theirs), without(ours)


LOSSES = frozenset({"loss", "train_loss", "eval_loss", "test_loss"})


def _told_apart(mine: Any, other: Any) -> bool:
    return isinstance(mine, float) and math.isnan(mine) and math.isfinite(other)


def mean_over_rows(theirs: Outcome, ours: Outcome) -> Pair:
    """The losses of evaluation and prediction are others, and nothing else is."""
    assert ours.evaluated["eval_loss"] != theirs.evaluated["eval_loss"]
    assert ours.predicted[2]["test_loss"] != theirs.predicted[2]["test_loss"]

    def without(outcome: Outcome) -> Outcome:
        evaluated = {name: value for name, value in outcome.evaluated.items() if name != "eval_loss"}
        metrics = {name: value for name, value in outcome.predicted[2].items() if name != "test_loss"}
        return replace(outcome, evaluated=evaluated, predicted=(*outcome.predicted[:2], metrics))

    return without(theirs), without(ours)


def last_of_a_stream_dropped(theirs: Outcome, ours: Outcome) -> Pair:
    """Ours evaluates and predicts the rows of whole batches, theirs all; nothing else differs."""
    whole = len(ours.predicted[0])
    assert whole % 4 == 0
    assert whole < len(theirs.predicted[0])

    def without(outcome: Outcome) -> Outcome:
        rows = tuple(part[:whole] for part in outcome.predicted[:2])
        return replace(outcome, evaluated={}, predicted=(*rows, {}))

    return without(theirs), without(ours)


def end_of_a_stream(theirs: Outcome, ours: Outcome) -> Pair:
    """All that follows the first pass's whole steps differs, since our next step is of fewer batches."""
    whole = TRAIN_ROWS // (4 * 4)
    mine, other = ours.history[whole], theirs.history[whole]
    assert mine["step"] == other["step"] == whole + 1
    assert mine["grad_norm"] != other["grad_norm"]

    def until_then(outcome: Outcome) -> Outcome:
        steps = {name: outcome.steps[name] for name in ("done", "planned", "epochs")}
        nothing: dict[str, Any] = {"weights": {}, "evaluated": {}, "predicted": (None, None, {})}
        return replace(outcome, steps=steps, history=outcome.history[:whole], **nothing)

    return until_then(theirs), until_then(ours)


def newest_kept(theirs: Outcome, ours: Outcome) -> Pair:
    """Ours has one checkpoint more, the newest."""
    *others, newest = ours.checkpoints
    assert newest not in theirs.checkpoints
    assert newest == f"checkpoint-{ours.steps['done']}"
    return theirs, replace(ours, checkpoints=others)


def best_saved(theirs: Outcome, ours: Outcome) -> Pair:
    """Ours has more checkpoints: one for each evaluation whose loss was the smallest so far."""
    more = [folder for folder in ours.checkpoints if folder not in theirs.checkpoints]
    measured = [(entry["eval_loss"], entry["step"]) for entry in ours.history if "eval_loss" in entry]
    records = {
        f"checkpoint-{step}"
        for at, (loss, step) in enumerate(measured)
        if loss < min([math.inf, *_firsts(measured[:at])])
    }
    assert more
    assert set(more) == records - set(theirs.checkpoints)
    return theirs, replace(ours, checkpoints=[folder for folder in ours.checkpoints if folder not in more])


def _firsts(pairs: list[tuple[float, int]]) -> list[float]:
    return [first for first, _ in pairs]


def best_step_unsaved(theirs: Outcome, ours: Outcome) -> Pair:
    """Ours knows the step of the best metric where no checkpoint is written."""
    assert not ours.checkpoints
    assert theirs.best[1] is None
    assert ours.best[1] in {entry["step"] for entry in ours.history if "eval_loss" in entry}
    return theirs, replace(ours, best=(ours.best[0], None, ours.best[2]))


def rows_in_order(theirs: Outcome, ours: Outcome) -> Pair:
    """Predictions and labels are the same rows, in another order."""
    mine, other = ([rows.tolist() for rows in run.predicted[:2]] for run in (ours, theirs))
    assert mine != other
    assert sorted(zip(*mine)) == sorted(zip(*other))
    return replace(theirs, predicted=(None, None, theirs.predicted[2])), replace(
        ours, predicted=(None, None, ours.predicted[2])
    )


def first_of_a_tuple(theirs: Outcome, ours: Outcome) -> Pair:
    """Theirs has no predictions, ours has one for each row."""
    assert theirs.predicted[0] == ()
    assert len(ours.predicted[0]) == len(ours.predicted[1])
    return replace(theirs, predicted=(None, *theirs.predicted[1:])), replace(
        ours, predicted=(None, *ours.predicted[1:])
    )


DIFFERENCES = {
    "last window": Difference("Last log of a run", last_window),
    "not a number": Difference("NaN or infinite loss", not_a_number),
    "mean over rows": Difference("Evaluation loss", mean_over_rows),
    "last of a stream dropped": Difference("`dataloader_drop_last` with a stream", last_of_a_stream_dropped),
    "end of a stream": Difference("End of a stream", end_of_a_stream),
    "loss of a resumed run": Difference("Training loss of a resumed run", loss_of_a_resumed_run),
    "rows in order": Difference("Order of predictions", rows_in_order),
    "first of a tuple": Difference(
        "Models that return a tuple",
        first_of_a_tuple,
    ),
    "the best saved": Difference(
        "Intervals for `load_best_model_at_end`",
        best_saved,
    ),
    "the best step unsaved": Difference("Step of the best metric", best_step_unsaved),
    "newest kept": Difference("`save_total_limit=1` with `load_best_model_at_end`", newest_kept),
}
"""By the names that cases give them."""

"""The deliberate differences from transformers, and how a comparison excludes each of them."""

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
    """A deliberate difference from transformers' Trainer."""

    row: str
    """The beginning of its row in docs/differences/."""
    exclude: Callable[[Outcome, Outcome], Pair]
    """Return transformers' outcome and ours without the difference. Raise `AssertionError` if it did not occur."""


def last_window(theirs: Outcome, ours: Outcome) -> Pair:
    """Our log has one more entry: the mean of the steps since the last log."""
    end = ours.steps["planned"]
    logged = [[entry for entry in run.history if "loss" in entry] for run in (theirs, ours)]
    assert logged[1][-1]["step"] == end
    assert not logged[0] or logged[0][-1]["step"] < end
    return theirs, replace(ours, history=[entry for entry in ours.history if entry is not logged[1][-1]])


def not_a_number(theirs: Outcome, ours: Outcome) -> Pair:
    """Some of our losses are NaN where theirs are finite. Only these values are excluded."""

    def exclude(mine: Any, other: Any) -> tuple[Any, Any]:
        if isinstance(mine, dict):
            both = {name: exclude(value, other[name]) for name, value in mine.items()}
            kept = {name: pair for name, pair in both.items() if not (name in LOSSES and _only_ours_is_nan(*pair))}
            return {name: pair[0] for name, pair in kept.items()}, {name: pair[1] for name, pair in kept.items()}
        if isinstance(mine, list):
            pairs = [exclude(*pair) for pair in zip(mine, other)]
            return [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        return mine, other

    assert _only_ours_is_nan(ours.steps["loss"], theirs.steps["loss"])
    assert _only_ours_is_nan(ours.evaluated["eval_loss"], theirs.evaluated["eval_loss"])
    assert any(
        _only_ours_is_nan(*(entry.get("loss", 0.0) for entry in pair)) for pair in zip(ours.history, theirs.history)
    )
    fields = {name: exclude(getattr(ours, name), getattr(theirs, name)) for name in ("steps", "history", "evaluated")}
    metrics = exclude(ours.predicted[2], theirs.predicted[2])
    return (
        replace(
            theirs, **{name: pair[1] for name, pair in fields.items()}, predicted=(*theirs.predicted[:2], metrics[1])
        ),
        replace(ours, **{name: pair[0] for name, pair in fields.items()}, predicted=(*ours.predicted[:2], metrics[0])),
    )


def loss_of_a_resumed_run(theirs: Outcome, ours: Outcome) -> Pair:
    """Our training loss is the mean over all steps, theirs over the steps since the resume. Nothing else differs."""
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


def _only_ours_is_nan(mine: Any, other: Any) -> bool:
    return isinstance(mine, float) and math.isnan(mine) and math.isfinite(other)


def mean_over_rows(theirs: Outcome, ours: Outcome) -> Pair:
    """The losses of evaluation and prediction differ, and nothing else does."""
    assert ours.evaluated["eval_loss"] != theirs.evaluated["eval_loss"]
    assert ours.predicted[2]["test_loss"] != theirs.predicted[2]["test_loss"]

    def without(outcome: Outcome) -> Outcome:
        evaluated = {name: value for name, value in outcome.evaluated.items() if name != "eval_loss"}
        metrics = {name: value for name, value in outcome.predicted[2].items() if name != "test_loss"}
        return replace(outcome, evaluated=evaluated, predicted=(*outcome.predicted[:2], metrics))

    return without(theirs), without(ours)


def last_of_a_stream_dropped(theirs: Outcome, ours: Outcome) -> Pair:
    """We evaluate and predict the samples of full batches, they all samples. Nothing else differs."""
    whole = len(ours.predicted[0])
    assert whole % 4 == 0
    assert whole < len(theirs.predicted[0])

    def without(outcome: Outcome) -> Outcome:
        rows = tuple(part[:whole] for part in outcome.predicted[:2])
        return replace(outcome, evaluated={}, predicted=(*rows, {}))

    return without(theirs), without(ours)


def end_of_a_stream(theirs: Outcome, ours: Outcome) -> Pair:
    """Everything after the full steps of the first pass differs, because our next step has fewer batches."""
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
    """We keep one more checkpoint, the newest."""
    *others, newest = ours.checkpoints
    assert newest not in theirs.checkpoints
    assert newest == f"checkpoint-{ours.steps['done']}"
    return theirs, replace(ours, checkpoints=others)


def best_saved(theirs: Outcome, ours: Outcome) -> Pair:
    """We have more checkpoints: one for each evaluation with the smallest loss so far."""
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
    """We know the step of the best metric even if no checkpoint is written."""
    assert not ours.checkpoints
    assert theirs.best[1] is None
    assert ours.best[1] in {entry["step"] for entry in ours.history if "eval_loss" in entry}
    return theirs, replace(ours, best=(ours.best[0], None, ours.best[2]))


def rows_in_order(theirs: Outcome, ours: Outcome) -> Pair:
    """Predictions and labels are equal, but in another order."""
    mine, other = ([rows.tolist() for rows in run.predicted[:2]] for run in (ours, theirs))
    assert mine != other
    assert sorted(zip(*mine)) == sorted(zip(*other))
    return replace(theirs, predicted=(None, None, theirs.predicted[2])), replace(
        ours, predicted=(None, None, ours.predicted[2])
    )


def first_of_a_tuple(theirs: Outcome, ours: Outcome) -> Pair:
    """They have no predictions, we have one per sample."""
    assert theirs.predicted[0] == ()
    assert len(ours.predicted[0]) == len(ours.predicted[1])
    return replace(theirs, predicted=(None, *theirs.predicted[1:])), replace(
        ours, predicted=(None, *ours.predicted[1:])
    )


DIFFERENCES = {
    "last window": Difference("Last log of a run", last_window),
    "NaN loss": Difference("NaN or infinite loss", not_a_number),
    "mean over samples": Difference("Evaluation loss", mean_over_rows),
    "incomplete batch of a stream": Difference("`dataloader_drop_last` with a stream", last_of_a_stream_dropped),
    "incomplete step of a stream": Difference("End of a stream", end_of_a_stream),
    "loss of a resumed run": Difference("Training loss of a resumed run", loss_of_a_resumed_run),
    "order of predictions": Difference("Order of predictions", rows_in_order),
    "first value of a tuple": Difference("Models that return a tuple", first_of_a_tuple),
    "checkpoint of a new best": Difference("Intervals for `load_best_model_at_end`", best_saved),
    "best step without a checkpoint": Difference("Step of the best metric", best_step_unsaved),
    "newest checkpoint kept": Difference("`save_total_limit=1` with `load_best_model_at_end`", newest_kept),
}
"""Name, as in `Case.differs` -> difference."""

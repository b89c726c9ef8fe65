"""Runs of random programs by both trainers, and their comparison.

A row of docs/differences/ that a program may have is named here, with a function that excludes its effect.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity_grammar import Program, Request
from parity_outcome import Outcome, as_text, trained_by

import trainbus
from support.outcomes import same_weights, timeless
from support.trainers import hushed

EVENTS = (
    *("on_init_end", "on_train_begin", "on_epoch_begin", "on_step_begin", "on_substep_end", "on_pre_optimizer_step"),
    *("on_optimizer_step", "on_step_end", "on_log", "on_evaluate", "on_prediction_step", "on_predict", "on_save"),
    *("on_epoch_end", "on_train_end"),
)


@dataclass(frozen=True)
class Record(Outcome):
    """What one trainer did with a program: everything that a user can read."""

    calls: list[tuple[Any, ...]]
    """The events that a callback received: name, step, epoch, flags, and the names of logged values."""


def run_both(program: Program, folder: Path) -> tuple[Record, Record]:
    """Run a program with both trainers. Return the two records, transformers' first."""
    import transformers

    with hushed():
        return _run(program, transformers, folder / "theirs"), _run(program, trainbus, folder / "ours")


def _run(program: Program, library: Any, folder: Path) -> Record:
    calls: list[tuple[Any, ...]] = []
    if program.resumed_at is not None:
        at = program.resumed_at
        with contextlib.suppress(Killed):
            _trainer(program, library, folder, [killing(program, at)], []).train()
        trainer = _trainer(program, library, folder, [], calls)
        output = trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{at}"))
    else:
        requests = [requesting(request) for request in program.requests]
        trainer = _trainer(program, library, folder, requests, calls)
        output = trainer.train()
    trained = trained_by(trainer, output)
    trained["steps"] |= {"tokens": trainer.state.num_input_tokens_seen, "operations": trainer.state.total_flos}
    evaluated = timeless(trainer.evaluate())
    predicted = trainer.predict(program.data(program.eval_rows, 2))
    values = [_lists(predicted.predictions), _lists(predicted.label_ids), timeless(predicted.metrics)]
    return Record(**trained, evaluated=evaluated, predicted=values, calls=calls)


def _trainer(program: Program, library: Any, folder: Path, callbacks: list[Any], calls: list[Any]) -> Any:
    args = library.TrainingArguments(str(folder), use_cpu=True, disable_tqdm=True, report_to="none", **program.args)
    options = dict(program.options)
    if options.get("eval_dataset") == "two":
        options["eval_dataset"] = {"a": program.data(program.eval_rows, 1), "b": program.data(program.eval_rows - 1, 3)}
    options.setdefault("eval_dataset", program.data(program.eval_rows, 1))
    callbacks.insert(0 if program.recorder_first else len(callbacks), recording(calls))
    if program.patience is not None:
        callbacks.append(library.EarlyStoppingCallback(program.patience))
    return library.Trainer(
        program.model(), args, train_dataset=program.data(program.train_rows, 0), callbacks=callbacks, **options
    )


def requesting(request: Request) -> Any:
    """Return a callback of transformers that raises a flag at a step."""
    from transformers import TrainerCallback

    def handler(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == request.step:
            setattr(control, request.flag, True)

    return type(f"{request.flag}_at_{request.step}_{request.event}", (TrainerCallback,), {request.event: handler})()


class Killed(BaseException):
    """The end of a session that is killed."""


def killing(program: Program, step: int) -> Any:
    """Return a callback of transformers that requests a checkpoint at a step, and raises `Killed` when it is written.

    row: First log of a resumed run. At the end of an epoch, what is due by epoch is done before the checkpoint.
    """
    from transformers import TrainerCallback

    armed = []

    def request(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == step:
            control.should_save = True
            armed.append(step)

    def kill(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if armed:
            raise Killed

    event = "on_step_end" if step % program.epoch else "on_epoch_end"
    return type("Killer", (TrainerCallback,), {event: request, "on_save": kill})()


def recording(calls: list[tuple[Any, ...]]) -> Any:
    """Return a callback of transformers that records each call of it."""
    from transformers import TrainerCallback

    def handler(event: str) -> Callable[..., None]:
        def record(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            values = kwargs.get("logs") if event == "on_log" else kwargs.get("metrics")
            flags = [name for name, raised in sorted(vars(control_flags(control)).items()) if raised]
            names = sorted(timeless(values)) if values else []
            calls.append((event, state.global_step, state.epoch, flags, names))

        return record

    return type("Recorder", (TrainerCallback,), {event: handler(event) for event in EVENTS})()


@dataclass
class control_flags:
    """The flags of a control of either library."""

    log: bool
    evaluate: bool
    save: bool
    stop: bool
    end_epoch: bool

    def __init__(self, control: Any) -> None:
        self.log, self.evaluate, self.save = control.should_log, control.should_evaluate, control.should_save
        self.stop, self.end_epoch = control.should_training_stop, control.should_epoch_stop


def _lists(values: Any) -> Any:
    if isinstance(values, (tuple, list)):
        return [_lists(value) for value in values]
    return values.tolist() if hasattr(values, "tolist") else values


# Rows of docs/differences/.

Pair = tuple[Record, Record]


def last_log(program: Program, theirs: Record, ours: Record) -> Pair:
    """At the planned end between two logs, we log the last steps. They do so only if a callback requests it, and later.

    Entries of both are compared, and not their place among the other entries and events.
    """
    end = ours.steps["planned"]
    interval = program.args.get("logging_steps", 1)
    due = end % (interval if interval >= 1 else math.ceil(end * interval)) == 0
    if program.args["logging_strategy"] != "steps" or ours.steps["done"] != end or due:
        return theirs, ours

    def is_last(entry: dict[str, Any]) -> bool:
        return entry["step"] == end and "loss" in entry

    theirs_logged = any(map(is_last, theirs.history))

    def without(record: Record) -> Record:
        last = [entry for entry in record.history if is_last(entry) and theirs_logged]
        calls = [call for call in record.calls if not (call[0] == "on_log" and call[1] == end and "loss" in call[4])]
        history = [entry for entry in record.history if not is_last(entry)] + last
        return dataclasses.replace(record, history=history, calls=_without_flag("log", end, calls))

    return without(theirs), without(ours)


def _without_flag(flag: str, step: int, calls: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [
        (name, at, epoch, [raised for raised in flags if raised != flag or at != step], keys)
        for name, at, epoch, flags, keys in calls
    ]


def flags_after_the_run(program: Program, theirs: Record, ours: Record) -> Pair:
    """After `on_train_end` their flag to stop stays raised, ours is lowered."""

    def without(record: Record) -> Record:
        end = next(at for at, call in enumerate(record.calls) if call[0] == "on_train_end") + 1
        after = [(name, step, epoch, [], keys) for name, step, epoch, _, keys in record.calls[end:]]
        return dataclasses.replace(record, calls=record.calls[:end] + after)

    return without(theirs), without(ours)


def second_log(program: Program, theirs: Record, ours: Record) -> Pair:
    """A request to log a step that was logged is dropped. Theirs stays raised until the next step."""

    def without(record: Record) -> Record:
        logged = set()
        calls = []
        for name, step, epoch, flags, keys in record.calls:
            calls.append((name, step, epoch, [flag for flag in flags if flag != "log" or step not in logged], keys))
            if name == "on_log" and "loss" in keys:
                logged.add(step)
        return dataclasses.replace(record, calls=calls)

    return without(theirs), without(ours)


def step_of_best(program: Program, theirs: Record, ours: Record) -> Pair:
    """Without checkpoints, only we know the step of the best metric."""
    if program.args["save_strategy"] != "no" or theirs.best[1] is not None:
        return theirs, ours
    return theirs, dataclasses.replace(ours, best=(ours.best[0], None, ours.best[2]))


def folder_of_best(program: Program, theirs: Record, ours: Record) -> Pair:
    """We name the checkpoint of the last best step that has one, and keep it. They know it since their next save."""
    at_best = {f"checkpoint-{step}" for step in _best_steps(program, ours)}
    kept = [name for name in ours.checkpoints if name in theirs.checkpoints or name not in at_best]
    former = theirs.best[2]  # kept in place of the best one
    theirs_kept = [name for name in theirs.checkpoints if name in ours.checkpoints or name != former]
    if ours.best[2] in at_best:
        theirs = dataclasses.replace(theirs, best=(*theirs.best[:2], ours.best[2]))
    if not program.args.get("save_total_limit"):
        return theirs, ours
    return dataclasses.replace(theirs, checkpoints=theirs_kept), dataclasses.replace(ours, checkpoints=kept)


def _best_steps(program: Program, record: Record) -> list[int]:
    """Return the steps with the best metric so far, in order. `eval_on_start` does not count."""
    name = f"eval_{program.args.get('metric_for_best_model')}"
    sign = -1 if program.args.get("greater_is_better") else 1
    found: list[tuple[float, int]] = []
    for entry in record.history:
        if name in entry and entry["step"] and (not found or sign * entry[name] < found[-1][0]):
            found.append((sign * entry[name], entry["step"]))
    return [step for _, step in found]


def newest_kept(program: Program, theirs: Record, ours: Record) -> Pair:
    """With a limit of one, we keep the newest checkpoint beside the best."""
    limited = program.args.get("save_total_limit") == 1 and program.args.get("metric_for_best_model")
    if not limited or not ours.checkpoints or ours.checkpoints[-1] in theirs.checkpoints:
        return theirs, ours
    return theirs, dataclasses.replace(ours, checkpoints=ours.checkpoints[:-1])


def order_of_predictions(program: Program, theirs: Record, ours: Record) -> Pair:
    """If samples are grouped by length, our predictions are in the order of the dataset."""
    if program.args.get("train_sampling_strategy") != "group_by_length":
        return theirs, ours

    def unordered(record: Record) -> Record:
        names = {"eval_predictions", "eval_label_ids", "eval_inputs", "eval_losses"}

        def without(values: dict[str, Any]) -> dict[str, Any]:
            return {
                name: value
                for name, value in values.items()
                if name.removeprefix("test_").removeprefix("eval_").removeprefix("a_").removeprefix("b_")
                not in {name.removeprefix("eval_") for name in names}
            }

        return dataclasses.replace(
            record,
            history=[without(entry) for entry in record.history],
            evaluated=without(record.evaluated),
            predicted=[without(record.predicted[2])],
        )

    return unordered(theirs), unordered(ours)


def loss_of_resumed_run(program: Program, theirs: Record, ours: Record) -> Pair:
    """After a resume, the training loss and the first log are means over other steps."""
    if program.resumed_at is None:
        return theirs, ours
    at = program.resumed_at

    def without(record: Record) -> Record:
        result = {name: value for name, value in record.steps["result"].items() if name != "train_loss"}
        first = next((entry for entry in record.history if entry["step"] > at and "loss" in entry), None)
        entries = [
            {
                name: value
                for name, value in entry.items()
                if name != "train_loss" and (entry is not first or name != "loss")
            }
            for entry in record.history
        ]
        return dataclasses.replace(record, steps={**record.steps, "loss": None, "result": result}, history=entries)

    return without(theirs), without(ours)


ROWS: dict[str, Callable[[Program, Record, Record], Pair]] = {
    "Last log of a run": last_log,
    "Flags after the run": flags_after_the_run,
    "Second log of a step": second_log,
    "Folder of the best model": folder_of_best,
    "Step of the best metric": step_of_best,
    "`save_total_limit=1` with `load_best_model_at_end`": newest_kept,
    "Order of predictions": order_of_predictions,
    "First log of a resumed run": loss_of_resumed_run,
}
"""Beginning of a row in docs/differences/ -> a function that excludes the difference from two records."""


def differences(program: Program, theirs: Record, ours: Record) -> list[str]:
    """Return what differs beyond the documented rows, one line each."""
    for exclude in ROWS.values():
        theirs, ours = exclude(program, theirs, ours)
    found = [] if same_weights(theirs.weights, ours.weights) else ["weights"]
    for name in ("steps", "history", "best", "checkpoints", "evaluated", "predicted", "calls"):
        before, after = as_text(getattr(theirs, name)), as_text(getattr(ours, name))
        if before == after:
            continue
        pairs = (
            itertools.zip_longest(before.items(), after.items())
            if isinstance(before, dict)
            else itertools.zip_longest(before, after)
        )
        at, (first, second) = next((at, pair) for at, pair in enumerate(pairs) if pair[0] != pair[1])
        found.append(f"{name}[{at}]: transformers {str(first)[:300]}, trainbus {str(second)[:300]}")
    return found

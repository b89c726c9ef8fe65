"""Runs on two ranks with different settings. Each rank writes its results."""

from __future__ import annotations

import atexit
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ddp_program import no_thread_of_gloo_is_left

from support.data import SizedStream
from support.outcomes import history, saved_steps
from support.ranks import NOTHING, Somewhere, send, trainer_of, weight_values, write_json
from trainbus import Callback, Checkpoint, Evaluate, NaNGuard, StatusFile, StopAtTime, at, at_end, every, never
from trainbus.engine.commands.requests import send as tell

RANK = int(os.environ["RANK"])
FOLDER = Path(sys.argv[1])


def outcome(name: str, trainer: Any, **options: Any) -> dict[str, Any]:
    """Train, and return what a process knows of it."""
    error = None
    try:
        trainer.train(**options)
    except (Exception, SystemExit, KeyboardInterrupt) as raised:
        error = raised
    return {
        "error": f"{type(error).__name__}: {error}" if error else "",
        "code": getattr(error, "code", None),
        "step": trainer.state.global_step,
        "saved": saved_steps(trainer.args.output_dir),
        "weights": weight_values(trainer.model),
        "numbers": [entry for entry in history(trainer) if "train_loss" not in entry],
        "why": trainer.control.why("training_stop"),
        "skipped": trainer.state.steps_skipped,
        "ledger": [f"{entry} (rank {entry.rank})" for entry in trainer.control.ledger],
    }


def unbroken() -> dict[str, Any]:
    return outcome("unbroken", trainer_of(FOLDER / "unbroken"))


def stopped(place: str, step: int, name: str, rank: int) -> dict[str, Any]:
    """A run that one process is told to stop, and one that goes on from what it saved."""
    folder = FOLDER / f"{place}-{name}"
    batches: list[int] = []
    trainer = trainer_of(folder, Somewhere(place, step, send(name), rank), StatusFile())
    trainer.on("on_prediction_step", lambda state: batches.append(state.global_step))
    first = outcome("stopped", trainer)
    status = (folder / "run_status.json").read_text()
    again = outcome("resumed", trainer_of(folder), resume_from_checkpoint="auto")
    return {**first, "status": status, "batches": batches, "resumed": again}


class Evaluates(Callback):
    """Evaluates at the end of step 3."""

    def on_step_end(self, run: Any, state: Any) -> None:
        if state.global_step == 3:
            run.evaluate(metric_key_prefix="own")


def stopped_in_a_handler() -> dict[str, Any]:
    """One process gets a signal in an evaluation that a handler makes."""
    folder = FOLDER / "handler"
    whole = outcome("whole", trainer_of(FOLDER / "handler-whole", Evaluates()))
    batches: list[int] = []
    trainer = trainer_of(folder, Evaluates(), Somewhere("evaluation", 3, send("SIGTERM"), 1))
    trainer.on("on_prediction_step", lambda state: batches.append(state.global_step))
    first = outcome("stopped", trainer)
    again = outcome("resumed", trainer_of(folder, Evaluates()), resume_from_checkpoint="auto")
    return {**first, "batches": batches, "resumed": again, "whole": whole}


def by_two_signals() -> dict[str, Any]:
    does = send("SIGINT" if RANK else "SIGTERM")
    return outcome("signals", trainer_of(FOLDER / "signals", Somewhere("step end", 3, does, RANK)))


def at_the_very_end() -> dict[str, Any]:
    trainer = trainer_of(FOLDER / "end", often=NOTHING)
    trainer.on("on_train_end", lambda: send("SIGTERM")() if RANK else None)
    return outcome("end", trainer)


class Local(Callback):
    """Does something at the end of a step on one process, and says that it may."""

    local = True

    def __init__(self, step: int, does: Callable[[Any], None], rank: int = 1) -> None:
        self.step, self.does, self.rank = step, does, rank

    def on_step_end(self, state: Any, control: Any) -> None:
        if (state.global_step, RANK) == (self.step, self.rank):
            self.does(control)


class Careless(Local):
    """Does the same, and does not say so."""

    local = False


class LeavesOut(Careless):
    """Leaves out an update on one process, and does not say so."""

    def on_pre_optimizer_step(self, state: Any, control: Any) -> None:
        if (state.global_step + 1, RANK) == (self.step, self.rank):
            self.does(control)

    on_step_end = None


class LeavesOutAllowed(LeavesOut):
    """Does the same, and says that it may."""

    local = True


def told(step: int, does: Callable[[Any], None], rank: int = 1, kind: type = Local, **options: Any) -> dict[str, Any]:
    folder = FOLDER / f"told-{options.pop('name')}"
    return outcome("told", trainer_of(folder, kind(step, does, rank), **options))


def by_a_file() -> dict[str, Any]:
    folder = FOLDER / "file"
    trainer = trainer_of(folder, Checkpoint(at(8)), often={})
    trainer.callbacks["ControlFile"].seconds = 0.0
    folder.mkdir(exist_ok=True)
    trainer.on("on_step_begin", lambda state: (folder / "save").touch() if RANK == 0 else None, once=3)
    return outcome("file", trainer)


def by_words() -> dict[str, Any]:
    """Settings that `trainbus tell` sends to the folder that only rank 0 reads."""
    folder = FOLDER / "words"
    trainer = trainer_of(folder, Checkpoint(at(8)), often={})
    trainer.callbacks["ControlFile"].seconds = 0.0
    trainer.on("on_step_begin", lambda: RANK == 0 and tell(folder, ["every save 5", "lr=0.001"]), once=3)
    return {**outcome("words", trainer), "rates": trainer.lr_scheduler.base_lrs}


def one_of_two_evaluations() -> dict[str, Any]:
    """A second evaluation falls due on one process only: the other makes it too, and it alone."""
    rows = trainer_of(FOLDER / "rows", often=NOTHING).eval_dataset

    class OnOne(Evaluate):
        local = True

        def on_step_end(self, run: Any, state: Any) -> None:
            if (state.global_step, RANK) == (3, 1):
                run.control.request("evaluate", "due on one")

    beside = OnOne(never(), dataset=rows, name="second", id="second")
    trainer = trainer_of(FOLDER / "two", Evaluate(at(3)), beside, often={"save_strategy": "no"})
    heard: list[str] = []
    trainer.on("on_evaluate_dataset", lambda dataset_name: heard.append(dataset_name))
    return {**outcome("two", trainer), "heard": heard}


def by_the_clock() -> dict[str, Any]:
    """The clocks of the two processes are half a second apart."""
    trainer = trainer_of(FOLDER / "clock", Checkpoint(every("2s")), often={})
    trainer.run.seconds = lambda: trainer.state.global_step - 0.5 * RANK
    return outcome("clock", trainer)


def while_work_is_done() -> dict[str, Any]:
    """One process asks for a checkpoint when the values are logged, which is before checkpoints are served."""

    class OnLog(Local):
        def on_log(self, state: Any, control: Any) -> None:
            self.on_step_end(state, control)

    asks = OnLog(4, lambda control: control.request("save", "after a log"))
    return outcome("work", trainer_of(FOLDER / "work", asks, Checkpoint(at(8)), often={"logging_steps": 2}))


def forbidden_while_it_begins() -> dict[str, Any]:
    trainer = trainer_of(FOLDER / "forbidden", Checkpoint(at(4, 8)), often={})
    vetoes = {(4, 1)}
    trainer.on("on_save_begin", lambda state, control: (state.global_step, RANK) in vetoes and control.veto("save"))
    return outcome("forbidden", trainer)


def at_the_end_that_an_evaluation_brings() -> dict[str, Any]:
    """A checkpoint is due by the clock or at the end, and the evaluation after the first epoch is what ends the run."""
    both = Evaluate(every(1, "epoch")), Checkpoint(every("1h") | at_end())
    trainer = trainer_of(FOLDER / "brought", *both, often={}, max_steps=30)
    trainer.on("on_evaluate", lambda control: control.request("training_stop", "good enough"))
    return outcome("brought", trainer)


def before_the_first_step() -> dict[str, Any]:
    class AtOnce(Local):
        def on_train_begin(self, control: Any) -> None:
            if RANK == 1:
                control.request("training_stop", "not today")

    return outcome("before", trainer_of(FOLDER / "before", AtOnce(99, lambda control: None), often=NOTHING))


def time_is_up_on_one() -> dict[str, Any]:
    return outcome("time", trainer_of(FOLDER / "time", StopAtTime(0.001 if RANK else 3600.0), often=NOTHING))


def attached_on_one() -> dict[str, Any]:
    trainer = trainer_of(FOLDER / "one", often=NOTHING)
    if RANK == 0:
        trainer.on("on_log", lambda logs: None, id="Extra")
    return outcome("one", trainer)


def attached_in_another_order() -> dict[str, Any]:
    trainer = trainer_of(FOLDER / "order", often=NOTHING)
    for name in ("A", "B") if RANK else ("B", "A"):
        trainer.on("on_step_end", lambda: None, id=name)
    return outcome("order", trainer)


def two_late_requesters() -> dict[str, Any]:
    """Two callbacks that are attached when the training begins request the same flag, each on one process."""
    trainer = trainer_of(FOLDER / "late", Evaluate(at(8)), often={"save_strategy": "no"})

    def attach() -> None:
        for rank, name in enumerate(("First", "Second")):
            trainer.on(
                "on_step_end",
                lambda control, rank=rank: rank == RANK and control.request("evaluate", "here"),
                once=3,
                id=name,
            )

    trainer.on("on_train_begin", attach)
    heard: list[list[str]] = []
    trainer.on("on_evaluate_due", lambda requested_by: heard.append(sorted(requested_by)))
    return {**outcome("late", trainer), "heard": heard}


def two_requesters() -> dict[str, Any]:
    """Of two callbacks that ask for the same at once, and do not say that they may, one does so on one process."""
    trainer = trainer_of(FOLDER / "both", Checkpoint(at(8)), often={})
    trainer.on("on_step_end", lambda control: control.request("save", "always"), once=3, id="Always")
    trainer.on("on_step_end", lambda control: RANK and control.request("save", "here"), once=3, id="Here")
    return outcome("both", trainer)


def with_other_arguments() -> dict[str, Any]:
    trainer = trainer_of(FOLDER / f"other-{RANK}", often=NOTHING, ddp_timeout=60 + RANK, dataloader_num_workers=0)
    trainer.args.learning_rate, trainer.args.optim = (0.5, "sgd") if RANK else (0.05, "adamw_torch")
    return outcome("other", trainer)


def with_another_optimizer() -> dict[str, Any]:
    trainer = trainer_of(FOLDER / "optimizer", often=NOTHING)
    trainer.optimizer_cls_and_kwargs = (torch.optim.SGD, {"lr": 0.1 + RANK, "momentum": 0.9})
    return outcome("optimizer", trainer)


def with_fewer_rows(which: str) -> dict[str, Any]:
    trainer = trainer_of(FOLDER / f"fewer-{which}", max_steps=-1, num_train_epochs=1)
    if RANK:
        setattr(trainer, which, torch.utils.data.Subset(getattr(trainer, which), range(10)))
    return outcome("fewer", trainer)


class OfRank(SizedStream):
    """A stream with another length on each rank."""

    def __len__(self) -> int:
        return len(self.rows) - 8 * RANK


def with_a_stream_of_another_length(which: str, **options: Any) -> dict[str, Any]:
    trainer = trainer_of(FOLDER / f"stream-{which}", max_steps=-1, num_train_epochs=1)
    setattr(trainer, which, OfRank([*getattr(trainer, which)]))
    for name, value in options.items():
        setattr(trainer.args, name, value)
    return outcome("stream", trainer)


def with_fewer_rows_of_its_own() -> dict[str, Any]:
    trainer = trainer_of(FOLDER / "fewer", often=NOTHING)
    rows = torch.utils.data.Subset(trainer.eval_dataset, range(24 - 8 * RANK))
    trainer.on("on_step_end", lambda: trainer.evaluate(rows), once=2, id="Evaluates")
    return outcome("fewer", trainer)


def measured_otherwise(**options: Any) -> dict[str, Any]:
    """Each process measures another metric, which is best at another step."""
    often = {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2, "metric_for_best_model": "eval_x"}
    trainer = trainer_of(FOLDER / f"measured-{len(options)}", often={**often, "greater_is_better": True, **options})
    trainer.compute_metrics = lambda _: {"x": -abs(trainer.state.global_step - (6 if RANK else 4)), "rank": [RANK]}
    ends = outcome("measured", trainer)
    return {**ends, "best": trainer.state.best_model_checkpoint, "rate": trainer.run.learning_rate}


def unsavable_state(policy: str) -> dict[str, Any]:
    class Keeps(Callback):
        def state_dict(self) -> dict[str, Any]:
            return {"kept": 1 if RANK or trainer.state.global_step > 4 else object()}

    trainer = trainer_of(FOLDER / f"unsavable-{policy}", Keeps(), on_save_error=policy)
    return outcome("unsavable", trainer)


def not_a_number(action: str) -> dict[str, Any]:
    """The loss of one process is not a number in step 3."""
    before: list[list[float]] = []
    trainer = trainer_of(FOLDER / f"nan-{action}", NaNGuard(action), often=NOTHING)
    trainer.on("on_step_begin", lambda model: before.append(weight_values(model)))

    def spoil(run: Any, loss: Any) -> None:
        if (run.state.global_step, RANK) == (2, 1):
            run.loss = loss * math.nan

    trainer.on("on_loss", spoil)
    made = outcome("nan", trainer)
    return {**made, "before": before[2], "after": before[3] if len(before) > 3 else made["weights"]}


def orders() -> dict[str, Any]:
    """Many callbacks in a set of constraints: who hears what, in which order."""
    trainer = trainer_of(FOLDER / "many", often=NOTHING)
    for number in range(12):
        before = {f"c{other}" for other in range(number) if (number * other) % 5 == 2}
        trainer.on("on_step_end", lambda: None, id=f"c{number}", before=before or None)
    return {"described": trainer.bus.describe(), "hashed": hash("a"), **outcome("many", trainer)}


def no_checkpoint_to_resume() -> dict[str, Any]:
    return outcome("auto", trainer_of(FOLDER / "auto"), resume_from_checkpoint="auto")


def into_folders_of_their_own() -> dict[str, Any]:
    """The folders differ, as where each process makes a name with the time in it."""
    folder = FOLDER / f"own-{RANK}"
    unseen = trainer_of(folder, often=NOTHING)  # nothing in its arguments says that it saves
    unseen.on("on_step_end", lambda control: control.request("save", "to see"), once=2)
    return {"seen": outcome("own", trainer_of(folder)), "unseen": outcome("own", unseen)}


def main() -> None:
    atexit.register(no_thread_of_gloo_is_left)
    ends = {
        "unbroken": unbroken(),
        "step": stopped("step end", 3, "SIGTERM", 1),
        "backward": stopped("backward", 5, "SIGINT", 0),
        "evaluation": stopped("evaluation", 4, "SIGUSR1", 1),
        "handler": stopped_in_a_handler(),
        "signals": by_two_signals(),
        "end": at_the_very_end(),
        "local stop": told(3, lambda control: control.request("training_stop", "I want to"), name="stop"),
        "local veto": told(4, lambda control: control.veto("save", "not now"), name="veto"),
        "file": by_a_file(),
        "words": by_words(),
        "two": one_of_two_evaluations(),
        "clock": by_the_clock(),
        "work": while_work_is_done(),
        "forbidden": forbidden_while_it_begins(),
        "brought": at_the_end_that_an_evaluation_brings(),
        "before": before_the_first_step(),
        "time": time_is_up_on_one(),
        "one": attached_on_one(),
        "order": attached_in_another_order(),
        "careless": told(
            *(3, lambda control: control.request("training_stop", "I want to"), 1, Careless),
            **{"name": "careless", "debug": "rank_divergence", "often": NOTHING},
        ),
        "leaves out": told(
            *(3, lambda control: control.request("skip_update", "I want to"), 0, LeavesOut),
            **{"name": "leaves-out", "debug": "rank_divergence", "often": NOTHING},
        ),
        "left out": told(
            *(3, lambda control: control.request("skip_update", "I want to"), 0, LeavesOut),
            **{"name": "left-out", "often": NOTHING},
        ),
        "left out by all": told(
            *(3, lambda control: control.request("skip_update", "I may"), 1, LeavesOutAllowed),
            **{"name": "left-out-by-all", "often": {**NOTHING, "logging_steps": 1, "logging_strategy": "steps"}},
        ),
        "both": two_requesters(),
        "late": two_late_requesters(),
        "other": with_other_arguments(),
        "optimizer": with_another_optimizer(),
        "fewer rows": with_fewer_rows("train_dataset"),
        "fewer eval rows": with_fewer_rows("eval_dataset"),
        "another stream": with_a_stream_of_another_length("train_dataset"),
        "another stream, and steps": with_a_stream_of_another_length("train_dataset", max_steps=4),
        "another eval stream": with_a_stream_of_another_length("eval_dataset"),
        "fewer rows of its own": with_fewer_rows_of_its_own(),
        "best": measured_otherwise(load_best_model_at_end=True, save_total_limit=1),
        "plateau": measured_otherwise(
            lr_scheduler_type="reduce_lr_on_plateau", lr_scheduler_kwargs={"patience": 0}, save_strategy="no"
        ),
        "unsavable": unsavable_state("warn"),
        "unsavable, and refused": unsavable_state("raise"),
        "watched": told(
            *(3, lambda control: control.request("training_stop", "I may"), 1, Local),
            **{"name": "watched", "debug": "rank_divergence", "often": NOTHING},
        ),
        "orders": orders(),
        "auto": no_checkpoint_to_resume(),
        "own": into_folders_of_their_own(),
        **{f"nan {action}": not_a_number(action) for action in ("raise", "skip", "stop")},
    }
    write_json(FOLDER / f"end-{RANK}.json", ends)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()

"""The conformance kit finds planted faults, each with the check named for it, and passes good callbacks."""

from __future__ import annotations

import functools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from trainbus import Callback, Run, Stage
from trainbus.testing import CHECKS, Examination, Subject, check_callback
from trainbus.testing.conformance import chosen_checks

# Faulty callbacks. Each has one fault.


@dataclass
class RequiresASetting(Callback):
    """Has a setting without a default."""

    setting: int

    def on_step_end(self) -> None: ...


ONE = Callback()


@dataclass
class StopsAfterTwo(Callback):
    """A good callback."""

    def on_step_end(self, state: Any, control: Any) -> None:
        if state.global_step == 2:
            control.request("training_stop", "two steps are done")


class SharesItsRecords(Callback):
    """All instances append to one list."""

    RECORDS: list[int] = []

    def __init__(self) -> None:
        self.records = self.RECORDS

    def __repr__(self) -> str:
        return "SharesItsRecords()"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def on_step_end(self, state: Any) -> None:
        self.records.append(state.global_step)


@dataclass
class MisspellsAHandler(Callback):
    def on_stepend(self) -> None: ...


@dataclass
class HasAFixedId(Callback):
    id: str | None = "the one"

    def on_step_end(self) -> None: ...


class IsShownWithItsAddress(Callback):
    def on_step_end(self) -> None: ...


@dataclass
class NeedsAnEvaluation(Callback):
    def on_train_end(self, state: Any) -> None:
        state.log_history[-1]["eval_loss"]


@dataclass
class NeedsAnOptimizer(Callback):
    rate: float = field(default=0.0, init=False)

    def on_setup(self, run: Run) -> None:
        self.rate = 0.0

    def on_prediction_step(self, optimizer: Any) -> None:
        self.rate = optimizer.param_groups[0]["lr"]


@dataclass
class HoldsALock(Callback):
    lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)

    def on_step_end(self) -> None:
        with self.lock:
            pass


@dataclass
class HoldsALambda(Callback):
    when: Callable[[int], bool] = field(default=lambda step: step == 3, repr=False)

    def on_step_end(self, state: Any) -> None:
        self.when(state.global_step)


@dataclass
class Prints(Callback):
    stage = Stage.REPORT

    def on_step_end(self, state: Any) -> None:
        if state.global_step == 4:
            print("step 4")


@dataclass
class DrawsFromTorch(Callback):
    stage = Stage.REPORT

    def on_log(self, model: Any) -> None:
        torch.randn(3)


@dataclass
class DrawsFromRandom(Callback):
    stage = Stage.MEASURE

    def on_step_end(self) -> None:
        random.random()


@dataclass
class ChangesWeightsWhileReporting(Callback):
    stage = Stage.REPORT

    def on_log(self, model: Any) -> None:
        with torch.no_grad():
            model.head.weight.clamp_(-0.1, 0.1)


@dataclass
class LeavesTheModelInEvaluationMode(Callback):
    stage = Stage.REPORT

    def on_step_end(self, model: Any) -> None:
        model.eval()


@dataclass
class ScalesGradientsWhileMeasuring(Callback):
    stage = Stage.MEASURE

    def on_gradients(self, model: Any) -> None:
        for weight in model.parameters():
            weight.grad.mul_(0.5)


@dataclass
class LowersTheRateWhileReporting(Callback):
    stage = Stage.REPORT

    def on_step_end(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= 0.9


@dataclass
class ChangesTheArguments(Callback):
    def on_train_begin(self, args: Any) -> None:
        args.max_grad_norm = 0.5


OPENED: list[int] = []
"""Files that `ForgetsToCloseAFile` left open."""


@dataclass
class ForgetsToCloseAFile(Callback):
    file: Any = field(default=None, init=False, repr=False, compare=False)

    def on_train_begin(self, args: Any) -> None:
        Path(args.output_dir).mkdir(exist_ok=True)
        self.file = os.open(Path(args.output_dir) / "rows.txt", os.O_CREAT | os.O_WRONLY)
        OPENED.append(self.file)

    def on_train_end(self) -> None:  # an error leaves the file open
        os.close(self.file)
        OPENED.remove(self.file)


@dataclass
class LeavesAHook(Callback):
    def on_train_begin(self, model: Any) -> None:
        model.head.register_forward_hook(lambda *_: None)


@dataclass
class LeavesAThread(Callback):
    ended: Any = field(default=None, init=False, repr=False, compare=False)

    def on_train_begin(self) -> None:
        self.ended = threading.Event()
        threading.Thread(target=self.ended.wait, daemon=True, name="uploader").start()

    def on_exception(self) -> None:
        self.ended.set()


@dataclass
class LeavesThreadsOfTorch(Callback):
    def on_train_begin(self) -> None:
        torch.set_num_threads(3)


@dataclass
class LeavesAWorkingFolder(Callback):
    def on_train_begin(self, args: Any) -> None:
        os.makedirs(args.output_dir, exist_ok=True)
        os.chdir(args.output_dir)


@dataclass
class LeavesGradientsOff(Callback):
    """Turns off the gradients of the program, if an evaluation runs outside of a training."""

    def on_evaluate(self, run: Run) -> None:
        torch.set_grad_enabled(run.mode == "train")


@dataclass
class LeavesAnExceptHook(Callback):
    def on_train_begin(self) -> None:
        sys.excepthook = lambda *error: None


@dataclass
class LeavesASignalHandler(Callback):
    """Sets it again in each run, so only the settings before the first run show the change."""

    def on_train_begin(self) -> None:
        signal.signal(signal.SIGUSR2, lambda number, frame: None)


@dataclass
class LosesWeightsOnAnError(Callback):
    """Swaps other weights in for an evaluation, and back after it."""

    kept: Any = field(default=None, init=False, repr=False, compare=False)

    def on_evaluate_begin(self, model: Any) -> None:
        self.kept = model.head.weight.detach().clone()
        with torch.no_grad():
            model.head.weight.zero_()

    def on_evaluate_end(self, model: Any) -> None:
        with torch.no_grad():
            model.head.weight.copy_(self.kept)


@dataclass
class LosesWeightsInAStep(Callback):
    """Moves a weight for the forward and backward, and back before the update."""

    kept: Any = field(default=None, init=False, repr=False, compare=False)

    def on_step_begin(self, model: Any) -> None:
        self.kept = model.head.weight.detach().clone()
        with torch.no_grad():
            model.head.weight.add_(0.1)

    def on_pre_optimizer_step(self, model: Any) -> None:
        with torch.no_grad():
            model.head.weight.copy_(self.kept)


@dataclass
class SwallowsErrors(Callback):
    stage = Stage.PREPARE

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            run.seams.fill("SwallowsErrors", train_batch=self.guarded)

    @staticmethod
    def guarded(training_step: Any) -> Any:
        @functools.wraps(training_step)
        def guarded(*args: Any, **options: Any) -> Any:
            try:
                return training_step(*args, **options)
            except Exception:
                return torch.tensor(0.0)

        return guarded


@dataclass
class ChangesTheTextOfAnError(Callback):
    def on_exception(self, exception: BaseException) -> None:
        exception.args = ("it failed",)


@dataclass
class RaisesAnotherError(Callback):
    """Hides the error of a step behind one of its own."""

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            run.seams.fill("RaisesAnotherError", train_batch=self.guarded)

    @staticmethod
    def guarded(training_step: Any) -> Any:
        def guarded(*args: Any, **options: Any) -> Any:
            try:
                return training_step(*args, **options)
            except Exception:
                raise RuntimeError("a step failed") from None

        return guarded


@dataclass
class IsSlow(Callback):
    def on_step_end(self) -> None:
        time.sleep(0.01)


@dataclass
class KeepsTheModel(Callback):
    model: Any = field(default=None, init=False, repr=False, compare=False)

    def on_train_begin(self, model: Any) -> None:
        self.model = model


@dataclass
class CountsInItsClass(Callback):
    """Stops only the first run of a program."""

    DONE = 0

    def on_step_end(self, control: Any) -> None:
        type(self).DONE += 1
        if self.DONE == 4:
            control.request("training_stop", "four steps are done")


@dataclass
class DecidesFromIdentity(Callback):
    """Trains with another rate in each run."""

    seen: int = field(default=0, init=False, repr=False, compare=False)
    RUNS = [0]

    def on_train_begin(self) -> None:
        self.RUNS[0] += 1

    def on_pre_optimizer_step(self, optimizer: Any) -> None:
        optimizer.param_groups[0]["lr"] = 0.01 / self.RUNS[0]


@dataclass
class DependsOnTheList(Callback):
    """Saves at each log, and reads a flag that `Log` raises in the same stage."""

    def on_step_end(self, control: Any) -> None:
        if control.should_log:
            control.request("epoch_stop", "a log is due")


@dataclass
class LeaksIntoTheNextRun(Callback):
    steps: int = field(default=0, init=False, repr=False, compare=False)

    def on_step_end(self, control: Any) -> None:
        self.steps += 1
        if self.steps == 5:
            control.request("training_stop", "enough")

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


@dataclass
class SavesASet(Callback):
    seen: set[int] = field(default_factory=set, init=False, repr=False, compare=False)

    def on_setup(self, run: Run) -> None:
        self.seen = set()

    def on_optimizer_step(self, state: Any) -> None:
        self.seen.add(state.global_step)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


@dataclass
class RestoresNothing(Callback):
    steps: int = field(default=0, init=False, repr=False, compare=False)

    def on_setup(self, run: Run) -> None:
        self.steps = 0

    def on_step_end(self) -> None:
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}


@dataclass
class ForgetsItsState(Callback):
    """Lowers the rate after three steps, and counts them again after a resume."""

    steps: int = field(default=0, init=False, repr=False, compare=False)

    def on_setup(self, run: Run) -> None:
        self.steps = 0

    def on_pre_optimizer_step(self, optimizer: Any) -> None:
        self.steps += 1
        if self.steps > 3:
            optimizer.param_groups[0]["lr"] /= 10


@dataclass
class DecidesOnOneRank(Callback):
    def on_step_end(self, args: Any, state: Any, control: Any) -> None:
        if args.process_index == 1 and state.global_step == 3:
            control.request("training_stop", "rank 1 has had enough")


FAULTS: dict[str, list[Any]] = {
    "constructs": [RequiresASetting, SharesItsRecords, Subject(lambda: ONE, "ReturnsTheSameObject")],
    "attaches": [MisspellsAHandler, HasAFixedId],
    "describes": [IsShownWithItsAddress],
    "copies": [HoldsALock, HoldsALambda],
    "trains_alone": [NeedsAnEvaluation],
    "evaluates_alone": [NeedsAnOptimizer, LeavesGradientsOff],
    "prints_nothing": [Prints],
    "draws_no_random_numbers": [DrawsFromTorch, DrawsFromRandom],
    "keeps_weights": [
        ChangesWeightsWhileReporting,
        LeavesTheModelInEvaluationMode,
        ScalesGradientsWhileMeasuring,
        LowersTheRateWhileReporting,
    ],
    "keeps_arguments": [ChangesTheArguments],
    "closes": [
        ForgetsToCloseAFile,
        LeavesAHook,
        LeavesASignalHandler,
        LeavesAnExceptHook,
        LeavesAThread,
        LeavesThreadsOfTorch,
        LeavesAWorkingFolder,
        LosesWeightsOnAnError,
        LosesWeightsInAStep,
    ],
    "lets_errors_through": [SwallowsErrors, RaisesAnotherError, ChangesTheTextOfAnError],
    "costs": [IsSlow],
    "releases_model": [KeepsTheModel],
    "repeats": [DecidesFromIdentity, CountsInItsClass],
    "any_order": [DependsOnTheList],
    "trains_twice": [LeaksIntoTheNextRun],
    "state_round_trip": [SavesASet, RestoresNothing],
    "resumes": [ForgetsItsState],
    "agrees_on_two_processes": [DecidesOnOneRank],
}
"""The check that finds a fault -> callbacks with this fault."""


def named(given: Any) -> str:
    return given.name if isinstance(given, Subject) else given.__name__


def findings(given: Any, two_processes: bool = False, **promises: Any) -> dict[str, str]:
    subject = given if isinstance(given, Subject) else Subject(given, given.__name__, **promises)
    examination, threads = Examination(subject), torch.get_num_threads()
    try:
        return examination.findings(chosen_checks((), two_processes))
    finally:
        examination.close()
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
        sys.excepthook = sys.__excepthook__
        torch.set_num_threads(threads)
        while OPENED:
            os.close(OPENED.pop())


@pytest.mark.parametrize(
    ("check", "faulty"),
    [pytest.param(check, each, id=named(each)) for check, all in FAULTS.items() for each in all],
)
def test_a_fault_is_found_by_the_check_named_for_it_only(check: str, faulty: Any) -> None:
    found = findings(faulty, two_processes=CHECKS[check].two_processes)
    assert list(found) == [check], found
    assert found[check].startswith(f"{named(faulty)} fails the check {check!r}: ")
    assert found[check].endswith(CHECKS[check].remedy)


def test_the_runs_of_the_checks_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    check_callback(StopsAfterTwo, only=["trains_alone", "repeats", "closes", "resumes"])
    assert capsys.readouterr().out == ""


def test_the_working_folder_is_the_same_after_the_checks(tmp_path: Path) -> None:
    before = os.getcwd()
    with pytest.raises(AssertionError, match="the working folder"):
        check_callback(LeavesAWorkingFolder)
    assert os.getcwd() == before


def test_every_check_has_a_planted_fault() -> None:
    assert FAULTS.keys() == CHECKS.keys()
    assert sum(map(len, FAULTS.values())) >= 20

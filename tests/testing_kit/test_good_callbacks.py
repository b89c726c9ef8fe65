"""Good callbacks pass all checks of the kit, and the kit reports what it should."""

from __future__ import annotations

import re
import sys
import textwrap
import types
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from trainbus import Callback, Run, Stage, TrainerControl, Trigger, every, order
from trainbus.events import ArgumentError
from trainbus.testing import CHECKS, Examination, FakeTracker, Net, Subject, check_callback, parametrize_with_checks

pytest_plugins = ["pytester"]


@dataclass
class DoesNothing(Callback):
    def on_step_end(self) -> None: ...


@dataclass
class CountsSteps(Callback):
    steps: int = field(default=0, init=False, compare=False)

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            self.steps = 0

    def on_step_end(self) -> None:
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


@dataclass
class StopsAtFive(Callback):
    def on_step_end(self, state: Any, control: TrainerControl) -> None:
        if state.global_step == 5:
            control.request("training_stop", "five steps are enough")


@dataclass
class VetoesAnEarlySave(Callback):
    def on_step_end(self, state: Any, control: TrainerControl) -> None:
        if state.global_step <= 2:
            control.veto("save", "too early")


@dataclass
class SkipsAnUpdate(Callback):
    def on_pre_optimizer_step(self, state: Any, control: TrainerControl) -> None:
        if state.global_step == 2:
            control.request("skip_update", "of no use")


@dataclass
class MeasuresWeights(Callback):
    stage = Stage.MEASURE

    def on_log(self, model: nn.Module, logs: dict[str, Any]) -> None:
        logs["weight_norm"] = float(nn.utils.get_total_norm([weight.detach() for weight in model.parameters()]))


@dataclass
class MeasuresEvaluations(Callback):
    @order(Stage.MEASURE)
    def on_evaluate_dataset(self, metrics: dict[str, Any]) -> None:
        metrics["eval_twice"] = 2 * metrics["eval_loss"]


@dataclass
class KeepsRows(Callback):
    stage = Stage.REPORT
    rows: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    def on_log(self, state: Any, logs: dict[str, Any]) -> None:
        self.rows.append((state.global_step, dict(logs)))


@dataclass
class DrawsFromItsOwnGenerator(Callback):
    stage = Stage.MEASURE
    generator: Any = field(default=None, init=False, repr=False, compare=False)

    def on_train_begin(self, args: Any) -> None:
        self.generator = torch.Generator().manual_seed(args.seed)

    def on_step_end(self) -> None:
        torch.randn(3, generator=self.generator)


@dataclass
class WritesAFile(Callback):
    stage = Stage.REPORT
    file: Any = field(default=None, init=False, repr=False, compare=False)

    def on_train_begin(self, args: Any) -> None:
        args.output_path.mkdir(parents=True, exist_ok=True)
        self.file = (args.output_path / "rows.txt").open("a")

    def on_step_end(self, state: Any) -> None:
        self.file.write(f"{state.global_step}\n")

    def on_close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


@dataclass
class HooksTheModel(Callback):
    handle: Any = field(default=None, init=False, repr=False, compare=False)
    calls: int = field(default=0, init=False, repr=False, compare=False)

    def on_train_begin(self, model: nn.Module) -> None:
        self.handle = model.register_forward_hook(self.count)

    def count(self, *_: Any) -> None:
        self.calls += 1

    def on_close(self) -> None:
        if self.handle is not None:
            self.handle.remove()
            self.handle = None


@dataclass
class AveragesWeights(Callback):
    stage = Stage.PREPARE
    average: dict[str, torch.Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            self.average = {}

    def on_optimizer_step(self, model: nn.Module) -> None:
        for name, weight in model.named_parameters():
            self.average[name] = weight.detach().clone().lerp(self.average.get(name, weight.detach()), 0.5)

    def state_dict(self) -> dict[str, Any]:
        return dict(self.average)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average = dict(state)


@dataclass
class ClipsByValue(Callback):
    stage = Stage.PREPARE
    limit: float = 0.1

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            run.seams.fill("ClipsByValue", clip=self.clip)

    def clip(self, optimizer: Any, parameters: list[nn.Parameter], limit: float) -> torch.Tensor:
        norm = nn.utils.get_total_norm([weight.grad for weight in parameters if weight.grad is not None])
        nn.utils.clip_grad_value_(parameters, self.limit)
        return norm


@dataclass
class AddsNoise(Callback):
    """Changes weights with the global generator on purpose, in the stage that may do so."""

    stage = Stage.PREPARE

    def on_optimizer_step(self, model: Any) -> None:
        with torch.no_grad():
            model.head.weight.add_(0.01 * torch.randn_like(model.head.weight))


@dataclass
class FollowsATrigger(Callback):
    trigger: Trigger = field(default_factory=lambda: every(3))
    last: Any = field(default=None, init=False, repr=False, compare=False)

    def on_setup(self) -> None:
        self.last = None

    def on_step_end(self, run: Run, control: TrainerControl) -> None:
        now = run.moment("step")
        if self.trigger.due(now, self.last):
            self.last = now
            control.request("evaluate", "three more steps")


class InTheStyleOfTransformers(Callback):
    def __init__(self, steps: int = 3) -> None:
        self.steps = steps

    def __repr__(self) -> str:
        return f"InTheStyleOfTransformers({self.steps})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InTheStyleOfTransformers) and self.steps == other.steps

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if state.global_step == self.steps:
            control.should_evaluate = True
        return control


GOOD = [
    *(DoesNothing, CountsSteps, StopsAtFive, VetoesAnEarlySave, SkipsAnUpdate, MeasuresWeights, MeasuresEvaluations),
    *(KeepsRows, DrawsFromItsOwnGenerator, WritesAFile, HooksTheModel, AveragesWeights, ClipsByValue, AddsNoise),
    *(FollowsATrigger, InTheStyleOfTransformers, FakeTracker),
]


@pytest.mark.parametrize("good", GOOD, ids=lambda good: good.__name__)
def test_a_good_callback_passes_all_checks(good: type) -> None:
    check_callback(good)


def test_at_least_fifteen_are_good() -> None:
    assert len(GOOD) >= 15


class CountsBatches(Net):
    """A model whose forward changes a buffer, as a batch norm does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("batches", torch.tensor(0))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        self.batches = self.batches + int(self.training)
        return super().forward(x, labels)


def test_a_model_that_changes_in_the_forward_keeps_this_change_after_an_error() -> None:
    check_callback(DoesNothing, only=["closes"], arguments={"model_init": CountsBatches})


def test_a_library_may_set_the_hook_for_uncaught_exceptions(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class UsesALibrary(Callback):
        def on_train_begin(self) -> None:
            sys.excepthook = hook = types.FunctionType((lambda *error: None).__code__, {"__name__": "library"})
            hook.__module__ = "library.hooks"

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    check_callback(UsesALibrary, only=["closes"])


@pytest.mark.slow
def test_good_callbacks_pass_on_two_processes() -> None:
    for good in (DoesNothing, MeasuresWeights, AveragesWeights, StopsAtFive):
        check_callback(good, only=["agrees_on_two_processes"])


# How it reports.


@dataclass
class Prints(Callback):
    def on_step_end(self) -> None:
        print("a step")


def test_the_error_names_the_check_the_observation_and_the_remedy() -> None:
    with pytest.raises(
        AssertionError, match=r"^Prints fails the check 'prints_nothing': Prints.on_step_end printed 'a "
    ):
        check_callback(Prints, only=["prints_nothing"])
    check_callback(Prints, only=["prints_nothing"], prints=True)
    check_callback(Prints, only=["prints_nothing"], expected_failed={"prints_nothing": "it is a printer"})


def test_names_of_unknown_checks_are_refused_with_the_nearest() -> None:
    with pytest.raises(ArgumentError, match="Unknown check 'resume'; did you mean 'resumes'"):
        check_callback(DoesNothing, only=["resume"])
    with pytest.raises(ArgumentError, match="did you mean 'costs'"):
        parametrize_with_checks([DoesNothing], expected_failed={"cost": "?"})


def test_an_instance_is_refused_with_the_remedy() -> None:
    with pytest.raises(TypeError, match=re.escape("lambda: DoesNothing(...)")):
        check_callback(DoesNothing())


def test_every_check_says_what_it_demands_and_how_to_fix_it() -> None:
    assert len(CHECKS) == 20
    for check in CHECKS.values():
        assert check.doc.endswith("."), check
        assert check.remedy.endswith("."), check
        assert set(check.needs) <= CHECKS.keys(), check


def test_all_checks_of_a_callback_take_little_time() -> None:
    """CPU seconds, which do not depend on other programs of the machine."""
    import time

    examination = Examination(Subject(CountsSteps, "CountsSteps"))
    began = time.process_time()
    assert examination.findings(name for name, check in CHECKS.items() if not check.two_processes) == {}
    examination.close()
    assert time.process_time() - began < 6


def test_cases_of_pytest_have_readable_ids_and_expected_failures(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["trainbus.testing.fixtures"]')
    pytester.makepyfile(
        textwrap.dedent("""
        from dataclasses import dataclass
        from trainbus import Callback
        from trainbus.testing import parametrize_with_checks

        @dataclass
        class Prints(Callback):
            def on_step_end(self):
                print("a step")

        class Broken(Callback):
            def __init__(self, setting):
                pass

        ONLY = ("constructs", "prints_nothing")

        @parametrize_with_checks([Prints], only=ONLY, expected_failed={"prints_nothing": "a printer"})
        def test_printer(check):
            check()

        @parametrize_with_checks([Broken], only=ONLY)
        def test_broken(check):
            check()

        def test_fixtures(tiny_run, virtual_clock, fake_tracker):
            run = tiny_run(fake_tracker)
            run.trainer.end()
            assert run.steps == 6 and run.events[0] == "on_setup"
            assert list(fake_tracker.column("train/loss")) == [1, 2, 3, 4, 5, 6]
        """)
    )
    done = pytester.runpytest_inprocess("-p", "no:randomly", "-rxs", "-v")
    done.assert_outcomes(passed=2, xfailed=1, failed=1, skipped=1)
    done.stdout.fnmatch_lines(
        ["*::test_printer?Prints-constructs? PASSED*", "*::test_printer?Prints-prints_nothing? XFAIL*"]
    )
    done.stdout.fnmatch_lines(["*prints_nothing cannot judge Broken: the check 'constructs' fails*"])


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda folder: folder, "F"),
        (lambda decay=0.9, folder=None: (decay, folder), (0.9, "F")),
        (lambda *, folder: folder, "F"),
        (lambda decay=0.9: decay, 0.9),
    ],
)
def test_a_factory_receives_the_folder_by_name(make, expected):
    assert Subject(make, "made").build("F") == expected

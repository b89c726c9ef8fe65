"""The machine alone: a bus, a state and a control, with a feed and a stepper of straw. No torch in here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from trainbus.engine.data.plan import Plan, plan_run
from trainbus.engine.data.position import Position
from trainbus.engine.loop import NEXT, WORK, Loop, Phase
from trainbus.events.bus import EventBus
from trainbus.events.control import FLAGS, SERVED, TrainerControl
from trainbus.events.errors import ArgumentError, DataError
from trainbus.events.state import TrainerState


@dataclass
class Batches:
    """A window of so many batches of four rows."""

    batches: int = 1

    @property
    def rows(self) -> int:
        return 4 * self.batches


@dataclass
class StrawFeed:
    """Gives out the windows of each epoch; those that a position lies behind are left out."""

    epochs: list[list[int]]
    begun: list[tuple[int, int]] = field(default_factory=list)
    _left: list[int] = field(default_factory=list)

    def reach(self, batches_done: int) -> None:
        pass

    def begin(self, epoch: int, batches_done: int) -> None:
        self.begun.append((epoch, batches_done))
        self._left = list(self.epochs[epoch])
        while batches_done > 0:
            batches_done -= self._left.pop(0)

    def take(self) -> Batches | None:
        return Batches(self._left.pop(0)) if self._left else None


@dataclass
class StrawStepper:
    """Announces what the real one announces around the batches of a window, and computes nothing."""

    bus: EventBus
    steps: list[int] = field(default_factory=list)

    def step(self, window: Batches) -> None:
        for _ in range(window.batches - 1):
            self.bus.announce("on_substep_end")
        self.bus.announce("on_optimizer_step")
        self.steps.append(window.batches)


class WatchedLoop(Loop):
    """Notes every change of the phase, however it comes about."""

    arrows: list[tuple[Phase, Phase]]

    @property
    def phase(self) -> Phase:
        return self._phase

    @phase.setter
    def phase(self, phase: Phase) -> None:
        if not hasattr(self, "arrows"):
            self.arrows = []
        else:
            self.arrows.append((self._phase, phase))
        self._phase = phase


class Machine:
    """A loop with everything around it, and a record of what it announced."""

    def __init__(
        self,
        epochs: list[list[int]],
        *,
        position: Position | None = None,
        run_epochs: int | None = None,
        agree: Callable[[TrainerControl], None] = lambda control: None,
    ) -> None:
        self.state, self.control = TrainerState(), TrainerControl()
        self.run_record = SimpleNamespace(state=self.state, control=self.control)
        self.bus = EventBus(self.run_record, self.control)
        self.said: list[str] = []
        self.bus.watchers.append(lambda event, run: self.said.append(event))
        self.feed, self.stepper = StrawFeed(epochs), StrawStepper(self.bus)
        self.loop = WatchedLoop(
            *(self.bus, self.state, self.control, self.feed, self.stepper),
            epochs=len(epochs) if run_epochs is None else run_epochs,
            batches_per_epoch=max(sum(epochs[0]), 1) if epochs else 1,
            position=position or Position(),
            agree=agree,
        )

    def on(self, event: str, action: Callable[[Machine], Any], **filters: Any) -> Machine:
        """Have `action(machine)` happen in an event: at its first announcement, unless filters say otherwise."""
        count = Counter[str]()
        nth = filters.pop("nth", 1)

        def act() -> None:
            count[event] += 1
            if nth is None or count[event] == nth:
                action(self)

        self.bus.on(event, act, id=f"actor-{len(self.bus.subscribers)}", **filters)
        return self

    def run(self) -> Machine:
        self.loop.run()
        return self

    @property
    def steps(self) -> int:
        return len(self.stepper.steps)


def ask(flag: str) -> Callable[[Machine], None]:
    return lambda machine: machine.control.request(flag, "the test wants it")


def forbid(flag: str) -> Callable[[Machine], None]:
    return lambda machine: machine.control.veto(flag, "the test forbids it")


STOP = ask("training_stop")

SCENARIOS: dict[str, Callable[[], Machine]] = {
    "two whole epochs": lambda: Machine([[1, 1, 1], [1, 1]]),
    "accumulation with a ragged end": lambda: Machine([[3, 3, 1]]),
    "no epochs at all": lambda: Machine([]),
    "stopped before the first step": lambda: Machine([[1]]).on("on_train_begin", STOP),
    "stopped in the middle of an epoch": lambda: Machine([[1, 1], [1, 1]]).on("on_step_end", STOP),
    "an epoch cut short": lambda: Machine([[1, 1], [1, 1]]).on("on_step_end", ask("epoch_stop")),
    "an epoch without batches": lambda: Machine([[], [1]]),
    "resumed at the end of an epoch": lambda: Machine([[1, 1], [1]], position=Position(0, 2)),
    "resumed with a request to stop": lambda: Machine([[1, 1]], position=Position(0, 1)).on("on_train_begin", STOP),
}


def arrows_of(name: str) -> set[tuple[Phase, Phase]]:
    return set(SCENARIOS[name]().run().loop.arrows)


def test_runs_walk_exactly_the_arrows_of_the_table():
    walked = set().union(*(arrows_of(name) for name in SCENARIOS))
    assert walked == {(phase, following) for phase, followers in NEXT.items() for following in followers}


def test_resumed_stop_ends_its_epoch_once():
    machine = SCENARIOS["resumed with a request to stop"]().run()
    assert machine.said == ["on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end"]
    ended = Machine([[1, 1]], position=Position(0, 1, ended=True)).on("on_train_begin", STOP).run()
    assert ended.said == ["on_train_begin", "on_train_end"]


def test_the_table_names_every_phase_and_ends_in_done_alone():
    assert set(NEXT) == set(Phase)
    assert [phase for phase, followers in NEXT.items() if not followers] == [Phase.DONE]


def test_a_machine_that_is_done_refuses_to_turn():
    machine = Machine([[1]]).run()
    assert machine.loop.phase is Phase.DONE
    with pytest.raises(AssertionError, match="DONE"):
        machine.loop._turn()


def test_a_whole_run_is_announced_in_this_order():
    machine = Machine([[2, 1]]).run()
    assert machine.said == [
        *("on_train_begin", "on_epoch_begin"),
        *("on_step_begin", "on_substep_end", "on_optimizer_step", "on_step_end"),
        *("on_step_begin", "on_optimizer_step", "on_step_end"),
        *("on_epoch_end", "on_train_end"),
    ]


def test_steps_epochs_and_rows_are_counted():
    machine = Machine([[3, 3, 1], [3, 3, 1]])
    epochs: list[float] = []
    machine.bus.on("on_step_end", lambda state: epochs.append(state.epoch))
    machine.run()
    assert (machine.state.global_step, machine.state.samples_seen, machine.state.epoch) == (6, 4 * 14, 2.0)
    assert epochs == [3 / 7, 6 / 7, 1.0, 1 + 3 / 7, 1 + 6 / 7, 2.0]
    assert machine.stepper.steps == [3, 3, 1, 3, 3, 1]
    assert machine.feed.begun == [(0, 0), (1, 0)]


def test_a_run_begins_at_its_saved_position():
    machine = Machine([[1, 1, 1], [1, 1, 1]], position=Position(1, 2)).run()
    assert machine.feed.begun == [(1, 2)]
    assert machine.steps == 1
    assert machine.state.epoch == 2.0


# What is asked for is served: log, then evaluate, then save.


def test_work_is_served_in_one_order_for_every_order_of_requests():
    for place in ("on_step_end", "on_epoch_end"):
        machine = Machine([[1]])
        for flag in reversed(SERVED):
            machine.on(place, ask(flag))
        machine.run()
        assert [event for event in machine.said if event in WORK.values()] == [
            "on_log_due",
            "on_evaluate_due",
            "on_save_due",
        ]
        at = machine.said.index("on_log_due")
        assert machine.said[at - 1 : at + 3] == [place, "on_log_due", "on_evaluate_due", "on_save_due"]
        assert not machine.control.pending


def test_work_gets_its_requesters():
    machine = Machine([[1]])
    machine.bus.on("on_step_end", lambda control: control.request("save"), id="first")
    machine.bus.on("on_step_end", lambda control: control.request("save"), id="second")
    heard: list[frozenset[str]] = []
    machine.bus.on("on_save_due", lambda requested_by: heard.append(requested_by))
    machine.run()
    assert heard == [frozenset({"first", "second"})]


def test_steps_without_requests_serve_no_work():
    machine = Machine([[1] * 5]).on("on_step_end", ask("log"), nth=3).run()
    assert [event for event in machine.said if event in WORK.values()] == ["on_log_due"]


def agreed_in(machine: Machine) -> Machine:
    """Have a machine note when the processes of a run agree."""
    machine.loop.agree = lambda control: machine.said.append("agree")
    return machine


def test_ranks_agree_on_requests_before_they_act():
    said = agreed_in(Machine([[1, 1], [1]])).run().said
    after = [before for before, event in pairwise(said) if event == "agree"]
    # At the end of an epoch twice: before it is left, and before it is served.
    steps, end_of_epoch = "on_step_end", ["on_epoch_end", "agree"]
    assert after == ["on_train_begin", steps, steps, *end_of_epoch, steps, *end_of_epoch, "agree"]


def test_ranks_agree_on_requests_made_during_work():
    machine = agreed_in(Machine([[1, 1]])).on("on_step_end", ask("evaluate")).on("on_step_end", ask("log"))
    said = machine.run().said
    begin = said.index("on_step_end")
    assert said[begin : begin + 6] == ["on_step_end", "agree", "on_log_due", "agree", "on_evaluate_due", "agree"]


@pytest.mark.parametrize("flag", SERVED)
def test_a_request_made_before_the_first_step_is_served_after_it(flag: str):
    for event in ("on_train_begin", "on_epoch_begin", "on_step_begin"):
        machine = Machine([[1, 1]]).on(event, ask(flag)).run()
        assert machine.said.count(WORK[flag]) == 1
        assert machine.said.index(WORK[flag]) == machine.said.index("on_step_end") + 1


def test_a_request_made_while_saving_waits_for_the_next_step():
    for flag in SERVED:
        machine = Machine([[1, 1]]).on("on_save_due", ask(flag))
        machine.on("on_step_end", ask("save")).run()
        step = machine.said.index("on_save_due")
        assert machine.said[step + 1] == "on_step_begin"
        assert WORK[flag] in machine.said[machine.said.index("on_step_end", step) :]


def test_a_request_for_logs_made_while_evaluating_waits_and_one_to_save_does_not():
    machine = Machine([[1, 1]]).on("on_step_end", ask("evaluate"))
    machine.on("on_evaluate_due", ask("log")).on("on_evaluate_due", ask("save")).run()
    work = [event for event in machine.said if event in WORK.values() or event == "on_step_begin"]
    assert work == ["on_step_begin", "on_evaluate_due", "on_save_due", "on_step_begin", "on_log_due"]


def test_requests_of_the_last_evaluation_at_an_epoch_end_are_served():
    for stop, waits in ((True, False), (False, True)):
        machine = Machine([[1], [1]]).on("on_epoch_end", ask("evaluate"))
        machine.on("on_evaluate_due", ask("log"))
        if stop:
            machine.on("on_evaluate_due", STOP)
        machine.run()
        work = [event for event in machine.said if event in WORK.values() or event == "on_epoch_begin"]
        assert work == ["on_epoch_begin", "on_evaluate_due", *["on_epoch_begin"] * waits, "on_log_due"]


# Vetoes.


@pytest.mark.parametrize("flag", SERVED)
def test_a_veto_wins_for_its_step_and_lapses_after_it(flag: str):
    machine = Machine([[1, 1]]).on("on_step_end", ask(flag), nth=None).on("on_step_end", forbid(flag)).run()
    assert machine.said.count(WORK[flag]) == 1
    assert machine.said.index(WORK[flag]) > machine.said.index("on_step_begin", machine.said.index("on_step_end"))


def test_a_veto_may_come_before_the_request_it_forbids():
    machine = Machine([[1, 1]]).on("on_step_begin", forbid("save")).on("on_step_end", ask("save")).run()
    assert "on_save_due" not in machine.said


def test_a_vetoed_stop_is_dropped_and_the_run_continues():
    for flag in ("training_stop", "epoch_stop"):
        machine = Machine([[1, 1, 1]]).on("on_step_end", ask(flag)).on("on_step_end", forbid(flag)).run()
        assert machine.steps == 3
        assert [entry.action for entry in machine.control.ledger.of(flag)] == ["request", "veto", "drop"]


def test_a_veto_of_one_flag_leaves_the_others_alone():
    machine = Machine([[1]]).on("on_step_end", forbid("evaluate"))
    for flag in SERVED:
        machine.on("on_step_end", ask(flag))
    machine.run()
    assert [event for event in machine.said if event in WORK.values()] == ["on_log_due", "on_save_due"]


# Stopping.

STOPS = {
    "on_train_begin": 0,
    "on_epoch_begin": 1,
    "on_step_begin": 1,
    "on_substep_end": 1,
    "on_optimizer_step": 1,
    "on_step_end": 1,
    "on_log_due": 1,
    "on_evaluate_due": 1,
    "on_save_due": 1,
    "on_epoch_end": 2,
}
"""Where a stop is asked for the first time, and how many steps are made then: the one in work is always finished."""


def with_work(epochs: list[list[int]]) -> Machine:
    machine = Machine(epochs)
    for flag in SERVED:
        machine.on("on_step_end", ask(flag))
    return machine


@pytest.mark.parametrize(("event", "steps"), STOPS.items(), ids=STOPS)
def test_a_stop_ends_the_run_after_the_step_in_work(event: str, steps: int):
    machine = with_work([[3, 3], [3, 3]]).on(event, STOP).run()
    assert machine.stepper.steps == [3] * steps  # whole steps: a window is never left half done
    assert machine.said[-1] == "on_train_end"
    assert machine.said.count("on_epoch_end") == (1 if steps else 0)
    assert machine.said.count("on_train_begin") == machine.said.count("on_train_end") == 1
    assert all(machine.said.count(work) == (1 if steps else 0) for work in WORK.values())
    assert machine.control.why("training_stop") == f"stopped at step {steps} by actor-3: the test wants it"
    assert not any(map(machine.control.raised, FLAGS))


def test_a_stop_requested_before_training_runs_no_step():
    machine = Machine([[1]])
    STOP(machine)
    machine.run()
    assert machine.said == ["on_train_begin", "on_train_end"]
    assert machine.control.why("training_stop") == "stopped at step 0 by you: the test wants it"


def test_a_stop_is_used_up_by_the_run_that_it_ended():
    first = Machine([[1, 1]]).on("on_step_end", STOP).run()
    again = WatchedLoop(
        *(first.bus, TrainerState(), first.control, StrawFeed([[1, 1]]), first.stepper),
        epochs=1,
        batches_per_epoch=2,
        position=Position(),
        agree=lambda control: None,
    )
    again.run()
    assert first.stepper.steps == [1, 1, 1]


EPOCH_STOPS = {**STOPS, "on_train_begin": 1, "on_epoch_begin": 1}


@pytest.mark.parametrize(("event", "first_epoch"), EPOCH_STOPS.items(), ids=EPOCH_STOPS)
def test_an_epoch_stop_ends_one_epoch_after_the_step_in_work(event: str, first_epoch: int):
    machine = with_work([[3, 3], [3, 3]]).on(event, ask("epoch_stop")).run()
    assert machine.steps == first_epoch + 2
    assert machine.said.count("on_epoch_end") == 2
    assert machine.feed.begun == [(0, 0), (1, 0)]
    assert machine.state.epoch == 2.0


def test_an_epoch_that_is_cut_short_counts_as_done():
    machine = Machine([[1, 1, 1, 1], [1, 1, 1, 1]]).on("on_step_end", ask("epoch_stop"))
    at_end: list[float] = []
    machine.bus.on("on_epoch_end", lambda state: at_end.append(state.epoch))
    machine.run()
    assert at_end == [0.25, 2.0]


def test_an_epoch_without_batches_ends_the_run_and_says_why():
    machine = Machine([[1, 1], [], [1, 1]]).run()
    assert machine.steps == 2
    assert machine.said.count("on_epoch_begin") == machine.said.count("on_epoch_end") == 2
    assert "epoch 2 of the data has no batch" in machine.control.why("training_stop")


def test_an_epoch_that_was_done_before_a_resume_is_no_empty_one():
    machine = Machine([[1, 1], [1, 1]], position=Position(0, 2)).run()
    assert machine.feed.begun == [(0, 2), (1, 0)]
    assert machine.steps == 2


def test_a_request_made_in_on_epoch_end_is_served_where_the_next_epoch_begins():
    machine = Machine([[1], [1]])
    where: list[tuple[int, int]] = []
    machine.on("on_epoch_end", ask("save"))
    machine.bus.on("on_save_due", lambda: where.append((machine.loop.position.epoch, machine.loop.position.batches)))
    machine.run()
    assert where == [(1, 0)]  # what a checkpoint written here resumes at


def test_an_error_leaves_the_machine_where_it_broke():
    machine = Machine([[1, 1]])

    def fail(machine: Machine) -> None:
        raise RuntimeError("no more")

    machine.on("on_step_end", fail, nth=2)
    with pytest.raises(RuntimeError, match="no more"):
        machine.run()
    assert machine.loop.phase is Phase.STEP
    assert machine.said.count("on_step_end") == 2
    assert "on_train_end" not in machine.said


# Steps or epochs: how long a run is.


def plan(**changes: Any) -> Plan:
    wanted: dict[str, Any] = {
        "batches": 5, "examples": 37, "max_steps": -1, "num_train_epochs": 2, "batch_size": 8, "accumulate": 1,
    }  # fmt: skip
    return plan_run(**{**wanted, **changes})


@pytest.mark.parametrize(
    ("changes", "steps", "epochs"),
    [
        ({}, 10, 2),
        ({"accumulate": 3}, 4, 2),  # 5 batches make a step of 3 and one of 2
        ({"num_train_epochs": 1.5}, 8, 2),  # 7.5 steps are 8
        ({"num_train_epochs": 0}, 0, 0),
        ({"max_steps": 7}, 7, 2),
        ({"max_steps": 7, "num_train_epochs": 100}, 7, 2),  # steps win over epochs
        ({"max_steps": 10}, 10, 2),
        ({"max_steps": 11}, 11, 3),
        ({"max_steps": 3, "accumulate": 3}, 3, 2),
        ({"batches": 1, "accumulate": 4}, 2, 2),
    ],
)
def test_steps_win_over_epochs(changes: dict[str, Any], steps: int, epochs: int):
    planned = plan(**changes)
    assert (planned.max_steps, planned.epochs) == (steps, epochs)


def test_data_without_a_length_needs_steps():
    endless = plan(batches=None, examples=None, max_steps=6, accumulate=2)
    assert (endless.max_steps, endless.batches_per_epoch, endless.num_examples) == (6, 12, 96)
    with pytest.raises(ArgumentError, match="Set `max_steps`"):
        plan(batches=None, examples=None)


def test_data_without_a_batch_is_refused():
    with pytest.raises(DataError, match="it has 0 samples"):
        plan(batches=0, examples=0)
    with pytest.raises(DataError, match=r"has 5 samples.*dataloader_drop_last"):
        plan(batches=0, examples=5)


def test_an_interval_below_one_is_a_share_of_the_run():
    planned = plan()
    assert [planned.in_steps(interval) for interval in (3, 0.25, 0.01)] == [3, 3, 1]


def test_a_run_that_is_stopped_in_an_epoch_is_left_where_it_was_stopped():
    machine = Machine([[1, 1, 1], [1]]).on("on_step_end", ask("training_stop"), nth=2).run()
    position = machine.loop.position
    assert (position.epoch, position.batches) == (0, 2)


def test_an_epoch_that_is_stopped_on_its_own_is_over():
    machine = Machine([[1, 1, 1], [1]]).on("on_step_end", ask("epoch_stop"), nth=2).run()
    position = machine.loop.position
    assert (position.epoch, position.batches) == (2, 0)

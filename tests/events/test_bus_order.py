"""Handler order: stages, then attachment, then `before=` and `after=`."""

from __future__ import annotations

import random
import subprocess
import sys
from functools import partial
from itertools import permutations
from pathlib import Path

import pytest

from support.fakes import FakeRun, callback_on
from support.processes import environment
from trainbus.events import Callback, Stage, SubscriptionError, order


def attach(run, heard, name, event="on_log", **attributes):
    return run.bus.attach(callback_on(event, partial(heard.append, name), name, **attributes))


def test_stages_order_handlers_for_every_list_order():
    for arrangement in list(permutations(Stage))[::7]:
        run, heard = FakeRun(), []
        for stage in arrangement:
            attach(run, heard, stage.name, stage=stage)
        run.bus.announce("on_log")
        assert heard == [stage.name for stage in Stage]


def test_attachment_decides_inside_a_stage(run, heard):
    for name in ("C", "A", "B"):
        attach(run, heard, name)
    run.bus.announce("on_log")
    assert heard == ["C", "A", "B"]


def test_a_reattached_subscriber_runs_last(run, heard):
    first = attach(run, heard, "A")
    attach(run, heard, "B")
    first()
    attach(run, heard, "A")
    run.bus.announce("on_log")
    assert heard == ["B", "A"]


def test_a_callback_without_a_stage_runs_in_decide(bus):
    bus.attach(callback_on("on_log", lambda: None))
    assert bus.order_of("on_log")[0].slot.stage is Stage.DECIDE


def test_handler_has_its_own_stage(run, heard):
    class Reporter(Callback):
        stage = Stage.REPORT

        @order(Stage.PREPARE)
        def on_train_begin(self):
            heard.append("Reporter opens")

        def on_log(self):
            heard.append("Reporter logs")

    run.bus.attach(Reporter())
    for event in ("on_train_begin", "on_log"):
        attach(run, heard, f"Decider {event}", event)
        run.bus.announce(event)
    assert heard == ["Reporter opens", "Decider on_train_begin", "Decider on_log", "Reporter logs"]


@pytest.mark.parametrize("event", ["on_close", "on_end"])
def test_closing_unwinds(run, heard, event):
    attach(run, heard, "reporter", event, stage=Stage.REPORT)
    attach(run, heard, "first", event, stage=Stage.PREPARE)
    attach(run, heard, "second", event, stage=Stage.PREPARE)
    run.bus.announce(event)
    assert heard == ["reporter", "second", "first"]


# before= and after=


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"C": {"before": ("A",)}}, "BCA"),
        ({"C": {"before": "B"}}, "ACB"),
        ({"A": {"after": ("C",)}}, "BCA"),
        ({"A": {"after": ("B", "C")}}, "BCA"),
        ({"C": {"before": ("B",)}, "A": {"after": ("B",)}}, "CBA"),
        ({"A": {"after": ("B",)}, "B": {"after": ("C",)}}, "CBA"),
    ],
)
def test_before_and_after_move_a_handler_and_leave_the_others(run, heard, attributes, expected):
    for name in "ABC":
        attach(run, heard, name, **attributes.get(name, {}))
    run.bus.announce("on_log")
    assert "".join(heard) == expected


def test_before_and_after_of_one_handler_leave_the_other_handlers_of_its_callback(run, heard):
    class Late(Callback):
        def on_log(self):
            heard.append("Late logs")

        @order(before="A")
        def on_save(self):
            heard.append("Late saves")

        @order(after=("C", "D"))
        def on_load(self):
            heard.append("Late loads")

    attach(run, heard, "B", "on_log")
    attach(run, heard, "A", "on_save")
    run.bus.attach(Late())
    for name in "CD":
        attach(run, heard, name, "on_load")
    for event in ("on_log", "on_save", "on_load"):
        run.bus.announce(event)
    assert heard == ["B", "Late logs", "Late saves", "A", "C", "D", "Late loads"]


def test_functions_have_before_and_after_too(run, heard):
    attach(run, heard, "A")
    run.bus.on("on_log", lambda: heard.append("early"), before="A")
    run.bus.on("on_log", lambda: heard.append("late"), before=None, after="A")
    run.bus.on("on_log", lambda: heard.append("later"))
    run.bus.announce("on_log")
    assert heard == ["early", "A", "late", "later"]


def test_an_order_target_may_handle_other_events(run, heard):
    attach(run, heard, "Saver", "on_save")
    attach(run, heard, "A", before=("Saver",))
    run.bus.resolve()
    run.bus.announce("on_log")
    assert heard == ["A"]


def test_unknown_target_is_refused_with_the_nearest_name(run, heard):
    attach(run, heard, "EarlyStopping")
    attach(run, heard, "A", after=("EarlyStoping",))
    with pytest.raises(SubscriptionError, match=r"A has before= .*'EarlyStoping' at on_log.* mean 'EarlyStopping'\?"):
        run.bus.resolve()


def test_order_against_the_stages_is_refused_naming_both(run, heard):
    attach(run, heard, "Reporter", stage=Stage.REPORT, before=("Decider",))
    attach(run, heard, "Decider")
    with pytest.raises(
        SubscriptionError, match=r"Reporter must run before Decider at on_log.* REPORT, after stage DECIDE"
    ):
        run.bus.resolve()


def test_order_with_the_stages_is_redundant_and_taken(run, heard):
    attach(run, heard, "Reporter", stage=Stage.REPORT, after=("Decider",))
    attach(run, heard, "Decider", before=("Reporter",))
    run.bus.announce("on_log")
    assert heard == ["Decider", "Reporter"]


@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_order_cycle_is_refused_and_names_only_its_members(run, heard, length):
    names = [f"R{index}" for index in range(length)]
    attach(run, heard, "Bystander")
    attach(run, heard, "Follower", after=("R0",))
    for name, following in zip(names, names[1:] + names[:1]):
        attach(run, heard, name, before=(following,))
    with pytest.raises(SubscriptionError, match="form a cycle") as refusal:
        run.bus.resolve()
    assert all(name in str(refusal.value) for name in names)
    assert "Bystander" not in str(refusal.value)
    assert "Follower" not in str(refusal.value)


@pytest.mark.parametrize("attribute", ["before", "after"])
def test_target_may_leave_during_the_run(run, heard, attribute):
    attach(run, heard, "A", **{attribute: ("B",)})
    leaving = attach(run, heard, "B")
    run.bus.announce("on_log")
    heard.clear()
    leaving()
    run.bus.announce("on_log")
    assert heard == ["A"]


# The same everywhere.


def test_random_constraints_without_circles_are_all_met():
    rng = random.Random(0)
    for _ in range(50):
        run, heard, rank = FakeRun(), [], rng.sample(range(8), 8)
        for index in rng.sample(range(8), 8):
            later = [f"N{other}" for other in range(8) if rank[other] > rank[index] and rng.random() < 0.4]
            attach(run, heard, f"N{index}", before=tuple(later))
        run.bus.announce("on_log")
        for name in heard:
            wanted = run.bus.subscribers[name].before
            assert all(heard.index(name) < heard.index(other) for other in wanted)


PROGRAM = Path(__file__).with_name("order_program.py")


def test_order_is_the_same_under_every_hash_seed():
    printed = [
        subprocess.run(
            [sys.executable, str(PROGRAM)],
            env=environment(PYTHONHASHSEED=str(seed)),
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in range(8)
    ]
    assert len(printed[0].splitlines()) > 100
    assert len(set(printed)) == 1


def test_describe_lists_each_handled_event_and_its_handlers_in_order(run, heard):
    attach(run, heard, "Tracker", stage=Stage.REPORT)
    attach(run, heard, "Metrics", stage=Stage.MEASURE)
    attach(run, heard, "Saver", "on_save")
    assert run.bus.describe().splitlines() == [
        "on_log: The run logs values. A handler in a stage before REPORT may add values.",
        "  MEASURE  Metrics",
        "  REPORT   Tracker",
        "on_save: A checkpoint is complete on disk. If a callback handles this event, training waits for the write.",
        "  DECIDE   Saver",
    ]


def test_describe_of_an_empty_bus_has_a_message(bus):
    assert bus.describe() == "(no event has a handler)"


def test_order_without_arguments_is_refused():
    with pytest.raises(SubscriptionError, match=r"`@order` above on_log has no arguments. Write `@order\(Stage.REPORT"):

        class Wrong(Callback):
            @order
            def on_log(self): ...

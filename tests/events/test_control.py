"""One request raises a flag, a veto blocks it for its step, and the ledger records author, step and reason."""

from __future__ import annotations

import copy
import json
from itertools import pairwise, permutations
from types import SimpleNamespace

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from trainbus.events import FLAGS, ArgumentError, Entry, Ledger, TrainerControl
from trainbus.events.flags import SERVED

EVERY_FLAG = pytest.mark.parametrize("flag", FLAGS)


def as_author(control: TrainerControl, author: str, event: str = "on_step_end") -> TrainerControl:
    """Let the next writes be those of `author`, as the bus does around a handler."""
    control.speaking.author, control.speaking.event = author, event
    return control


@pytest.fixture
def control() -> TrainerControl:
    return TrainerControl()


def test_flags_of_transformers_are_all_there(control):
    assert {f"should_{flag}" for flag in FLAGS} > set(vars(transformers.TrainerControl()))
    assert set(SERVED) < set(FLAGS)


@EVERY_FLAG
def test_no_flag_is_requested_at_first(control, flag):
    assert getattr(control, f"should_{flag}") is False
    assert not control.pending
    assert repr(control) == "TrainerControl(no flag is raised)"


@EVERY_FLAG
def test_assignment_and_request_and_both_names_mean_the_same(control, flag):
    setattr(control, f"should_{flag}", True)
    as_author(control, "A").request(flag, "because")
    as_author(control, "B").request(f"should_{flag}", "too")
    assert control.reasons(flag) == {"you": "", "A": "because", "B": "too"}
    assert getattr(control, f"should_{flag}") is True
    assert control.pending
    assert repr(control) == f"TrainerControl(should_{flag})"


@EVERY_FLAG
def test_veto_wins_in_every_order(flag):
    for arrangement in permutations(["request", "veto", "request"]):
        control = TrainerControl()
        for index, action in enumerate(arrangement):
            getattr(as_author(control, f"A{index}"), action)(flag)
        assert not control.asks(flag)
        assert control.raised(flag)
        assert control.vetoed(flag)


@EVERY_FLAG
def test_veto_lapses_with_its_step(control, flag):
    control.veto(flag)
    control.settle()
    control.request(flag)
    assert control.asks(flag)


@EVERY_FLAG
@pytest.mark.parametrize(("reason", "text"), [(None, ""), (3, "3"), (OSError("no space"), "no space")])
def test_a_reason_that_is_no_text_counts_as_its_text(control, flag, reason, text):
    as_author(control, "one").request(flag, reason)
    assert control.asks(flag)
    as_author(control, "two").veto(flag, reason)
    assert not control.asks(flag)
    as_author(control, "one").withdraw(flag, reason)
    assert [entry.reason for entry in control.ledger.of(flag)] == [text, text, text]
    assert json.dumps(control.ledger.to_list())


@EVERY_FLAG
def test_vetoed_requests_are_dropped_with_the_veto(control, flag):
    control.request(flag)
    control.veto(flag)
    control.settle()
    assert not control.raised(flag)
    assert not control.pending


@EVERY_FLAG
def test_requests_that_were_not_served_wait(control, flag):
    control.request(flag, "important")
    control.settle()
    control.settle()
    assert control.pending
    assert control.reasons(flag) == {"you": "important"}


@EVERY_FLAG
def test_take_lowers_the_flag_and_returns_the_requesters(control, flag):
    as_author(control, "A").request(flag)
    as_author(control, "B").request(flag)
    assert control.take(flag) == {"A", "B"}
    assert control.take(flag) == frozenset()
    assert not control.asks(flag)


def test_take_without_a_request_is_empty_and_not_recorded(control):
    control.veto("save")
    assert control.take("save") == control.take("log") == frozenset()
    assert [entry.action for entry in control.ledger] == ["veto"]


def test_take_returns_no_request_under_a_veto(control):
    control.request("save")
    control.veto("save")
    assert control.take("save") == frozenset()
    assert not control.raised("save")


# Flags whose work is in progress.


@pytest.mark.parametrize("flag", FLAGS)
def test_flag_reads_true_while_it_is_served(control, flag):
    control.request(flag, "due")
    assert control.begin(flag) == {"you"}
    assert getattr(control, f"should_{flag}")
    assert not control.asks(flag)
    assert not control.raised(flag)
    assert f"should_{flag}" in repr(control)
    control.finish(flag)
    assert not getattr(control, f"should_{flag}")


def test_only_requested_flags_without_veto_are_served(control):
    assert control.begin("save") == frozenset()
    control.request("save")
    control.veto("save")
    assert control.begin("save") == frozenset()
    assert not control.serving
    assert not control.should_save


def test_request_made_while_a_flag_is_served_stays_for_the_next_step(control):
    control.request("save", "due")
    control.begin("save")
    as_author(control, "Late").should_save = True
    control.finish("save")
    assert control.should_save
    assert control.pending
    assert control.take("save") == {"Late"}
    assert [(entry.author, entry.action) for entry in control.ledger] == [
        ("you", "request"),
        ("run", "take"),
        ("Late", "request"),
        ("run", "take"),
    ]


def test_veto_while_a_flag_is_served_makes_it_read_false(control):
    control.request("save")
    control.begin("save")
    control.veto("save", "the disk is full")
    assert not control.should_save


def test_copy_of_a_control_that_a_handler_returns_repeats_no_flag_that_is_served(control):
    control.request("evaluate")
    control.begin("evaluate")
    returned = copy.deepcopy(control)
    returned.should_save = True
    control.absorb(returned)
    assert not control.raised("evaluate")
    assert control.raised("save")


def test_finish_without_a_flag_ends_all(control):
    for flag in FLAGS:
        control.request(flag)
        control.begin(flag)
    control.finish()
    assert not any(getattr(control, f"should_{flag}") for flag in FLAGS)


@pytest.mark.parametrize(
    ("event", "flag"),
    [("on_log", "log"), ("on_evaluate", "evaluate"), ("on_save", "save"), ("on_epoch_begin", "epoch_stop")],
)
def test_flag_is_false_in_the_event_after_its_work(run, event, flag):
    seen = []
    for name in ("on_prediction_step", event):
        run.bus.on(name, lambda control: seen.append(getattr(control, f"should_{flag}")))
    run.control.request(flag)
    run.control.begin(flag)
    run.bus.announce("on_prediction_step")
    run.bus.announce(event)
    assert seen == [True, False]


# Assignment.


def test_false_withdraws_only_the_own_request_and_warns_of_others(control, caplog):
    as_author(control, "A").should_save = True
    as_author(control, "B").should_save = True
    as_author(control, "B").should_save = False
    assert control.reasons("save") == {"A": ""}
    assert control.should_save
    (record,) = caplog.records
    assert "B set should_save to False, but A requested it" in record.getMessage()
    assert 'control.veto("save", reason="...")' in record.getMessage()


def test_false_of_the_last_requester_lowers_the_flag_without_a_warning(control, caplog):
    as_author(control, "A").should_save = True
    control.should_save = False
    assert not control.should_save
    assert caplog.records == []


def test_false_without_a_request_has_no_effect(control, caplog):
    control.should_training_stop = False
    assert list(control.ledger) == []
    assert caplog.records == []


def test_true_on_top_of_a_request_keeps_its_reason(control):
    control.request("save", "best so far")
    control.should_save = True
    assert control.reasons("save") == {"you": "best so far"}
    assert len(control.ledger) == 1


@pytest.mark.parametrize(
    ("flag", "hint"),
    [("should_svae", "did you mean 'save'?"), ("should_stop_training", "The flags are: log"), ("should_xy", "xy'.")],
)
def test_misspelt_flag_is_refused_with_the_nearest_name(control, flag, hint):
    def assign():
        setattr(control, flag, True)

    for use in (assign, *(lambda use=use: use(flag) for use in (control.request, control.veto, control.withdraw))):
        with pytest.raises(ArgumentError) as refusal:
            use()
        assert f"no flag {flag!r}" in str(refusal.value)
        assert hint in str(refusal.value)
    for use in (control.reasons, control.why):
        with pytest.raises(ArgumentError):
            use(flag)


def test_other_attributes_may_be_set(control):
    control.note = "mine"
    assert control.note == "mine"


def test_copy_of_a_control_is_independent(control):
    control.request("save", "best")
    other = copy.deepcopy(control)
    other.take("save")
    assert control.should_save
    assert not other.should_save


# The ledger.


def test_ledger_has_author_event_step_change_reason_and_rank():
    control = TrainerControl(rank=3)
    control.speaking.step = 12
    as_author(control, "Best", "on_evaluate").request("save", "best so far")
    as_author(control, "Guard", "on_save_begin").veto("save", "loss is NaN")
    as_author(control, "Best", "on_log").withdraw("save", "never mind")
    as_author(control, "you", "")
    control.speaking.step = 13
    control.should_log = True
    control.take("log")
    assert list(control.ledger) == [
        Entry(12, "on_evaluate", "Best", "save", "request", False, True, "best so far", 3),
        Entry(12, "on_save_begin", "Guard", "save", "veto", True, False, "loss is NaN", 3),
        Entry(12, "on_log", "Best", "save", "withdraw", False, False, "never mind", 3),
        Entry(13, "", "you", "log", "request", False, True, "", 3),
        Entry(13, "", "run", "log", "take", True, False, "you", 3),
    ]
    assert str(control.ledger).splitlines()[1:4] == [
        "step 12: Guard veto save (True -> False) in on_save_begin: loss is NaN",
        "step 12: Best withdraw save in on_log: never mind",
        "step 13: you request log (False -> True)",
    ]


def test_entries_cannot_be_rewritten(control):
    control.request("save")
    (entry,) = control.ledger
    assert entry.rank == 0
    with pytest.raises(AttributeError):
        entry.author = "somebody else"


def test_repeating_oneself_is_one_entry(control):
    for _ in range(3):
        control.request("save", "best")
        control.veto("log", "quiet")
    assert [(entry.action, entry.flag) for entry in control.ledger] == [("request", "save"), ("veto", "log")]


def test_dropped_request_is_recorded_with_both_sides(control):
    as_author(control, "A").request("save", "due")
    as_author(control, "B").veto("save", "disk is full")
    as_author(control, "C").veto("save")
    control.settle()
    entry = control.ledger.of("save")[-1]
    assert (entry.author, entry.action) == ("run", "drop")
    assert entry.reason == "A: due - vetoed by B: disk is full; C"


def test_ledger_is_bounded_per_flag():
    ledger = Ledger(keep=5)
    ledger.write(Entry(0, "", "A", "training_stop", "request", False, True))
    for step in range(100):
        ledger.write(Entry(step, "", "A", "log", "request", False, True))
    assert len(ledger) == 6
    assert [entry.step for entry in ledger] == [0, 95, 96, 97, 98, 99]
    assert len(ledger.of("training_stop")) == 1
    assert ledger.of("save") == []


def test_ledger_of_a_long_run_does_not_grow(control):
    for _ in range(1000):
        control.request("log")
        control.take("log")
    assert len(control.ledger) == 200


def test_why_names_the_step_the_author_and_the_reason(control):
    control.speaking.step = 1200
    as_author(control, "EarlyStopping").request("training_stop", "eval_loss has not improved for 3 evaluations")
    assert control.why("training_stop") == ""
    control.take("training_stop")
    why = "stopped at step 1200 by EarlyStopping: eval_loss has not improved for 3 evaluations"
    assert control.why("training_stop") == control.why("should_training_stop") == why


def test_why_names_all_requesters_of_served_requests_only(control):
    as_author(control, "A").request("save", "due")
    as_author(control, "B").request("save")
    control.speaking.step = 4
    control.take("save")
    control.speaking.step = 5
    control.request("save")
    control.veto("save")
    control.take("save")
    assert control.why("save") == control.why("should_save") == "save at step 4 by A: due; B"


def test_ledger_goes_through_json_and_keeps_its_bounds(control):
    for step in range(300):
        control.speaking.step = step
        control.request("log", "due")
        control.take("log")
    control.request("training_stop", "enough")
    control.take("training_stop")
    saved = json.loads(json.dumps(control.ledger.to_list()))
    saved[0]["added_by_a_newer_version"] = 1
    resumed = TrainerControl()
    resumed.request("save", "is forgotten: the saved ledger takes its place")
    resumed.ledger.load_list(saved)
    assert list(resumed.ledger) == list(control.ledger)
    assert resumed.why("training_stop") == control.why("training_stop") != ""
    resumed.request("log")
    assert len(resumed.ledger.of("log")) == 200
    assert list(resumed.ledger)[-1].action == "request"


def test_empty_ledger_has_a_message(control):
    assert str(control.ledger) == "(no flag was raised)"


# For any sequence of writes.

AUTHORS = ["A", "B", "C"]
WRITES = st.tuples(
    st.sampled_from(["request", "withdraw", "veto", "True", "False", "settle", "take"]), st.sampled_from(AUTHORS)
)


@given(st.lists(WRITES, max_size=30), st.sampled_from(sorted(FLAGS)))
def test_flag_is_true_if_any_subscriber_requests_it_and_none_vetoes_it(writes, flag):
    control, requests, vetoes = TrainerControl(), set(), set()
    for action, author in writes:
        as_author(control, author)
        match action:
            case "request" | "True":
                requests.add(author)
            case "withdraw" | "False":
                requests.discard(author)
            case "veto":
                vetoes.add(author)
            case "settle":
                requests = set() if vetoes else requests
                vetoes = set()
            case "take":
                assert control.take(flag) == (set() if vetoes else requests)
                requests = set()
        if action in ("True", "False"):
            setattr(control, f"should_{flag}", action == "True")
        elif action == "settle":
            control.settle()
        elif action != "take":
            getattr(control, action)(flag)
        assert getattr(control, f"should_{flag}") == (bool(requests) and not vetoes)
        assert set(control.reasons(flag)) == requests
        assert control.pending or not (requests or vetoes)
    changes = [(entry.old, entry.new) for entry in control.ledger if entry.old != entry.new]
    assert all(before[1] == after[0] for before, after in pairwise(changes)), "the ledger does not tell every change"


@pytest.mark.parametrize(
    ("name", "meant"),
    [("shuld_save", "should_save"), ("save", "should_save"), ("can_log", "should_log"), ("should_sav", "save")],
)
def test_an_assignment_to_a_misspelt_flag_is_an_error_with_the_nearest_name(name, meant):
    control = TrainerControl()
    with pytest.raises(ArgumentError, match=f"no flag '{name}'; did you mean '{meant}'"):
        setattr(control, name, True)
    control.best_step = 3  # other attributes belong to the program
    assert control.best_step == 3


def test_a_notebook_shows_the_entries_of_the_ledger() -> None:
    ledger = Ledger()
    ledger.write(Entry(3, "on_step_end", "Stop", "training_stop", "request", False, True, "done"))
    shown: list[str] = []
    ledger._repr_pretty_(SimpleNamespace(text=shown.append), False)
    assert shown == [str(ledger)]
    assert "Stop request training_stop" in shown[0]
    assert repr(ledger) == "<Ledger with 1 entry: `print` shows them>"

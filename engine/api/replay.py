"""Replay: call the handlers of a callback with the values of a recorded run, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...events.catalog import Event
from ...events.flags import Flag
from ...events.ledger import Entry
from ...events.recording.files import Recording, read
from ...events.recording.recorder import Record
from ...events.stages import Stage
from .replay_run import RecordedEvaluations, ReplayRun

_ENDS: dict[str, tuple[Flag, ...]] = {
    "on_log_due": ("log",),
    "on_evaluate_due": ("evaluate",),
    "on_save_due": ("save",),
    "on_train_end": ("training_stop", "epoch_stop"),
}
"""Event -> the flags that a replay sets to False after the event, as the loop of a real run does."""


@dataclass
class Replayed:
    """The result of the function `replay`."""

    calls: int = 0
    """The number of calls of the callback's handlers."""
    events: int = 0
    """The number of events that were replayed."""
    requests: list[Entry] = field(default_factory=list)
    """The requests, vetoes and withdrawals of the callback. The replay does not act on them."""


@dataclass
class _Node:
    """A node in the tree of the records. A record is an event or a flag write."""

    record: Record
    inside: list[_Node] = field(default_factory=list)
    """The events and flag writes that the handlers of the event `record` caused. Empty if `record` is a flag write."""


def replay(recording: Path | str | Recording, callback: Any) -> Replayed:
    """Call the handlers of a callback at the events of a recorded run. The callback runs last in its stage.

    The callback gets state, control, logs, metrics, loss, gradient norm and learning rate of the recorded run.
    Parameters that only a live run has, such as `model`, raise an error when the callback uses them. `args.output_dir`
    is the folder `replay` beside the recording's file.

    Args:
        recording: a recording, its file, or the output folder of a run.
        callback: the callback.

    Raises:
        ReplayError: if the callback uses a value that a recording does not have.
        SubscriptionError: if the callback cannot be attached.
    """
    if not isinstance(recording, Recording):
        recording = read(Path(recording))
    head = recording.sessions[0]
    played = ReplayRun(head, recording.path.parent)
    if any(record.get("e") == "on_evaluate_begin" for record in recording.records):
        played.bus.evaluations = RecordedEvaluations()
    handle = played.bus.attach(callback)
    for event in {record["e"] for record in recording.records if "e" in record} - {*played.bus}:
        played.bus.declare(Event(event, "An event of the recorded run."))
    player = _Player(played, handle.owner_id, head["handlers"])
    played.control.ledger.watchers.append(player.note)
    played.mode = ""
    player.play({"e": "on_init_end", "s": 0})
    played.mode = "train"
    for node in _tree(recording.records):
        if "session" in node.record:
            head = recording.sessions[node.record["session"]]
            player.handlers = head["handlers"]
            played.begin_session(head)
            player.play({"e": "on_setup", "s": head["step"]})
        player.visit(node)
    return player.result


def _tree(records: Sequence[Record]) -> list[_Node]:
    """Arrange the records in trees, and return the roots.

    The children of an event are the events and flag writes that its handlers caused.
    """
    path: list[_Node] = []
    roots: list[_Node] = []
    for record in _with_losses(records):
        node, outer = _Node(record), record.get("in", "")
        while path and path[-1].record["e"] != outer:
            path.pop()
        if path:
            path[-1].inside.append(node)
        else:
            roots.append(node)
        if "e" in record:
            path.append(node)
    return roots


def _with_losses(records: Sequence[Record]) -> list[Record]:
    """Return the records with the loss added to each record of `on_loss`.

    A recording stores the loss of a batch only in the record of a later event.
    """
    found, loss = [], None
    for record in reversed(records):
        loss = record.get("loss", loss)
        found.append({**record, "loss": loss} if record.get("e") == "on_loss" and loss is not None else record)
    return found[::-1]


class _Player:
    """A player that announces recorded events to one callback, and repeats the recorded flag writes in their order."""

    def __init__(self, run: ReplayRun, owner_id: str, handlers: dict[str, dict[str, int]]) -> None:
        self.run, self.owner_id, self.handlers = run, owner_id, handlers
        self.result = Replayed()
        self._own = False

    def note(self, entry: Entry) -> None:
        if self._own:
            self.result.requests.append(entry)

    def visit(self, node: _Node) -> None:
        record = node.record
        if "f" in record:
            self._flag(record)
            return
        self._apply(record)
        stage = self._stage(record["e"])
        stages = self.handlers.get(record["e"], {})
        split = next(
            (i for i, part in enumerate(node.inside) if stages.get(part.record["by"], Stage.ACT) > stage),
            len(node.inside),
        )
        for part in node.inside[:split]:
            self.visit(part)
        self._call(record)
        for part in node.inside[split:]:
            self.visit(part)
        if flags := _ENDS.get(record["e"]):
            for flag in flags:
                self.run.control.finish(flag)

    def play(self, record: Record) -> None:
        self._apply(record)
        self._call(record)

    def _stage(self, event: str) -> int:
        handlers = self.run.bus.order_of(event)
        return int(handlers[0].slot.stage) if handlers else int(Stage.RELEASE)

    def _apply(self, record: Record) -> None:
        if record["e"] == "on_step_begin":
            self.run.control.settle()
        self.result.events += 1
        self.run.follow(record)

    def _call(self, record: Record) -> None:
        run, event = self.run, record["e"]
        for _ in range(record.get("n", 1)):
            self._own = True
            try:
                run.bus.announce(event)
            finally:
                self._own = False
            self.result.calls += len(run.bus.order_of(event))
        run.control.forget(self.owner_id)

    def _flag(self, record: Record) -> None:
        control = self.run.control
        speaking, flag, why = control.speaking, record["f"], record.get("why", "")
        before, speaking.author = speaking.author, record["by"]
        match record["do"]:
            case "request":
                control.request(flag, why)
            case "veto":
                control.veto(flag, why)
            case "withdraw":
                control.withdraw(flag, why)
            case "take":
                control.begin(flag)
            case "drop":
                control.settle()
        speaking.author = before

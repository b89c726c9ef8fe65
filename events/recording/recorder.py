"""Recorder: turns the events of a bus and the entries of its ledger into records (dicts), in order of time."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from time import perf_counter
from typing import Any

from ..callback import Callback
from ..ledger import Entry
from ..stages import Stage, order

Record = dict[str, Any]
"""One event or one write to a flag. `docs/see_the_run/recordings.md` lists the keys."""

INSIDE = frozenset(
    {"on_batch", "on_loss", "on_substep_end", "on_gradients", "on_pre_optimizer_step", "on_optimizer_step"}
)
"""The events between `on_step_begin` and `on_step_end`."""

_STEPS = INSIDE | {"on_step_begin", "on_step_end"}

REPEATED = frozenset({"on_prediction_step"})
"""Events that share one record if they come several times in a row. The key `n` of the record is the number of
times."""

PROGRESS = (
    *("epoch", "samples_seen", "max_steps", "num_train_epochs", "total_flos", "num_input_tokens_seen"),
    *("steps_skipped", "best_metric", "best_global_step"),
)
"""The fields of the state that are recorded when they change. `best_model_checkpoint` is recorded too."""


_progress = attrgetter(*PROGRESS, "best_model_checkpoint")


class Recorder(Callback):
    """Base class of callbacks that make a record of each event of a bus and of each write to a flag.

    A subclass defines in `put` where to write the records. A subclass may add values to the records in `observe`.
    """

    stage = Stage.REPORT

    _from: float = 0.0
    """The time at which the recording started, on the clock of the recorder."""
    _inside = False
    """Whether the run is inside a step."""
    _known: tuple[Any, ...] = ()
    """The values of the state that are recorded so far. A new record has only the values that differ from them."""
    _open: dict[str, Record]
    """Event -> the newest record of the event. The handler of the event adds values to this record. The key "" stores
    the newest record of all events."""
    _attached: Any = None
    """The run that the recorder records; None before `open` and after `close`."""

    def put(self, record: Record) -> None:
        """Receive a new record. A subclass implements this method.

        Handlers may still add values to the record until the next step begins.
        """
        raise NotImplementedError

    def values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of logged values or metrics. A subclass may convert the values for JSON."""
        return dict(values)

    def observe(self, event: str, run: Any, record: Record) -> None:
        """Do nothing. A subclass may override this method to add values to the record of an event."""

    def clock(self) -> float:
        """Return a time in seconds. Only differences of times have a meaning. A subclass may use another clock."""
        return perf_counter()

    def open(self, run: Any) -> None:
        """Start to record the events and flags of a run."""
        if self._attached is None:
            self._open, self._inside, self._known = {}, False, ()
            self._from, self._attached = self.clock(), run
            run.bus.watchers.append(self._watch)
            run.control.ledger.watchers.append(self._write_flag)

    def close(self) -> None:
        """Stop recording. A second call does nothing."""
        run, self._attached = self._attached, None
        if run is not None:
            for watchers, watch in (
                (run.bus.watchers, self._watch),
                (run.control.ledger.watchers, self._write_flag),
            ):
                if watch in watchers:
                    watchers.remove(watch)

    # Watching.

    def _watch(self, event: str, run: Any) -> None:
        speaking = run.control.speaking
        if event in REPEATED:
            last = self._open.get(event)
            if last is not None and last is self._open.get(""):
                last["n"] = last.get("n", 1) + 1
                return
        if event == "on_step_begin":
            self._inside = True
        elif event == "on_step_end":
            self._inside = False
        record: Record = {
            "e": event,
            "s": speaking.step + 1 if self._inside else speaking.step,
            "t": self.clock() - self._from,
        }
        if speaking.event:
            record["by"], record["in"] = speaking.author, speaking.event
        if event not in INSIDE and event != "on_step_begin":
            self._note_progress(run.state, record)
        self.observe(event, run, record)
        self._open[event] = self._open[""] = record
        self.put(record)

    def _write_flag(self, entry: Entry) -> None:
        step = entry.step + 1 if self._inside else entry.step
        record = {"f": entry.flag, "s": step, "do": entry.action, "by": entry.author, "in": entry.event}
        if entry.reason:
            record["why"] = entry.reason
        self._open.pop("", None)
        self.put(record)

    def _note_progress(self, state: Any, record: Record) -> None:
        now = _progress(state)
        if now == self._known:
            return
        best = now[-1]
        known = self._known or (None,) * len(now)
        changed = {name: new for name, new, old in zip(PROGRESS, now, known) if new != old}
        if best != known[-1]:
            changed["best_model_checkpoint"] = best and str(best).replace("\\", "/").rpartition("/")[2]
        self._known = now
        record["state"] = {**record.get("state", {}), **changed}

    # Values that only handlers receive, and values that other handlers change.

    def _add(self, event: str, **values: Any) -> None:
        if self._attached is not None and event in self._open:
            self._open[event].update(values)
            self._note_progress(self._attached.state, self._open[event])

    def on_log(self, logs: dict[str, Any]) -> None:
        self._add("on_log", logs=self.values(logs))

    def on_evaluate_dataset(self, metrics: dict[str, Any], dataset_name: str) -> None:
        self._add("on_evaluate_dataset", metrics=self.values(metrics), dataset=dataset_name)

    def on_evaluate(self, metrics: dict[str, Any]) -> None:
        self._add("on_evaluate", metrics=self.values(metrics))

    def on_evaluate_end(self, metrics: dict[str, Any]) -> None:
        self._add("on_evaluate_end", metrics=self.values(metrics))

    @order(Stage.PREPARE)
    def on_log_due(self, requested_by: frozenset[str]) -> None:
        self._add("on_log_due", asked=sorted(requested_by))

    @order(Stage.PREPARE)
    def on_evaluate_due(self, requested_by: frozenset[str]) -> None:
        self._add("on_evaluate_due", asked=sorted(requested_by))

    @order(Stage.PREPARE)
    def on_save_due(self, requested_by: frozenset[str]) -> None:
        self._add("on_save_due", asked=sorted(requested_by))

    def on_delete(self, checkpoint: Any, saved_step: int) -> None:
        self._add("on_delete", checkpoint=checkpoint.step, saved=saved_step)

    def on_best_loaded(self, checkpoint: Any) -> None:
        self._add("on_best_loaded", checkpoint=checkpoint.step)


class DecisionRecorder(Recorder):
    """A recorder for decisions only, such as saves and stops. The class `Rows` reads the decisions from its records.

    It makes no records of the events from `on_step_begin` to `on_step_end`, and records no values of the trainer state.
    """

    def _watch(self, event: str, run: Any) -> None:
        if event not in _STEPS:
            super()._watch(event, run)

    def _note_progress(self, state: Any, record: Record) -> None:
        """Do nothing: this recorder records no values of the trainer state."""


def handler_plan(bus: Any) -> dict[str, dict[str, int]]:
    """Return the handlers of each event, in handler order.

    Each key is the name of an event. Each value is a dict from the id of a callback to the stage of its handler, as a
    number, such as 30 for `Stage.DECIDE`. Events without handlers are left out.
    """
    plan: dict[str, dict[str, int]] = {}
    for event in bus:
        for handler in bus.order_of(event):
            plan.setdefault(event, {})[handler.owner_id] = int(handler.slot.stage)
    return plan

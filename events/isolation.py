"""Isolation: a run can continue although a callback fails or is slow. A summary lists each of these callbacks.

A callback with `on_error="raise"` and `budget=None` is called directly. Isolation costs such a callback no time.
"""

from __future__ import annotations

import logging
import math
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .catalog import Clock, Event, Kind
from .channels import Subscription
from .control import TrainerControl
from .errors import EvaluationStopped, RankDivergence, RankFailure, SubscriptionError
from .handlers import Call
from .policies import Budget, Policy
from .stages import Stage

logger = logging.getLogger(__name__)

WINDOW = 10
"""The number of steps in a window. At the end of each window, the run compares the time of a callback with its budget.
A callback counts as over its budget after it exceeds the budget in two consecutive windows."""

LISTED = 5
"""The largest number of failed steps that a summary lists for a callback."""

_ONCE = frozenset(
    {"on_init_end", "on_setup", "on_load", "on_train_begin", "on_train_end", "on_exception", "on_close", "on_end"}
)
"""Events whose handlers do not count for a budget, because these events do not come in every step."""
_THINNED_CALLS = frozenset({"on_prediction_step", "on_log"})
"""Frequent events outside of steps. A thinned callback also misses some announcements of these events."""
_NEVER_ISOLATED = (RankFailure, RankDivergence, EvaluationStopped)
"""Errors that always end the run or the evaluation, because the handler is not their cause. The policy of the handler
does not apply to these errors."""


@dataclass
class CallbackFailures:
    """The failures of one callback during a training."""

    id: str
    """The id of the callback."""
    count: int = 0
    """The number of handler calls that failed. A call with retries counts once, and only if the last retry fails."""
    retries: int = 0
    """The number of retries."""
    steps: list[int] = field(default_factory=list)
    """The number of completed steps at each of the first 100 failures."""
    events: list[str] = field(default_factory=list)
    """The events in which the callback failed, without duplicates."""
    error: str = ""
    """The first exception in one line."""
    traceback: str = ""
    """The traceback of the first exception."""
    over_budget: str = ""
    """A text with the time that the callback took, if the callback exceeded its budget. Otherwise the text is empty."""
    every: int = 1
    """The interval of a thinned callback: the run calls the callback at every n-th step only. 1 for other callbacks."""
    quarantined: int | None = None
    """The step at which the callback was unsubscribed; None if the callback is still subscribed."""

    @property
    def is_reported(self) -> bool:
        """Whether the callback failed, was retried, exceeded its budget or was unsubscribed."""
        return bool(self.count or self.retries or self.over_budget or self.quarantined is not None)

    def __str__(self) -> str:
        """Return one line: the callback, how often and at which steps it failed, and the first error."""
        parts = []
        if self.count:
            more = ", ..." if self.count > LISTED else ""
            distinct = dict.fromkeys(self.steps[:LISTED])
            steps = f"step{'s' * (len(distinct) > 1)} {', '.join(map(str, distinct))}"
            times = "once" if self.count == 1 else f"{self.count} times"
            parts.append(f"failed {times}, after {steps}{more}, in {' and '.join(self.events)}: {self.error}")
        if self.retries:
            parts.append(f"{self.retries} calls were repeated")
        if self.over_budget:
            parts.append(self.over_budget)
        if self.every > 1:
            parts.append(f"it was called at every {self.every}th step only")
        if self.quarantined is not None:
            parts.append(f"unsubscribed at step {self.quarantined}")
        return f"{self.id}: {'; '.join(parts)}"


@dataclass
class Verdict:
    """The action that this rank proposes for a callback. All ranks agree on an action before they take it."""

    failed: str = ""
    """The last exception of a handler, in one line; empty if no handler failed. After a failure, all ranks withdraw the
    requests and vetoes of the callback."""
    quarantine: str = ""
    """The reason to unsubscribe the callback. Empty: do not unsubscribe the callback."""
    every: int = 1
    """The new interval in steps at which to call the callback. 1: do not change the interval."""


class Isolation:
    """The failures of all callbacks of a bus, and the seconds that callbacks with a budget take."""

    def __init__(self, control: TrainerControl, detach: Callable[[str], None]) -> None:
        """Create the isolation of a bus. The isolation starts with no failures.

        Args:
            control: the flags. If a call of a handler fails, the isolation undoes the flag writes of this call.
            detach: a function that unsubscribes a callback by its id.
        """
        self.control = control
        self._detach = detach
        self.leaving: Callable[[str], None] = lambda owner_id: None
        """A function that is called with the id of a callback, before the run unsubscribes this callback."""
        self._quarantinable: set[str] = set()
        self.failures: dict[str, CallbackFailures] = {}
        """The failures by the id of the callback."""
        self.meters: dict[str, Meter] = {}
        """The meters that compare time with budget, by the id of the callback."""
        self.shared: frozenset[str] = frozenset()
        """The ids of the callbacks for which all ranks agree on each action, such as to unsubscribe the callback."""
        self.private: frozenset[str] | None = None
        """The ids of the callbacks for which each rank acts alone. For callbacks that are attached later, all ranks
        agree on each action. None: only `shared` counts."""
        self.pending: dict[str, Verdict] = {}
        """The verdicts of this rank on the shared callbacks, until the ranks exchange them."""
        self.clock: Callable[[], float] = time.perf_counter
        """A function that returns a time in seconds. Only differences of two times have a meaning."""

    def begin(self) -> None:
        """Delete the recorded failures of an earlier training."""
        self.failures.clear()
        self.pending.clear()

    def of(self, owner_id: str) -> CallbackFailures:
        """Return the failures of a callback. Create an empty record if there is none."""
        return self.failures.setdefault(owner_id, CallbackFailures(owner_id))

    def summary(self) -> str:
        """Return the text for the end of a run about all callbacks with `CallbackFailures.is_reported`.

        The text has a line for each such callback. If the callback failed, the traceback of its first failure follows.
        If `is_reported` is False for all callbacks, the text is empty.
        """
        lines = []
        for record in self.failures.values():
            if record.is_reported:
                lines.append(f"Callback {record}")
                lines += [f"  {line}" for line in record.traceback.splitlines()]
        return "\n".join(lines)

    # Failures.

    def guarded(self, call: Call, owner_id: str, policy: Policy) -> Call:
        """Return a function that calls a handler. If the call fails, the function undoes the flag writes of this call.

        The function then repeats the call, at most `policy.retries` times. If the last call fails too, the function
        raises the exception. It does not undo changes to logs, to metrics or to the attributes of the callback.
        """
        control = self.control
        if policy.action == "quarantine":
            self._quarantinable.add(owner_id)

        def guard(run: Any, extras: Mapping[str, Any]) -> Any:
            before, left = control.wishes_of(owner_id), policy.retries
            while True:
                try:
                    return call(run, extras)
                except _NEVER_ISOLATED:
                    raise
                except Exception as error:
                    control.restore(owner_id, before, f"its handler failed with {_line(error)}")
                    if left == 0:
                        raise
                    left -= 1
                    self.of(owner_id).retries += 1
                    control.note(owner_id, "retry", _line(error))

        return guard

    def forgives(self, subscription: Subscription, error: Exception) -> bool:
        """Return whether the run continues after a handler failed with `error`, by the policy of the handler.

        If True, the method has counted the failure and logged a warning. If the policy requires it, the method has
        called `quarantine`. If False, the method does nothing.
        """
        policy, owner_id = subscription.policy, subscription.owner_id
        if policy.action == "raise" or isinstance(error, _NEVER_ISOLATED):
            return False
        record, step = self.of(owner_id), self.control.step
        record.count += 1
        if len(record.steps) < 100:
            record.steps.append(step)
        if subscription.event.name not in record.events:
            record.events.append(subscription.event.name)
        if not record.error:
            record.error = _line(error)
            record.traceback = "".join(traceback.format_exception(error))
        self.control.note(owner_id, "fail", _line(error))
        leaves = policy.action == "quarantine" and record.count >= policy.after
        remedy = "it is unsubscribed" if leaves else "the run continues"
        where = f"{subscription.label} failed after step {step}"
        logger.warning("%s, %s: %s", where, remedy, _line(error), exc_info=error)
        if self.is_shared(owner_id):
            self.pending.setdefault(owner_id, Verdict()).failed = _line(error)
        if leaves:
            times = "" if policy.after == 1 else f" for the {record.count}. time"
            self.quarantine(owner_id, f"{subscription.event.name} failed{times}: {_line(error)}")
        return True

    def quarantine(self, owner_id: str, reason: str) -> None:
        """Unsubscribe a callback on this rank.

        If `is_shared(owner_id)`, only store the reason in `pending`. After the next exchange of the entries in
        `pending`, all ranks unsubscribe the callback.
        """
        if self.is_shared(owner_id):
            self.pending.setdefault(owner_id, Verdict()).quarantine = reason
        else:
            self.unsubscribe(owner_id, reason)

    def is_shared(self, owner_id: str) -> bool:
        """Return whether the ranks act together on a callback: all ranks unsubscribe it, or none does."""
        return owner_id in self.shared or (self.private is not None and owner_id not in self.private)

    def may_leave(self, owner_id: str) -> bool:
        """Return whether the run may unsubscribe a callback, or call it less often, after failures or slow calls."""
        meter = self.meters.get(owner_id)
        return owner_id in self._quarantinable or (meter is not None and meter.may_act)

    def unsubscribe(self, owner_id: str, reason: str) -> None:
        """Unsubscribe a callback on this rank, and write the reason to the ledger."""
        self.of(owner_id).quarantined = self.control.step
        self.control.note(owner_id, "quarantine", reason)
        self.leaving(owner_id)
        self._detach(owner_id)

    def thin(self, owner_id: str, every: int) -> None:
        """From now on, call a callback only at every `every`-th step. The interval never becomes shorter.

        An `every` that is not larger than the current interval has no effect.
        """
        meter = self.meters.get(owner_id)
        if meter is not None and every > meter.every:
            meter.every = self.of(owner_id).every = every
            self.control.note(owner_id, "thin", f"it is called at every {every}th step now")
            logger.warning("%s takes more time than its budget. It is called at every %dth step now.", owner_id, every)

    # Time.

    def timed(self, call: Call, event: Event, owner_id: str, budget: Budget) -> Call:
        """Return a function that calls a handler, and adds the time of the call to the `Meter` of the callback.

        After a call of `thin`, the returned function leaves out some calls of the handler. Events for which
        `is_thinned` returns False, such as `on_evaluate_end`, always reach the handler. For work events and the events
        in `_ONCE`, such as `on_setup`, there is no budget: the method returns `call` itself, and the time is not
        measured.
        """
        if event.name in _ONCE or event.kind is Kind.WORK:
            return call
        meter = self.meters.setdefault(owner_id, Meter(self, owner_id, budget))
        thins = budget.remedy == "thin" and is_thinned(event)
        calls = 0

        def measured(run: Any, extras: Mapping[str, Any]) -> Any:
            nonlocal calls
            calls += 1
            if thins and meter.every > 1 and run.count(event.clock, calls) % meter.every:
                return None
            if meter.inside:  # inside another handler of the same callback, which measures this time already
                return call(run, extras)
            meter.inside = True
            began = self.clock()
            try:
                return call(run, extras)
            finally:
                meter.inside = False
                meter.add(self.clock() - began)

        return measured


class Meter:
    """Adds up the time of one callback, and compares it with the budget."""

    def __init__(self, isolation: Isolation, owner_id: str, budget: Budget) -> None:
        """Create the meter of one callback. The measured time starts at 0 seconds."""
        self._isolation, self._owner_id, self._budget = isolation, owner_id, budget
        self.every = 1
        """The interval in steps at which the callback is called."""
        self.inside = False
        """Whether a handler of the callback runs now."""
        self._first, self._began, self._spent, self._exceeded = -1, 0.0, 0.0, 0

    @property
    def may_act(self) -> bool:
        """Whether the run unsubscribes the callback, or calls it less often, if the callback exceeds its budget. False:
        the run only logs a warning."""
        return self._budget.remedy != "warn"

    def add(self, seconds: float) -> None:
        """Add the seconds of a handler call to the sum. The first call of a training does not count.

        After every `WINDOW` steps, the method compares the sum with the budget, and starts a new sum. If two
        consecutive sums exceed the budget, the method does the action `over_budget` of the callback.
        """
        step, now = self._isolation.control.step, self._isolation.clock()
        if self._first < 0 or step < self._first:  # the first call does not count: it may import and compile
            self._first, self._began, self._spent, self._exceeded = step, now, 0.0, 0
            return
        self._spent += seconds
        steps = step - self._first
        if steps < WINDOW:
            return
        excess = self._budget.excess(self._spent, now - self._began, steps)
        self._exceeded = self._exceeded + 1 if excess > 1 else 0
        if self._exceeded >= 2:
            self._act(excess, self._spent / steps)
            self._exceeded = 0
        self._first, self._began, self._spent = step, now, 0.0

    def _act(self, excess: float, mean: float) -> None:
        isolation, owner_id = self._isolation, self._owner_id
        record, reason = isolation.of(owner_id), f"took {1e6 * mean:.0f} microseconds per step, budget {self._budget}"
        if not record.over_budget:
            record.over_budget = reason
            logger.warning("%s %s (over_budget=%r).", owner_id, reason, self._budget.remedy)
            isolation.control.note(owner_id, "over budget", reason)
        if self._budget.remedy == "quarantine":
            isolation.quarantine(owner_id, reason)
        elif self._budget.remedy == "thin":
            every = max(self.every + 1, math.ceil(self.every * excess))
            if isolation.is_shared(owner_id):
                isolation.pending.setdefault(owner_id, Verdict()).every = every
            else:
                isolation.thin(owner_id, every)


def is_thinned(event: Event) -> bool:
    """Return whether `over_budget="thin"` lets a slow callback miss some announcements of an event.

    True if `event.clock` is STEP or STEPS_DONE. Also True for `on_prediction_step` and `on_log`.
    """
    return event.clock in (Clock.STEP, Clock.STEPS_DONE) or event.name in _THINNED_CALLS


def refuse_thinning(owner_id: str, stages: Iterable[tuple[Event, Stage]]) -> None:
    """Raise an error if a callback with `over_budget="thin"` has a handler that must not miss an announcement.

    If such a callback exceeds its time budget, the bus leaves out some announcements of the events for which
    `is_thinned` returns True. Only handlers in the stage REPORT may miss announcements.

    Args:
        owner_id: the id of the callback.
        stages: each event that the callback handles, with the stage of the handler.

    Raises:
        SubscriptionError: if a handler of such an event runs in another stage than REPORT.
    """
    acting = [(event, stage) for event, stage in stages if is_thinned(event) and stage is not Stage.REPORT]
    if acting:
        event, stage = acting[0]
        raise SubscriptionError(
            f"{owner_id}.over_budget is 'thin', and {owner_id}.{event.name} runs in the stage {stage.name}. A handler "
            "that decides, measures or changes the step may not miss one. Set over_budget='warn' or 'quarantine', or "
            "`stage = Stage.REPORT` if it only reports."
        )


def _line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__

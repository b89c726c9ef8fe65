"""Isolation: a run can continue although a callback fails or is slow. A summary lists each of these callbacks.

A callback with `on_error="raise"` and without a budget is called directly, so isolation costs no time for its events.
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
"""The number of steps in a window. At the end of each window, the time of a callback is compared with its budget. The
callback is over its budget after two such windows in a row."""

LISTED = 5
"""The number of failed steps that a summary lists for a callback, at most."""

_ONCE = frozenset(
    {"on_init_end", "on_setup", "on_load", "on_train_begin", "on_train_end", "on_exception", "on_close", "on_end"}
)
"""Events whose handlers do not count for a budget, because these events do not come in every step."""
_THINNED_CALLS = frozenset({"on_prediction_step", "on_log"})
"""Events outside of a step that come often. A thinned callback misses some of their announcements, too."""
_NEVER_ISOLATED = (RankFailure, RankDivergence, EvaluationStopped)
"""Errors that always end the run or the evaluation, whatever the policy: the handler is not their cause."""


@dataclass
class CallbackFailures:
    """The failures of one callback during a training."""

    id: str
    """The id of the callback."""
    count: int = 0
    """The number of handler calls that failed, retries not included."""
    retries: int = 0
    """The number of calls that were repeated."""
    steps: list[int] = field(default_factory=list)
    """The number of completed steps at each failure. Only the first 100 failures are listed."""
    events: list[str] = field(default_factory=list)
    """The events in which the callback failed. Each is listed once."""
    error: str = ""
    """The first exception in one line."""
    traceback: str = ""
    """The traceback of the first exception."""
    over_budget: str = ""
    """A text with the time that the callback took, if the callback exceeded its budget; otherwise empty."""
    every: int = 1
    """The interval of a thinned callback in steps: with n, it is called at every n-th step. 1 for other callbacks."""
    quarantined: int | None = None
    """The step at which the callback was unsubscribed; None if it was not."""

    @property
    def is_reported(self) -> bool:
        """Whether anything went wrong."""
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
    """The last exception of a handler, in one line; empty if no handler failed. All ranks withdraw the requests and
    vetoes of the callback."""
    quarantine: str = ""
    """The reason to unsubscribe the callback; empty if it stays subscribed."""
    every: int = 1
    """The interval in steps at which the callback is called from now on. 1: at every step."""


class Isolation:
    """The failures and the times of all callbacks of a bus."""

    def __init__(self, control: TrainerControl, detach: Callable[[str], None]) -> None:
        """Create the isolation of a bus, without failures.

        Args:
            control: the flags. If a handler fails, its requests and vetoes are withdrawn.
            detach: a function that unsubscribes a callback by its id.
        """
        self.control = control
        self._detach = detach
        self.failures: dict[str, CallbackFailures] = {}
        """The failures by the id of the callback."""
        self.meters: dict[str, Meter] = {}
        """The meters that compare time with budget, by the id of the callback."""
        self.shared: frozenset[str] = frozenset()
        """The ids of the callbacks about which all ranks decide together."""
        self.pending: dict[str, Verdict] = {}
        """The verdicts of this rank on the shared callbacks, until the ranks exchange them."""
        self.clock: Callable[[], float] = time.perf_counter
        """The time in seconds, from any start."""

    def begin(self) -> None:
        """Forget the failures of an earlier training."""
        self.failures.clear()
        self.pending.clear()

    def of(self, owner_id: str) -> CallbackFailures:
        """Return the record of a callback."""
        return self.failures.setdefault(owner_id, CallbackFailures(owner_id))

    def summary(self) -> str:
        """Return the text for the end of a run. It lists each callback that failed or exceeded its budget, with
        the traceback of its first failure. The text is empty if there is no such callback."""
        lines = []
        for record in self.failures.values():
            if record.is_reported:
                lines.append(f"Callback {record}")
                lines += [f"  {line}" for line in record.traceback.splitlines()]
        return "\n".join(lines)

    # Failures.

    def guarded(self, call: Call, owner_id: str, policy: Policy) -> Call:
        """Return a function that calls a handler, and withdraws the flags that the handler wrote if the call fails.

        The function then repeats the call, at most `policy.retries` times. If the last call fails too, it raises the
        exception. It undoes nothing else: values that the handler wrote to logs, to metrics or to its own attributes
        stay.
        """
        control = self.control

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
        """Apply the policy of a handler that failed with `error`, and return whether the run continues.

        If the run continues, the method counts the failure, logs a warning, and unsubscribes the callback if the policy
        requires it.
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
        if owner_id in self.shared:
            self.pending.setdefault(owner_id, Verdict()).failed = _line(error)
        if leaves:
            times = "" if policy.after == 1 else f" for the {record.count}. time"
            self.quarantine(owner_id, f"{subscription.event.name} failed{times}: {_line(error)}")
        return True

    def quarantine(self, owner_id: str, reason: str) -> None:
        """Unsubscribe a callback. If all ranks decide about it together, store a proposal in `pending` instead."""
        if owner_id in self.shared:
            self.pending.setdefault(owner_id, Verdict()).quarantine = reason
        else:
            self.unsubscribe(owner_id, reason)

    def unsubscribe(self, owner_id: str, reason: str) -> None:
        """Unsubscribe a callback, with an entry in the ledger."""
        self.of(owner_id).quarantined = self.control.step
        self.control.note(owner_id, "quarantine", reason)
        self._detach(owner_id)

    def thin(self, owner_id: str, every: int) -> None:
        """From now on, call a callback only at steps that `every` divides. A smaller `every` than before has no
        effect."""
        meter = self.meters.get(owner_id)
        if meter is not None and every > meter.every:
            meter.every = self.of(owner_id).every = every
            self.control.note(owner_id, "thin", f"it is called at every {every}th step now")
            logger.warning("%s takes more time than its budget. It is called at every %dth step now.", owner_id, every)

    # Time.

    def timed(self, call: Call, event: Event, owner_id: str, budget: Budget) -> Call:
        """Return a function that calls a handler, and adds the time of the call to the meter of its callback.

        For events whose time the budget does not limit, the function returns the handler unchanged.
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
        """Begin with no time spent."""
        self._isolation, self._owner_id, self._budget = isolation, owner_id, budget
        self.every = 1
        """The interval in steps at which the callback is called."""
        self.inside = False
        """Whether a handler of the callback runs now."""
        self._first, self._began, self._spent, self._exceeded = -1, 0.0, 0.0, 0

    @property
    def may_act(self) -> bool:
        """Whether a callback that exceeds its budget is called less often or unsubscribed. Otherwise it only causes a
        warning."""
        return self._budget.remedy != "warn"

    def add(self, seconds: float) -> None:
        """Add the seconds of a handler call. After each window of `WINDOW` steps, compare the sum with the budget."""
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
            if owner_id in isolation.shared:
                isolation.pending.setdefault(owner_id, Verdict()).every = every
            else:
                isolation.thin(owner_id, every)


def is_thinned(event: Event) -> bool:
    """Return whether `over_budget="thin"` lets a slow callback miss some announcements of an event.

    True for events whose clock counts steps, for `on_prediction_step` and for `on_log`.
    """
    return event.clock in (Clock.STEP, Clock.STEPS_DONE) or event.name in _THINNED_CALLS


def refuse_thinning(owner_id: str, stages: Iterable[tuple[Event, Stage]]) -> None:
    """Check that a callback with `over_budget="thin"` may miss announcements.

    Such a callback runs only at some steps after it exceeds its time budget.

    Args:
        owner_id: the id of the callback.
        stages: each event that the callback handles, with the stage of the handler.

    Raises:
        SubscriptionError: if a handler runs in another stage than REPORT, and `is_thinned` is True for its event. Such
            a handler may decide, change logs or change the step.
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

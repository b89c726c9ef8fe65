"""Policies: the effect of an exception in a handler, and the time budget of a callback."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .errors import SubscriptionError, nearest

ACTIONS = ("raise", "warn", "quarantine")
"""The possible actions after an exception: end the run, log a warning, or log a warning and unsubscribe the
callback."""

REMEDIES = ("warn", "thin", "quarantine")
"""The possible actions for a callback that exceeds its budget."""

_FORMS = "raise, warn, quarantine, 'quarantine(after=3)', 'retry(3)', \"retry(3, then='warn')\""
_CALL = re.compile(r"\s*(?P<name>\w+)\s*(?:\((?P<options>.*)\))?\s*", re.DOTALL)
_OPTION = re.compile(r"(?:(?P<name>\w+)\s*=\s*)?(?:(?P<number>\d+)|(?P<quote>['\"]?)(?P<word>\w+)(?P=quote))")
_AMOUNT = re.compile(r"\s*(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>%|us|µs|ms|s)\s*")
_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Policy:
    """The effect of an exception in a handler."""

    action: str = "raise"
    """`raise`, `warn` or `quarantine`. If there are retries, the action follows when the last retry fails."""
    after: int = 1
    """The number of failures after which `quarantine` unsubscribes the callback. With 3, the first two failures only
    log a warning."""
    retries: int = 0
    """How many times a failed handler is called again, without a pause. If the last of these calls fails, the exception
    counts as one failure."""

    @property
    def isolates(self) -> bool:
        """Whether the bus catches exceptions of the handler: True if there are retries or `action` is not `raise`."""
        return self.action != "raise" or self.retries > 0

    @property
    def text(self) -> str:
        """The value of `on_error` as a short text, such as `retry(3)` for `retry(3, then='raise')`."""
        if not self.retries:
            return self.action if self.after == 1 else quarantine(self.after)
        return f"retry({self.retries})" if self.action == "raise" else retry(self.retries, self.action)


RAISE = Policy()
"""The default: an exception ends the run."""


def quarantine(after: int = 1) -> str:
    """Return the value of `on_error` that unsubscribes a callback after a number of failures.

    Args:
        after: the number of failures. With 3, the first two failures only log a warning.
    """
    return f"quarantine(after={after})"


def retry(times: int = 3, then: str = "raise") -> str:
    """Return the value of `on_error` that calls a failed handler again.

    Args:
        times: the number of further calls, without a pause.
        then: the action if the last call fails too: `raise`, `warn` or `quarantine`.
    """
    return f"retry({times}, then={then!r})"


def ending(label: str, step: int, policy: Policy) -> str:
    """Return the note for an exception that ends the run, with the handler, the step and the policy."""
    return f"{label} failed after step {step} (its on_error is {policy.text!r})."


def policy_of(text: Any, label: str) -> Policy:
    """Return the policy that a value of `on_error` names.

    Args:
        text: the value, such as `retry(3)`.
        label: the id of the callback or handler, for errors.

    Raises:
        SubscriptionError: for an unknown or incomplete value. The error shows the nearest known name.
    """
    found = _CALL.fullmatch(text) if isinstance(text, str) else None
    name = found["name"] if found else str(text)
    if found is None or name not in (*ACTIONS, "retry"):
        raise SubscriptionError(f"{label}.on_error is {text!r}{nearest(name, (*ACTIONS, 'retry'))} Known: {_FORMS}.")
    if found["options"] is None and name != "retry":
        return Policy(name)
    places = {"quarantine": ("after",), "retry": ("times", "then")}.get(name, ())
    values: dict[str, Any] = {}
    for place, option in enumerate(filter(None, map(str.strip, (found["options"] or "").split(",")))):
        match = _OPTION.fullmatch(option)
        key = (match["name"] or (places[place] if place < len(places) else "")) if match else ""
        if match is None or key not in places:
            raise SubscriptionError(
                f"{label}.on_error is {text!r}, and {option!r} has no meaning there. Use: {_FORMS}."
            )
        values[key] = int(match["number"]) if match["number"] else match["word"]
    then = values.pop("then", "raise")
    if then not in ACTIONS or any(not isinstance(number, int) or number < 1 for number in values.values()):
        raise SubscriptionError(
            f"{label}.on_error is {text!r}. Give a number of 1 or more, and for `then` one of: {', '.join(ACTIONS)}."
        )
    if name == "retry":
        return Policy(then, retries=values.get("times", 3))
    return Policy(name, after=values.get("after", 1))


@dataclass(frozen=True)
class Budget:
    """The most time that the handlers of a callback may take per step."""

    amount: float
    """If `is_share`: a fraction of the time of a step, such as 0.02. Otherwise: seconds per step."""
    is_share: bool
    """Whether `amount` is a fraction of the time of a step."""
    remedy: str = "warn"
    """The action if the callback takes more time: `warn`, `thin` or `quarantine`, as in `Callback.over_budget`."""

    def excess(self, spent: float, elapsed: float, steps: int) -> float:
        """Return the time spent divided by the allowed time. Above 1, the callback exceeds its budget.

        Args:
            spent: the seconds that the handlers of the callback took in a number of steps.
            elapsed: the seconds that these steps took in total.
            steps: the number of these steps.
        """
        allowed = self.amount * (elapsed if self.is_share else steps)
        return spent / allowed if allowed > 0 else 0.0

    def __str__(self) -> str:
        return f"{100 * self.amount:g}% of a step" if self.is_share else f"{1e6 * self.amount:g} microseconds per step"


def budget_of(text: str, remedy: str, label: str) -> Budget:
    """Return the budget that a text such as `2%`, `200us` or `1.5ms` names.

    Args:
        text: a share of the time of a step, or a time per step.
        remedy: the value of `over_budget`, which says what happens to a callback that exceeds its budget.
        label: the id of the callback, for errors.

    Raises:
        SubscriptionError: if `text` has another form, if the budget is 0, or if `remedy` is unknown.
    """
    if remedy not in REMEDIES:
        raise SubscriptionError(
            f"{label}.over_budget is {remedy!r}{nearest(str(remedy), REMEDIES)} Known: {', '.join(REMEDIES)}."
        )
    found = _AMOUNT.fullmatch(text) if isinstance(text, str) else None
    number = float(found["number"]) if found else 0.0
    if found is None or number <= 0:
        raise SubscriptionError(
            f"{label}.budget is {text!r}. Write a share of the time of a step, such as '2%', or a time per step, such "
            "as '200us' or '1.5ms'."
        )
    share = found["unit"] == "%"
    return Budget(number / 100 if share else number * _SECONDS[found["unit"]], share, remedy)

"""TrainerControl: the flags that steer a run.

One request is enough to raise a flag. A veto blocks all requests for a flag. Every write has an author.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from typing import Any

from .errors import ArgumentError, SubscriptionError
from .flags import FLAGS, HF_FLAGS, Flag, flag_named
from .flags import SERVED as SERVED
from .keywords import checked_keywords
from .ledger import Entry, Ledger

logger = logging.getLogger(__name__)

OUTSIDE = "you"
"""The author of flag writes outside of any handler, such as in the user's program."""

RUN = "run"
"""The author of flag writes by the run itself."""


class Speaker:
    """The author, the event and the step that the ledger stores for a flag write.

    The bus sets `author` and `event` around each call of a handler. The loop sets `step`. `depth` is the depth of the
    nested announcements in progress. An announcement is nested if a handler of another announcement makes it.
    """

    __slots__ = ("author", "depth", "event", "step")

    def __init__(self) -> None:
        self.author = OUTSIDE
        self.event = ""
        self.step = 0
        self.depth = 0


class TrainerControl:
    """The flags that steer a run, as properties: `should_log`, `should_evaluate`, `should_save`, ...

    `control.should_save` is True if a callback requested a checkpoint and no callback vetoed it. The flag stays True
    during `on_save_due`, until `on_save`.

    Assigning True makes a request, like `control.request("save", reason="...")`. Assigning False withdraws only the
    caller's own request. To block the requests of others, call `control.veto("save", reason="...")`. At the end of
    the step, the run ends all vetoes and drops the blocked requests.

    At the end of a step, the run logs, evaluates and saves, in this order. If a handler requests a log during the
    evaluation, the run logs at the end of the next step or epoch.
    """

    def __init__(self, rank: int = 0, **flags: bool) -> None:
        """Start with the given flags raised.

        Args:
            rank: the rank of this process, for the entries of the ledger.
            **flags: the flags to raise, such as `should_save=True`.
        """
        self.rank = rank
        self.ledger = Ledger()
        self._requests: dict[str, dict[str, str]] = {flag: {} for flag in FLAGS}
        self._vetoes: dict[str, dict[str, str]] = {flag: {} for flag in FLAGS}
        self.speaking = Speaker()
        self.pending = False
        """Whether there may be requests or vetoes. If False, as in most steps, the loop does no work at the end of the
        step."""
        self.serving: set[str] = set()
        """The flags whose work is in progress. `should_<flag>` is True for these flags, although the run already
        removed their requests."""
        for flag, raised in flags.items():
            if raised:
                self.request(flag_named(flag), reason="given")

    # For callbacks.

    @checked_keywords
    def request(self, flag: Flag, reason: str = "") -> None:
        """Raise a flag.

        Args:
            flag: one of `log`, `evaluate`, `save`, `epoch_stop`, `training_stop`, `skip_update`. `should_<flag>` works
                too.
            reason: why, in words for a reader who does not know the code. The ledger stores the reason.

        Raises:
            ArgumentError: if there is no flag with this name. The error shows the nearest known name.
        """
        name, reason = flag_named(flag), reason if type(reason) is str else _as_text(reason)
        if self._requests[name].get(self.speaker) != reason:
            old = self.asks(name)
            self._requests[name][self.speaker] = reason
            self.pending = True
            self._note(name, "request", old, reason)

    def request_by_run(self, flag: Flag, reason: str) -> None:
        """Raise a flag with the run itself as the author, because no handler makes this request."""
        self.request_for(RUN, flag, reason)

    def request_for(self, author: str, flag: Flag, reason: str) -> None:
        """Raise a flag. The ledger names `author` as the author: the id of a callback, or "run" for the run itself."""
        before, self.speaking.author = self.speaking.author, author
        self.request(flag, reason)
        self.speaking.author = before

    @checked_keywords
    def veto(self, flag: Flag, reason: str = "") -> None:
        """Block a flag for this step. The veto blocks the requests of all callbacks, made before or after this call."""
        name, reason = flag_named(flag), reason if type(reason) is str else _as_text(reason)
        if self._vetoes[name].get(self.speaker) != reason:
            old = self.asks(name)
            self._vetoes[name][self.speaker] = reason
            self.pending = True
            self._note(name, "veto", old, reason)

    @checked_keywords
    def withdraw(self, flag: Flag, reason: str = "") -> None:
        """Withdraw the caller's own request. Requests of other callbacks stay, and cause a warning."""
        name, reason = flag_named(flag), reason if type(reason) is str else _as_text(reason)
        old = self.asks(name)
        if self._requests[name].pop(self.speaker, None) is not None:
            self._note(name, "withdraw", old, reason)
        if self.asks(name):
            others = ", ".join(self._requests[name])
            logger.warning(
                "%s set should_%s to False, but %s requested it, and only the author of a request can withdraw it. "
                'To block it in this step, call control.veto("%s", reason="...").',
                self.speaker,
                name,
                others,
                name,
            )

    def forget(self, author: str) -> None:
        """Drop all requests and vetoes of one author, without an entry in the ledger."""
        for wishes in (*self._requests.values(), *self._vetoes.values()):
            wishes.pop(author, None)

    def wishes_of(self, author: str) -> dict[tuple[str, Flag], str]:
        """Return the requests and vetoes of one author. A key is ("request" or "veto", flag), a value is the reason."""
        kinds = (("request", self._requests), ("veto", self._vetoes))
        return {(kind, flag): of[flag][author] for kind, of in kinds for flag in FLAGS if author in of[flag]}

    def restore(self, author: str, wishes: Mapping[tuple[str, Flag], str], why: str) -> None:
        """Reset the requests and vetoes of one author to `wishes`, an earlier result of `wishes_of`.

        The ledger gets an entry for each change. For a removed request or veto, the entry has the reason "taken back,
        because", followed by `why`.
        """
        for kind, flag in self.wishes_of(author).keys() | wishes.keys():
            of, before, old = (
                self._requests if kind == "request" else self._vetoes,
                wishes.get((kind, flag)),
                self.asks(flag),
            )
            if before is None:
                del of[flag][author]
                self._entry(author, flag, "withdraw", old, self.asks(flag), f"taken back, because {why}")
            elif of[flag].get(author) != before:
                of[flag][author] = before
                self.pending = True
                self._entry(author, flag, kind, old, self.asks(flag), before)

    def note(self, author: str, action: str, reason: str) -> None:
        """Write an entry about the callback `author` to the ledger. `action` says what happened, such as `fail`."""
        self._entry(author, "callback", action, False, False, reason)

    def asks(self, flag: Flag) -> bool:
        """Return whether `flag` is requested and not vetoed."""
        return bool(self._requests[flag]) and not self._vetoes[flag]

    def reasons(self, flag: Flag) -> dict[str, str]:
        """Return the requests for `flag`: author -> reason."""
        return dict(self._requests[flag_named(flag)])

    def vetoes(self, flag: Flag) -> dict[str, str]:
        """Return the vetoes of `flag` in this step: author -> reason."""
        return dict(self._vetoes[flag_named(flag)])

    @property
    def speaker(self) -> str:
        """The current author of flag writes: the id of the callback whose handler runs; `you` outside of handlers."""
        return self.speaking.author

    @property
    def step(self) -> int:
        """The number of completed optimizer steps."""
        return self.speaking.step

    # For the loop.

    def take(self, flag: Flag) -> frozenset[str]:
        """Remove all requests for `flag`. Return their authors; an empty set if `flag` is vetoed or not requested."""
        requests = self._requests[flag]
        if not requests:
            return frozenset()
        wanted = self.asks(flag)
        authors = frozenset(requests)
        reason = _joined(requests)
        if not wanted:
            reason += f" - vetoed by {_joined(self._vetoes[flag])}"
        requests.clear()
        self._entry("run", flag, "take" if wanted else "drop", wanted, False, reason)
        return authors if wanted else frozenset()

    def begin(self, flag: Flag) -> frozenset[str]:
        """Begin the work for `flag`: remove all its requests, and return their authors.

        `should_<flag>` stays True until `finish`. If `flag` is vetoed or not requested, the method returns an empty
        set, and `should_<flag>` is False.
        """
        authors = self.take(flag)
        if authors:
            self.serving.add(flag)
        return authors

    def finish(self, flag: Flag | None = None) -> None:
        """End the work for `flag`, or for all flags if `flag` is None.

        After this call, `should_<flag>` is True only if there is a new request.

        Four events come after the work for a flag: `on_log` for `log`, `on_evaluate` for `evaluate`, `on_save` for
        `save`, and `on_epoch_begin` for `epoch_stop`. The bus calls this method before the handlers of these events
        run. transformers sets its flags to False before the same handlers run.
        """
        self.serving.clear() if flag is None else self.serving.discard(flag)

    def raised(self, flag: Flag) -> bool:
        """Return whether `flag` is requested, even if it is vetoed."""
        return bool(self._requests[flag])

    def vetoed(self, flag: Flag) -> bool:
        """Return whether `flag` is vetoed in this step."""
        return bool(self._vetoes[flag])

    def settle(self) -> None:
        """End all vetoes of this step, and drop the blocked requests."""
        for flag in FLAGS:
            if self._vetoes[flag]:
                self.take(flag)
                self._vetoes[flag].clear()
        self.pending = any(self._requests.values())

    def absorb(self, other: Any) -> None:
        """Request the flags that are raised on `other`. Flags that the run is serving now are not requested.

        Args:
            other: the value that a handler returned, such as a control. A value without flags has no effect.

        Raises:
            SubscriptionError: if `other` is a coroutine or a generator. In this case, the body of the handler did not
                run.
        """
        if inspect.iscoroutine(other) or inspect.isgenerator(other) or inspect.isasyncgen(other):
            kind = type(other).__name__.replace("_", " ")
            if inspect.iscoroutine(other):
                other.close()  # without a warning that nothing awaited it
            raise SubscriptionError(
                f"{self.speaker}.{self.speaking.event} returned a {kind}, so its body did not run. "
                "Write a plain function."
            )
        for flag in FLAGS:
            # A copy of this control repeats the flags whose work is in progress. They are not new requests.
            if flag not in self.serving and getattr(other, f"should_{flag}", False) is True:
                self.request(flag, reason="returned by the handler")

    def why(self, flag: Flag) -> str:
        """Return when and why the run last did what `flag` requests: a text with the step, the authors and the reasons.

        The text is empty if the run never did this work. Example: `stopped at step 1200 by EarlyStopping: eval_loss has
        not improved for 3 evaluations`.
        """
        name = flag_named(flag)
        taken = [entry for entry in self.ledger.of(name) if entry.action == "take"]
        if not taken:
            return ""
        what = "stopped" if name == "training_stop" else name
        return f"{what} at step {taken[-1].step} by {taken[-1].reason}"

    def _note(self, flag: Flag, action: str, old: bool, reason: str) -> None:
        self._entry(self.speaker, flag, action, old, self.asks(flag), reason)

    def _entry(self, author: str, flag: str, action: str, old: bool, new: bool, reason: str) -> None:
        self.ledger.write(
            Entry(self.speaking.step, self.speaking.event, author, flag, action, old, new, reason, self.rank)
        )

    def state(self) -> dict[str, Any]:
        """Return the flags in the format of transformers' `ExportableState`."""
        return {"args": {f"should_{flag}": self._reads(flag) for flag in HF_FLAGS}, "attributes": {}}

    def __repr__(self) -> str:
        raised = [f"should_{flag}" for flag in FLAGS if self._reads(flag)]
        return f"TrainerControl({', '.join(raised) or 'no flag is raised'})"

    # The flags as attributes, with the names of transformers.

    def _reads(self, flag: Flag) -> bool:
        return bool(self._requests[flag] or flag in self.serving) and not self._vetoes[flag]

    def _assign(self, flag: Flag, value: object) -> None:
        if not value:
            self.withdraw(flag)
        elif self.speaker not in self._requests[flag]:  # keep the reason of an earlier request
            self.request(flag)

    @property
    def should_log(self) -> bool:
        """Whether values are logged at the end of this step."""
        return self._reads("log")

    @should_log.setter
    def should_log(self, value: bool) -> None:
        self._assign("log", value)

    @property
    def should_evaluate(self) -> bool:
        """Whether the run evaluates at the end of this step."""
        return self._reads("evaluate")

    @should_evaluate.setter
    def should_evaluate(self, value: bool) -> None:
        self._assign("evaluate", value)

    @property
    def should_save(self) -> bool:
        """Whether a checkpoint is written at the end of this step."""
        return self._reads("save")

    @should_save.setter
    def should_save(self, value: bool) -> None:
        self._assign("save", value)

    @property
    def should_epoch_stop(self) -> bool:
        """Whether the epoch ends after this step."""
        return self._reads("epoch_stop")

    @should_epoch_stop.setter
    def should_epoch_stop(self, value: bool) -> None:
        self._assign("epoch_stop", value)

    @property
    def should_training_stop(self) -> bool:
        """Whether the training ends after this step."""
        return self._reads("training_stop")

    @should_training_stop.setter
    def should_training_stop(self, value: bool) -> None:
        self._assign("training_stop", value)

    @property
    def should_skip_update(self) -> bool:
        """Whether this step leaves the weights unchanged."""
        return self._reads("skip_update")

    @should_skip_update.setter
    def should_skip_update(self, value: bool) -> None:
        self._assign("skip_update", value)

    def __setattr__(self, name: str, value: object) -> None:
        # Without this check, a misspelt flag would silently have no effect.
        if not hasattr(type(self), name):
            prefix, _, flag = name.partition("_")
            if prefix == "should":
                flag_named(name)
            elif name in FLAGS or flag in FLAGS:
                meant = f"should_{name if name in FLAGS else flag}"
                raise ArgumentError(f"TrainerControl has no flag {name!r}; did you mean {meant!r}?")
        object.__setattr__(self, name, value)


def _joined(wishes: dict[str, str]) -> str:
    return "; ".join(f"{author}: {why}" if why else author for author, why in wishes.items())


def _as_text(reason: object) -> str:
    """Return a reason as text, because checkpoints store reasons as text. None becomes an empty text."""
    return "" if reason is None else str(reason)

"""TrainerControl: what callbacks ask of the run. Requests add up, a veto wins, and every write has an author."""

from __future__ import annotations

import logging
from typing import Any

from .errors import ArgumentError, nearest
from .ledger import Entry, Ledger

logger = logging.getLogger(__name__)

FLAGS: dict[str, str] = {
    "log": "log the training values of this step",
    "evaluate": "evaluate at this step",
    "save": "write a checkpoint at this step",
    "epoch_stop": "end the epoch after this step",
    "training_stop": "end the training after this step",
    "skip_update": "leave the weights as they are in this step",
}
"""What can be asked for, and what it means."""

SERVED = ("log", "evaluate", "save")
"""The flags that ask for work, in the one order in which it is done."""

OUTSIDE = "you"
"""The author of writes made outside of any handler."""


class Speaker:
    """Who writes to the control at the moment, in which event and after which step.

    The bus sets it around each handler, and the loop counts its steps: an object of its own, because that is cheap.
    """

    __slots__ = ("author", "event", "step")

    def __init__(self) -> None:
        self.author = OUTSIDE
        self.event = ""
        self.step = 0


class TrainerControl:
    """The flags that steer a run, `should_log`, `should_evaluate`, `should_save`, ... as properties.

    Reading `control.should_save` says whether the checkpoint will be written: somebody asked for it and nobody vetoed.
    Assigning `True` is a request, as `control.request("save", reason="...")` is. Assigning `False` takes back one's own
    request and no one else's; to prevent what others ask for, `control.veto("save", reason="...")`. A veto holds until
    the end of the step. Requests that were not yet served are never erased: they wait for the next step's end.
    """

    def __init__(self, rank: int = 0) -> None:
        """Start with nothing asked for; `rank` is the process that entries of the ledger name."""
        self.rank = rank
        self.ledger = Ledger()
        self._requests: dict[str, dict[str, str]] = {flag: {} for flag in FLAGS}
        self._vetoes: dict[str, dict[str, str]] = {flag: {} for flag in FLAGS}
        self.speaking = Speaker()
        self.pending = False
        """Whether anything was asked for or vetoed since the last `settle`; most steps ask for nothing."""

    # What callbacks use.

    def request(self, flag: str, reason: str = "") -> None:
        """Ask for something.

        Args:
            flag: one of `log`, `evaluate`, `save`, `epoch_stop`, `training_stop`, `skip_update` (or `should_<flag>`).
            reason: why, in words a person can act on; it is kept in the ledger.
        """
        flag = _flag(flag)
        if self._requests[flag].get(self.speaker) != reason:
            old = self.asks(flag)
            self._requests[flag][self.speaker] = reason
            self.pending = True
            self._note(flag, "request", old, reason)

    def veto(self, flag: str, reason: str = "") -> None:
        """Forbid something for this step, whoever asks for it, before or after."""
        flag = _flag(flag)
        if self._vetoes[flag].get(self.speaker) != reason:
            old = self.asks(flag)
            self._vetoes[flag][self.speaker] = reason
            self.pending = True
            self._note(flag, "veto", old, reason)

    def withdraw(self, flag: str, reason: str = "") -> None:
        """Take back one's own request; those of others stay."""
        flag = _flag(flag)
        old = self.asks(flag)
        if self._requests[flag].pop(self.speaker, None) is not None:
            self._note(flag, "withdraw", old, reason)
        if self.asks(flag):
            others = ", ".join(self._requests[flag])
            logger.warning(
                "%s lowered should_%s, but %s asked for it and only the author of a request can take it back. "
                'To prevent it for this step, call control.veto("%s", reason="...").',
                *(self.speaker, flag, others, flag),
            )

    def asks(self, flag: str) -> bool:
        """Say whether `flag` is requested and not vetoed."""
        return bool(self._requests[flag]) and not self._vetoes[flag]

    def reasons(self, flag: str) -> dict[str, str]:
        """Return who asks for `flag`, and why."""
        return dict(self._requests[_flag(flag)])

    def vetoes(self, flag: str) -> dict[str, str]:
        """Return who forbids `flag` in this step, and why."""
        return dict(self._vetoes[_flag(flag)])

    @property
    def speaker(self) -> str:
        """The id of the callback that is being called; `you` outside of handlers."""
        return self.speaking.author

    @property
    def step(self) -> int:
        """The optimizer steps that are done."""
        return self.speaking.step

    # What the machine uses.

    def take(self, flag: str) -> frozenset[str]:
        """Lower `flag` and return who asked for it: nobody when it was not requested, or when a veto prevailed."""
        requests = self._requests[flag]
        if not requests:
            return frozenset()
        wanted = self.asks(flag)
        authors = frozenset(requests)
        reason = "; ".join(f"{author}: {why}" if why else author for author, why in requests.items())
        if not wanted:
            reason += " - vetoed by " + "; ".join(
                f"{author}: {why}" if why else author for author, why in self._vetoes[flag].items()
            )
        requests.clear()
        self._entry("run", flag, "take" if wanted else "drop", wanted, False, reason)
        return authors if wanted else frozenset()

    def raised(self, flag: str) -> bool:
        """Say whether anybody asks for `flag`, vetoed or not."""
        return bool(self._requests[flag])

    def vetoed(self, flag: str) -> bool:
        """Say whether anybody forbids `flag` in this step."""
        return bool(self._vetoes[flag])

    def settle(self) -> None:
        """Let the vetoes of this step lapse; a stop that was vetoed is dropped with them."""
        for flag, vetoes in self._vetoes.items():
            if vetoes:
                self.take(flag)
                vetoes.clear()
        self.pending = any(self._requests.values())

    def absorb(self, other: Any) -> None:
        """Take over the raised flags of another control, as a handler written for transformers may return one."""
        for flag in FLAGS:
            if getattr(other, f"should_{flag}", False) is True:
                self.request(flag, reason="returned by the handler")

    def why(self, flag: str) -> str:
        """Say in words who last had the run act on `flag`, when and why; empty if it never did.

        `stopped at step 1200 by EarlyStopping: eval_loss has not improved for 3 evaluations` for `training_stop`.
        """
        taken = [entry for entry in self.ledger.of(_flag(flag)) if entry.action == "take"]
        if not taken:
            return ""
        what = "stopped" if _flag(flag) == "training_stop" else _flag(flag)
        return f"{what} at step {taken[-1].step} by {taken[-1].reason}"

    def _note(self, flag: str, action: str, old: bool, reason: str) -> None:
        self._entry(self.speaker, flag, action, old, self.asks(flag), reason)

    def _entry(self, author: str, flag: str, action: str, old: bool, new: bool, reason: str) -> None:
        self.ledger.write(
            Entry(self.speaking.step, self.speaking.event, author, flag, action, old, new, reason, self.rank)
        )

    def __repr__(self) -> str:
        raised = [f"should_{flag}" for flag in FLAGS if self.asks(flag)]
        return f"TrainerControl({', '.join(raised) or 'nothing asked for'})"

    # The flags as attributes, as transformers spells them.

    should_log = property(lambda self: self.asks("log"), lambda self, value: self._assign("log", value))
    should_evaluate = property(lambda self: self.asks("evaluate"), lambda self, value: self._assign("evaluate", value))
    should_save = property(lambda self: self.asks("save"), lambda self, value: self._assign("save", value))
    should_epoch_stop = property(
        lambda self: self.asks("epoch_stop"), lambda self, value: self._assign("epoch_stop", value)
    )
    should_training_stop = property(
        lambda self: self.asks("training_stop"), lambda self, value: self._assign("training_stop", value)
    )
    should_skip_update = property(
        lambda self: self.asks("skip_update"), lambda self, value: self._assign("skip_update", value)
    )

    def _assign(self, flag: str, value: object) -> None:
        if not value:
            self.withdraw(flag)
        elif self.speaker not in self._requests[flag]:  # a reason given before is worth keeping
            self.request(flag)

    def __setattr__(self, name: str, value: object) -> None:
        # A misspelt flag would be a silent no-op, and a night of training lost.
        if name.startswith("should_") and not hasattr(type(self), name):
            _flag(name)
        object.__setattr__(self, name, value)


def _flag(name: str) -> str:
    flag = name.removeprefix("should_")
    if flag not in FLAGS:
        known = ", ".join(FLAGS)
        raise ArgumentError(f"TrainerControl has no flag {name!r}{nearest(flag, FLAGS)} The flags are: {known}.")
    return flag

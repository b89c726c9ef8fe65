"""Callback: the base class of every feature that subscribes to events."""

from __future__ import annotations

from typing import Any, ClassVar

from .catalog import Event
from .event_methods import EventMethods, TypedEventMethods
from .stages import Stage


class Callback(EventMethods):
    """A feature: it handles events of a run, reads the run's values, and requests work through the control.

    Override the handlers you need. A handler names the parameters it needs, in any order. A handler in the style of
    transformers, `(self, args, state, control, **kwargs)`, receives all of them:

        @dataclass
        class LossPrinter(Callback):
            stage = Stage.REPORT

            def on_log(self, state: TrainerState, logs: dict[str, Any]) -> None:
                print(state.global_step, logs.get("loss"))

    A handler that is not overridden costs nothing. Attaching a callback raises an error for a misspelt handler, an
    unknown parameter or a wrong annotation. The return value of a handler is ignored.
    """

    stage: ClassVar[Stage] = Stage.DECIDE
    """In which stage its handlers run; `@order(...)` on a handler overrides it there."""
    before: ClassVar[tuple[str, ...]] = ()
    """Ids of callbacks it must run before, within its stage."""
    after: ClassVar[tuple[str, ...]] = ()
    """Ids of callbacks it must run after, within its stage."""
    on_error: str = "raise"
    """What an exception of a handler does: `raise` it, `warn` and go on, or `quarantine` (warn and unsubscribe)."""
    local: ClassVar[bool] = False
    """Whether it decides from something that only one process knows: a clock, a signal, a file."""
    events: ClassVar[tuple[Event, ...]] = ()
    """Events of its own, that it announces with `run.announce(name, ...)` and others may subscribe to."""
    arguments: ClassVar[tuple[str, ...]] = ()
    """The training arguments that spell it; `from_arguments` reads them."""
    instead_of: ClassVar[tuple[type, ...]] = ()
    """Other classes of which it takes the place, where arguments spell one and it is in the user's list."""
    id: str | None = None
    """Its name in the ledger, in checkpoints and in `before=`/`after=`; by default the name of its class."""

    @classmethod
    def from_arguments(cls, args: Any) -> Callback | None:
        """Build the callback that training arguments ask for, or None if they ask for none."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run must know: plain values and tensors, nested in lists and dicts."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned in an earlier session."""


class TypedCallback(TypedEventMethods, Callback):
    """A callback whose handlers mypy and pyright check against the types of their parameters.

    At run time it is a `Callback`. For type checkers its handlers take keyword-only parameters and `**kwargs`:

        class LossPrinter(TypedCallback):
            def on_log(self, *, state: TrainerState, logs: dict[str, Any], **kwargs: Any) -> None:
                print(state.global_step, logs.get("loss"))

    The handler names any subset of the parameters, in any order. A wrong annotation is an error in the editor.
    """

"""Callback: the base class of every feature that subscribes to events."""

from __future__ import annotations

import copy
from dataclasses import is_dataclass, replace
from typing import Any, ClassVar

from .capabilities import BestMetric, Capability, Conflict
from .catalog import Event
from .event_methods import EventMethods, TypedEventMethods
from .keywords import CheckedKeywords
from .stages import Stage


class Callback(EventMethods, CheckedKeywords):
    """Base class of callbacks.

    A callback handles events, reads the values of the run, and requests work through the control.

    Override the handlers you need. A handler names the parameters it needs, in any order. A handler in the style of
    transformers, `(self, args, state, control, **kwargs)`, receives all parameters:

        @dataclass
        class LossPrinter(Callback):
            stage = Stage.REPORT

            def on_log(self, state: TrainerState, logs: dict[str, Any]) -> None:
                print(state.global_step, logs.get("loss"))

    A handler that is not overridden costs nothing. Attaching a callback raises an error for a misspelt handler, an
    unknown parameter or a wrong annotation. The bus ignores the return value of a handler, with one exception: the
    raised flags of a returned control count as requests.
    """

    stage: ClassVar[Stage] = Stage.DECIDE
    """The stage in which the handlers run. `@order(...)` on a handler overrides the stage."""
    before: ClassVar[tuple[str, ...]] = ()
    """Ids of callbacks of the same stage. The handlers of this callback run before theirs."""
    after: ClassVar[tuple[str, ...]] = ()
    """Ids of callbacks of the same stage. The handlers of this callback run after theirs."""
    on_error: str = "raise"
    """The action after an error of a handler: `raise` (end the run), `warn` (log and continue), `quarantine` (detach),
    `quarantine(after=3)` (detach at the third error) or `retry(3, then='warn')` (retry, then warn)."""
    budget: str | None = None
    """The most time per step that the handlers may take: a share of the step time (`2%`), or a time (`200us`). None: no
    limit."""
    over_budget: str = "warn"
    """The action if the callback exceeds its budget: `warn` (log a warning), `quarantine` (detach) or `thin` (call the
    handlers at fewer steps). `thin` requires handlers in REPORT."""
    local: ClassVar[bool] = False
    """Whether the callback decides from a value that only one rank knows, such as a clock, a signal or a file."""
    previews: ClassVar[bool] = False
    """Whether the callback takes part in `trainer.preview()`. Such a callback decides from the state, the metrics and
    the clock alone, and its handlers use neither the model nor files."""
    events: ClassVar[tuple[Event, ...]] = ()
    """New events that the callback announces with `run.announce(name, ...)`. Other callbacks may subscribe to them."""
    auto: ClassVar[bool] = False
    """Whether the callback joins every trainer when its package is installed. If False, a run must name the callback in
    the argument `plugins`."""
    requires: ClassVar[str] = ""
    """The versions of the plugin contract that the callback works with, such as `>=1,<2`. Empty: all."""
    arguments: ClassVar[tuple[str, ...]] = ()
    """The names of the training arguments that configure the callback. `from_arguments` reads these arguments."""
    instead_of: ClassVar[tuple[type, ...]] = ()
    """Other classes that this class replaces. If the user passes a callback of this class, the trainer does not build
    callbacks of the other classes from the arguments."""
    state_version: ClassVar[int] = 1
    """The version of the result of `state_dict`. A resume refuses the state of a later version, and passes the state of
    an earlier version to `migrate`."""
    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    """Properties that other parts of the run must know, for example that the callback moves the model to the device.
    Use `has` to check one instance."""
    conflicts_with: ClassVar[tuple[Conflict, ...]] = ()
    """The callbacks that this class does not work with. Building a trainer with both raises an error."""
    publisher: Any = None
    """The hub repository to which the callback pushes: an object like `engine.api.publishing.Publisher`. None: no
    pushes."""
    id: str | None = None
    """The name of the callback in the ledger, in checkpoints and in `before=` and `after=`. Default: the name of the
    class."""

    @property
    def variant(self) -> str:
        """The name of an additional instance, such as a second `Log`; an empty string for the main instance of a class.

        An instance with a name does not replace the callback that the arguments build.
        """
        return ""

    @property
    def best_metric(self) -> BestMetric | None:
        """The metric that selects the best model; None if the callback does not choose the best model."""
        return None

    def has(self, capability: Capability) -> bool:
        """Return whether this instance has a capability. Override this method if the answer depends on fields."""
        return capability in self.capabilities

    def conflict_with(self, other: Callback) -> str:
        """Return why this callback does not work with `other`, and the remedy; an empty string if both work together.

        The default looks up `other` in `conflicts_with`. Override this method if the answer depends on fields.
        """
        for conflict in self.conflicts_with:
            known = conflict.other
            if other.has(known) if isinstance(known, Capability) else isinstance(other, known):
                return conflict.reason
        return ""

    def for_preview(self) -> Callback:
        """Return a copy for a preview. A dataclass is built again from its fields; other callbacks are deep-copied."""
        return replace(self) if is_dataclass(self) else copy.deepcopy(self)

    @classmethod
    def default_id(cls) -> str:
        """Return the id of an instance whose field `id` is not set, by default the name of the class.

        If another callback already has this id, the bus adds a suffix such as `-2`.
        """
        return cls.__name__

    @classmethod
    def remove_from(cls, bus: Any) -> Any:
        """Detach the first callback of this class from an `EventBus`. Return the callback; None if there is none."""
        found = next((callback for callback in bus.subscribers.values() if isinstance(callback, cls)), None)
        if found is not None:
            bus.detach(found)
        return found

    @classmethod
    def from_arguments(cls, args: Any) -> Callback | None:
        """Build the callback from the training arguments. Return None if the arguments do not select the callback."""
        return None

    def argument_overrides(self, args: Any) -> dict[str, Any]:
        """Return the training arguments to override: name -> value, such as the values that a sweep chose.

        The trainer calls this method on rank 0 only, before it builds anything. All ranks use the returned values.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the callback state: plain values and tensors, nested in lists and dicts."""
        return {}

    def migrate(self, state: dict[str, Any], from_version: int) -> dict[str, Any]:
        """Convert a callback state of an earlier `state_version` to the current version.

        `load_state_dict` then receives the result. The default returns the state unchanged.

        Args:
            state: the callback state in the checkpoint.
            from_version: the `state_version` of the class that saved the checkpoint.
        """
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state that `state_dict` returned in an earlier session."""


class TypedCallback(TypedEventMethods, Callback):
    """A callback for type checkers.

    mypy and pyright check that the annotations of its handlers match the parameters of the events. At run time, the
    class is a plain `Callback`. For type checkers, the handlers take keyword-only parameters and `**kwargs`:

        class LossPrinter(TypedCallback):
            def on_log(self, *, state: TrainerState, logs: dict[str, Any], **kwargs: Any) -> None:
                print(state.global_step, logs.get("loss"))

    A handler may name any subset of the parameters, in any order. A wrong annotation is an error in the editor.
    """

"""Callback: the base class of every subscriber, one method per event of the catalogue."""

from __future__ import annotations

from typing import Any, ClassVar

from .capabilities import BestMetric, Capability, Conflict
from .catalog import Event
from .stages import Stage


class Callback:
    """A feature: something that hears events of a run, reads its record, and asks the control for things.

    Override the handlers you want. Each names the parameters it needs, in any order, or takes everything in the manner
    of transformers, `(self, args, state, control, **kwargs)`:

        @dataclass
        class LossPrinter(Callback):
            stage = Stage.REPORT

            def on_log(self, state, logs):
                print(state.global_step, logs.get("loss"))

    A handler that is not overridden costs nothing. A misspelt handler or parameter is refused when the callback is
    attached. What a handler returns does not matter.
    """

    stage: ClassVar[Stage] = Stage.DECIDE
    """The stage in which its handlers run. `@order(...)` on a handler overrides it."""
    before: ClassVar[tuple[str, ...]] = ()
    """Ids of callbacks that run after this one, within its stage."""
    after: ClassVar[tuple[str, ...]] = ()
    """Ids of callbacks that run before this one, within its stage."""
    on_error: str = "raise"
    """What happens when a handler raises: `raise`, `warn` (log and continue) or `quarantine` (log and detach)."""
    local: ClassVar[bool] = False
    """Whether it decides from something that only one rank knows: a clock, a signal, a file."""
    events: ClassVar[tuple[Event, ...]] = ()
    """New events that it announces with `run.announce(name, ...)`. Others may subscribe to them."""
    arguments: ClassVar[tuple[str, ...]] = ()
    """The training arguments that configure it. `from_arguments` reads them."""
    instead_of: ClassVar[tuple[type, ...]] = ()
    """Other classes that it replaces: in the user's list, it removes those that the arguments build."""
    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    """What it does that other parts of the run must know. `has` answers for one instance."""
    conflicts_with: ClassVar[tuple[Conflict, ...]] = ()
    """The callbacks that it does not work with. Building a trainer with both raises an error."""
    publisher: Any = None
    """The hub repository, if it pushes to one: an object like `engine.api.publishing.Publisher`."""
    id: str | None = None
    """Its name in the ledger, in checkpoints and in `before=`/`after=`. Default: the name of its class."""

    @property
    def variant(self) -> str:
        """The name of an additional instance, such as a second `Log`. Empty for the main instance of a class.

        An additional instance does not replace the callback that the arguments build.
        """
        return ""

    @property
    def best_metric(self) -> BestMetric | None:
        """The metric by which it chooses the best model. None if it chooses none."""
        return None

    def has(self, capability: Capability) -> bool:
        """Return whether this instance has a capability. Override it where that depends on fields."""
        return capability in self.capabilities

    def conflict_with(self, other: Callback) -> str:
        """Return why this callback does not work with another one, and the remedy. Empty if they work together.

        The default looks `other` up in `conflicts_with`. Override it where that depends on fields.
        """
        for conflict in self.conflicts_with:
            known = conflict.other
            if other.has(known) if isinstance(known, Capability) else isinstance(other, known):
                return conflict.reason
        return ""

    @classmethod
    def default_id(cls) -> str:
        """Return the id of an instance that sets none. A second instance gets the suffix `-2`."""
        return cls.__name__

    @classmethod
    def remove_from(cls, bus: Any) -> Any:
        """Detach the first callback of this class from an `EventBus` and return it; None if there is none."""
        found = next((callback for callback in bus.subscribers.values() if isinstance(callback, cls)), None)
        if found is not None:
            bus.detach(found)
        return found

    @classmethod
    def from_arguments(cls, args: Any) -> Callback | None:
        """Build the callback that the training arguments ask for. Return None if they ask for none."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run must know: plain values and tensors, nested in lists and dicts."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned in an earlier session."""

    def on_init_end(self, *args: Any, **kwargs: Any) -> Any:
        """The trainer is constructed."""

    def on_setup(self, *args: Any, **kwargs: Any) -> Any:
        """Build now: wrap the model, fill the seams of the step, open what the run needs."""

    def on_load(self, *args: Any, **kwargs: Any) -> Any:
        """A checkpoint was restored into the run."""

    def on_train_begin(self, *args: Any, **kwargs: Any) -> Any:
        """Training begins; everything is built."""

    def on_epoch_begin(self, *args: Any, **kwargs: Any) -> Any:
        """An epoch begins."""

    def on_step_begin(self, *args: Any, **kwargs: Any) -> Any:
        """An optimizer step begins; its batches are fetched."""

    def on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """A batch is about to enter the model; set `run.batch` to replace it."""

    def on_loss(self, *args: Any, **kwargs: Any) -> Any:
        """The loss is computed and not yet backpropagated."""

    def on_substep_end(self, *args: Any, **kwargs: Any) -> Any:
        """A batch was backpropagated and more of this step follow."""

    def on_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """All gradients of the step are there, unscaled and not yet clipped."""

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
        """Gradients are clipped; the optimizer steps next."""

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
        """The optimizer has stepped; gradients are still there."""

    def on_step_end(self, *args: Any, **kwargs: Any) -> Any:
        """The step is complete and counted; gradients are gone."""

    def on_log_due(self, *args: Any, **kwargs: Any) -> Any:
        """Logging is due: gather the values and log them."""

    def on_log(self, *args: Any, **kwargs: Any) -> Any:
        """Values are logged; a handler before the reporters may add to them."""

    def on_evaluate_due(self, *args: Any, **kwargs: Any) -> Any:
        """An evaluation is due: evaluate now."""

    def on_evaluate_begin(self, *args: Any, **kwargs: Any) -> Any:
        """An evaluation begins, over all its datasets."""

    def on_prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        """A batch of an evaluation or prediction is done."""

    def on_evaluate_dataset(self, *args: Any, **kwargs: Any) -> Any:
        """One dataset is evaluated; its metrics may still be added to."""

    def on_evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """One dataset is evaluated and its metrics are logged."""

    def on_evaluate_end(self, *args: Any, **kwargs: Any) -> Any:
        """The evaluation is over; `metrics` holds those of all its datasets."""

    def on_save_due(self, *args: Any, **kwargs: Any) -> Any:
        """A checkpoint is due: save now."""

    def on_save_begin(self, *args: Any, **kwargs: Any) -> Any:
        """A checkpoint is about to be written; add to it, or veto it."""

    def on_snapshot(self, *args: Any, **kwargs: Any) -> Any:
        """The values of a checkpoint are copied; the weights may change again."""

    def on_save(self, *args: Any, **kwargs: Any) -> Any:
        """A checkpoint is complete on disk."""

    def on_push_begin(self, *args: Any, **kwargs: Any) -> Any:
        """A model is about to be pushed to a hub."""

    def on_epoch_end(self, *args: Any, **kwargs: Any) -> Any:
        """An epoch ended, be it complete or cut short."""

    def on_train_end(self, *args: Any, **kwargs: Any) -> Any:
        """Training ended by itself; its summary is logged."""

    def on_predict(self, *args: Any, **kwargs: Any) -> Any:
        """A prediction is done."""

    def on_exception(self, *args: Any, **kwargs: Any) -> Any:
        """The run failed; the error will be raised when all have heard of it."""

    def on_close(self, *args: Any, **kwargs: Any) -> Any:
        """The run is over, however it ended: release what was opened. Last begun is first closed."""

    def on_end(self, *args: Any, **kwargs: Any) -> Any:
        """The trainer is done for good; trackers finish here. Last begun is first closed."""

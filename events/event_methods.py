"""EventMethods: one empty handler per event, the base of every callback."""

# Generated from events/catalog.py by `make docs`. Change the catalogue instead of this file.

from __future__ import annotations

from typing import Any


class EventMethods:
    """One empty handler per event. Type checkers read the stub beside it."""

    def on_init_end(self, *args: Any, **kwargs: Any) -> Any:
        """The trainer is constructed."""

    def on_setup(self, *args: Any, **kwargs: Any) -> Any:
        """Build now: wrap the model, fill the seams of the step, open files and connections."""

    def on_load(self, *args: Any, **kwargs: Any) -> Any:
        """The run is restored from a checkpoint."""

    def on_train_begin(self, *args: Any, **kwargs: Any) -> Any:
        """Training begins. Model, optimizer and loaders exist."""

    def on_epoch_begin(self, *args: Any, **kwargs: Any) -> Any:
        """An epoch begins."""

    def on_step_begin(self, *args: Any, **kwargs: Any) -> Any:
        """An optimizer step begins. Its batches are fetched."""

    def on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """A batch is about to enter the model. Set `run.batch` to replace it."""

    def on_loss(self, *args: Any, **kwargs: Any) -> Any:
        """The loss is computed and not yet backpropagated."""

    def on_substep_end(self, *args: Any, **kwargs: Any) -> Any:
        """A batch is backpropagated, and more batches of this step follow."""

    def on_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """All gradients of the step are computed, and loss scaling is undone. They are not yet clipped."""

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
        """The gradients are clipped. The optimizer steps next."""

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
        """The optimizer has stepped. The gradients still exist."""

    def on_step_end(self, *args: Any, **kwargs: Any) -> Any:
        """The step is complete and counted. The gradients are cleared."""

    def on_log_due(self, *args: Any, **kwargs: Any) -> Any:
        """Logging is due: collect the values and log them."""

    def on_log(self, *args: Any, **kwargs: Any) -> Any:
        """Values are logged. A handler in a stage before REPORT may add to them."""

    def on_evaluate_due(self, *args: Any, **kwargs: Any) -> Any:
        """An evaluation is due: evaluate now."""

    def on_evaluate_begin(self, *args: Any, **kwargs: Any) -> Any:
        """An evaluation of one or more datasets begins."""

    def on_prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        """A batch of an evaluation or prediction is done."""

    def on_evaluate_dataset(self, *args: Any, **kwargs: Any) -> Any:
        """One dataset is evaluated. A handler may still add metrics."""

    def on_evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """One dataset is evaluated and its metrics are logged."""

    def on_evaluate_end(self, *args: Any, **kwargs: Any) -> Any:
        """The evaluation ends. `metrics` holds the metrics of all its datasets."""

    def on_save_due(self, *args: Any, **kwargs: Any) -> Any:
        """A checkpoint is due: save now."""

    def on_save_begin(self, *args: Any, **kwargs: Any) -> Any:
        """A checkpoint is about to be written. Add to it, or veto it."""

    def on_snapshot(self, *args: Any, **kwargs: Any) -> Any:
        """The values of a checkpoint are copied. The weights may change again."""

    def on_commit(self, *args: Any, **kwargs: Any) -> Any:
        """A checkpoint is complete on disk. Training does not wait for it, so `state` may be some steps further."""

    def on_save(self, *args: Any, **kwargs: Any) -> Any:
        """A checkpoint is complete on disk."""

    def on_delete(self, *args: Any, **kwargs: Any) -> Any:
        """The retention policy deleted a checkpoint. The event comes before the next save, or at the end."""

    def on_push_begin(self, *args: Any, **kwargs: Any) -> Any:
        """A model is about to be pushed to a hub."""

    def on_epoch_end(self, *args: Any, **kwargs: Any) -> Any:
        """An epoch ends: it is complete, or it was stopped early."""

    def on_best_loaded(self, *args: Any, **kwargs: Any) -> Any:
        """The best model was loaded, at the end of the training."""

    def on_train_end(self, *args: Any, **kwargs: Any) -> Any:
        """Training ends without an error. A handler of this event in PREPARE logs the summary."""

    def on_predict(self, *args: Any, **kwargs: Any) -> Any:
        """A prediction is done."""

    def on_exception(self, *args: Any, **kwargs: Any) -> Any:
        """The run failed. The error is raised after all handlers ran."""

    def on_close(self, *args: Any, **kwargs: Any) -> Any:
        """The session ends, with or without an error: release resources. Handlers run in reverse order."""

    def on_end(self, *args: Any, **kwargs: Any) -> Any:
        """The program is done with the trainer: trackers finish. Handlers run in reverse order."""


class TypedEventMethods(EventMethods):
    """The handlers of `EventMethods`. For type checkers, they have typed keyword-only parameters."""

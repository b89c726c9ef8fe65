"""EventMethods: one empty handler per event, the base of every callback."""

# Generated from events/catalog.py by `make docs`. Change the catalogue instead of this file.

from __future__ import annotations

from typing import Any


class EventMethods:
    """One empty handler per event. Type checkers read the stub beside it."""

    def on_init_end(self, *args: Any, **kwargs: Any) -> Any:
        """The trainer is constructed."""

    def on_setup(self, *args: Any, **kwargs: Any) -> Any:
        """A session begins. Build now: wrap the model, fill the seams of the step, open files and connections."""

    def on_load(self, *args: Any, **kwargs: Any) -> Any:
        """The run is restored from a checkpoint."""

    def on_train_begin(self, *args: Any, **kwargs: Any) -> Any:
        """Training begins. Model, optimizer and loaders exist."""

    def on_epoch_begin(self, *args: Any, **kwargs: Any) -> Any:
        """An epoch begins."""

    def on_step_begin(self, *args: Any, **kwargs: Any) -> Any:
        """An optimizer step begins. Its batches are already loaded."""

    def on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """A batch is about to enter the model. Set `run.batch` to replace the batch."""

    def on_loss(self, *args: Any, **kwargs: Any) -> Any:
        """The loss of a batch is computed, and not yet backpropagated. Set `run.loss` to replace it."""

    def on_substep_end(self, *args: Any, **kwargs: Any) -> Any:
        """A batch is backpropagated, and more batches of this step follow."""

    def on_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """All gradients of the step are computed. Loss scaling is undone, and clipping comes next."""

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
        """The gradients are clipped. The optimizer updates the weights next."""

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
        """The weights are updated, and the gradients still exist. Not announced if the update is skipped."""

    def on_step_end(self, *args: Any, **kwargs: Any) -> Any:
        """The step is complete, and `state.global_step` counts it. The gradients are cleared."""

    def on_log_due(self, *args: Any, **kwargs: Any) -> Any:
        """A log is due: collect the values and log them. The callback `Log` does this."""

    def on_log(self, *args: Any, **kwargs: Any) -> Any:
        """Values are logged. A handler in a stage before REPORT may add values."""

    def on_evaluate_due(self, *args: Any, **kwargs: Any) -> Any:
        """An evaluation is due: evaluate now. The callback `Evaluate` does this."""

    def on_evaluate_begin(self, *args: Any, **kwargs: Any) -> Any:
        """An evaluation of one or more datasets begins."""

    def on_prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        """The model has computed one batch of an evaluation or prediction."""

    def on_evaluate_dataset(self, *args: Any, **kwargs: Any) -> Any:
        """One dataset is evaluated, and its metrics are not logged yet. A handler may add metrics."""

    def on_evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """One dataset is evaluated, and its metrics are logged."""

    def on_evaluate_end(self, *args: Any, **kwargs: Any) -> Any:
        """The evaluation ends. `metrics` holds the metrics of all its datasets."""

    def on_save_due(self, *args: Any, **kwargs: Any) -> Any:
        """A checkpoint is due: save now. The callback `Checkpoint` does this."""

    def on_save_begin(self, *args: Any, **kwargs: Any) -> Any:
        """A checkpoint is about to be written. Add values to `checkpoint.extra`, or veto the save."""

    def on_snapshot(self, *args: Any, **kwargs: Any) -> Any:
        """The values of a checkpoint are copied or written. From now on, the weights may change."""

    def on_commit(self, *args: Any, **kwargs: Any) -> Any:
        """A checkpoint is complete on disk. After a write in the background, `state` may be some steps further."""

    def on_save(self, *args: Any, **kwargs: Any) -> Any:
        """A checkpoint is complete on disk. If a callback handles this event, training waits for the write."""

    def on_delete(self, *args: Any, **kwargs: Any) -> Any:
        """The retention policy deleted a checkpoint. Announced before the next save, or when training ends."""

    def on_push_begin(self, *args: Any, **kwargs: Any) -> Any:
        """A model is about to be pushed to a hub."""

    def on_epoch_end(self, *args: Any, **kwargs: Any) -> Any:
        """An epoch ends: it is complete, or it was stopped early."""

    def on_best_loaded(self, *args: Any, **kwargs: Any) -> Any:
        """The best model was loaded, at the end of the training."""

    def on_train_end(self, *args: Any, **kwargs: Any) -> Any:
        """Training ends without an error. `Log` logs the summary of the training here, in stage PREPARE."""

    def on_predict(self, *args: Any, **kwargs: Any) -> Any:
        """A prediction of a dataset (`trainer.predict`) is done."""

    def on_exception(self, *args: Any, **kwargs: Any) -> Any:
        """An error ends the session. It is raised after all handlers ran."""

    def on_close(self, *args: Any, **kwargs: Any) -> Any:
        """The session ends, with or without an error: release resources. Handlers run in reverse order."""

    def on_end(self, *args: Any, **kwargs: Any) -> Any:
        """The program calls `trainer.end()`: trackers close their runs. Handlers run in reverse order."""


class TypedEventMethods(EventMethods):
    """The handlers of `EventMethods`. For type checkers, they have typed keyword-only parameters."""

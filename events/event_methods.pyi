# Generated from events/catalog.py by `make docs`. Change the catalogue instead of this file.

from typing import Any

import torch

from ..engine.arguments import TrainingArguments
from ..engine.checkpoint.format.files import Checkpoint
from ..engine.evaluation.outputs import EvalPrediction
from ..engine.run import Run
from ..events.control import TrainerControl
from ..events.state import TrainerState

MYPY: bool

class EventMethods:
    if MYPY:
        def on_init_end(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_setup(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_load(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_train_begin(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_epoch_begin(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_step_begin(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_batch(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_loss(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_substep_end(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_gradients(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_optimizer_step(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_step_end(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_log_due(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_log(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_evaluate_due(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_evaluate_begin(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_prediction_step(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_evaluate_dataset(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_evaluate(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_evaluate_end(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_save_due(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_save_begin(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_snapshot(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_commit(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_save(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_delete(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_push_begin(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_epoch_end(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_best_loaded(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_train_end(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_predict(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_exception(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_close(self, *args: Any, **kwargs: Any) -> Any: ...
        def on_end(self, *args: Any, **kwargs: Any) -> Any: ...
    else:
        def on_init_end(
            self,
            *_: Any,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """The construction of the trainer is complete."""

        def on_setup(
            self,
            *_: Any,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """A session begins. Handlers wrap the model, fill the seams of the step, and open files and connections."""

        def on_load(
            self,
            *_: Any,
            checkpoint: Checkpoint,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """All states of the run were restored from a checkpoint."""

        def on_train_begin(
            self,
            *_: Any,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """Training begins. Model, optimizer and loaders exist."""

        def on_epoch_begin(
            self,
            *_: Any,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """An epoch begins."""

        def on_step_begin(
            self,
            *_: Any,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """An optimizer step begins. Its batches are already loaded."""

        def on_batch(
            self,
            *_: Any,
            batch: Any,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """A batch is about to enter the model. Set `run.batch` to replace the batch."""

        def on_loss(
            self,
            *_: Any,
            batch: Any,
            loss: torch.Tensor,
            outputs: Any,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """The loss of a batch is computed. The backward pass comes next. Set `run.loss` to replace the loss."""

        def on_substep_end(
            self,
            *_: Any,
            batch: Any,
            loss: torch.Tensor,
            outputs: Any,
            grad_norm: torch.Tensor | float | None,
            learning_rate: float | None,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """The backward pass of a batch is complete, and more batches of this step follow."""

        def on_gradients(
            self,
            *_: Any,
            batch: Any,
            loss: torch.Tensor,
            outputs: Any,
            grad_norm: torch.Tensor | float | None,
            learning_rate: float | None,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """All gradients of the step are computed, and loss scaling is undone. Clipping comes next."""

        def on_pre_optimizer_step(
            self,
            *_: Any,
            batch: Any,
            loss: torch.Tensor,
            outputs: Any,
            grad_norm: torch.Tensor | float | None,
            learning_rate: float | None,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """The clipping of the gradients is complete. The optimizer updates the weights next."""

        def on_optimizer_step(
            self,
            *_: Any,
            batch: Any,
            loss: torch.Tensor,
            outputs: Any,
            grad_norm: torch.Tensor | float | None,
            learning_rate: float | None,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """The weights are updated, and the gradients still exist. If the update is skipped, there is no event."""

        def on_step_end(
            self,
            *_: Any,
            batch: Any,
            loss: torch.Tensor,
            outputs: Any,
            grad_norm: torch.Tensor | float | None,
            learning_rate: float,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """The step is complete, and `state.global_step` includes this step. The gradients are cleared."""

        def on_log_due(
            self,
            *_: Any,
            requested_by: frozenset[str],
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """A log is due. The callback `Log` collects the values and logs them."""

        def on_log(
            self,
            *_: Any,
            logs: dict[str, Any],
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """The run logs values. A handler in a stage before REPORT may add values."""

        def on_evaluate_due(
            self,
            *_: Any,
            requested_by: frozenset[str],
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """An evaluation is due. The callback `Evaluate` runs the evaluation."""

        def on_evaluate_begin(
            self,
            *_: Any,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """An evaluation of one or more datasets begins."""

        def on_prediction_step(
            self,
            *_: Any,
            batch: Any,
            prediction: EvalPrediction | None,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """The model has computed one batch of an evaluation or prediction."""

        def on_evaluate_dataset(
            self,
            *_: Any,
            metrics: dict[str, Any],
            dataset_name: str,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """The metrics of one dataset are computed, but not logged yet. A handler may add metrics."""

        def on_evaluate(
            self,
            *_: Any,
            metrics: dict[str, Any],
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """The metrics of one dataset are computed and logged."""

        def on_evaluate_end(
            self,
            *_: Any,
            metrics: dict[str, Any],
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """The evaluation of all datasets is complete. `metrics` holds the metrics of all datasets."""

        def on_save_due(
            self,
            *_: Any,
            requested_by: frozenset[str],
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """A checkpoint is due. The callback `Checkpoint` saves the checkpoint."""

        def on_save_begin(
            self,
            *_: Any,
            checkpoint: Checkpoint,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """A checkpoint is about to be written. A handler may add values to `checkpoint.extra`, or veto the save."""

        def on_snapshot(
            self,
            *_: Any,
            checkpoint: Checkpoint,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """All values of a checkpoint are copied or written. After this event, the weights may change."""

        def on_commit(
            self,
            *_: Any,
            checkpoint: Checkpoint,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """A checkpoint is complete on disk. Training does not wait for this event, so `state` may be newer."""

        def on_save(
            self,
            *_: Any,
            checkpoint: Checkpoint,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """A checkpoint is complete on disk. If a callback handles this event, training waits for the write."""

        def on_delete(
            self,
            *_: Any,
            checkpoint: Checkpoint,
            saved_step: int,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """The retention policy deleted a checkpoint. Handlers run at the next save or at the end of training."""

        def on_push_begin(
            self,
            *_: Any,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """A model is about to be pushed to a hub. At a save, only rank 0 announces this event."""

        def on_epoch_end(
            self,
            *_: Any,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """An epoch ends, because it is complete or because a stop ended it early."""

        def on_best_loaded(
            self,
            *_: Any,
            checkpoint: Checkpoint,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """Training ends, and the run has loaded the weights of the best model."""

        def on_train_end(
            self,
            *_: Any,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """Training ends: all steps are done, or the run stops. In the stage PREPARE, `Log` logs a summary."""

        def on_predict(
            self,
            *_: Any,
            metrics: dict[str, Any],
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """A call of `trainer.predict` has computed the predictions of a dataset."""

        def on_exception(
            self,
            *_: Any,
            exception: BaseException,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """An error or a signal ends the session. After `on_close`, the session raises the error."""

        def on_close(
            self,
            *_: Any,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """The session ends, with or without an error. Handlers release resources, and run in reverse order."""

        def on_end(
            self,
            *_: Any,
            args: TrainingArguments,
            state: TrainerState,
            control: TrainerControl,
            model: torch.nn.Module,
            processing_class: Any,
            tokenizer: Any,
            optimizer: torch.optim.Optimizer,
            lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
            train_dataloader: Any,
            eval_dataloader: Any,
            run: Run,
            **kwargs: Any,
        ) -> Any:
            """The program calls `trainer.end()`. Trackers close their runs. Handlers run in reverse order."""

class TypedEventMethods(EventMethods):
    def on_init_end(
        self,
        *,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """The construction of the trainer is complete."""

    def on_setup(
        self,
        *,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """A session begins. Handlers wrap the model, fill the seams of the step, and open files and connections."""

    def on_load(
        self,
        *,
        checkpoint: Checkpoint,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """All states of the run were restored from a checkpoint."""

    def on_train_begin(
        self,
        *,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """Training begins. Model, optimizer and loaders exist."""

    def on_epoch_begin(
        self,
        *,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """An epoch begins."""

    def on_step_begin(
        self,
        *,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """An optimizer step begins. Its batches are already loaded."""

    def on_batch(
        self,
        *,
        batch: Any,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """A batch is about to enter the model. Set `run.batch` to replace the batch."""

    def on_loss(
        self,
        *,
        batch: Any,
        loss: torch.Tensor,
        outputs: Any,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """The loss of a batch is computed. The backward pass comes next. Set `run.loss` to replace the loss."""

    def on_substep_end(
        self,
        *,
        batch: Any,
        loss: torch.Tensor,
        outputs: Any,
        grad_norm: torch.Tensor | float | None,
        learning_rate: float | None,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """The backward pass of a batch is complete, and more batches of this step follow."""

    def on_gradients(
        self,
        *,
        batch: Any,
        loss: torch.Tensor,
        outputs: Any,
        grad_norm: torch.Tensor | float | None,
        learning_rate: float | None,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """All gradients of the step are computed, and loss scaling is undone. Clipping comes next."""

    def on_pre_optimizer_step(
        self,
        *,
        batch: Any,
        loss: torch.Tensor,
        outputs: Any,
        grad_norm: torch.Tensor | float | None,
        learning_rate: float | None,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """The clipping of the gradients is complete. The optimizer updates the weights next."""

    def on_optimizer_step(
        self,
        *,
        batch: Any,
        loss: torch.Tensor,
        outputs: Any,
        grad_norm: torch.Tensor | float | None,
        learning_rate: float | None,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """The weights are updated, and the gradients still exist. If the update is skipped, there is no event."""

    def on_step_end(
        self,
        *,
        batch: Any,
        loss: torch.Tensor,
        outputs: Any,
        grad_norm: torch.Tensor | float | None,
        learning_rate: float,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """The step is complete, and `state.global_step` includes this step. The gradients are cleared."""

    def on_log_due(
        self,
        *,
        requested_by: frozenset[str],
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """A log is due. The callback `Log` collects the values and logs them."""

    def on_log(
        self,
        *,
        logs: dict[str, Any],
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """The run logs values. A handler in a stage before REPORT may add values."""

    def on_evaluate_due(
        self,
        *,
        requested_by: frozenset[str],
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """An evaluation is due. The callback `Evaluate` runs the evaluation."""

    def on_evaluate_begin(
        self,
        *,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """An evaluation of one or more datasets begins."""

    def on_prediction_step(
        self,
        *,
        batch: Any,
        prediction: EvalPrediction | None,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """The model has computed one batch of an evaluation or prediction."""

    def on_evaluate_dataset(
        self,
        *,
        metrics: dict[str, Any],
        dataset_name: str,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """The metrics of one dataset are computed, but not logged yet. A handler may add metrics."""

    def on_evaluate(
        self,
        *,
        metrics: dict[str, Any],
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """The metrics of one dataset are computed and logged."""

    def on_evaluate_end(
        self,
        *,
        metrics: dict[str, Any],
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """The evaluation of all datasets is complete. `metrics` holds the metrics of all datasets."""

    def on_save_due(
        self,
        *,
        requested_by: frozenset[str],
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """A checkpoint is due. The callback `Checkpoint` saves the checkpoint."""

    def on_save_begin(
        self,
        *,
        checkpoint: Checkpoint,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """A checkpoint is about to be written. A handler may add values to `checkpoint.extra`, or veto the save."""

    def on_snapshot(
        self,
        *,
        checkpoint: Checkpoint,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """All values of a checkpoint are copied or written. After this event, the weights may change."""

    def on_commit(
        self,
        *,
        checkpoint: Checkpoint,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """A checkpoint is complete on disk. Training does not wait for this event, so `state` may be newer."""

    def on_save(
        self,
        *,
        checkpoint: Checkpoint,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """A checkpoint is complete on disk. If a callback handles this event, training waits for the write."""

    def on_delete(
        self,
        *,
        checkpoint: Checkpoint,
        saved_step: int,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """The retention policy deleted a checkpoint. Handlers run at the next save or at the end of training."""

    def on_push_begin(
        self,
        *,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """A model is about to be pushed to a hub. At a save, only rank 0 announces this event."""

    def on_epoch_end(
        self,
        *,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """An epoch ends, because it is complete or because a stop ended it early."""

    def on_best_loaded(
        self,
        *,
        checkpoint: Checkpoint,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """Training ends, and the run has loaded the weights of the best model."""

    def on_train_end(
        self,
        *,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """Training ends: all steps are done, or the run stops. In the stage PREPARE, `Log` logs a summary."""

    def on_predict(
        self,
        *,
        metrics: dict[str, Any],
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """A call of `trainer.predict` has computed the predictions of a dataset."""

    def on_exception(
        self,
        *,
        exception: BaseException,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """An error or a signal ends the session. After `on_close`, the session raises the error."""

    def on_close(
        self,
        *,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """The session ends, with or without an error. Handlers release resources, and run in reverse order."""

    def on_end(
        self,
        *,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module,
        processing_class: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: torch.optim.lr_scheduler.LRScheduler,
        train_dataloader: Any,
        eval_dataloader: Any,
        run: Run,
        **kwargs: Any,
    ) -> Any:
        """The program calls `trainer.end()`. Trackers close their runs. Handlers run in reverse order."""

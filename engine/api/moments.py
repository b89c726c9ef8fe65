"""Methods of transformers' Trainer that a subclass overrides.

The engine calls each of these methods at the same point of a run as transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from typing import Any

from torch import nn

from ...events.control import OUTSIDE
from ..data.batches import to_device
from .base import TrainerBase
from .overrides import is_overridden

CALLED: dict[str, str] = {
    "_clip_grad_norm": "In each step with `max_grad_norm`. The override clips the gradients and returns their norm.",
    "_determine_best_metric": (
        "After each evaluation of the run. The override returns whether this evaluation is the best so far."
    ),
    "_evaluate": "When an evaluation is due. The override returns the metrics.",
    "_finish_current_push": (
        "When training ends. The engine waits for unfinished pushes, so the override need not wait."
    ),
    "_get_collator_with_removed_columns": (
        "For each loader of a dataset without named columns. The override returns the collator of the loader."
    ),
    "_get_dataloader": "For each loader. The override returns the loader.",
    "_get_grad_norm": "In each step with `max_grad_norm`, after clipping. The override returns the norm to log.",
    "_get_learning_rate": "In each step, after the update. The override returns the learning rate to log.",
    "_get_num_items_in_batch": (
        "In each step, and for each evaluation batch. The override returns the number of items over which the loss is "
        "averaged."
    ),
    "_inner_training_loop": "In `train()`, around the whole training. `train()` returns the result of the override.",
    "_load_best_model": "When training ends, with `load_best_model_at_end`.",
    "_load_callback_state": "In a resume, to restore the callback states.",
    "_load_from_checkpoint": "In a resume, to load the weights.",
    "_load_optimizer_and_scheduler": "In a resume, to restore the optimizer and the schedule.",
    "_load_rng_state": "In a resume, to restore the RNG states.",
    "_load_scaler": "In a resume, after the engine has restored the optimizer and the scaler.",
    "_maybe_log_save_evaluate": (
        "After each step and after each epoch. The override logs, evaluates and saves as the flags request."
    ),
    "_move_model_to_device": "When the Trainer receives a model.",
    "_prepare_input": "For each batch. `_prepare_inputs` calls the override, which returns the batch.",
    "_push_from_checkpoint": "After a checkpoint is written, with `push_to_hub`.",
    "_remove_unused_columns": "For each loader of a dataset with named columns. The override returns the dataset.",
    "_save_checkpoint": "When a checkpoint is due. The files are on disk when `super()._save_checkpoint(...)` returns.",
    "_save_optimizer_and_scheduler": "In each save, after the model was written. The override can add files.",
    "_save_rng_state": "In each save, after the model was written. The override can add files.",
    "_save_scaler": "In each save, after the model was written. The override can add files.",
    "_validate_args": "At construction, after the inputs are checked.",
    "_wrap_model": (
        "When training begins, but not for an evaluation. The override returns the model that each step calls."
    ),
    "autocast_smart_context_manager": (
        "Around `compute_loss`. `compute_loss_context_manager` calls the override, which returns a context manager."
    ),
    "compute_loss_context_manager": (
        "Around `compute_loss`, in training and evaluation. The override returns a context manager."
    ),
    "create_accelerator_and_postprocess": "At construction, after `self.accelerator` is created.",
    "get_batch_samples": (
        "In each step. The override returns the batches of the step, and the number of items over which the loss is "
        "averaged."
    ),
    "get_cp_size": (
        "When training begins. `get_total_train_batch_size` calls the override, which returns a number of ranks."
    ),
    "get_sp_size": (
        "When training begins. `get_total_train_batch_size` calls the override, which returns a number of ranks."
    ),
    "get_tp_size": (
        "When training begins. `get_total_train_batch_size` calls the override, which returns a number of ranks."
    ),
}
"""Method of transformers' Trainer -> when the engine calls the method, and what the method returns.

The engine calls these methods only if a subclass overrides them.
"""


class MomentMethods(TrainerBase):
    """The default versions of methods of transformers' Trainer. The table `CALLED` lists these methods.

    A default version does the work of the method in transformers. If another part of the engine does this work, the
    default version does nothing.

    The engine calls `_at(name, work, ...)`. If no subclass overrides the method `name`, `_at` calls the function
    `work`. If a subclass overrides the method, `_at` calls the override. If the override calls `super()`, the default
    version calls `work`.
    """

    _works: Mapping[str, Callable[[], Any]] = {}
    """Name of a method that `_at` calls now -> the function `work` for the default version of this method."""
    _overridden: frozenset[str] = frozenset()
    """The overridden methods among the methods in `CALLED_BY_STEPS`, which each step calls. `adapt_overrides` sets this
    attribute."""
    _saved_and_announced: int | None = None
    """The step at which the program itself last called `_save_checkpoint`. `_take_announced_save` resets it to None."""

    def _at(self, name: str, work: Callable[[], Any], *arguments: Any, **named: Any) -> Any:
        """Call the override of the method `name`. If no subclass overrides the method, call `work`, the default."""
        if not is_overridden(self, name):
            return work()
        with self._doing(name, work):
            return getattr(self, name)(*arguments, **named)

    @contextmanager
    def _doing(self, name: str, work: Callable[[], Any]) -> Iterator[None]:
        before, self._works = self._works, {**self._works, name: work}
        try:
            yield
        finally:
            self._works = before

    def _work(self, name: str) -> Any:
        """Call the function `work` that the engine passed to `_at` for the method `name`, and return the result.

        If `_at` is not calling an override of the method `name` now, do nothing and return None.
        """
        return self._works.get(name, _nothing)()

    def overrides(self, *names: str) -> bool:
        """Return whether a subclass overrides at least one of these methods."""
        return any(is_overridden(self, name) for name in names)

    # Construction and data.

    def create_accelerator_and_postprocess(self) -> None:
        """Do nothing: `self.accelerator` already exists. Override this method to change the accelerator."""

    def _validate_args(self) -> None:
        """Do nothing: the constructor has already checked its arguments. Override this method to check more."""

    def _move_model_to_device(self, model: nn.Module, device: Any) -> None:
        """Move a model to a device."""
        model.to(device)

    def _get_collator_with_removed_columns(self, data_collator: Any, description: str | None = None) -> Any:
        """Return the collator unchanged. The loader removes the columns that the model does not take."""
        return data_collator

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """Read up to `num_batches` batches. Return the batches and `num_items_in_batch`.

        `num_items_in_batch` is the number of labels over which the loss of the step is averaged. It is None without
        batches, and if the loss of each batch is the mean over this batch.
        """
        batches = list(islice(epoch_iterator, num_batches))
        return batches, self._get_num_items_in_batch(batches, device) if batches else None

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        """Return the number of labels over which the loss of a step is averaged.

        Return None if the loss of each batch is the mean over this batch.
        """
        raise NotImplementedError

    def _prepare_input(self, data: Any) -> Any:
        """Return `data` with its tensors on the run's device, also tensors in dicts, lists and tuples."""
        return to_device(data, self.args.device)

    # The step.

    def compute_loss_context_manager(self) -> AbstractContextManager[Any]:
        """Return the context around `compute_loss`.

        The default context does nothing, because a callback does mixed precision.
        """
        return self.autocast_smart_context_manager()

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> AbstractContextManager[Any]:
        """Return a context that does nothing, as in transformers. `accelerator.autocast` sets mixed precision."""
        return nullcontext()

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """Clip the gradients, and return their norm before clipping. `model` is not used.

        Only an override can use this method: `super()._clip_grad_norm(model)`. Any other call does nothing and returns
        None.
        """
        return self._work("_clip_grad_norm")

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Return `grad_norm` unchanged. An override receives the norm before clipping, and returns the norm to log."""
        return grad_norm

    def _get_learning_rate(self) -> float:
        """Return the learning rate of the first parameter group."""
        return self.run.current_learning_rate()

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        """Return the run's model in its wrapper, such as DDP or FSDP.

        In an override, `super()._wrap_model(...)` wraps the run's model and returns the wrapper. Any other call returns
        the existing wrapper if `model` is the run's model, and returns another model unchanged.
        """
        wrapped: nn.Module | None = self._work("_wrap_model")
        if wrapped is not None:
            return wrapped
        return self.run.model_wrapped if model is self.run.model else model

    def _through_overrides(self, clip: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that clips gradients and calls the overrides of `_clip_grad_norm` and `_get_grad_norm`.

        If neither method is overridden, return `clip` itself.

        Args:
            clip: clips the gradients. The default version of `_clip_grad_norm` calls this function.
        """

        def clipped(optimizer: Any, parameters: Any, max_norm: float) -> Any:
            model = self.run.model_wrapped
            if not max_norm:
                return clip(optimizer, parameters, max_norm)
            norm = self._at("_clip_grad_norm", lambda: clip(optimizer, parameters, max_norm), model)
            return self._at("_get_grad_norm", lambda: norm, model, norm)

        return clipped if self.overrides("_clip_grad_norm", "_get_grad_norm") else clip

    # Training.

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: Any = None,
        resume_from_checkpoint: str | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Train, and return the output of the training. The method ignores its arguments."""
        return self._work("_inner_training_loop")

    def _maybe_log_save_evaluate(
        self,
        tr_loss: Any,
        grad_norm: Any,
        model: nn.Module,
        trial: Any,
        epoch: float,
        ignore_keys_for_eval: list[str] | None,
        start_time: float,
        learning_rate: float | None = None,
    ) -> None:
        """Log, evaluate and save as the flags request. The method ignores its arguments."""
        self._work("_maybe_log_save_evaluate")

    # Evaluations.

    def _evaluate(self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False) -> Any:
        """Evaluate on the trainer's datasets and return the metrics. The method ignores its arguments."""
        if "_evaluate" in self._works:
            return self._work("_evaluate")
        self.bus.announce("on_evaluate_due", requested_by=frozenset({OUTSIDE}))
        return self.run.metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Return whether the evaluation at this step is the best of the run so far. The method ignores its arguments.

        In an override, `super()._determine_best_metric(...)` also stores a new best value in the trainer state. Any
        other call stores nothing.
        """
        if "_determine_best_metric" in self._works:
            return bool(self._work("_determine_best_metric"))
        return self.run.state.best_global_step == self.run.state.global_step  # a callback noted them

    def _load_best_model(self) -> None:
        """Load the weights of the best checkpoint.

        Only an override can use this method: `super()._load_best_model()`. Any other call does nothing.
        """
        self._work("_load_best_model")

    # Checkpoints.

    def _save_checkpoint(self, model: nn.Module, trial: Any = None) -> None:
        """Write a checkpoint of the current step. The method ignores its arguments."""
        if "_save_checkpoint" in self._works:
            self._work("_save_checkpoint")
        else:
            self.bus.announce("on_save_due", requested_by=frozenset({OUTSIDE}))
            # The callback that saves has announced `on_save`. Programs for transformers announce it after this call.
            self._saved_and_announced = self.run.state.global_step

    def _take_announced_save(self) -> bool:
        """Return whether the program itself called `_save_checkpoint` at this step.

        If the program does not call `_save_checkpoint` again, the next call of `_take_announced_save` returns False.
        `_save_checkpoint` announces `on_save`. Programs for transformers then call `callback_handler.on_save`, which
        must not announce the event a second time.
        """
        announced, self._saved_and_announced = self._saved_and_announced, None
        return announced == self.run.state.global_step

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Do nothing: the engine saves the optimizer and the schedule. Override this method to write more files."""

    def _save_scaler(self, output_dir: str) -> None:
        """Do nothing: the engine saves the gradient scaler. Override this method to write more files."""

    def _save_rng_state(self, output_dir: str) -> None:
        """Do nothing: the engine saves the RNG states. Override this method to write more files."""

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load the weights of the checkpoint that the run resumes from. The method ignores its arguments.

        Only an override can use this method: `super()._load_from_checkpoint(...)`. Any other call does nothing.
        """
        self._work("_load_from_checkpoint")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Restore the optimizer and the schedule from the checkpoint that the run resumes from.

        Only an override can use this method: `super()._load_optimizer_and_scheduler(...)`. Any other call does nothing.
        """
        self._work("_load_optimizer_and_scheduler")

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Do nothing: the scaler is restored with the optimizer."""

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restore the RNG states from the checkpoint that the run resumes from.

        Only an override can use this method: `super()._load_rng_state(...)`. Any other call does nothing.
        """
        self._work("_load_rng_state")

    def _load_callback_state(self) -> None:
        """Restore the callback states from the checkpoint that the run resumes from.

        Only an override can use this method: `super()._load_callback_state()`. Any other call does nothing.
        """
        self._work("_load_callback_state")

    # The hub.

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Push the files that `hub_strategy` selects to the hub.

        Only an override can use this method: `super()._push_from_checkpoint(...)`. Any other call does nothing.
        """
        self._work("_push_from_checkpoint")

    def _finish_current_push(self) -> None:
        """Do nothing: at the end of the run, the engine waits for unfinished pushes to the hub."""

    # Sizes.

    def get_tp_size(self) -> int:
        """Return 1: every rank computes whole layers, without tensor parallelism."""
        return 1

    def get_cp_size(self) -> int:
        """Return 1: every rank computes whole samples, without context parallelism."""
        return 1

    def get_sp_size(self) -> int:
        """Return 1: every rank computes whole samples, without sequence parallelism."""
        return 1


def _nothing() -> None:
    """Do nothing. `_work` calls this function if there is no work."""

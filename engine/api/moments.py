"""Methods of transformers' Trainer that a subclass overrides.

The engine calls each of these methods at the same point of a run as transformers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from torch import nn

from ...events.composition import best_metric_of
from ...events.control import OUTSIDE
from ...events.errors import ArgumentError, ModelError
from ...events.flags import SERVED
from ..data.batches import to_device
from ..evaluation.metric_names import improves
from .base import TrainerBase
from .overrides import is_overridden

_AFTER_MODEL = "After the model was written in a save, except with `save_only_model`. The override can add files."

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
    "_save_optimizer_and_scheduler": _AFTER_MODEL,
    "_save_rng_state": _AFTER_MODEL,
    "_save_scaler": _AFTER_MODEL,
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


@dataclass(frozen=True)
class Work:
    """The values that `_at` stores while it calls an override."""

    do: Callable[[], Any]
    """The function that the default version of the method calls."""
    arguments: tuple[Any, ...]
    """The positional arguments that the engine passes to the override."""


class MomentMethods(TrainerBase):
    """The default versions of methods of transformers' Trainer. The table `CALLED` lists these methods.

    For the method `name`, the engine calls `_at(name, work, ...)`. The function `work` does what this method does in
    transformers. If no subclass overrides the method, `_at` calls `work`. If a subclass overrides the method, `_at`
    calls the override. If the override calls `super()`, the default version calls `work`.

    The program itself can also call the method. In this case, there is no function `work`. The default version then
    works with the present state of the run, does nothing, or raises an error that says what to do instead.
    """

    _works: Mapping[str, Work] = {}
    """Name of a method that `_at` calls now -> the work for the default version of this method."""
    _called: frozenset[str] = frozenset()
    """The methods that the program itself calls now. `_at` does not call their overrides, because they run already."""
    _overridden: frozenset[str] = frozenset()
    """The overridden methods among the methods in `CALLED_BY_STEPS`, which each step calls. `adapt_overrides` sets this
    attribute."""

    def _at(self, name: str, work: Callable[[], Any], *arguments: Any, **named: Any) -> Any:
        """Call the override of the method `name`. If no subclass overrides the method, call `work`, the default."""
        if name in self._called or not is_overridden(self, name):
            return work()
        before, self._works = self._works, {**self._works, name: Work(work, arguments)}
        try:
            return getattr(self, name)(*arguments, **named)
        finally:
            self._works = before

    @contextmanager
    def _calling(self, name: str) -> Iterator[None]:
        """Return a context manager for a call of the method `name` by the program itself.

        Inside the `with` block, `_at` does not call the override of the method `name`.
        """
        before, self._called = self._called, self._called | {name}
        try:
            yield
        finally:
            self._called = before

    def _is_work(self, name: str, folder: Any = None) -> bool:
        """Return whether the engine called the method `name`, not the program.

        Args:
            name: the method.
            folder: the folder that the method received; None if it receives no folder. A folder that the engine did not
                pass shows that the program called the method.
        """
        work = self._works.get(name)
        if work is None or folder is None or not work.arguments:
            return work is not None
        same: bool = os.path.abspath(str(folder)) == os.path.abspath(str(work.arguments[0]))
        return same

    def _work(self, name: str) -> Any:
        """Call the function that the method `_at` stored in `self._works[name]`, and return its result."""
        return self._works[name].do()

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

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """Read up to `num_batches` batches. Return the batches and `num_items_in_batch`.

        `num_items_in_batch` is the number of labels over which the loss of the step is averaged. If the loss of
        each batch is the mean over this batch, or if no batch is left, `num_items_in_batch` is None.
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
        """Clip the gradients of a model to `max_grad_norm`, and return their norm before clipping."""
        if self._is_work("_clip_grad_norm"):
            return self._work("_clip_grad_norm")
        return self._clip_to(model, self.args.max_grad_norm or math.inf)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Return `grad_norm`, the norm to log. If `grad_norm` is None, compute the norm of the model's gradients."""
        if self._is_work("_get_grad_norm") or grad_norm is not None:
            return grad_norm
        return self._clip_to(model, math.inf)

    def _clip_to(self, model: nn.Module, norm: float) -> Any:
        trainer: Any = self
        return trainer.accelerator.clip_grad_norm_(model.parameters(), norm)

    def _get_learning_rate(self) -> float:
        """Return the learning rate of the first parameter group."""
        if self.run.optimizer is None:
            raise ArgumentError("There is no optimizer yet. Call `_get_learning_rate` during or after training.")
        return self.run.current_learning_rate()

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        """Return the run's model in its wrapper, such as DDP or FSDP.

        If the engine calls an override, `super()._wrap_model(model)` wraps the run's model and returns the wrapper.
        If the program itself calls this method, the method wraps nothing. For the run's model, it returns the existing
        wrapper. Another model is returned unchanged.

        Raises:
            ModelError: if an override passes another model than the run's model to `super()._wrap_model`.
        """
        if self._is_work("_wrap_model"):
            if model is not self.run.model:
                raise ModelError(
                    f"`super()._wrap_model` received a {type(model).__name__}, but it wraps the model of the run, a "
                    f"{type(self.run.model).__name__}. Replace the model in `model_init`, or wrap the result of "
                    "`super()._wrap_model(model)`."
                )
            wrapped: nn.Module = self._work("_wrap_model")
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
        """Log, evaluate and save as the flags request.

        This is for overrides: the engine calls the override, and the override calls
        `super()._maybe_log_save_evaluate(...)`. A call by the program itself does nothing if no flag is raised. The
        parameters are not used.

        Raises:
            ArgumentError: if the program itself calls the method, and `should_log`, `should_evaluate` or `should_save`
                is raised.
        """
        if self._is_work("_maybe_log_save_evaluate"):
            self._work("_maybe_log_save_evaluate")
        elif raised := [flag for flag in SERVED if self.run.control.raised(flag)]:
            raise ArgumentError(
                f"`_maybe_log_save_evaluate` cannot be called by a program: the run itself serves the raised flags "
                f"({', '.join(raised)}) after each step and each epoch. To work at once, call `trainer.log(values)`, "
                "`trainer.evaluate()` or `trainer._save_checkpoint(model)`."
            )

    # Evaluations.

    def _evaluate(self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False) -> Any:
        """Evaluate on the trainer's datasets and return the metrics. The parameters are not used."""
        if self._is_work("_evaluate"):
            return self._work("_evaluate")
        before, trainer = self.run.evaluation, cast(Any, self)
        with self._calling("_evaluate"):
            self.bus.announce("on_evaluate_due", requested_by=frozenset({OUTSIDE}))
        if self.run.evaluation is before:  # the callback `Evaluate` is not attached
            return trainer.evaluate(ignore_keys=ignore_keys_for_eval)
        return self.run.metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Return whether the metrics are the best of the run so far. Store a new best value in the trainer state.

        Args:
            metrics: the metrics of an evaluation at this step.
            trial: not used.

        Raises:
            ArgumentError: if the metric that chooses the best model is not in `metrics`.
        """
        if self._is_work("_determine_best_metric"):
            return bool(self._work("_determine_best_metric"))
        state, best = self.run.state, best_metric_of(self.bus.subscribers.values())
        if best is None:
            return False
        if best.name not in metrics:
            raise ArgumentError(
                f"The metric {best.name!r} chooses the best model, but the metrics are {', '.join(metrics)}. Set "
                "`metric_for_best_model` to one of these."
            )
        value, before = metrics[best.name], state.best_metric
        if before is not None and value == before:
            return state.best_global_step == state.global_step  # a callback has noted this evaluation
        if not improves(value, before, best.greater_is_better):
            return False
        state.best_metric, state.best_global_step = value, state.global_step
        return True

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

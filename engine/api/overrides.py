"""Methods of a subclass that were written for earlier trainers: they are called with what they take, and no more."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ...events.errors import ModelError

Method = Callable[..., Any]

_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def adapt_overrides(cls: type) -> None:
    """Give the methods that `cls` overrides in an earlier form the one they are called in.

    Looked at once, when the class is made. A method that takes everything, with `**kwargs`, stays as it is. One that
    is never called is warned of, with what does its work here.

    Sets `cls.loss_takes_items` where `cls` brings its own `compute_loss`: one that is not told the number of items
    returns a mean over its batch, and the trainer divides by the batches of the step.
    """
    for name, adapt in _ADAPTERS.items():
        method = _brought_by(cls, name)
        if method is not None:
            adapted = adapt(method, _names(method))
            if adapted is not method:
                setattr(cls, name, adapted)
    for name, remedy in NEVER_CALLED.items():
        if _brought_by(cls, name) is not None:
            # Three calls up is the class statement: this one, `__init_subclass__`, and itself.
            warnings.warn(f"{cls.__name__}.{name} is never called: {remedy}", UserWarning, stacklevel=3)
    loss = _brought_by(cls, "compute_loss")
    if loss is not None:
        cls.loss_takes_items = _takes("num_items_in_batch", _names(loss))  # type: ignore[attr-defined]


def _brought_by(cls: type, name: str) -> Method | None:
    """Return the method that `cls`, or a class mixed into it, overrides; None where it inherits a trainer's."""
    for owner in cls.__mro__:
        if name in vars(owner):
            inherited = owner is not cls and hasattr(owner, "loss_takes_items")
            method = vars(owner)[name]
            method = method.__func__ if isinstance(method, (staticmethod, classmethod)) else method
            return None if inherited or not inspect.isfunction(method) else method
    return None


def _names(method: Method) -> set[str]:
    """Return the names of a method's parameters; `*` and `**` stand for any more of them."""
    parameters = inspect.signature(method).parameters.values()
    return {_STARS.get(each.kind, each.name) for each in parameters}


def _takes(name: str, names: set[str]) -> bool:
    return name in names or "**" in names


def _compute_loss(method: Method, names: set[str]) -> Method:
    takes_outputs, takes_items = _takes("return_outputs", names), _takes("num_items_in_batch", names)
    if takes_outputs and takes_items:
        return method

    @functools.wraps(method)
    def compute_loss(
        self: Any, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        options = {"num_items_in_batch": num_items_in_batch} if takes_items else {}
        if takes_outputs:
            return method(self, model, inputs, return_outputs=return_outputs, **options)
        if not return_outputs:
            return method(self, model, inputs, **options)
        with _outputs_of(model) as outputs:
            loss = method(self, model, inputs, **options)
        if not outputs:
            raise ModelError(
                f"{type(self).__name__}.compute_loss does not call the model it is given, so the predictions of this "
                "batch are unknown: give it the parameter `return_outputs`, and return `(loss, outputs)` if it is true."
            )
        return loss, _with_loss(loss, outputs[-1])

    return compute_loss


def _training_step(method: Method, names: set[str]) -> Method:
    if names & {"*", "**"} or len(names) > len(("self", "model", "inputs")):
        return method

    @functools.wraps(method)
    def training_step(self: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        return method(self, model, inputs)

    return training_step


def _prediction_step(method: Method, names: set[str]) -> Method:
    if _takes("ignore_keys", names):
        return method

    @functools.wraps(method)
    def prediction_step(self: Any, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None) -> Any:
        return method(self, model, inputs, prediction_loss_only)

    return prediction_step


def _train_sampler(method: Method, names: set[str]) -> Method:
    if names & {"*", "**"} or len(names) > len(("self",)):
        return method

    @functools.wraps(method)
    def _get_train_sampler(self: Any, train_dataset: Any = None) -> Any:
        return method(self)

    return _get_train_sampler


def _with_loss(loss: Any, outputs: Any) -> Any:
    """Return a model's outputs; before a tuple of predictions comes the loss, as if the model had computed it."""
    computed = isinstance(outputs, tuple) and outputs and isinstance(outputs[0], torch.Tensor) and outputs[0].dim() == 0
    return (loss, *outputs) if isinstance(outputs, tuple) and not computed else outputs


@contextmanager
def _outputs_of(model: nn.Module) -> Iterator[list[Any]]:
    """Yield a list to which the model adds what each of its calls returns."""
    outputs: list[Any] = []
    hook = model.register_forward_hook(lambda module, args, output: outputs.append(output))
    try:
        yield outputs
    finally:
        hook.remove()


_ADAPTERS: dict[str, Callable[[Method, set[str]], Method]] = {
    "compute_loss": _compute_loss,
    "training_step": _training_step,
    "prediction_step": _prediction_step,
    "_get_train_sampler": _train_sampler,
}
"""Method -> what gives an earlier form of it today's."""

_AUTOCAST = "`MixedPrecision` computes in half precision; a context of your own belongs around `compute_loss`, there."
_WRAPPED = "a callback wraps the model: `run.seams.fill(id, wrap_model=...)` in `on_setup`, see `ShardedDDP`."
_COLUMNS = "override `_set_signature_columns_if_needed`, or set `remove_unused_columns=False` and change the dataset."
_BATCHES = "override `get_train_dataloader` to make other batches, or handle `on_batch` to change each one."
_ITEMS = "override `count_items(batches)`, which counts what the losses of a step are averaged over."
_LOOP = "the loop cannot be replaced: handle the event of the moment in question; `trainer.describe()` shows them."
_CLIP = "a callback clips: `run.seams.fill(id, clip=...)` in `on_setup`; `on_gradients` is the moment before it."
_CHECKPOINT = "handle `on_save_begin`, to add to a checkpoint or to veto it, or `on_save`, after it."
_RESTORE = "handle `on_load`, after all is restored; a callback keeps its own state with `state_dict`."
_BEST = "`KeepBest` brings the best model back; compose it, or a callback of your own."
_DUE = "handle `on_log`, `on_evaluate` or `on_save`, or ask for one: `control.request('save', reason=...)`."
_LOADER = "override `get_train_dataloader`, `get_eval_dataloader` or `get_test_dataloader`."
_RANKS = "there is no accelerate: the processes are `run.ranks`, and `DDP` and its like are callbacks."
_GATHER = "override `evaluation_loop`; `accelerator.gather_for_metrics` gathers."
_SEARCH = "a search runs through `hyperparameter_search`; a callback hears of each evaluation, with `on_evaluate`."
_HUB = "`push_to_hub` pushes, and the callback `PushToHub` on the way; handle `on_push_begin`."
_ARGUMENTS = "check in `__init__`, after `super().__init__(...)`, and raise there."

NEVER_CALLED: dict[str, str] = {
    "_build_accelerator_args": _RANKS,
    "_clip_grad_norm": _CLIP,
    "_defer_fsdp_gradient_reduction": "a callback does so: `run.seams.fill(id, synchronise=...)` in `on_setup`.",
    "_determine_best_metric": _BEST,
    "_evaluate": "override `evaluate`.",
    "_finalize_training": "handle `on_train_end` or `on_close`.",
    "_finish_current_push": _HUB,
    "_get_collator_with_removed_columns": _COLUMNS,
    "_get_dataloader": _LOADER,
    "_get_grad_norm": _CLIP,
    "_get_learning_rate": "handle `on_log`, and change `logs['learning_rate']`.",
    "_get_num_items_in_batch": _ITEMS,
    "_get_output_dir": "the folder is `args.output_dir`.",
    "_has_mixed_mesh_grads": _CLIP,
    "_hp_search_setup": _SEARCH,
    "_init_training_state": "handle `on_train_begin`.",
    "_inner_training_loop": _LOOP,
    "_issue_warnings_after_load": _RESTORE,
    "_load_best_model": _BEST,
    "_load_callback_state": _RESTORE,
    "_load_from_checkpoint": _RESTORE,
    "_load_optimizer_and_scheduler": _RESTORE,
    "_load_rng_state": _RESTORE,
    "_load_scaler": _RESTORE,
    "_maybe_log_save_evaluate": _DUE,
    "_mixed_mesh_grad_norm": _CLIP,
    "_move_model_to_device": "the model goes to `args.device` when the trainer is built; handle `on_setup` for more.",
    "_nested_gather": _GATHER,
    "_pad_across_processes": _GATHER,
    "_prepare_context_parallel_inputs": "override `_prepare_inputs`.",
    "_prepare_for_training": "handle `on_setup`.",
    "_prepare_input": "override `_prepare_inputs`.",
    "_push_from_checkpoint": _HUB,
    "_remove_unused_columns": _COLUMNS,
    "_report_to_hp_search": _SEARCH,
    "_run_epoch": _LOOP,
    "_save_checkpoint": _CHECKPOINT,
    "_save_optimizer_and_scheduler": _CHECKPOINT,
    "_save_rng_state": _CHECKPOINT,
    "_save_scaler": _CHECKPOINT,
    "_sync_replicated_trainable_parameters": _WRAPPED,
    "_track_num_input_tokens": "handle `on_batch`, and count there.",
    "_tune_save_checkpoint": _SEARCH,
    "_update_auto_batch_size": "`auto_find_batch_size` does so by itself.",
    "_validate_args": _ARGUMENTS,
    "_wrap_model": _WRAPPED,
    "autocast_smart_context_manager": _AUTOCAST,
    "compute_loss_context_manager": _AUTOCAST,
    "create_accelerator_and_postprocess": _RANKS,
    "get_batch_samples": _BATCHES,
    "get_cp_size": "each process has batches of its own.",
    "get_sp_size": "each process has batches of its own.",
    "get_tp_size": "each process has batches of its own.",
    "propagate_args_to_deepspeed": _RANKS,
    "set_initial_training_values": "the plan of a run is `run.plan`; handle `on_train_begin`.",
    "store_flos": "`CountFlops` adds to `state.total_flos`; override `floating_point_ops`.",
    "torch_jit_model_eval": "`torch_compile` is what torch offers in its place.",
}
"""Method of transformers' Trainer that is never called here -> what does its work."""

MISSING: dict[str, str] = {
    **NEVER_CALLED,
    "_created_lr_scheduler": "`trainer.lr_scheduler` is None before it is made.",
    "_eval_dataloaders": "the loader of an evaluation is `run.eval_dataloader`.",
    "_globalstep_last_logged": "the losses that wait to be logged are `run.losses`.",
    "_loggers_initialized": "trackers are callbacks.",
    "_memory_tracker": "`MemoryMetrics` measures memory.",
    "_total_loss_scalar": "the losses that wait to be logged are `run.losses`.",
    "_tr_loss": "the losses that wait to be logged are `run.losses`.",
    "_loss_shifts_labels": "it is `trainer.objective.shifts_labels`.",
    "_mixed_mesh_grads": "there is no tensor parallelism here.",
    "can_return_loss": "it is `trainer.objective.returns_loss`.",
    "current_flos": "the operations so far are `state.total_flos`.",
    "current_gradient_accumulation_steps": "they are `args.gradient_accumulation_steps`.",
    "deepspeed": "DeepSpeed's engine is `trainer.model_wrapped`, where it trains the model.",
    "gather_function": "call `accelerator.gather_for_metrics`.",
    "hp_name": "it is an argument of `hyperparameter_search`.",
    "hp_search_backend": "it is an argument of `hyperparameter_search`.",
    "is_distributed_loading_by_transformers": "a model is loaded whole.",
    "is_fsdp_xla_enabled": "there is no XLA here.",
    "is_fsdp_xla_v1_enabled": "there is no XLA here.",
    "is_fsdp_xla_v2_enabled": "there is no XLA here.",
    "is_model_parallel": "a model is on one device here, `args.device`.",
    "label_smoother": "it is `trainer.objective.smoother`.",
    "neftune_noise_alpha": "it is `args.neftune_noise_alpha`.",
    "place_model_on_device": "the model goes to `args.device` when the trainer is built.",
}
"""Attribute of transformers' Trainer that is not here -> where to look."""

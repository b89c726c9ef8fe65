"""Aliases: the table of older names of arguments, and of names from other trainers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ...events.errors import nearest


def _same(value: Any) -> Any:
    return value


class Alias(NamedTuple):
    """The argument that an alias stands for, and the conversion of its values."""

    new: str
    """Name of the argument. Empty if the alias has no effect, because trainbus has only one behavior."""
    translate: Callable[[Any], Any] = _same
    """A function that converts a value of the alias to a value of the argument. If it returns None, the alias sets
    nothing."""
    outdated: bool = True
    """Whether the use of the alias emits a `FutureWarning`. False for aliases that transformers prefers to the name of
    the argument."""
    values: tuple[Any, ...] = ()
    """Valid values of the alias. Empty if all values are valid. If an alias has no effect, reading it returns the first
    valid value."""


def _when_true(value: Any) -> Callable[[Any], Any]:
    return lambda switch: value if switch else None


_SWITCH = (True, False)

ALIASES: dict[str, Alias] = {
    "activation_checkpointing": Alias("gradient_checkpointing", outdated=False),
    "activation_checkpointing_kwargs": Alias("gradient_checkpointing_kwargs", outdated=False),
    "adafactor": Alias("optim", _when_true("adafactor"), values=_SWITCH),
    "device": Alias("use_cpu", lambda device: device == "cpu", values=("cpu", "gpu", "cuda")),
    "eval_batch_size": Alias("per_device_eval_batch_size"),
    "evaluate_during_training": Alias("eval_strategy", _when_true("steps"), values=_SWITCH),
    "evaluation_strategy": Alias("eval_strategy"),
    "fp16_backend": Alias("", values=("auto", "amp", "cpu_amp")),
    "group_by_length": Alias("train_sampling_strategy", _when_true("group_by_length"), values=_SWITCH),
    "half_precision_backend": Alias("", values=("auto", "amp", "cpu_amp")),
    "include_inputs_for_metrics": Alias("include_for_metrics", _when_true(["inputs"]), values=_SWITCH),
    "include_tokens_per_second": Alias("include_num_input_tokens_seen", _when_true("all"), values=_SWITCH),
    "no_cuda": Alias("use_cpu"),
    "per_gpu_eval_batch_size": Alias("per_device_eval_batch_size"),
    "per_gpu_train_batch_size": Alias("per_device_train_batch_size"),
    "push_to_hub_model_id": Alias("hub_model_id"),
    "push_to_hub_token": Alias("hub_token"),
    "recompute": Alias("gradient_checkpointing"),
    "save_safetensors": Alias("", values=(True,)),
    "torchdynamo": Alias("torch_compile_backend"),
    "train_batch_size": Alias("per_device_train_batch_size"),
    "use_legacy_prediction_loop": Alias("", values=(False, True)),
    "xpu_backend": Alias("ddp_backend"),
}
"""Alias -> the argument that it stands for."""

_STOPPING = "Use the callback `EarlyStopping(patience=...)`."
_DEVICES = "Set it with the launcher, as in `torchrun --nproc-per-node=2`, or with the variable `CUDA_VISIBLE_DEVICES`."

_OF_TRAINER = (
    *("model", "train_dataset", "eval_dataset", "data_collator", "processing_class", "tokenizer", "model_init"),
    *("criterion", "compute_loss_func", "compute_metrics", "callbacks", "optimizers", "optimizer_cls_and_kwargs"),
    "preprocess_logits_for_metrics",
)

ELSEWHERE = {
    **{name: f"Pass it to the Trainer: `Trainer({name}=...)`." for name in _OF_TRAINER},
    **dict.fromkeys(("patience", "early_stopping_patience", "early_stopping_threshold"), _STOPPING),
    **dict.fromkeys(("gpus", "n_gpus", "num_gpus", "devices", "accelerator"), _DEVICES),
}
"""Names of settings that are not arguments -> where they are set."""


def not_an_argument(name: str, known: Iterable[str]) -> str:
    """Return the error text for an unknown argument name.

    The text suggests the nearest name in `known`. For a setting of another object, such as `train_dataset`, the text
    says where to set the value.
    """
    return f"`{name}` is not an argument{f'. {ELSEWHERE[name]}' if name in ELSEWHERE else nearest(name, known)}"

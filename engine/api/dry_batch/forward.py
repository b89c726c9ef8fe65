"""Forward and backward of a dry batch, with the `training_step` of the Trainer and without an effect on the run."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ....events.capabilities import Capability
from ....events.composition import provides
from ...checkpoint.rng_state import random_states, restore_random_states
from ...loss.loss_module import module_of, trainable_of
from ...loss.reachable import names_in
from .kept_state import KeptState, Unrestorable
from .stepper import DryStepper

_STEPPING = frozenset({"optimizer", "optimizers", "lr_scheduler", "step", "zero_grad", "unscale_"})
"""If an override of a method uses one of these names, the override may update weights itself."""
_CALLED = ("training_step", "compute_loss", "_prepare_inputs", "count_items", "get_batch_samples")
"""The methods of a program that a dry batch may call."""


_UNTOUCHED = (
    *("_inputs", "_callback_handler", "_composed_from", "_stepper", "train_dataset", "eval_dataset"),
    *("compute_metrics", "model_init", "preprocess_logits_for_metrics", "plugins"),
)
"""Attributes of a trainer that a training step does not change."""


class NoForward(Exception):
    """The dry batch cannot run the model. The text of the error says why."""


@dataclass
class Measured:
    """The results of forward and backward in a dry batch."""

    loss: torch.Tensor
    """The loss, detached."""
    grad_norm: float | None
    """The norm of the gradients; None if no parameter has a gradient."""
    without: list[str]
    """The names of the trainable parameters without a gradient."""
    trained: int
    """The number of trainable parameters."""
    peak_bytes: int | None
    """The peak of allocated GPU memory, in bytes; None on a device other than CUDA."""


def check_runnable(trainer: Any) -> None:
    """Check that a dry batch can run the model without an effect on the training.

    Raises:
        NoForward: if a dry batch cannot run the model. The text of the error says why.
    """
    run = trainer.run
    subscribers = run.bus.subscribers.values()
    if provides(subscribers, Capability.SHARDS_MODEL) or provides(subscribers, Capability.DEEPSPEED):
        raise NoForward("the weights are sharded over the ranks, and a copy of them to restore would not fit")
    for name in _CALLED:
        for function in _overrides(trainer, name):
            code = getattr(inspect.unwrap(function), "__code__", None)
            found = sorted(_STEPPING.intersection(names_in(code))) if code is not None else []
            if found:
                raise NoForward(
                    f"`{name}` of {type(trainer).__name__} uses {', '.join(found)}, so it may update weights itself"
                )


def _overrides(trainer: Any, name: str) -> Iterator[Any]:
    """Yield the functions outside of trainbus that override the method `name` of a trainer."""
    if name in vars(trainer):
        yield vars(trainer)[name]
    own = __name__.partition(".")[0]
    for cls in type(trainer).__mro__:
        if name in vars(cls) and cls.__module__.partition(".")[0] != own:
            yield vars(cls)[name]


def run_model(trainer: Any, batch: Any, dataset: Any) -> Measured:
    """Run forward and backward of a batch with `trainer.training_step`, then undo the changes of this step.

    The step calls the model without its wrapper, so DDP communicates nothing. `torch.compile` has no effect.

    Args:
        trainer: the Trainer.
        batch: the batch, on its device.
        dataset: the training dataset. The search for changed state skips this object, because a training step does not
            change it.

    Raises:
        NoForward: if the state of the model cannot be restored.
    """
    run = trainer.run
    own = vars(trainer)
    roots = {"trainer": trainer, "model": run.model, "step": run.step, "state": run.state, "control": run.control}
    # The search for state stops at these objects, because a training step does not change them. It reaches the state of
    # callbacks through the hooks and closures that the callbacks placed.
    stops = [run, run.bus, run.session, run.args, run.optimizer, run.lr_scheduler, dataset, batch]
    stops += [run.train_dataloader, *(own.get(name) for name in _UNTOUCHED)]
    stops += [each for each in run.bus.subscribers.values() if ".integrations." in type(each).__module__]
    try:
        kept = KeptState(roots, filter(_is_some, stops))
    except Unrestorable as error:
        raise NoForward(f"its state cannot be restored afterwards: {error}") from error
    randomness = random_states()
    try:
        with _eager(run.model):
            return _run(trainer, batch)
    finally:
        kept.restore()
        restore_random_states(randomness)
        torch.clear_autocast_cache()


def _is_some(value: Any) -> bool:
    return value is not None


def _run(trainer: Any, batch: Any) -> Measured:
    run = trainer.run
    device, model = run.device, run.model
    module = module_of(trainer.criterion or trainer.compute_loss_func)
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    weights |= {f"loss {number}": weight for number, weight in enumerate(trainable_of(module, model))}
    stepper = DryStepper(run, weights)
    own = vars(trainer)
    own["_stepper"], own["log"] = stepper, _log_nothing
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    loss = trainer.training_step(model, batch, _items(trainer, batch))
    norm = _norm(list(stepper.grads.values()))
    without = [name for name in weights if name not in stepper.grads]
    peak = torch.cuda.max_memory_allocated(device) if cuda else None
    return Measured(loss.detach().float().mean(), norm, without, len(weights), peak)


def _items(trainer: Any, batch: Any) -> Any:
    """Return `num_items_in_batch` for a step with this batch only; None if the loss does not use this number."""
    return trainer.count_items([batch])


def _log_nothing(*values: Any, **options: Any) -> None:
    """Log nothing. This function replaces `trainer.log` during the dry batch."""


def _norm(grads: list[torch.Tensor]) -> float | None:
    dense = [each.coalesce().values() if each.is_sparse else each for each in grads]
    return float(nn.utils.get_total_norm(dense)) if dense else None


@contextmanager
def _eager(model: nn.Module) -> Iterator[None]:
    """Enter a context in which compiled modules run without compilation."""
    compiled = any(
        module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"
        for module in model.modules()
    )
    stance: AbstractContextManager[Any] = nullcontext()
    if compiled and "torch._dynamo" in sys.modules:
        stance = torch.compiler.set_stance("force_eager")
    with stance:
        yield

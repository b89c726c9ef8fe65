"""Update each weight during backward, as soon as its gradient is complete, and free the gradient."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ...engine.optim.adafactor import Adafactor
from ...engine.run import Run
from ...events.callback import Callback
from ...events.capabilities import Capability, Conflict
from ...events.errors import ArgumentError, HandlerError, ModelError
from ...events.stages import Stage, order
from ..flow.save_on_exception import SaveOnException
from ..model.swa import SWA
from ..monitor.watch_modules import WatchModules
from ..stopping.nan_guard import NaNGuard
from ..stopping.skip_spikes import SkipSpikes
from .clip_gradients import ClipAdaptively, ClipByValue

logger = logging.getLogger(__name__)

_TORCH = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Muon", "NAdam", "RAdam", "RMSprop"),
    *("Rprop", "SGD", "SparseAdam"),
)
PER_WEIGHT: tuple[type[Optimizer], ...] = (
    Adafactor,
    *(getattr(torch.optim, name) for name in _TORCH if hasattr(torch.optim, name)),  # Muon is new in torch 2.9
)
"""The optimizers that update each weight from its own gradient and state alone."""

_CLIPS = "it changes the gradients after backward, and they do not exist then. Leave one of them out."
_SPREAD = "the gradients must be combined over the ranks before the update. Leave OptimizerInBackward out."


@dataclass
class OptimizerInBackward(Callback):
    """Updates each weight during backward, as soon as the gradient of the weight is complete, and frees the gradient.

    A step then never holds all gradients at once. With AdamW and float32 weights, each parameter needs 16 bytes without
    the callback, and as few as 12 bytes with the callback. Training reaches the same weights as without the callback:
    on a CPU bit for bit, on other devices except for rounding. The logs and the format of checkpoints are the same. A
    run with the callback can resume from a checkpoint of a run without the callback, and the other way round.

        Trainer(model, TrainingArguments("outputs", max_grad_norm=0), ..., callbacks=[OptimizerInBackward()])

    - Set `max_grad_norm=0`. Clipping is not possible, because the norm of all gradients is not known when the callback
      updates the first weight. The run still logs the norm.
    - In `on_gradients` and later, `weight.grad` is None, and `run.full_gradients()` raises an error. `grad_norm` has
      the same value as without the callback. A warning names the callbacks that handle `on_gradients`.
    - A handler cannot skip the update. A handler that changes a learning rate must do so before backward, for example
      in `on_loss`. A change between backward and the optimizer step raises an error.
    - If an error ends a step in or after backward, some weights are already updated. Resume from a checkpoint.
    - The time measurements count the time of the updates as time of the backward.
    - Compiled code returns all gradients of a compiled module at once. So use `Compile(regions=...)` with this
      callback, and not `torch_compile=True`.

    Raises:
        ArgumentError: if the run uses several ranks, clipping, gradient accumulation, `fp16` or `auto_find_batch_size`.
            Also if the optimizer is not supported. The message lists the supported optimizers.
        HandlerError: if a handler skips the update, if a handler changes an option of the optimizer after backward, or
            if the optimizer has a step pre-hook.
        ModelError: if backward computes the gradient of a weight twice in one step.
    """

    stage = Stage.PREPARE
    capabilities = frozenset({Capability.UPDATES_IN_BACKWARD})
    conflicts_with = (
        Conflict(Capability.SHARDS_MODEL, _SPREAD),
        Conflict(Capability.DEEPSPEED, _SPREAD),
        Conflict(ClipByValue, _CLIPS),
        Conflict(ClipAdaptively, _CLIPS),
        Conflict(SkipSpikes, "the weights are already updated when it would skip the update. Leave one of them out."),
        Conflict(
            SaveOnException,
            "after an error in backward, some weights are updated and others are not. Leave one of them out.",
        ),
    )

    _run: Run | None = field(default=None, init=False, repr=False, compare=False)
    _hooks: list[RemovableHandle] = field(default_factory=list, init=False, repr=False, compare=False)
    _waiting: list[tuple[int, nn.Parameter]] = field(default_factory=list, init=False, repr=False, compare=False)
    _norms: dict[nn.Parameter, torch.Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    _options: list[dict[str, Any]] = field(default_factory=list, init=False, repr=False, compare=False)
    _open: bool = field(default=False, init=False, repr=False, compare=False)

    def conflict_with(self, other: Callback) -> str:
        if isinstance(other, NaNGuard) and other.action != "raise":
            return "the weights are already updated when it would skip the update. Use the action 'raise'."
        if isinstance(other, WatchModules) and other.gradients:
            return "the gradients do not exist any more when it reads them. Set WatchModules(gradients=False)."
        if isinstance(other, SWA) and other.learning_rate is not None:
            return "it sets the learning rate after backward, when the weights are already updated. Leave the rate out."
        return super().conflict_with(other)

    def on_setup(self, run: Run) -> None:
        if run.mode != "train":
            return
        if problem := _problem(run):
            raise ArgumentError(f"OptimizerInBackward {problem}")
        self._run = run
        run.seams.fill(
            "OptimizerInBackward",
            synchronise=self._around,
            clip=self._norm,
            step=self._step,
            zero_grad=self._zero_grad,
            full_gradients=_no_gradients,
        )

    def on_train_begin(self, run: Run, optimizer: Any) -> None:
        if run.seams.scaler is not None:
            raise ArgumentError(
                "OptimizerInBackward does not work with a gradient scaler: it decides from all gradients whether to "
                "update. Use `bf16` instead of `fp16`."
            )
        if not _updates_each_weight_alone(optimizer):
            raise ArgumentError(
                f"OptimizerInBackward does not know whether {type(optimizer).__name__} updates each weight by itself. "
                f"It works with: {', '.join(kind.__name__ for kind in PER_WEIGHT)}. Use one of these."
            )
        if readers := [each.owner_id for each in run.bus.order_of("on_gradients")]:
            logger.warning(
                "With OptimizerInBackward, the gradients are None in on_gradients. These callbacks handle this event: "
                "%s.",
                ", ".join(dict.fromkeys(readers)),
            )
        groups = enumerate(optimizer.param_groups)
        self._waiting = [(index, weight) for index, group in groups for weight in group["params"]]
        self._norms.clear()

    def _hook_trainable(self) -> None:
        """Register the update hook of each trainable weight that has no update hook yet.

        A frozen weight cannot have a hook, so the method skips frozen weights.
        """
        assert self._run is not None
        waiting, self._waiting = self._waiting, []
        for index, weight in waiting:
            if weight.requires_grad:
                update = _Update(self._run.optimizer, index, weight)
                register: Any = weight.register_post_accumulate_grad_hook
                self._hooks.append(register(lambda _, update=update: self._do(update)))
            else:
                self._waiting.append((index, weight))

    @contextmanager
    def _around(self, model: nn.Module, last: bool) -> Iterator[None]:
        """Enter a context in which backward updates the weights. Outside of the context, backward updates no weights.

        Args:
            model: not used.
            last: whether the batch is the last batch of its step.

        Raises:
            ArgumentError: if `last` is False. The callback does not work with several batches per step.
        """
        if not last:
            raise ArgumentError(
                "OptimizerInBackward updates after each batch, but this step has several batches. Set "
                "`gradient_accumulation_steps=1`."
            )
        if self._waiting:
            self._hook_trainable()
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def _do(self, update: _Update) -> None:
        if not self._open:
            return
        if not self._norms:
            self._refuse_early_hooks(update.optimizer)
            self._options = update.options()
        if update.weight in self._norms:
            raise ModelError(
                f"OptimizerInBackward: backward computed the gradient of a weight of shape "
                f"{tuple(update.weight.shape)} twice in one step, after the weight was updated. Call backward once "
                'per step, and recompute activations with `{"use_reentrant": False}`.'
            )
        gradient: Any = update.weight.grad
        values = gradient.coalesce().values() if gradient.is_sparse else gradient
        self._norms[update.weight] = torch.linalg.vector_norm(values.detach())
        update()
        update.weight.grad = None

    def _refuse_early_hooks(self, optimizer: Any) -> None:
        if hooks := optimizer._optimizer_step_pre_hooks:
            names = ", ".join(getattr(hook, "__qualname__", repr(hook)) for hook in hooks.values())
            raise HandlerError(
                f"OptimizerInBackward: the step pre-hook {names} of the optimizer would run after backward, and find "
                "no gradients. Change gradients with `weight.register_hook`, or leave one of the two out."
            )

    def _norm(self, optimizer: Optimizer, parameters: list[nn.Parameter], limit: float) -> torch.Tensor:
        """Return the norm of all gradients of `parameters`, computed as `clip_gradients` does.

        Raises:
            ArgumentError: if `limit`, the largest allowed norm, is not 0. Clipping is not possible, because backward
                already updated the weights.
        """
        if limit:
            raise ArgumentError(
                f"OptimizerInBackward cannot clip to {limit}: the weights are already updated. Remove the clipping, or "
                "leave OptimizerInBackward out."
            )
        norms = [self._norms[weight] for weight in parameters if weight in self._norms]
        norms += [torch.linalg.vector_norm(each.grad) for each in parameters if each.grad is not None]
        if not norms:
            return torch.tensor(0.0)
        total: torch.Tensor = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
        return total

    def _step(self, optimizer: Optimizer) -> bool:
        if self._norms:
            for before, group in zip(self._options, _options_of(optimizer)):
                changed = [name for name, value in group.items() if not _same(value, before.get(name))]
                if changed:
                    raise HandlerError(
                        f"OptimizerInBackward: a handler changed {changed[0]!r} of the optimizer after backward, when "
                        "the weights were already updated. Change it in on_step_begin, on_batch or on_loss."
                    )
        optimizer.step()  # weights with a gradient, if any, and the hooks of the optimizer
        self._options = []
        return True

    def _zero_grad(self, parameters: list[nn.Parameter]) -> None:
        skipped = bool(self._options)
        self._norms.clear()
        self._options = []
        for parameter in parameters:
            parameter.grad = None
        if skipped:
            raise HandlerError(
                "OptimizerInBackward: a handler requested `skip_update`, but the weights are already updated. Remove "
                "the callback that skips updates, or OptimizerInBackward."
            )

    @order(Stage.RELEASE)
    def on_close(self) -> None:
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook.remove()
        self._run, self._waiting, self._options = None, [], []
        self._norms.clear()


class _Update:
    """The update of one weight: the step of a second optimizer, which has only this weight.

    The second optimizer has no state of its own: it uses the state in the run's optimizer. So the `state_dict` of the
    run's optimizer is the same as without the callback.
    """

    def __init__(self, optimizer: Optimizer, index: int, weight: nn.Parameter) -> None:
        """Prepare the update of a weight. `index` is the index of the weight's parameter group in the optimizer."""
        self.optimizer, self.index, self.weight = optimizer, index, weight
        # Not a call of the class: its constructor may require other arguments than the options of a group.
        self._alone: Optimizer = object.__new__(type(optimizer))
        own = {name: value for name, value in vars(optimizer).items() if name != "step"}  # a schedule replaces `step`
        own |= {name: OrderedDict() for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")}
        vars(self._alone).update(own)

    def __call__(self) -> None:
        """Update the weight with its gradient and the current options of its group, such as the learning rate."""
        self._alone.state = self.optimizer.state  # `load_state_dict` replaces both
        self._alone.param_groups = [{**self.optimizer.param_groups[self.index], "params": [self.weight]}]
        self._alone.step()

    def options(self) -> list[dict[str, Any]]:
        """Return the current options of all parameter groups of the optimizer."""
        return _options_of(self.optimizer)


def _problem(run: Run) -> str:
    """Return why the callback cannot work in a run, and what to do; an empty text if the callback can work."""
    args = run.args
    if not run.ranks.single_process:
        return f"works in a single process only: {_SPREAD}"
    if args.max_grad_norm:
        return (
            f"cannot clip to `max_grad_norm={args.max_grad_norm}`: it updates the first weights before the norm of all "
            "gradients is known. Set `max_grad_norm=0`."
        )
    if args.gradient_accumulation_steps != 1 or args.gradient_accumulation_schedule:
        return "updates after each batch, so it cannot accumulate gradients. Set `gradient_accumulation_steps=1`."
    if args.auto_find_batch_size:
        return (
            "does not work with `auto_find_batch_size`: an attempt that runs out of memory in backward leaves some "
            "weights updated. Set `per_device_train_batch_size`."
        )
    return ""


def _updates_each_weight_alone(optimizer: Any) -> bool:
    """Return whether the class of an optimizer is in the constant `PER_WEIGHT`.

    A subclass of such a class counts too if both classes have the same function `step`.
    """
    kind = type(optimizer)
    return any(issubclass(kind, known) and _step_of(kind) is _step_of(known) for known in PER_WEIGHT)


def _step_of(kind: type[Optimizer]) -> Any:
    """Return the method `step` of an optimizer class, without the wrapper of torch.

    torch wraps `step` when the first instance of a class is created. Without wrappers, a class and a subclass that
    inherits its `step` have the same `step`.
    """
    step: Any = kind.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def _options_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def _same(one: Any, other: Any) -> bool:
    return one is other or (not isinstance(one, torch.Tensor) and bool(one == other))


def _no_gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    raise HandlerError(
        "run.full_gradients(): OptimizerInBackward frees each gradient in backward. Leave OptimizerInBackward out, or "
        "read a gradient in a hook of its weight."
    )

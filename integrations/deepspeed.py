"""DeepSpeed: its engine makes the steps, with optimizer states, gradients and weights split over the processes."""

from __future__ import annotations

import atexit
import json
import logging
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

if not torch.accelerator.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed finds that out too, and warns

import deepspeed
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ..callbacks.ddp import DDP
from ..callbacks.forwards import replace_forward
from ..callbacks.mixed_precision import DTYPES, MixedPrecision, to_float32
from ..engine.arguments import TrainingArguments
from ..engine.checkpoint.files import Checkpoint
from ..engine.checkpoint.store import load_weights as load_checkpoint
from ..engine.data.batches import map_tensors
from ..engine.optim import parameter_groups
from ..engine.run import Run
from ..engine.seams import clip_gradients
from ..events.callback import Callback
from ..events.stages import Stage
from .deepspeed_config import Shape, complete, hidden_size_of, precision_of, read_config, stage_of
from .deepspeed_process import ALIVE, check, join_alone, leave, spare_compiling
from .deepspeed_state import (
    OptimizerState,
    count_empty_groups,
    drop_gradients,
    load_scale,
    load_weights,
    make_schedule,
    scale_state,
    torch_optimizer,
    whole_weights,
)

logger = logging.getLogger(__name__)


@dataclass
class DeepSpeed(Callback):
    """Has DeepSpeed's engine train the model: ZeRO of every stage, offloading, bf16 and fp16 as its configuration says.

    What the configuration leaves open is filled in from the arguments; see `complete`. Checkpoints are those of every
    other run: they can be resumed by another stage, another number of processes, and without DeepSpeed.
    """

    stage = Stage.PREPARE
    arguments = ("deepspeed",)
    instead_of = (DDP, MixedPrecision)

    config: dict[str, Any] | str = field(default_factory=dict)
    """DeepSpeed's configuration, as a dict, which is copied, or a JSON file's path."""
    _engine: Any = field(default=None, init=False, repr=False, compare=False)
    _complete: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _states: Any = field(default=None, init=False, repr=False, compare=False)
    _restore: Callable[[], None] | None = field(default=None, init=False, repr=False, compare=False)
    _added: list[tuple[Any, str]] = field(default_factory=list, init=False, repr=False, compare=False)
    _stepped: bool = field(default=False, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> DeepSpeed:
        return cls(args.deepspeed or {})

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            self._prepare(run)
            run.seams.fill(
                "DeepSpeed",
                make_optimizer=lambda make: self._make_optimizer(run, make),
                wrap_model=lambda model, optimizer: self._engine,
                make_schedule=self._make_schedule,
                synchronise=self._synchronise,
                backward=self._backward,
                clip=self._clip,
                step=lambda optimizer: self._step(run),
                zero_grad=self._zero_grad,
                autocast=nullcontext,
                optimizer_state=lambda optimizer: self._states.whole(run.args.should_save),
                load_optimizer=lambda optimizer, state: self._states.load(state, run.model),
                load_model=load_weights,
            )
        elif self._engine is None:
            return
        run.seams.fill("DeepSpeed", model_state=lambda model: whole_weights(model, run.args.should_save))
        if precision := precision_of(self._complete):
            self._restore = replace_forward(run.model, _in_half_precision(run.model, DTYPES[precision]))

    def _prepare(self, run: Run) -> None:
        if self._engine is not None and self._engine.module is not run.model:
            self._release()
        shape = Shape(run.train_batch_size, run.ranks.world_size, run.state.max_steps, hidden_size_of(run.model))
        self._complete = config = complete(read_config(self.config), run.args, shape)
        check(config, run)
        logger.info("DeepSpeed's configuration:\n%s", json.dumps(config, indent=2))
        deepspeed.utils.logger.setLevel(run.args.get_process_log_level())
        atexit.unregister(self._leave)
        atexit.register(self._leave)

    def _make_optimizer(self, run: Run, make: Callable[[], Optimizer]) -> Optimizer:
        if self._engine is None:
            optimizer = None if "optimizer" in self._complete else make()
            groups = _groups(run.model) if optimizer is None else optimizer.param_groups
            remembered = [{**group, "params": [*group["params"]]} for group in groups]
            before = {owner: {*vars(owner)} for owner in (*run.model.modules(), *run.model.parameters())}
            join_alone(run)
            spare_compiling()
            self._engine, *_ = deepspeed.initialize(
                model=run.model,
                optimizer=optimizer,
                model_parameters=groups if optimizer is None else None,
                config=deepcopy({name: part for name, part in self._complete.items() if name != "scheduler"}),
            )
            self._added = [(owner, name) for owner, names in before.items() for name in {*vars(owner)} - names]
            self._states = OptimizerState(self._engine, remembered)
            ALIVE.add(id(self._engine))
        elif stage_of(self._complete) in (1, 2) and not precision_of(self._complete):
            self._engine.optimizer.refresh_fp32_params()  # the weights may be others than at the last training's end
        return torch_optimizer(self._engine)

    def _make_schedule(self, make: Callable[[], Any]) -> Any:
        # The run steps it, as any other; the engine is not told of it, and does not do so a second time.
        section = self._complete.get("scheduler")
        made = make() if section is None else make_schedule(section, torch_optimizer(self._engine))
        return count_empty_groups(made, self._states.groups)

    def _synchronise(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        # DeepSpeed passes `eval()` on to the model and keeps its own flag, which whoever trains looks at.
        self._engine.training = self._engine.module.training
        self._engine.set_gradient_accumulation_boundary(last)
        return nullcontext()

    def _backward(self, loss: torch.Tensor, **options: Any) -> None:
        self._engine.backward(loss, scale_wrt_gas=False, **options)  # the loss is divided by its batches already

    def _clip(self, optimizer: Optimizer, parameters: list[nn.Parameter], max_norm: float) -> Any:
        # The engine clips when it steps, and measures the norm of gradients that are split only then.
        return clip_gradients(optimizer, parameters, 0) if self._engine.zero_optimization_stage() == 0 else None

    def _step(self, run: Run) -> bool:
        self._engine.step()
        self._stepped = True
        norm = self._engine.get_global_grad_norm()
        if norm is not None:
            run.grad_norm = torch.as_tensor(norm)
        return bool(self._engine.was_step_applied())

    def _zero_grad(self, parameters: list[nn.Parameter]) -> None:
        if not self._stepped:
            drop_gradients(self._engine, parameters)
        self._stepped = False

    def on_load(self, run: Run, checkpoint: Checkpoint) -> None:
        if precision_of(self._complete):  # the copies in float32 were made of weights that had been rounded
            load_checkpoint(run.model, Path(checkpoint.path), run.seams.load_model)

    def state_dict(self) -> dict[str, Any]:
        return scale_state(self._engine) if precision_of(self._complete) == "fp16" else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if precision_of(self._complete) == "fp16":
            load_scale(self._engine, state)

    def on_exception(self, run: Run) -> None:
        if self._engine is not None and run.args.auto_find_batch_size:
            self._release()  # the next attempt begins anew
        if self._engine is None and run.ranks.alone:
            leave()

    def on_close(self, run: Run) -> None:
        restore, self._restore = self._restore, None
        if restore is not None:
            restore()
        # Others in this program need not find a process group where there is one process.
        if run.ranks.alone and self._engine is not None and stage_of(self._complete) < 3:
            states = self._states
            states.give_back_weights()
            self._leave()
            states.give_back_parameters()

    def on_end(self) -> None:
        self._leave()

    def _leave(self) -> None:
        """Let go of the engine and leave the process group, of which DeepSpeed keeps references and parts."""
        atexit.unregister(self._leave)
        # After an error the other processes may be waiting for this one, and leaving would wait for them.
        if self._engine is not None and not hasattr(sys, "last_type"):
            self._release()
            leave()

    def _release(self) -> None:
        """Let go of the engine, and take back what it put on the model."""
        engine, self._engine, self._states = self._engine, None, None
        ALIVE.discard(id(engine))
        if dist.is_initialized():  # another trainer's end may have left it
            engine.destroy()
        engine.module_forward_pre_hook.remove()
        engine.module_forward_post_hook.remove()
        for owner, name in self._added:
            vars(owner).pop(name, None)
        self._added = []


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return the parameters for an optimizer of DeepSpeed's, those that do not decay in a group of their own."""
    decaying, others = parameter_groups(model, 1.0)
    del decaying["weight_decay"]  # it is in DeepSpeed's configuration
    return [decaying, others]


def _in_half_precision(model: nn.Module, dtype: torch.dtype) -> Callable[..., Any]:
    forward = model.forward

    def halve(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    def in_half_precision(*args: Any, **kwargs: Any) -> Any:
        return to_float32(forward(*map_tensors(halve, args), **map_tensors(halve, kwargs)))

    return in_half_precision

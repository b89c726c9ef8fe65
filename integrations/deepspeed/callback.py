"""DeepSpeed: its engine makes the steps, with optimizer states, gradients and weights split over the processes."""

from __future__ import annotations

import json
import logging
import os
import weakref
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
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer

from ...callbacks.model.forwards import replace_forward
from ...callbacks.parallel.ddp import DDP, send_buffers
from ...callbacks.parallel.wrapping import trainable
from ...callbacks.precision.mixed_precision import DTYPES, MixedPrecision, to_float32
from ...engine.arguments import TrainingArguments
from ...engine.data.batches import map_tensors
from ...engine.optim.build import parameter_groups
from ...engine.run import Run
from ...engine.seams import clip_gradients
from ...events.callback import Callback
from ...events.capabilities import Capability
from ...events.errors import ArgumentError, TrainbusError
from ...events.stages import Stage
from .checks import check, check_flags, check_optimizer
from .config import Shape, complete, hidden_size_of, precision_of, read_config, stage_of
from .optimizer_state import OptimizerState, drop_gradients, load_scale, scale_state, torch_optimizer
from .process import hold, hush, join_alone, leave, spare_compiling, warn_of_compiling
from .schedules import count_empty_groups, make_schedule
from .weights import link_in_order, load_weights, take_up_written, whole_weights

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
    capabilities = frozenset({Capability.DEEPSPEED})

    config: dict[str, Any] | str | Path = field(default_factory=dict)
    """DeepSpeed's configuration, as a dict, which is copied, or a JSON file's path."""
    _engine: Any = field(default=None, init=False, repr=False, compare=False)
    _complete: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _states: Any = field(default=None, init=False, repr=False, compare=False)
    _restore: Callable[[], None] | None = field(default=None, init=False, repr=False, compare=False)
    _let_go: weakref.finalize[Any, Any] | None = field(default=None, init=False, repr=False, compare=False)
    _linear: Callable[..., Any] | None = field(default=None, init=False, repr=False, compare=False)
    _plain_linear: Callable[..., Any] | None = field(default=None, init=False, repr=False, compare=False)
    _trained: list[bool] = field(default_factory=list, init=False, repr=False, compare=False)
    _stepped: bool = field(default=False, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> DeepSpeed:
        return cls(args.deepspeed or {})

    def on_setup(self, run: Run) -> None:
        # With stage 3 DeepSpeed computes all linear layers of the program in its own way, from then on.
        self._plain_linear = functional.linear
        if self._linear is not None:
            functional.linear = self._linear
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
        for section, given in {"optimizer": run.optimizer, "scheduler": run.lr_scheduler}.items():
            if section in config and given is not None and self._engine is None:
                raise ArgumentError(
                    f"DeepSpeed's configuration has {section!r}, and a {type(given).__name__} is given as well, in "
                    "`optimizers`: give one of them."
                )
        logger.info("DeepSpeed's configuration:\n%s", json.dumps(config, indent=2))
        deepspeed.utils.logger.setLevel(run.args.get_process_log_level())

    def _make_optimizer(self, run: Run, make: Callable[[], Optimizer]) -> Optimizer:
        if self._engine is None:
            self._begin(run, None if "optimizer" in self._complete else make())
        else:
            check_flags(run.model, self._trained, self._complete)
            take_up_written(self._engine)
        return torch_optimizer(self._engine)

    def _begin(self, run: Run, optimizer: Optimizer | None) -> None:
        """Have DeepSpeed make its engine, with an optimizer or one of its own."""
        if optimizer is not None:
            check_optimizer(optimizer, self._complete)
        groups = _groups(run.model) if optimizer is None else optimizer.param_groups
        remembered = [{**group, "params": [*group["params"]]} for group in groups]
        if stage_of(self._complete) > 0:  # which would have them decay, and takes no group of them alone
            for group in groups:
                group["params"] = [parameter for parameter in group["params"] if parameter.requires_grad]
        before = {owner: {*vars(owner)} for owner in (*run.model.modules(), *run.model.parameters())}
        join_alone(run)
        spare_compiling()
        hush()
        if run.ranks.local_rank == 0:
            warn_of_compiling(self._complete)
        try:
            self._engine, *_ = deepspeed.initialize(
                model=run.model,
                optimizer=optimizer,
                model_parameters=groups if optimizer is None else None,
                config=deepcopy({name: part for name, part in self._complete.items() if name != "scheduler"}),
            )
        except (TrainbusError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise ArgumentError(
                f"DeepSpeed did not begin, with the configuration that `log_level='info'` shows: "
                f"{type(error).__name__}: {error}"
            ) from error
        self._linear = functional.linear
        added = [(owner, name) for owner, names in before.items() for name in {*vars(owner)} - names]
        self._let_go = hold(self, self._engine, added)
        link_in_order(self._engine)
        self._states = OptimizerState(self._engine, remembered)
        self._trained = trainable(run.model.parameters())

    def _make_schedule(self, make: Callable[[], Any]) -> Any:
        # The run steps it, as any other; the engine is not told of it, and does not do so a second time.
        section = self._complete.get("scheduler")
        made = make() if section is None else make_schedule(section, torch_optimizer(self._engine))
        return count_empty_groups(made, self._states.filled(), len(self._states.groups))

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
        take_up_written(self._engine)
        self._engine.step()
        self._stepped = True
        applied, norm = bool(self._engine.was_step_applied()), self._engine.get_global_grad_norm()
        # An overflow in float16 is the scaler's to handle, and nothing that anybody need look at.
        if norm is not None and (applied or precision_of(self._complete) != "fp16"):
            run.grad_norm = torch.as_tensor(norm)
        return applied

    def _zero_grad(self, parameters: list[nn.Parameter]) -> None:
        if not self._stepped:
            drop_gradients(self._engine, parameters)
        self._stepped = False

    def on_step_begin(self, run: Run) -> None:
        check_flags(run.model, self._trained, self._complete)
        self._share_buffers(run)

    def on_evaluate_begin(self, run: Run) -> None:
        self._share_buffers(run)

    def on_train_end(self, run: Run) -> None:
        self._share_buffers(run)

    def _share_buffers(self, run: Run) -> None:
        """Give all processes the buffers of the first, when DDP does: before the forwards of a step, and in the end."""
        if not run.ranks.single_process and self._engine is not None and run.args.ddp_broadcast_buffers is not False:
            send_buffers(run.model)

    def state_dict(self) -> dict[str, Any]:
        return scale_state(self._engine) if precision_of(self._complete) == "fp16" else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if precision_of(self._complete) == "fp16":
            load_scale(self._engine, state)

    def on_exception(self, run: Run) -> None:
        if self._engine is not None and run.args.auto_find_batch_size:
            self._release()  # the next attempt begins anew
        if self._engine is None and run.ranks.single_process:
            leave()

    def on_close(self, run: Run) -> None:
        if self._plain_linear is not None:
            functional.linear, self._plain_linear = self._plain_linear, None
        restore, self._restore = self._restore, None
        if restore is not None:
            restore()
        # Others in this program need not find a process group where there is one process.
        if run.ranks.single_process and self._engine is not None and stage_of(self._complete) < 3:
            states = self._states
            states.give_back_weights()
            self._leave()
            states.give_back_parameters()

    def on_end(self) -> None:
        self._leave()

    def _leave(self) -> None:
        """Let go of the engine and leave the process group, of which DeepSpeed keeps references and parts."""
        if self._engine is not None:
            self._release()
            leave()

    def _release(self) -> None:
        """Let go of the engine, and take back what it put on the model."""
        let_go, self._let_go = self._let_go, None
        self._engine = self._states = self._linear = None
        if let_go is not None:
            let_go()


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

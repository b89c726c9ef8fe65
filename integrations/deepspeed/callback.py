"""The callback that trains with DeepSpeed's engine."""

from __future__ import annotations

import json
import logging
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer

from ...callbacks.model.forwards import replace_forward
from ...callbacks.parallel.ddp import DDP, send_buffers
from ...callbacks.parallel.wrapping import trainable
from ...callbacks.precision.mixed_precision import DTYPES, MixedPrecision
from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...engine.seams import clip_gradients
from ...events.callback import Callback
from ...events.capabilities import Capability
from ...events.errors import ArgumentError
from ...events.stages import Stage
from .checks import check_config, check_optimizer, check_trainable
from .config import RunSizes, complete_config, hidden_size_of, precision_of, read_config, stage_of
from .engine import (
    added_attributes,
    attributes_of,
    build_engine,
    default_groups,
    half_precision_forward,
    prepare_process,
)
from .optimizer_state import (
    OptimizerState,
    discard_gradients,
    load_loss_scaler_state,
    loss_scaler_state,
    torch_optimizer,
)
from .process import finalize_engine, leave_process_group
from .schedules import keep_empty_groups, make_schedule
from .weights import fix_round_robin_links, gather_gradients, gather_weights, load_weights, update_master_weights

logger = logging.getLogger(__name__)


@dataclass
class DeepSpeed(Callback):
    """Trains the model with DeepSpeed's engine, which has all ZeRO stages, offloading, bf16 and fp16.

    Set `deepspeed="config.json"` in the arguments, or add `DeepSpeed("config.json")` to the callbacks. The training
    arguments replace each value "auto" in the configuration. If the configuration lacks the batch sizes, the gradient
    clipping or the precision, the arguments set these too. Checkpoints have the same format as without DeepSpeed. So a
    run can resume with another ZeRO stage, with another number of ranks, or without DeepSpeed.

    Raises:
        ArgumentError: if the configuration is invalid or contradicts the arguments, if DeepSpeed refuses the model, or
            if weights are frozen or unfrozen during a run with stages 1 to 3.
    """

    stage = Stage.PREPARE
    arguments = ("deepspeed",)
    instead_of = (DDP, MixedPrecision)
    capabilities = frozenset({Capability.DEEPSPEED, Capability.KEEPS_GROUPS})

    config: dict[str, Any] | str | Path = field(default_factory=dict)
    """DeepSpeed's configuration: a dict, or the path of a JSON file. The callback does not change the dict."""
    _engine: Any = field(default=None, init=False, repr=False, compare=False)
    _complete: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The configuration, completed with values of the arguments."""
    _states: Any = field(default=None, init=False, repr=False, compare=False)
    """The `OptimizerState` of the engine."""
    _finalizer: weakref.finalize[Any, Any] | None = field(default=None, init=False, repr=False, compare=False)
    _restore_forward: Callable[[], None] | None = field(default=None, init=False, repr=False, compare=False)
    _zero3_linear: Callable[..., Any] | None = field(default=None, init=False, repr=False, compare=False)
    """The function `torch.nn.functional.linear` to use during a session. Stage 3 replaces the function of torch."""
    _torch_linear: Callable[..., Any] | None = field(default=None, init=False, repr=False, compare=False)
    """The function `torch.nn.functional.linear` from before the session, to restore after the session."""
    _trained: list[bool] = field(default_factory=list, init=False, repr=False, compare=False)
    """`requires_grad` of each parameter when DeepSpeed built its engine."""
    _stepped: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether the engine already made the current step. The engine then also cleared the gradients."""

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> DeepSpeed:
        return cls(args.deepspeed or {})

    def on_setup(self, run: Run) -> None:
        # Stage 3 replaces torch's linear function for the whole program. It is active only during a session.
        self._torch_linear = functional.linear
        if self._zero3_linear is not None:
            functional.linear = self._zero3_linear
        if run.mode == "train":
            self._prepare(run)
            self._fill_training_seams(run)
        elif self._engine is None:
            return
        run.seams.fill("DeepSpeed", model_state=lambda model: gather_weights(model, run.args.should_save))
        if precision := precision_of(self._complete):
            forward = half_precision_forward(run.model, DTYPES[precision])
            self._restore_forward = replace_forward(run.model, forward)

    def _fill_training_seams(self, run: Run) -> None:
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
            full_gradients=gather_gradients,
            autocast=nullcontext,
            optimizer_state=lambda optimizer: self._states.full_state(run.args.should_save),
            load_optimizer=lambda optimizer, state: self._states.load(state, run.model),
            load_model=load_weights,
        )

    def _prepare(self, run: Run) -> None:
        """Complete and check the configuration. Release the engine if it was built for another model."""
        if self._engine is not None and self._engine.module is not run.model:
            self._release()
        sizes = RunSizes(
            batch_size=run.train_batch_size,
            world_size=run.ranks.world_size,
            total_steps=run.state.max_steps,
            hidden_size=hidden_size_of(run.model),
        )
        self._complete = config = complete_config(read_config(self.config), run.args, sizes)
        check_config(config, run)
        for section, given in {"optimizer": run.optimizer, "scheduler": run.lr_scheduler}.items():
            if section in config and given is not None and self._engine is None:
                raise ArgumentError(
                    f"DeepSpeed's configuration has {section!r}, and `optimizers` has a {type(given).__name__}: "
                    "remove one of them."
                )
        logger.info("DeepSpeed's configuration:\n%s", json.dumps(config, indent=2))
        deepspeed.utils.logger.setLevel(run.args.get_process_log_level())

    def _make_optimizer(self, run: Run, make: Callable[[], Optimizer]) -> Optimizer:
        if self._engine is None:
            self._build_engine(run, None if "optimizer" in self._complete else make())
        else:
            check_trainable(run.model, self._trained, self._complete)
            update_master_weights(self._engine)
        return torch_optimizer(self._engine)

    def _build_engine(self, run: Run, optimizer: Optimizer | None) -> None:
        """Build the engine with `optimizer`, or, if `optimizer` is None, with the optimizer of the configuration."""
        if optimizer is not None:
            check_optimizer(optimizer, self._complete)
        groups = default_groups(run) if optimizer is None else optimizer.param_groups
        original_groups = [{**group, "params": [*group["params"]]} for group in groups]
        attributes = attributes_of(run.model)
        prepare_process(self._complete, run)
        self._engine = build_engine(run.model, optimizer, groups, self._complete)
        self._zero3_linear = functional.linear
        self._finalizer = finalize_engine(self, self._engine, added_attributes(attributes))
        fix_round_robin_links(self._engine)
        self._states = OptimizerState(self._engine, original_groups, run.services.parameter_groups)
        self._trained = trainable(run.model.parameters())

    def _make_schedule(self, make: Callable[[], Any]) -> Any:
        # The run steps the schedule, so the engine does not get it.
        section = self._complete.get("scheduler")
        schedule = make() if section is None else make_schedule(section, torch_optimizer(self._engine))
        return keep_empty_groups(schedule, self._states.nonempty_groups(), len(self._states.groups))

    def _synchronise(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        # The engine has a flag `training` of its own, which `model.eval()` does not set.
        self._engine.training = self._engine.module.training
        self._engine.set_gradient_accumulation_boundary(last)
        return nullcontext()

    def _backward(self, loss: torch.Tensor, **options: Any) -> None:
        self._engine.backward(loss, scale_wrt_gas=False, **options)  # the stepper has divided by the accumulation

    def _clip(self, optimizer: Optimizer, parameters: list[nn.Parameter], max_norm: float) -> Any:
        # The engine clips in its step. Before that, the norm of sharded gradients is unknown.
        return clip_gradients(optimizer, parameters, 0) if self._engine.zero_optimization_stage() == 0 else None

    def _step(self, run: Run) -> bool:
        update_master_weights(self._engine)
        self._engine.step()
        self._stepped = True
        applied, norm = bool(self._engine.was_step_applied()), self._engine.get_global_grad_norm()
        # With fp16 the loss scaler handles an overflow, so the run does not report its norm.
        if norm is not None and (applied or precision_of(self._complete) != "fp16"):
            run.report_grad_norm(torch.as_tensor(norm))
        return applied

    def _zero_grad(self, parameters: list[nn.Parameter]) -> None:
        if not self._stepped:
            discard_gradients(self._engine, parameters)
        self._stepped = False

    def on_step_begin(self, run: Run) -> None:
        check_trainable(run.model, self._trained, self._complete)
        self._broadcast_buffers(run)

    def on_evaluate_begin(self, run: Run) -> None:
        self._broadcast_buffers(run)

    def on_train_end(self, run: Run) -> None:
        self._broadcast_buffers(run)

    def _broadcast_buffers(self, run: Run) -> None:
        """Send the buffers of rank 0 to all ranks, as DDP does. Do nothing if `ddp_broadcast_buffers` is False."""
        if not run.ranks.single_process and self._engine is not None and run.args.ddp_broadcast_buffers is not False:
            send_buffers(run.model)

    def state_dict(self) -> dict[str, Any]:
        return loss_scaler_state(self._engine) if precision_of(self._complete) == "fp16" else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if precision_of(self._complete) == "fp16":
            load_loss_scaler_state(self._engine, state)

    def on_exception(self, run: Run) -> None:
        if self._engine is not None and run.args.auto_find_batch_size:
            self._release()  # the next attempt builds a new engine
        if self._engine is None and run.ranks.single_process:
            leave_process_group()

    def on_close(self, run: Run) -> None:
        if self._torch_linear is not None:
            functional.linear, self._torch_linear = self._torch_linear, None
        restore, self._restore_forward = self._restore_forward, None
        if restore is not None:
            restore()
        # A single process leaves its group, so that other code in the program does not find one.
        if run.ranks.single_process and self._engine is not None and stage_of(self._complete) < 3:
            states = self._states
            states.restore_weights()
            self._leave()
            states.restore_parameters()

    def on_end(self) -> None:
        self._leave()

    def _leave(self) -> None:
        """Release the engine, if there is one. Then leave the process group, which the engine used."""
        if self._engine is not None:
            self._release()
            leave_process_group()

    def _release(self) -> None:
        """Release the engine, and remove the attributes and hooks that the engine added to the model."""
        finalizer, self._finalizer = self._finalizer, None
        self._engine = self._states = self._zero3_linear = None
        if finalizer is not None:
            finalizer()

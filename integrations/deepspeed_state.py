"""What DeepSpeed holds in shares, as whole tensors: weights and optimizer state, one parameter at a time; schedules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.zero.stage_1_and_2 import INITIAL_MICRO_STEP_ID
from deepspeed.utils import (
    lazy_init_hp_params_optimizer_state,
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)
from torch import nn
from torch.optim import Optimizer

from ..engine.optim import parameter_groups
from ..events.errors import ArgumentError, CheckpointError, nearest

Group = dict[str, Any]

PER_GROUP = {"base_lrs", "_last_lr", "lr_lambdas", "min_lrs"}
"""What a schedule has for each group of parameters."""

SCALE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
"""What a loss scaler of DeepSpeed's remembers."""


def torch_optimizer(engine: Any) -> Optimizer:
    """Return the optimizer inside of DeepSpeed's own, whose groups hold the learning rates."""
    inner: Optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
    return inner


def whole_weights(model: nn.Module, keep: bool) -> dict[str, torch.Tensor] | None:
    """Return the weights on the host, whole, those that are trained in the float32 that the optimizer updates.

    Every process takes part; one that does not `keep` them returns None.
    """
    whole: dict[int, torch.Tensor] = {}
    named = model.state_dict(keep_vars=True)
    # A tensor with several names is gathered once, on every process, whether it keeps it or not.
    for tensor in {id(tensor): tensor for tensor in named.values()}.values():
        with _gathered(tensor):
            found = safe_get_full_fp32_param(tensor) if tensor.requires_grad else None
            if keep:
                whole[id(tensor)] = (tensor if found is None else found).detach().to("cpu", copy=True)
    return {name: whole[id(tensor)] for name, tensor in named.items()} if keep else None


def load_weights(model: nn.Module, state: dict[str, torch.Tensor]) -> tuple[list[str], list[str]]:
    """Load whole weights, which every process has; return the names that are missing, and those not of the model.

    Raises:
        RuntimeError: for weights of another shape, by name.
    """
    named = model.state_dict(keep_vars=True)
    for name, tensor in named.items():
        if name in state:
            shape = _shape(tensor)
            if shape != state[name].shape:
                raise RuntimeError(f"size mismatch for {name}: {[*state[name].shape]}, and the model has {[*shape]}.")
            with torch.no_grad(), _gathered(tensor, modified=True):
                tensor.copy_(state[name])
            if tensor.requires_grad:
                _set(tensor, state[name].float())
    return [name for name in named if name not in state], [name for name in state if name not in named]


def _gathered(tensor: torch.Tensor, modified: bool = False) -> Any:
    """Context in which a weight that is split over the processes is whole; it is a copy unless it is `modified`."""
    return deepspeed.zero.GatheredParameters([tensor], modifier_rank=0 if modified else None)


class OptimizerState:
    """The state of an engine's optimizer, as the `state_dict()` of one that nobody split."""

    def __init__(self, engine: Any, groups: list[Group]) -> None:
        """Remember the groups that the optimizer had before the engine took it: their parameters and options."""
        self.engine = engine
        self.groups = groups

    def whole(self, keep: bool) -> dict[str, Any]:
        """Return the state, on the host and numbered by the parameters; {} on a process that does not `keep` it."""
        inner = torch_optimizer(self.engine)
        if self.engine.zero_optimization_stage() == 0:
            state = inner.state_dict()["state"]
        else:
            state = {}
            numbers = iter(range(sum(len(group["params"]) for group in self.groups)))
            for group, flats in zip(self._filled(), self._flats()):
                self._link(group, flats[0])
                of_flat = inner.state.get(flats[0], {})
                for parameter, number in zip(group["params"], numbers):
                    whole = {key: _whole(parameter, key, value, flats[0]) for key, value in of_flat.items()}
                    if keep and whole:
                        state[number] = {key: _on_host(value) for key, value in whole.items()}
        return {"state": state, "param_groups": self._options(inner)} if keep else {}

    def give_back_weights(self) -> None:
        """Give the model weights of its own, with the float32 values that the optimizer has of them."""
        for group in self.groups:
            for parameter in group["params"]:
                found = safe_get_full_fp32_param(parameter)
                parameter.data = parameter.data.clone() if found is None else found

    def give_back_parameters(self) -> None:
        """Give the optimizer its parameters, after the engine is destroyed; its state is lost."""
        inner = torch_optimizer(self.engine)
        inner.param_groups[:] = [
            {**options, "params": group["params"]} for options, group in zip(self._options(inner), self.groups)
        ]
        inner.state.clear()

    def _options(self, inner: Optimizer) -> list[Group]:
        """Return the groups as they are now, with numbers in place of parameters, those without any included."""
        current = iter(inner.param_groups)
        options, first = [], 0
        for group in self.groups:
            now = next(current) if group["params"] else group
            numbers = [*range(first, first + len(group["params"]))]
            options.append({**{key: value for key, value in now.items() if key != "params"}, "params": numbers})
            first += len(numbers)
        return options

    def load(self, state: dict[str, Any], model: nn.Module) -> None:
        """Load such a state, which every process has; its parameters may have been in other groups.

        Raises:
            CheckpointError: if it is the state of another optimizer, or of one of other parameters.
        """
        saved = self._saved(state, model)
        inner, split = torch_optimizer(self.engine), self.engine.zero_optimization_stage() > 0
        states: dict[int, dict[str, Any]] = {}
        options, held = [], []
        for group, flats in zip(self._filled(), self._flats()):
            numbers = [*range(len(states), len(states) + len(flats))]
            options.append({**saved[group["params"][0]][1], "params": numbers})
            held.append(flats)
            for number, flat in zip(numbers, flats):
                # What is one tensor for many parameters takes its numbers, as that of the step, from any of them.
                of = next((saved[each][0] for each in (group["params"] if split else [flat]) if saved[each][0]), {})
                states[number] = {key: _laid_out(value, flat, inner, key) for key, value in of.items()}
        with _holding(inner, held):
            inner.load_state_dict({"state": states, "param_groups": options})
        if split:
            self._spread(saved)

    def _spread(self, saved: dict[torch.Tensor, tuple[dict[str, Any], Group]]) -> None:
        for group, flats in zip(self._filled(), self._flats()):
            self._link(group, flats[0])
            for parameter in group["params"]:
                for key, value in saved[parameter][0].items():
                    if _is_of_shape(value, _shape(parameter), key):
                        _set(parameter, value, key)

    def _link(self, group: Group, flat: torch.Tensor) -> None:
        """Have parameters find their part of the state, which DeepSpeed itself does right for the first group only."""
        state = torch_optimizer(self.engine).state
        if self.engine.zero_optimization_stage() < 3 and flat in state:
            lazy_init_hp_params_optimizer_state(group["params"], flat, state)

    def _saved(self, state: dict[str, Any], model: nn.Module) -> dict[torch.Tensor, tuple[dict[str, Any], Group]]:
        """Return the saved state of each parameter, and the options of the group that it was saved in."""
        groups = state.get("param_groups", [])
        sizes = [len(group["params"]) for group in groups]
        divisions = [[group["params"] for group in self.groups]]
        divisions += [[group["params"] for group in parameter_groups(model, decay)] for decay in (1.0, 0.0)]
        fitting = [division for division in divisions if [len(members) for members in division] == sizes]
        if not fitting or sum(sizes) != sum(len(group["params"]) for group in self.groups):
            raise CheckpointError(
                f"The saved optimizer has groups of {sizes} parameters, and that of this run has groups of "
                f"{[len(members) for members in divisions[0]]}: the model, or which of its parameters are frozen, is "
                "not what it was."
            )
        found = {}
        for group, members in zip(groups, fitting[0]):
            options = {key: value for key, value in group.items() if key != "params"}
            for number, parameter in zip(group["params"], members):
                own = state["state"].get(number, {})
                for key, value in own.items():
                    shape = getattr(value, "shape", None)
                    if shape not in (None, torch.Size(), _shape(parameter)):
                        raise CheckpointError(
                            f"The saved optimizer has a {key!r} of shape {[*shape]} for a parameter of shape "
                            f"{[*_shape(parameter)]}: the model is not what it was."
                        )
                found[parameter] = own, options
        return found

    def _filled(self) -> list[Group]:
        """Return the groups that have parameters: DeepSpeed drops the others."""
        return [group for group in self.groups if group["params"]]

    def _flats(self) -> list[list[torch.Tensor]]:
        """Return what the optimizer updates in place of each group's parameters."""
        optimizer, inner = self.engine.optimizer, torch_optimizer(self.engine)
        if self.engine.zero_optimization_stage() < 3:
            return [group["params"] for group in inner.param_groups]
        flats: list[list[torch.Tensor]] = [[] for _ in inner.param_groups]
        for number, flat in enumerate(optimizer.fp32_partitioned_groups_flat):
            flats[optimizer.sub_group_to_group_id[number]].append(flat)
        return flats


class Schedule:
    """A schedule of DeepSpeed's, with a state that torch's schedules can go on from, and going on from theirs."""

    def __init__(self, inner: Any) -> None:
        """Stand in for `inner`, which counts its steps from -1."""
        self.inner = inner

    def step(self) -> None:
        """Set the learning rates of the next step."""
        self.inner.step()

    def get_last_lr(self) -> list[float]:
        """Return the learning rates of the groups."""
        return [float(rate) for rate in self.inner.get_last_lr()]

    def state_dict(self) -> dict[str, Any]:
        """Return how far it is, in torch's words."""
        done = self.inner.last_batch_iteration + 1
        rates = self.get_last_lr()
        return {"last_epoch": done, "_step_count": done + 1, "_last_lr": rates, "lr_lambdas": [None] * len(rates)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state; the learning rates are those of the optimizer until the next step."""
        self.inner.load_state_dict({"last_batch_iteration": state["last_epoch"] - 1})


def drop_gradients(engine: Any, parameters: list[nn.Parameter]) -> None:
    """Forget the gradients of a step that is not made, as DeepSpeed does with one that overflowed."""
    stage, optimizer = engine.zero_optimization_stage(), engine.optimizer
    if stage == 0:
        for parameter in parameters:
            parameter.grad = None
        return
    optimizer.zero_grad()
    if stage < 3 and hasattr(optimizer, "averaged_gradients"):
        optimizer.micro_step_id = INITIAL_MICRO_STEP_ID
        for gradients in (optimizer.averaged_gradients, optimizer.all_grad_tensors):
            gradients.update(dict.fromkeys(gradients))
        if optimizer.cpu_offload:
            optimizer.reset_cpu_buffers()


def scale_state(engine: Any) -> dict[str, Any]:
    """Return how the loss is scaled for float16, and since when; {} where it is not scaled."""
    scaler = getattr(getattr(engine, "optimizer", None), "loss_scaler", None)
    return {name: getattr(scaler, name) for name in SCALE if hasattr(scaler, name)}


def load_scale(engine: Any, state: dict[str, Any]) -> None:
    """Go on scaling the loss as before."""
    vars(engine.optimizer.loss_scaler).update(state)


def make_schedule(section: dict[str, Any], optimizer: Optimizer) -> Any:
    """Return the schedule that DeepSpeed's configuration names, of DeepSpeed's own or of torch's.

    Raises:
        ArgumentError: if there is none of that name, with the nearest.
    """
    name, known = section.get("type", ""), lr_schedules.VALID_LR_SCHEDULES
    kind = getattr(lr_schedules if name in known else torch.optim.lr_scheduler, name, None)
    if kind is None:
        raise ArgumentError(
            f"DeepSpeed's configuration names the scheduler {name!r}{nearest(name, known)} Known: {', '.join(known)}, "
            "and those of torch."
        )
    schedule = kind(optimizer, **section.get("params", {}))
    return Schedule(schedule) if hasattr(schedule, "last_batch_iteration") else schedule


def count_empty_groups(schedule: Any, groups: list[Group]) -> Any:
    """Have a schedule save and load its rates as if DeepSpeed had not dropped the groups without parameters.

    Without weight decay all parameters are in the first of two groups, and the checkpoints of other runs count both.
    """
    filled = [number for number, group in enumerate(groups) if group["params"]]
    save, load = schedule.state_dict, schedule.load_state_dict

    def whole() -> dict[str, Any]:
        state = {key: value for key, value in save().items() if key not in ("state_dict", "load_state_dict")}
        for name in PER_GROUP & state.keys():
            found = dict(zip(filled, state[name]))
            state[name] = [found.get(number, state[name][0]) for number in range(len(groups))]
        return state

    def load_whole(state: dict[str, Any]) -> None:
        load({key: [value[n] for n in filled] if key in PER_GROUP else value for key, value in state.items()})

    if len(filled) < len(groups):
        schedule.state_dict, schedule.load_state_dict = whole, load_whole
    return schedule


@contextmanager
def _holding(optimizer: Optimizer, held: list[list[torch.Tensor]]) -> Iterator[None]:
    """Have the groups of an optimizer hold these tensors, which stage 3 only lends them for each update."""
    before = [group["params"] for group in optimizer.param_groups]
    for group, tensors in zip(optimizer.param_groups, held):
        group["params"] = tensors
    try:
        yield
    finally:
        for group, tensors in zip(optimizer.param_groups, before):
            group["params"] = tensors


def _shape(parameter: torch.Tensor) -> torch.Size:
    """Return the shape of a parameter, also of one that is split over the processes."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


def _is_of_shape(value: Any, shape: torch.Size, key: str) -> bool:
    """Say whether a part of an optimizer's state has an entry for each of a tensor's, as the count of steps has not."""
    return isinstance(value, torch.Tensor) and value.shape == shape and key != "step"


def _whole(parameter: torch.Tensor, key: str, value: Any, flat: torch.Tensor) -> Any:
    return safe_get_full_optimizer_state(parameter, key) if _is_of_shape(value, flat.shape, key) else value


def _laid_out(value: Any, flat: torch.Tensor, optimizer: Optimizer, key: str) -> Any:
    """Return room for a part of the state in the layout of the optimizer, or the number that all share."""
    if isinstance(value, torch.Tensor) and key != "step":
        return value if value.shape == flat.shape else torch.zeros_like(flat)
    # DeepSpeed's own optimizers count in whole numbers, those of torch in tensors.
    return value if type(optimizer).__module__.startswith("torch.") else int(value)


def _set(parameter: Any, value: torch.Tensor, key: str = "") -> None:
    """Give each process its share of a parameter's float32 values, or of a part of its optimizer state."""
    value = value.to(parameter.device)
    if not hasattr(parameter, "ds_tensor"):
        _set_whole(parameter, value, key)
        return
    # Shares are of equal size, and the last one is filled up: DeepSpeed takes whole values only where that is not so.
    size = parameter.ds_tensor.numel()
    start = size * dist.get_rank(parameter.ds_process_group)
    share = value.flatten()[start : start + size]
    share = nn.functional.pad(share, (0, size - share.numel()))
    if key:
        safe_set_local_optimizer_state(parameter, share, key)
    else:
        safe_set_local_fp32_param(parameter, share)


def _set_whole(parameter: torch.Tensor, value: torch.Tensor, key: str) -> None:
    if key:
        safe_set_full_optimizer_state(parameter, value, key)
    else:
        safe_set_full_fp32_param(parameter, value)


def _on_host(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value

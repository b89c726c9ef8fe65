"""The state of DeepSpeed's sharded optimizer, saved and loaded as full tensors, one parameter at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from deepspeed.runtime.zero.stage_1_and_2 import INITIAL_MICRO_STEP_ID
from deepspeed.utils import lazy_init_hp_params_optimizer_state, safe_get_full_optimizer_state
from torch import nn
from torch.optim import Optimizer

from ...engine.optim.saved_groups import saved_groups
from ...events.errors import CheckpointError
from .weights import full_shape, full_value, set_full_value

Group = dict[str, Any]

LOSS_SCALER_FIELDS = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
"""The attributes of DeepSpeed's loss scaler that a checkpoint contains."""


def torch_optimizer(engine: Any) -> Optimizer:
    """Return the optimizer that the engine's optimizer wraps; without a wrapper, the engine's optimizer itself."""
    inner: Optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
    return inner


class OptimizerState:
    """Reads and writes the state of DeepSpeed's optimizer in the format that an unsharded torch optimizer has."""

    def __init__(
        self, engine: Any, groups: list[Group], make_groups: Callable[[nn.Module, float], list[Group]]
    ) -> None:
        """Store the engine and the parameter groups.

        Args:
            engine: DeepSpeed's engine.
            groups: the parameter groups as they were before the engine changed them, with all parameters and options.
            make_groups: a function that builds the trainer's own parameter groups for a model and a weight decay.
        """
        self.engine = engine
        self.groups = groups
        self._make_groups = make_groups
        self._sharded = engine.zero_optimization_stage() > 0
        parameters = [parameter for group in groups for parameter in group["params"]]
        self._numbers = {parameter: number for number, parameter in enumerate(parameters)}
        self._kept = {parameter for parameter in parameters if parameter.requires_grad or not self._sharded}
        """The parameters of the engine's optimizer. With stages 1 to 3, the optimizer has no frozen parameters."""

    def full_state(self, keep: bool) -> dict[str, Any]:
        """Gather the full optimizer state in host memory, in the format of `state_dict` of a torch optimizer.

        Every rank must call this method. A rank with `keep=False` returns {}.
        """
        inner = torch_optimizer(self.engine)
        state = self._gathered_state(inner, keep) if self._sharded else inner.state_dict()["state"]
        return {"state": state, "param_groups": self._options(inner)} if keep else {}

    def _gathered_state(self, inner: Optimizer, keep: bool) -> dict[int, dict[str, Any]]:
        state = {}
        for members, flats in zip(self._members(), self._flat_tensors()):
            self._link(members, flats[0])
            state_of_flat = inner.state.get(flats[0], {})
            for parameter in members:
                full = {key: _full_entry(parameter, key, value, flats[0]) for key, value in state_of_flat.items()}
                if keep and full:
                    state[self._numbers[parameter]] = {key: _on_host(value) for key, value in full.items()}
        return state

    def restore_weights(self) -> None:
        """Replace each trainable weight by a full copy of its float32 master weight.

        Call this method before DeepSpeed's engine is destroyed.
        """
        for group in self.groups:
            for parameter in group["params"]:
                parameter.data = full_value(parameter).clone()

    def restore_parameters(self) -> None:
        """Put the model's parameters back into the torch optimizer, and clear the state of the optimizer.

        Call this method after DeepSpeed's engine is destroyed.
        """
        inner = torch_optimizer(self.engine)
        inner.param_groups[:] = [
            {**options, "params": group["params"]} for options, group in zip(self._options(inner), self.groups)
        ]
        inner.state.clear()

    def _options(self, inner: Optimizer) -> list[Group]:
        """Return the parameter groups with the options of `inner`, in the format of `param_groups` in a state dict.

        With stages 1 to 3, `inner` lacks the groups without trainable parameters. The result has these groups too.
        Their options come from the attribute `groups`.
        """
        current = iter(inner.param_groups)
        options, first = [], 0
        for group in self.groups:
            now = next(current) if self._kept.intersection(group["params"]) else group
            numbers = [*range(first, first + len(group["params"]))]
            options.append({**{key: value for key, value in now.items() if key != "params"}, "params": numbers})
            first += len(numbers)
        return options

    def load(self, state: dict[str, Any], model: nn.Module) -> None:
        """Load a full state into DeepSpeed's optimizer. Every rank passes the whole state.

        The state may have other parameter groups than this run, for example if only one of the two runs has weight
        decay.

        Raises:
            CheckpointError: if the state belongs to another optimizer, or to other parameters.
        """
        saved = self._by_parameter(state, model)
        inner = torch_optimizer(self.engine)
        states: dict[int, dict[str, Any]] = {}
        options, tensors = [], []
        for members, flats in zip(self._members(), self._flat_tensors()):
            numbers = [*range(len(states), len(states) + len(flats))]
            options.append({**saved[members[0]][1], "params": numbers})
            tensors.append(flats)
            for number, flat in zip(numbers, flats):
                if not self._sharded:
                    states[number] = saved[flat][0]
                    continue
                # One flat tensor contains many parameters. Take its scalars, such as the step, from any of them.
                own = next((saved[each][0] for each in members if saved[each][0]), {})
                states[number] = {key: _flat_entry(value, flat, inner, key) for key, value in own.items()}
        with _parameters_set_to(inner, tensors):
            inner.load_state_dict({"state": states, "param_groups": options})
        if self._sharded:
            self._load_shards(saved)

    def _load_shards(self, saved: dict[torch.Tensor, tuple[dict[str, Any], Group]]) -> None:
        for members, flats in zip(self._members(), self._flat_tensors()):
            self._link(members, flats[0])
            for parameter in members:
                for key, value in saved[parameter][0].items():
                    if _has_shape(value, full_shape(parameter)):
                        set_full_value(parameter, value, key)

    def _link(self, members: list[nn.Parameter], flat: torch.Tensor) -> None:
        """Link each parameter in `members` to its part of the optimizer state of the tensor `flat`.

        `flat` contains this rank's shards of all `members`. DeepSpeed itself links only the first parameter group
        correctly. With stage 3, the method does nothing, because DeepSpeed then uses no such links.
        """
        state = torch_optimizer(self.engine).state
        if self.engine.zero_optimization_stage() < 3 and flat in state:
            lazy_init_hp_params_optimizer_state(members, flat, state)

    def _by_parameter(
        self, state: dict[str, Any], model: nn.Module
    ) -> dict[torch.Tensor, tuple[dict[str, Any], Group]]:
        """Return the saved state of each parameter, and the options of the group in which it was saved."""
        found: dict[torch.Tensor, tuple[dict[str, Any], Group]] = {}
        for group, members in zip(state.get("param_groups", []), self._matching_groups(state, model)):
            options = {key: value for key, value in group.items() if key != "params"}
            for number, parameter in zip(group["params"], members):
                own = state["state"].get(number, {})
                self._check_shapes(own, parameter)
                found[parameter] = own, options
        return found

    def _matching_groups(self, state: dict[str, Any], model: nn.Module) -> list[list[nn.Parameter]]:
        """Return the parameters of this run as one list per group of a saved state, in the order of the saved state.

        Raises:
            CheckpointError: if no division of the parameters has the sizes of the saved groups.
        """
        sizes = [len(group["params"]) for group in state.get("param_groups", [])]
        own = [group["params"] for group in self.groups]
        groups = saved_groups(own, sizes, partial(self._make_groups, model))
        if groups is None:
            raise CheckpointError(
                f"The saved optimizer has groups of {sizes} parameters, and the optimizer of this run has groups of "
                f"{[len(members) for members in own]}. Resume with the model of the checkpoint, freeze the same "
                "parameters, and build the optimizer with the same groups."
            )
        return groups

    def _check_shapes(self, state: dict[str, Any], parameter: torch.Tensor) -> None:
        for key, value in state.items():
            shape = getattr(value, "shape", None)
            if self._sharded and shape not in (None, torch.Size(), full_shape(parameter)):
                raise CheckpointError(
                    f"The saved optimizer has a {key!r} of shape {[*shape]} for a parameter of shape "
                    f"{[*full_shape(parameter)]}. Resume with the model of the checkpoint."
                )

    def nonempty_groups(self) -> list[int]:
        """Return the indices of the groups that have parameters to train. DeepSpeed drops all other groups."""
        return [number for number, group in enumerate(self.groups) if self._kept.intersection(group["params"])]

    def _members(self) -> list[list[nn.Parameter]]:
        """Return the parameters to train: one list per parameter group with such parameters."""
        groups = (self.groups[number]["params"] for number in self.nonempty_groups())
        return [[parameter for parameter in group if parameter in self._kept] for group in groups]

    def _flat_tensors(self) -> list[list[torch.Tensor]]:
        """Return the tensors that the optimizer updates: one list per parameter group with parameters to train.

        With stages 1 to 3, one such tensor contains shards of many parameters. With stage 0, the optimizer updates the
        parameters themselves.
        """
        optimizer, inner = self.engine.optimizer, torch_optimizer(self.engine)
        if self.engine.zero_optimization_stage() < 3:
            return [group["params"] for group in inner.param_groups]
        flats: list[list[torch.Tensor]] = [[] for _ in inner.param_groups]
        for number, flat in enumerate(optimizer.fp32_partitioned_groups_flat):
            flats[optimizer.sub_group_to_group_id[number]].append(flat)
        return flats


def discard_gradients(engine: Any, parameters: list[nn.Parameter]) -> None:
    """Discard the gradients of a skipped step, as DeepSpeed does after an overflow."""
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


def loss_scaler_state(engine: Any) -> dict[str, Any]:
    """Return the state of DeepSpeed's loss scaler for float16; {} if the engine has no loss scaler."""
    scaler = getattr(getattr(engine, "optimizer", None), "loss_scaler", None)
    return {name: getattr(scaler, name) for name in LOSS_SCALER_FIELDS if hasattr(scaler, name)}


def load_loss_scaler_state(engine: Any, state: dict[str, Any]) -> None:
    """Load a state that `loss_scaler_state` returned."""
    vars(engine.optimizer.loss_scaler).update(state)


@contextmanager
def _parameters_set_to(optimizer: Optimizer, tensors: list[list[torch.Tensor]]) -> Iterator[None]:
    """Replace the parameters in the groups of `optimizer` by `tensors`, inside a `with` block.

    Inside the block, `optimizer.load_state_dict` loads the optimizer state of `tensors`. In stage 3, the groups
    contain the flat tensors of DeepSpeed only during an update, so this function puts them there for the load.
    """
    before = [group["params"] for group in optimizer.param_groups]
    for group, held in zip(optimizer.param_groups, tensors):
        group["params"] = held
    try:
        yield
    finally:
        for group, held in zip(optimizer.param_groups, before):
            group["params"] = held


def _has_shape(value: Any, shape: torch.Size) -> bool:
    """Return whether an entry of the optimizer state has one value per element of a weight of this shape.

    The entry `step`, for example, has only one value.
    """
    return isinstance(value, torch.Tensor) and value.shape == shape


def _full_entry(parameter: torch.Tensor, key: str, value: Any, flat: torch.Tensor) -> Any:
    if getattr(value, "shape", torch.Size()) not in (torch.Size(), flat.shape):
        raise CheckpointError(
            f"The optimizer keeps one {key!r} of shape {[*value.shape]} for all its parameters, because stages 1 to 3 "
            "of DeepSpeed flatten them into one tensor. This entry cannot be divided by parameter, so it cannot be "
            "saved. Use another optimizer, or stage 0."
        )
    return safe_get_full_optimizer_state(parameter, key) if _has_shape(value, flat.shape) else value


def _flat_entry(value: Any, flat: torch.Tensor, optimizer: Optimizer, key: str) -> Any:
    """Return the initial value for an entry of the state of `flat`, a tensor that contains many parameters.

    Args:
        value: the saved value of this entry for one of the parameters.
        flat: the tensor.
        optimizer: the optimizer. If its class is not from torch, the result for the entry `step` is an int.
        key: the name of the entry, such as `step`.

    Returns:
        `value`, if `value` is a scalar or has the shape of `flat`. Otherwise zeros in the shape of `flat`.
    """
    if getattr(value, "shape", ()) != ():  # a scalar, such as the step or a product of betas, is equal for all
        return value if value.shape == flat.shape else torch.zeros_like(flat)
    # Optimizers of DeepSpeed keep the step as an int. Optimizers of torch keep the step as a tensor.
    return int(value) if key == "step" and not type(optimizer).__module__.startswith("torch.") else value


def _on_host(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value

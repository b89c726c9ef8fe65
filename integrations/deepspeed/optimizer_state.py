"""The state of an optimizer that DeepSpeed holds in shares, as whole tensors, one parameter at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from deepspeed.runtime.zero.stage_1_and_2 import INITIAL_MICRO_STEP_ID
from deepspeed.utils import lazy_init_hp_params_optimizer_state, safe_get_full_optimizer_state
from torch import nn
from torch.optim import Optimizer

from ...engine.optim.build import parameter_groups
from ...events.errors import CheckpointError
from .weights import current_value, give_shares, shape_of

Group = dict[str, Any]

SCALE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
"""What a loss scaler of DeepSpeed's remembers."""


def torch_optimizer(engine: Any) -> Optimizer:
    """Return the optimizer inside of DeepSpeed's own, whose groups hold the learning rates."""
    inner: Optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
    return inner


class OptimizerState:
    """The state of an engine's optimizer, as the `state_dict()` of one that nobody split."""

    def __init__(self, engine: Any, groups: list[Group]) -> None:
        """Remember the groups that the optimizer had before the engine took it: their parameters and options."""
        self.engine = engine
        self.groups = groups
        self._split = engine.zero_optimization_stage() > 0
        parameters = [parameter for group in groups for parameter in group["params"]]
        self._numbers = {parameter: number for number, parameter in enumerate(parameters)}
        self._held = {parameter for parameter in parameters if parameter.requires_grad or not self._split}

    def whole(self, keep: bool) -> dict[str, Any]:
        """Return the state, on the host and numbered by the parameters; {} on a process that does not `keep` it."""
        inner = torch_optimizer(self.engine)
        if not self._split:
            state = inner.state_dict()["state"]
        else:
            state = {}
            for members, flats in zip(self._filled(), self._flats()):
                self._link(members, flats[0])
                of_flat = inner.state.get(flats[0], {})
                for parameter in members:
                    whole = {key: _whole(parameter, key, value, flats[0]) for key, value in of_flat.items()}
                    if keep and whole:
                        state[self._numbers[parameter]] = {key: _on_host(value) for key, value in whole.items()}
        return {"state": state, "param_groups": self._options(inner)} if keep else {}

    def give_back_weights(self) -> None:
        """Give the model weights of its own, with the float32 values that the optimizer has of them."""
        for group in self.groups:
            for parameter in group["params"]:
                parameter.data = current_value(parameter).clone()

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
            now = next(current) if self._held.intersection(group["params"]) else group
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
        inner = torch_optimizer(self.engine)
        states: dict[int, dict[str, Any]] = {}
        options, held = [], []
        for members, flats in zip(self._filled(), self._flats()):
            numbers = [*range(len(states), len(states) + len(flats))]
            options.append({**saved[members[0]][1], "params": numbers})
            held.append(flats)
            for number, flat in zip(numbers, flats):
                if not self._split:
                    states[number] = saved[flat][0]
                    continue
                # What is one tensor for many parameters takes its numbers, as that of the step, from any of them.
                of = next((saved[each][0] for each in members if saved[each][0]), {})
                states[number] = {key: _laid_out(value, flat, inner, key) for key, value in of.items()}
        with _holding(inner, held):
            inner.load_state_dict({"state": states, "param_groups": options})
        if self._split:
            self._spread(saved)

    def _spread(self, saved: dict[torch.Tensor, tuple[dict[str, Any], Group]]) -> None:
        for members, flats in zip(self._filled(), self._flats()):
            self._link(members, flats[0])
            for parameter in members:
                for key, value in saved[parameter][0].items():
                    if _is_of_shape(value, shape_of(parameter)):
                        give_shares(parameter, value, key)

    def _link(self, members: list[nn.Parameter], flat: torch.Tensor) -> None:
        """Have parameters find their part of the state, which DeepSpeed itself does right for the first group only."""
        state = torch_optimizer(self.engine).state
        if self.engine.zero_optimization_stage() < 3 and flat in state:
            lazy_init_hp_params_optimizer_state(members, flat, state)

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
                    if self._split and shape not in (None, torch.Size(), shape_of(parameter)):
                        raise CheckpointError(
                            f"The saved optimizer has a {key!r} of shape {[*shape]} for a parameter of shape "
                            f"{[*shape_of(parameter)]}: the model is not what it was."
                        )
                found[parameter] = own, options
        return found

    def filled(self) -> list[int]:
        """Return the numbers of the groups that have parameters to train: DeepSpeed drops the others."""
        return [number for number, group in enumerate(self.groups) if self._held.intersection(group["params"])]

    def _filled(self) -> list[list[nn.Parameter]]:
        """Return the parameters of these groups that are trained."""
        groups = (self.groups[number]["params"] for number in self.filled())
        return [[parameter for parameter in group if parameter in self._held] for group in groups]

    def _flats(self) -> list[list[torch.Tensor]]:
        """Return what the optimizer updates in place of each group's parameters."""
        optimizer, inner = self.engine.optimizer, torch_optimizer(self.engine)
        if self.engine.zero_optimization_stage() < 3:
            return [group["params"] for group in inner.param_groups]
        flats: list[list[torch.Tensor]] = [[] for _ in inner.param_groups]
        for number, flat in enumerate(optimizer.fp32_partitioned_groups_flat):
            flats[optimizer.sub_group_to_group_id[number]].append(flat)
        return flats


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


def _is_of_shape(value: Any, shape: torch.Size) -> bool:
    """Say whether a part of an optimizer's state has an entry for each of a tensor's, as the count of steps has not."""
    return isinstance(value, torch.Tensor) and value.shape == shape


def _whole(parameter: torch.Tensor, key: str, value: Any, flat: torch.Tensor) -> Any:
    if getattr(value, "shape", torch.Size()) not in (torch.Size(), flat.shape):
        raise CheckpointError(
            f"The optimizer keeps {key!r} of shape {[*value.shape]} for all its parameters together, which the stages "
            "1 to 3 of DeepSpeed join to one: what of it is whose cannot be told, nor saved. Give another optimizer, "
            "or stage 0."
        )
    return safe_get_full_optimizer_state(parameter, key) if _is_of_shape(value, flat.shape) else value


def _laid_out(value: Any, flat: torch.Tensor, optimizer: Optimizer, key: str) -> Any:
    """Return room for a part of the state in the layout of the optimizer, or the number that all share."""
    if getattr(value, "shape", ()) != ():  # a number is of all parameters alike: of the steps, or a product of betas
        return value if value.shape == flat.shape else torch.zeros_like(flat)
    # DeepSpeed's own optimizers count in whole numbers, those of torch in tensors.
    return int(value) if key == "step" and not type(optimizer).__module__.startswith("torch.") else value


def _on_host(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value

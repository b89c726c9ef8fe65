"""Loss modules: a criterion or loss function that is a module and is trained too."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from ...events.callback import Callback
from ...events.capabilities import Capability
from ...events.errors import CheckpointError
from ...events.stages import Stage, order
from ..distributed.memory_errors import lacks_memory
from ..evaluation.modes import to_eval, to_train

logger = logging.getLogger(__name__)


class TrainingRanks(Protocol):
    """The part of `Ranks` that this module uses. `Ranks` implements this protocol."""

    @property
    def world_size(self) -> int: ...
    @property
    def single_process(self) -> bool: ...
    def sum(self, tensor: torch.Tensor) -> torch.Tensor: ...
    def gather_objects(self, value: Any) -> list[Any]: ...


def module_of(function: Any) -> nn.Module | None:
    """Return the module behind a criterion or loss function; None if it is a plain function.

    The module is the function itself, or the object to which a method is bound. For a `functools.partial` object, the
    rule applies to its function.
    """
    while isinstance(function, functools.partial):
        function = function.func
    owner = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


def trainable_of(module: nn.Module | None, model: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters of a loss module, without parameters that the model also has.

    If `module` is None, return an empty list.
    """
    if module is None:
        return []
    own = set(model.parameters())
    return [weight for weight in module.parameters() if weight.requires_grad and weight not in own]


def own_copy(function: Any) -> Any:
    """Return a copy of a criterion or loss function, so that two trainings do not share the weights of its module.

    Return `function` itself if `module_of` finds no module, or a module without buffers and trainable parameters.
    """
    module = module_of(function)
    if module is None:
        return function
    changes = any(True for _ in module.buffers()) or any(weight.requires_grad for weight in module.parameters())
    return copy.deepcopy(function) if changes else function


def average_gradients(parameters: Iterable[nn.Parameter], ranks: TrainingRanks) -> None:
    """Average the gradients of parameters over the ranks.

    A rank without a gradient of a parameter counts with a gradient of 0. If no rank has a gradient of a parameter, the
    gradient stays None. Every rank must call this function.
    """
    parameters = list(parameters)
    if not parameters:
        return
    used = ranks.sum(torch.tensor([float(each.grad is not None) for each in parameters], device=parameters[0].device))
    for parameter, count in zip(parameters, used.tolist()):
        if count:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = ranks.sum(gradient) / ranks.world_size


class LossModule(Callback):
    """Moves a loss module to the device, sets its training or evaluation mode, and saves and restores its state.

    The optimizer also updates the parameters of the module, and the run clips and clears their gradients.
    """

    stage = Stage.PREPARE
    capabilities = frozenset({Capability.HOLDS_WEIGHTS})

    def __init__(self, module: nn.Module) -> None:
        """Store the loss module that this callback manages."""
        self.module = module
        self._restored = self._switched = False
        self._given: dict[str, torch.Tensor] = {}
        """The buffers that the program set before the session. They are compared with the buffers of a checkpoint."""
        self._initial: dict[str, torch.Tensor] = {}
        """The buffers at the start of the session. A buffer that still has this value when a checkpoint is saved is a
        constant, such as class weights."""

    def __repr__(self) -> str:
        return f"LossModule({type(self.module).__name__})"

    @classmethod
    def around(cls, function: Any) -> LossModule | None:
        """Create the callback for a criterion or loss function; return None if the function needs no callback.

        Functions without a module need no callback. Losses of `torch.nn` without state, such as
        `nn.CrossEntropyLoss()`, need no callback either.
        """
        module = module_of(function)
        if module is None or (type(module).__module__ == "torch.nn.modules.loss" and not module.state_dict()):
            return None
        return cls(module)

    def own_parameters(self, model: nn.Module) -> list[tuple[str, nn.Parameter]]:
        """Return the names and parameters of the loss module, without parameters that the model also has."""
        own = set(model.parameters())
        return [(name, weight) for name, weight in self.module.named_parameters() if weight not in own]

    def on_setup(self, run: Any) -> None:
        self._restored = False
        self.module.to(run.device)
        if run.mode == "train":
            self._given = self._buffers()
            self._to_train()
        else:
            self._to_eval()

    def on_load(self) -> None:
        if not self._restored and self.module.state_dict():
            logger.warning(
                "The checkpoint has no state of the loss module %s. It starts with the values that it has now.",
                type(self.module).__name__,
            )

    def on_train_begin(self, run: Any) -> None:
        self._send(run.ranks, self.module.state_dict())
        self._given, self._initial = {}, self._buffers()

    def on_step_begin(self) -> None:
        if self._switched:
            self._to_train()

    def on_evaluate_begin(self, run: Any) -> None:
        self._send(run.ranks, dict(self.module.named_buffers()))
        self._to_eval()

    @order(Stage.REPORT)
    def on_train_end(self, run: Any) -> None:
        self._send(run.ranks, dict(self.module.named_buffers()))
        self._to_eval()

    def _to_eval(self) -> None:
        if self.module.training:
            self._switched = True
            to_eval(self.module)

    def _to_train(self) -> None:
        # Only what an evaluation switched: a frozen teacher inside the module stays in the mode that the user chose.
        if self._switched:
            self._switched = False
            to_train(self.module)

    def _send(self, ranks: TrainingRanks, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy the tensors of rank 0 into the tensors of the same names on all ranks."""
        if ranks.single_process or not tensors:
            return
        first = ranks.gather_objects({name: tensor.detach().cpu() for name, tensor in tensors.items()})[0]
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(first[name])

    def state_dict(self) -> dict[str, Any]:
        weights = {name: tensor.detach() for name, tensor in self.module.state_dict().items()}
        constants = [name for name, now in self._buffers().items() if _equal(now, self._initial.get(name))]
        return {"weights": weights, "constants": constants} if weights else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        try:
            self.module.load_state_dict(state["weights"])
        except RuntimeError as error:
            if lacks_memory(error):
                raise
            raise CheckpointError(
                f"The loss module in the checkpoint does not fit {type(self.module).__name__}: {error}. Pass "
                "the criterion or loss function of the saved run."
            ) from error
        self._restored = True
        self._tell_other_constants(state)

    def _buffers(self) -> dict[str, torch.Tensor]:
        return {name: buffer.detach().clone() for name, buffer in self.module.named_buffers()}

    def _tell_other_constants(self, state: dict[str, Any]) -> None:
        """Warn if constant buffers, such as class weights, have other values in the checkpoint than in the program."""
        saved = state["weights"]
        for name in state.get("constants", ()):
            given = self._given.get(name)
            if given is not None and name in saved and not _equal(given, saved[name].to(given.device)):
                logger.warning(
                    "The loss module %s resumes with the buffer `%s` of the checkpoint: %s. The program has %s, which "
                    "is not used. To change it, set it in `on_train_begin`, or start a new run.",
                    type(self.module).__name__,
                    name,
                    _shown(saved[name]),
                    _shown(given),
                )


def _equal(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    return other is not None and torch.equal(one, other)


def _shown(values: torch.Tensor) -> str:
    first = [f"{value:.4g}" for value in values.detach().flatten()[:8].tolist()]
    return f"[{', '.join(first)}{', ...' if values.numel() > 8 else ''}]"

"""Float8 training with torchao: linear layers multiply their matrices in 8-bit floating point."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

import torch
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

from ..callbacks.model.forwards import replace_forward
from ..callbacks.parallel.data_parallel import DataParallel
from ..engine.run import Run
from ..events.callback import Callback
from ..events.capabilities import Capability
from ..events.errors import ArgumentError, ModelError, nearest
from ..events.stages import Stage

logger = logging.getLogger(__name__)

Recipe = Literal["tensorwise", "rowwise", "rowwise_with_gw_hp"]
RECIPES: tuple[str, ...] = get_args(Recipe)
"""The names of torchao's recipes."""

USUAL = ("lm_head", "head", "classifier", "score", "lora_*")
"""Names of output layers and of adapters. By default, these layers are not converted to float8."""

MULTIPLE = 16
"""Both sizes of a converted layer must be multiples of this number, because the kernels of the GPU require this."""

CAPABILITY = (8, 9)
"""The lowest compute capability of CUDA devices that multiply float8 matrices."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes of the weights that can be converted."""


def matches(name: str, pattern: str) -> bool:
    """Return whether a pattern matches the name of a module or of one of its parent modules.

    Args:
        name: the name of the module, such as `model.layers.0.mlp.up_proj`.
        pattern: one or several parts of such a name, such as `mlp` or `layers.0`. `*` stands for any characters.
    """
    return fnmatchcase(f".{name}.", f"*.{pattern}.*")


def obstacle(name: str, layer: nn.Linear, skip: tuple[str, ...]) -> str:
    """Return why a linear layer is not converted to float8; an empty text if the layer can be converted.

    Args:
        name: the name of the layer in the model.
        layer: the layer.
        skip: patterns for the function `matches`. Layers with a matching name are not converted.
    """
    found = next((pattern for pattern in skip if matches(name, pattern)), "")
    if found:
        return f"`skip` has {found!r}"
    if type(layer) is not nn.Linear:
        return f"its class is {type(layer).__name__} and not nn.Linear"
    if "forward" in vars(layer):
        return "its forward was replaced"
    if not {"weight", "bias"} <= layer._parameters.keys():
        return "its weight or its bias is computed from other parameters"
    if layer.weight.dtype not in DTYPES:
        return f"its weights are {layer.weight.dtype}"
    if layer.in_features % MULTIPLE or layer.out_features % MULTIPLE:
        return f"its sizes {layer.in_features} and {layer.out_features} are not both multiples of {MULTIPLE}"
    return ""


def linear_layers(model: nn.Module, skip: tuple[str, ...]) -> tuple[dict[str, nn.Linear], dict[str, str]]:
    """Divide the linear layers of a model into layers that compute in float8 and layers that do not.

    The output layer of a transformers model, `get_output_embeddings()`, is never converted to float8.

    Args:
        model: the model.
        skip: patterns for the function `matches`. Layers with a matching name are not converted.

    Returns:
        Two dicts: name -> layer for the layers to convert, and name -> reason for all other linear layers.
    """
    found = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    output = _output_layer(model)
    why = {
        name: "it is the output layer" if layer is output else obstacle(name, layer, skip)
        for name, layer in found.items()
    }
    return {name: layer for name, layer in found.items() if not why[name]}, {
        name: why[name] for name in why if why[name]
    }


def hardware_problem(device: str, capability: tuple[int, int] | None) -> str:
    """Return why a device cannot multiply float8 matrices; an empty text if the device can.

    Args:
        device: the type of the device, such as `cuda`.
        capability: the compute capability of the CUDA device; None for other devices.
    """
    if device != "cuda" or capability is None:
        return f"this run is on {device}"
    if capability < CAPABILITY:
        return "the compute capability of this GPU is {}.{}".format(*capability)
    return ""


@dataclass
class Float8(Callback):
    """Computes the linear layers of the model in float8 during the training, with torchao.

    In forward and backward, each layer makes scaled copies of its inputs, weights and gradients, and rounds these
    copies to 8-bit floating point. GPUs of compute capability 8.9 or later, such as the H100, multiply such matrices
    about twice as fast as matrices of bfloat16. Also add `Compile()`, so that the scaling and the rounding become part
    of other kernels. The weights, gradients, optimizer state and stored activations themselves keep their dtype.

    The callback replaces no module and changes no name or dtype of a weight. With and without the callback,
    checkpoints, copies and pickles of the model have the same names and dtypes. So a checkpoint from a run with the
    callback resumes without the callback, and the other way round. Evaluations during the training compute in
    float8. After the training, and in evaluations outside of the training, the layers compute in the usual precision.

    Raises:
        ArgumentError: if `recipe` is unknown, if `skip` is a text, or if the device cannot multiply float8 matrices.
            Also if the run uses DeepSpeed, fairscale's FSDP, or `DataParallel` on several GPUs.
        ModelError: if no layer can be converted, or if an entry of `skip` matches no linear layer.
    """

    stage = Stage.PREPARE

    recipe: Recipe = "tensorwise"
    """How values are scaled before they are rounded. `tensorwise` has one scale per matrix, and is the fastest recipe.
    `rowwise` has one scale per row, and is more exact. `rowwise_with_gw_hp` has one scale per row, computes the
    gradients of the weights in the usual precision, and is the most exact recipe."""
    skip: tuple[str, ...] = USUAL
    """The layers that stay in the usual precision. Pass names of modules, or parts of names. `*` stands for any
    characters. An entry that names a module selects all layers in this module. Default: output layers and adapters.
    Layers with a size that is not a multiple of 16 always stay in the usual precision."""
    emulate: bool = False
    """Whether to round to float8, but to multiply in float32. Use True for tests. True works on every device, and is
    slower than the usual precision."""
    _undo: list[Callable[[], None]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.recipe not in RECIPES:
            raise ArgumentError(
                f"Float8(recipe={self.recipe!r}): the recipe is unknown{nearest(self.recipe, RECIPES)} "
                f"Known: {', '.join(RECIPES)}."
            )
        skip: Any = self.skip
        if isinstance(skip, str):
            raise ArgumentError(f"Float8(skip={skip!r}): write the names as a tuple: skip=({skip!r},).")
        self.skip = tuple(skip)

    def conflict_with(self, other: Callback) -> str:
        if other.has(Capability.DEEPSPEED) or (other.has(Capability.SHARDS_MODEL) and not other.has(Capability.FSDP)):
            return "it moves the weights out of the linear layers. Use DDP or `fsdp=True`, or leave Float8 out."
        if isinstance(other, DataParallel):
            return other.conflict_with_forwards()
        return super().conflict_with(other)

    def on_setup(self, run: Run) -> None:
        if run.mode != "train":
            return
        device = run.args.device
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        problem = hardware_problem(device.type, capability)
        if problem and not self.emulate:
            raise ArgumentError(
                f"Float8 needs a CUDA GPU of compute capability {CAPABILITY[0]}.{CAPABILITY[1]} or later, such as the "
                f"H100, and {problem}. Leave Float8 out, or set `Float8(emulate=True)` to test the results; this is "
                "slower than the usual precision."
            )
        self._convert(run.model)

    def _convert(self, model: nn.Module) -> None:
        layers, kept = linear_layers(model, self.skip)
        self._check(model, layers, kept)
        # Backward multiplies over the tokens of a batch, and their number may be any. The kernels need multiples of 16.
        config = replace(Float8LinearConfig.from_recipe_name(self.recipe), emulate=self.emulate, pad_inner_dim=True)
        for layer in layers.values():
            self._undo.append(replace_forward(layer, _in_float8(layer, config)))
        sizes = sum(layer.weight.numel() for layer in layers.values())
        total = sum(weight.numel() for weight in model.parameters())
        logger.info(
            "Float8 converts %d linear layers, which have %.0f%% of the weights. In the usual precision: %s.",
            *(len(layers), 100 * sizes / total, _listed(kept) or "none"),
        )

    def _check(self, model: nn.Module, layers: dict[str, nn.Linear], kept: dict[str, str]) -> None:
        """Raise an error if no layer can be converted, or if an entry of `skip` matches no linear layer.

        The default entries of `skip` need not match a layer.
        """
        names = [*layers, *kept]
        for pattern in self.skip:
            if pattern not in USUAL and not any(matches(name, pattern) for name in names):
                raise ModelError(
                    f"Float8(skip=...): no linear layer of {type(model).__name__} has the name {pattern!r}"
                    f"{nearest(pattern, {part for name in names for part in (name, *name.split('.'))})} Remove the "
                    "entry, or correct it."
                )
        if not layers:
            raise ModelError(
                f"Float8 converts no layer of {type(model).__name__}: {_listed(kept) or 'it has no nn.Linear'}. Leave "
                "Float8 out, or change `skip` or the sizes of the layers."
            )

    def on_close(self) -> None:
        undo, self._undo = self._undo, []
        for step in undo:
            step()


def _in_float8(layer: nn.Linear, config: Float8LinearConfig) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a forward that computes a linear layer in float8."""
    converted: Any = convert_to_float8_training(layer, config=config)
    # Both modules have one dict of parameters. So the forward uses what the layer holds, such as the weights that FSDP2
    # gathers or the half-precision weights of `HalfWeights`.
    vars(converted)["_parameters"] = layer._parameters

    def in_float8(input: torch.Tensor) -> torch.Tensor:
        kind = input.device.type
        if torch.is_autocast_enabled(kind):  # torchao itself asks for the autocast of CUDA only
            input = input.to(torch.get_autocast_dtype(kind))
        output: torch.Tensor = converted(input)
        return output

    return in_float8


def _output_layer(model: Any) -> Any:
    """Return the layer that `get_output_embeddings()` of a transformers model returns; None for other models."""
    find = getattr(model, "get_output_embeddings", None)
    try:
        return find() if callable(find) else None
    except (AttributeError, NotImplementedError):
        return None


def _listed(kept: dict[str, str], most: int = 8) -> str:
    """Return a text with the first `most` items of `kept`, and the number of the remaining items.

    Args:
        kept: name of a layer -> why the layer is not converted. If `kept` is empty, the text is empty.
        most: the largest number of items in the text.
    """
    texts = [f"{name or 'the model'} ({why})" for name, why in kept.items()]
    more = [f"and {len(texts) - most} more"] if len(texts) > most else []
    return ", ".join([*texts[:most], *more])

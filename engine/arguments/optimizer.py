"""How gradients become an update of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from ._base import Group, arg, must
from ._names import OptimizerNames


@dataclass(kw_only=True)
class OptimizerArguments(Group):
    """How gradients become an update of the weights."""

    learning_rate: float = arg(5e-5, "Step size of the optimizer at its peak; the schedule scales it over the run.")
    optim: OptimizerNames | str = arg(OptimizerNames.ADAMW_TORCH_FUSED, "Optimizer, by name.", choices=OptimizerNames)
    optim_args: str | None = arg(None, "More options for the optimizer, written 'name=value,name=value'.")
    optim_target_modules: str | list[str] | None = arg(
        None, "Layers that optimizers of low rank (GaLore, APOLLO) work on: parts of names, or one regular expression."
    )
    weight_decay: float = arg(
        0.0, "Decay of the weights per step, times the learning rate; biases and normalisation layers are left alone."
    )
    adam_beta1: float = arg(0.9, "How much of the running mean of the gradients Adam keeps at each step, in [0, 1).")
    adam_beta2: float = arg(0.999, "How much of the running mean of their squares Adam keeps at each step, in [0, 1).")
    adam_epsilon: float = arg(1e-8, "Added to Adam's denominator, so that it is never zero.")
    max_grad_norm: float | None = arg(
        1.0, "Gradients with a larger L2 norm, over all weights, are scaled down to it; 0 is off."
    )
    label_smoothing_factor: float = arg(
        0.0, "Share of the target probability spread evenly over all classes, in [0, 1); 0 is off."
    )

    def problems(self) -> Iterator[str]:
        yield from must(self, lambda rate: 0 <= rate < inf, "give a finite number, 0 or more.", "learning_rate")
        yield from must(self, lambda n: n >= 0, "give 0 or more.", "weight_decay", "adam_epsilon")
        yield from must(self, lambda norm: norm >= 0, "give a norm above 0, or 0 not to clip.", "max_grad_norm")
        shares = ("adam_beta1", "adam_beta2", "label_smoothing_factor")
        yield from must(self, lambda share: 0 <= share < 1, "give a number in [0, 1).", *shares)
        yield from must(self, _pairs, "write it 'name=value,name=value'.", "optim_args")


def _pairs(options: str) -> bool:
    return not options or all(option.count("=") == 1 for option in options.split(","))

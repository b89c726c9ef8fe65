"""The arguments for the optimizer, weight decay and gradient clipping."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from ..optim import registry
from ._base import Group, arg, must
from ._names import OptimizerNames


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class OptimizerArguments(Group):
    """The optimizer, weight decay, gradient clipping and label smoothing."""

    learning_rate: float = arg(
        5e-5, "Peak learning rate of the optimizer. `lr_scheduler_type` changes it over the run."
    )
    learning_rates: dict[str, float] | None = arg(
        None,
        "Peak learning rates for some parameters, as a dict of pattern -> rate. A pattern is the start of parameter "
        "names, or a regular expression. If several patterns match a parameter, the first of them applies. Patterns "
        "do not match the parameters of a loss module. Use the Trainer's parameter `optimizers` to set the learning "
        "rate of a loss module.",
        json=True,
    )
    optim: OptimizerNames | str = arg(
        OptimizerNames.ADAMW_TORCH_FUSED,
        "Name of the optimizer. The compatibility page lists the package that each name needs.",
        choices=registry.OPTIMIZERS,
        enum=OptimizerNames,
    )
    optim_args: str | None = arg(
        None,
        "Further options of the optimizer, as 'name=value,name=value'. They override the arguments for the same "
        "options, such as `weight_decay`.",
    )
    optim_target_modules: str | list[str] | None = arg(
        None,
        "Linear layers whose gradients GaLore and APOLLO compress: 'all-linear', a list of parts of layer names, or "
        "one regular expression. Other optimizers ignore `optim_target_modules`.",
    )
    weight_decay: float = arg(
        0.0,
        "Strength of the weight decay. In each step, AdamW multiplies each weight by 1 - learning rate x "
        "`weight_decay`. Biases and normalization layers have no weight decay.",
    )
    adam_beta1: float = arg(0.9, "Adam's decay rate of the first moment, in [0, 1).")
    adam_beta2: float = arg(0.999, "Adam's decay rate of the second moment, in [0, 1).")
    adam_epsilon: float = arg(1e-8, "Term that Adam adds to the denominator for numerical stability.")
    max_grad_norm: float | None = arg(
        1.0,
        "Largest L2 norm of all gradients together. If the norm is larger, the step scales all gradients down. 0 or "
        "None: no clipping.",
    )
    label_smoothing_factor: float = arg(
        0.0, "Fraction of the target probability that is spread evenly over all classes, in [0, 1). 0: no smoothing."
    )

    def problems(self) -> Iterator[str]:
        yield from must(self, lambda rate: 0 <= rate < inf, "set it to a finite number, 0 or more.", "learning_rate")
        for pattern, rate in (self.learning_rates or {}).items():
            if not (isinstance(rate, (int, float)) and 0 <= rate < inf):
                yield f"`learning_rates` has {rate!r} for {pattern!r}; set it to a finite number, 0 or more."
        spec = registry.OPTIMIZERS.get(registry.name_of(self.optim))
        if self.learning_rates and spec is not None and spec.projection is not None:
            name = str(self.optim)
            yield f"`learning_rates` has no effect with `optim={name!r}`, which groups its parameters itself."
        yield from must(self, lambda n: n >= 0, "set it to 0 or more.", "weight_decay", "adam_epsilon")
        yield from must(
            self, lambda norm: norm >= 0, "set it to a norm above 0, or to 0 for no clipping.", "max_grad_norm"
        )
        shares = ("adam_beta1", "adam_beta2", "label_smoothing_factor")
        yield from must(self, lambda share: 0 <= share < 1, "set it to a number in [0, 1).", *shares)
        yield from must(self, _is_pairs, "write it as 'name=value,name=value'.", "optim_args")


def _is_pairs(options: str) -> bool:
    return not options or all(option.count("=") == 1 for option in options.split(","))

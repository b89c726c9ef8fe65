"""Separate learning rates for parameters with names that match a pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from ...events.errors import ArgumentError, nearest


def matches(name: str, pattern: str) -> bool:
    """Return whether a name starts with the text `pattern`, or with a match of the regular expression `pattern`."""
    return name.startswith(pattern) or re.match(pattern, name) is not None


def with_own_rates(
    groups: Iterable[dict[str, Any]], model: nn.Module, rates: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Build parameter groups. Parameters whose name matches a pattern get the learning rate of the pattern.

    The result begins with copies of the given groups, without the matching parameters. The new groups follow. If a
    pattern matches parameters of a given group, these parameters become a new group, with the weight decay of the given
    group. If several patterns match a name, the first pattern counts. The run logs the learning rate of the first
    group, which is the rate of parameters that match no pattern.

    Args:
        groups: Parameter groups, each with `params` and `weight_decay`.
        model: The model, for the names.
        rates: Pattern -> learning rate. The function `matches` says which names a pattern matches.

    Raises:
        ArgumentError: A pattern matches no trainable parameter, or only parameters that an earlier pattern matches.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    rest, own = [], []
    unused = set(rates)
    for group in groups:
        members: dict[str | None, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            pattern = next((each for each in rates if matches(names.get(parameter, ""), each)), None)
            members.setdefault(pattern, []).append(parameter)
        unused -= members.keys()
        rest.append({**group, "params": members.get(None, [])})
        own += [{**group, "params": members[each], "lr": rate} for each, rate in rates.items() if each in members]
    for pattern in rates:
        if pattern in unused:
            modules = [name for name, _ in model.named_modules() if name]
            raise ArgumentError(
                f"`learning_rates` has {pattern!r}, and no trainable parameter of {type(model).__name__} gets this "
                f"rate: none matches, or an earlier pattern matches first{nearest(pattern, modules)} Correct the "
                "pattern, or list it before wider ones. "
                "`learning_rates` does not apply to parameters of a loss module: give them a rate with `optimizers`."
            )
    return [*rest, *own]

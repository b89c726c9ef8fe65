"""Match the parameter groups of an optimizer with the groups of a saved run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from ...events.errors import ArgumentError

Groups = list[list[nn.Parameter]]
"""The parameters of an optimizer, one list for each parameter group."""


def saved_groups(own: Groups, sizes: Sequence[int], make: Callable[..., list[dict[str, Any]]]) -> Groups | None:
    """Return the parameters of this run, grouped as in a saved run; None if the groups of the saved run are unknown.

    An optimizer state stores how many parameters each group has, but not which parameters. The function tries these
    lists of groups, and returns the first list with the sizes `sizes`:

    1. `own`;
    2. the groups that `make` builds with weight decay;
    3. the groups that `make` builds without weight decay;
    4. the groups that `make` builds without weight decay and with `always_split=True`.

    If the user built the groups in `own`, the function tries only `own`.

    Args:
        own: the groups of this run.
        sizes: the number of parameters in each group of the saved run.
        make: a function that receives a weight decay, and builds the trainer's own parameter groups. With
            `always_split=True`, it splits the parameters of the model even if the weight decay is 0.
    """
    if [len(group) for group in own] == list(sizes):
        return own
    divisions = [each for each in _divisions(make) if len(each) == len(own)]  # a schedule has one rate per group
    if not any(_equal(own, division) for division in divisions):
        return None
    return next((division for division in divisions if [len(group) for group in division] == list(sizes)), None)


def split_state(
    state: Mapping[str, Any], sizes: Sequence[int], make: Callable[..., list[dict[str, Any]]]
) -> Mapping[str, Any]:
    """Divide the parameters of a saved optimizer state into the groups of this run.

    A run with weight decay has an extra group for parameters without decay. The saved run may have had no weight decay,
    and so no extra group. If `make` can build the saved groups and the groups of this run, the function divides the
    state. In all other cases, the function returns the state unchanged.

    A new group gets the options of the saved group that contains its first parameter. The parameters get the numbers
    0, 1, ... in the order of the new groups.

    Args:
        state: the saved state, in the format of `state_dict` of a torch optimizer.
        sizes: the number of parameters in each group of this run.
        make: a function that receives a weight decay, and builds the trainer's own parameter groups. With
            `always_split=True`, it splits the parameters of the model even if the weight decay is 0.
    """
    saved = state["param_groups"]
    as_saved = [len(group["params"]) for group in saved]
    divisions = [each for each in _divisions(make) if len(each) == len(sizes)]
    split = next((each for each in divisions if [*map(len, each)] == list(sizes)), None)
    whole = next((each for each in divisions if [*map(len, each)] == as_saved), None)
    if as_saved == list(sizes) or split is None or whole is None:
        return state
    place = {
        id(parameter): (group, number)
        for group, members in zip(saved, whole)
        for number, parameter in zip(group["params"], members)
    }
    groups, entries, count = [], {}, 0
    for members in split:
        options = place[id(members[0])][0] if members else saved[0]
        groups.append({**options, "params": [*range(count, count + len(members))]})
        for parameter in members:
            _, number = place[id(parameter)]
            if number in state["state"]:
                entries[count] = state["state"][number]
            count += 1
    return {**state, "state": entries, "param_groups": groups}


def _divisions(make: Callable[..., list[dict[str, Any]]]) -> list[Groups]:
    try:
        made = make(1.0), make(0.0), make(0.0, always_split=True)
    except ArgumentError:  # there is nothing to train
        return []
    return [[group["params"] for group in groups] for groups in made]


def _equal(one: Groups, other: Groups) -> bool:
    return [[id(parameter) for parameter in group] for group in one] == [
        [id(parameter) for parameter in group] for group in other
    ]

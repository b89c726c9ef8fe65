"""The warning about changed arguments that have no effect. A resume restores values of the checkpoint instead.

`load_state_dict` of a torch optimizer replaces the options of its parameter groups by the saved options. In the same
way, `load_state_dict` of a schedule that follows a metric replaces the options of the schedule. The other schedules
compute the learning rate from the initial learning rates, which the optimizer state contains, and from the arguments of
the resumed run.

The order of the training data and the random draws continue from the checkpoint, whatever the seeds are.

A resume compares its arguments with the values that the saved run really used. A checkpoint contains these values: the
arguments of the saved run and, for each argument without effect, the value that the run used instead.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from ...optim.schedules import needs_metric
from ..protocols import ResumableRun
from .saved import SavedCheckpoint
from .state_files import StatePart

logger = logging.getLogger(__name__)

_ARGUMENTS = {
    "initial_lr": ("learning_rate", "learning_rates"),
    "lr": ("learning_rate", "learning_rates"),
    "weight_decay": ("weight_decay",),
    "betas": ("adam_beta1", "adam_beta2"),
    "eps": ("adam_epsilon",),
    "warmup_steps": ("warmup_steps", "warmup_ratio"),
    "fused": ("optim",),
}
"""Option of a parameter group -> the arguments that set it. The argument `optim_args` can set every option."""

OVERRIDDEN = "overridden_arguments"
"""The key of the trainer state for the values that the run uses instead of its arguments: argument -> value."""

_SEEDS = ("seed", "data_seed")

_CONSTANT = ("initial_lr", "weight_decay", "betas", "eps")
"""Options that no schedule of transformers changes. Only these are compared if the saved arguments are unknown."""

_CONSTANT_IN_OWN = ("initial_lr", "weight_decay", "eps")
"""Options that are compared if the program builds the optimizer. Its schedule, such as `OneCycleLR`, may change `betas`
in each step."""

Options = list[dict[str, Any]]
"""The options of each parameter group."""


@dataclass(frozen=True)
class Overridden:
    """An argument or option whose new value has no effect, because the run uses the value in the checkpoint."""

    name: str
    """The argument, or the option of an optimizer that the program built."""
    given: Any
    """The new value, which has no effect."""
    saved: Any
    """The value in the checkpoint, which the run uses."""

    def __str__(self) -> str:
        return f"{self.name}={self.given!r} (the checkpoint has {self.saved!r})"


@dataclass
class OptionWatch:
    """Finds the options of optimizer and schedule that a resume replaces by different values of the checkpoint."""

    run: ResumableRun
    """The run. Its optimizer and its schedule exist, and are not restored yet."""
    checkpoint: SavedCheckpoint
    """The checkpoint to resume from."""
    before: Options = field(init=False)
    """The options that the program and the arguments gave to each parameter group."""

    def __post_init__(self) -> None:
        """Read the options of the optimizer."""
        self.before = _options(self.run.optimizer)

    def warn(self) -> None:
        """Log one warning if values of the program differ from the checkpoint and have no effect.

        The method also stores the values of the checkpoint in the run, so that the next checkpoints contain them. Call
        this method after the optimizer and the schedule are restored.
        """
        found = list({each.name: each for each in self._overridden()}.values())
        arguments = self.run.args.to_dict()
        self.run.keep_overridden({each.name: each.saved for each in found if each.name in arguments})
        if found:
            logger.warning(
                "These values differ from the checkpoint and have no effect on the training, because the run restores "
                "optimizer, schedule and random draws: %s. %sTo train with the new values, start a new run from the "
                "weights of the checkpoint: call `SavedCheckpoint.open(%r).load_weights(model)` of "
                "`trainbus.engine.checkpoint.read.saved`, and then `train()` without `resume_from_checkpoint`.",
                ", ".join(map(str, found)),
                self._rate_remedy(found),
                str(self.checkpoint.path),
            )

    def _rate_remedy(self, found: list[Overridden]) -> str:
        rate = next((each.given for each in found if each.name in ("learning_rate", "initial_lr")), None)
        if not isinstance(rate, float) or rate <= 0:
            return ""
        folder = self.run.args.output_path
        return f"To change the learning rate of this run while it trains, run `trainbus tell {folder} lr={rate:g}`. "

    def _overridden(self) -> Iterator[Overridden]:
        arguments, saved = self.run.args.to_dict(), self._saved_arguments()
        after = _options(self.run.optimizer)
        own = not _contains(self.before, arguments.get("learning_rate"))
        for key in _names(self.before, after):
            given, restored = _values(self.before, key), _values(after, key)
            if not given or not restored or set(given) == set(restored):
                continue
            names = (*_ARGUMENTS.get(key, ()), "optim_args")
            changed = [name for name in names if name in saved and saved[name] != _as_json(arguments.get(name))]
            if changed:
                yield from (Overridden(name, arguments[name], saved[name]) for name in changed)
            elif own and key in _CONSTANT_IN_OWN:
                yield Overridden(key, _shown(given), _shown(restored))
            elif not saved and not own and key in _CONSTANT:
                yield from self._from_groups(key, arguments, restored)
        yield from self._schedule_options(arguments, saved)
        for name in _SEEDS if self.checkpoint.state.get("data_seed") is not None else ():
            if name in saved and saved[name] != arguments[name]:
                yield Overridden(name, arguments[name], saved[name])

    def _from_groups(self, key: str, arguments: Mapping[str, Any], restored: list[Any]) -> Iterator[Overridden]:
        """Yield the arguments of this run that differ from the options in the restored parameter groups.

        The method is for checkpoints without readable arguments.
        """
        values = list(zip(*restored)) if key == "betas" else [restored]
        for name, numbers in zip(_ARGUMENTS[key] if key == "betas" else _ARGUMENTS[key][:1], values):
            if arguments[name] not in numbers:
                yield Overridden(name, arguments[name], _shown(list(dict.fromkeys(numbers))))

    def _schedule_options(self, arguments: Mapping[str, Any], saved: Mapping[str, Any]) -> Iterator[Overridden]:
        """Yield the changed options of a schedule that follows a metric. Its state contains its options."""
        name, kind = "lr_scheduler_kwargs", "lr_scheduler_type"
        same = kind in saved and saved[kind] == arguments[kind]
        restored = needs_metric(self.run.lr_scheduler) and self.checkpoint.state_files.has(StatePart.SCHEDULER)
        if same and restored and (saved.get(name) or {}) != (_as_json(arguments[name]) or {}):
            yield Overridden(name, arguments[name], saved.get(name))

    def _saved_arguments(self) -> dict[str, Any]:
        """Return the arguments of the run that saved the checkpoint, with the values that were really in use.

        {} if the checkpoint has no arguments that can be read without unpickling.
        """
        with suppress(OSError, ValueError):
            found = json.loads(self.checkpoint.argument_bytes)
            return {**found, **self.checkpoint.state.get(OVERRIDDEN, {})} if isinstance(found, dict) else {}
        return {}


def _options(optimizer: Any) -> Options:
    """Return the options of each parameter group, with numbers in place of tensors with one element."""
    groups = getattr(optimizer, "param_groups", None) or ()
    return [{key: _plain(value) for key, value in group.items() if key != "params"} for group in groups]


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else None
    return tuple(map(_plain, value)) if isinstance(value, (list, tuple)) else value


def _names(*options: Options) -> list[str]:
    """Return the names of the options, without `lr` if there is `initial_lr`: the schedule computes `lr` from it."""
    found = dict.fromkeys(key for groups in options for group in groups for key in group)
    ordered = dict.fromkeys([*(key for key in _ARGUMENTS if key in found), *found])
    return [key for key in ordered if key != "lr" or "initial_lr" not in found]


def _values(options: Options, key: str) -> list[Any]:
    """Return the different values of an option in the groups, if they are numbers, flags, text, or tuples of these."""
    values = [group[key] for group in options if key in group]
    return list(dict.fromkeys(value for value in values if _is_comparable(value)))


def _is_comparable(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_comparable, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _contains(options: Options, rate: Any) -> bool:
    return any(group.get("initial_lr", group.get("lr")) == rate for group in options)


def _as_json(value: Any) -> Any:
    """Return a value as it is after a round trip through JSON."""
    return json.loads(json.dumps(value, default=str))


def _shown(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values

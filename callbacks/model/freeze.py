"""Freeze parameters, and unfreeze them later in the run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import nn

from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ModelError, nearest
from ...events.stages import Stage, order
from ...events.trigger_fields import check_triggers
from ...events.triggers import Trigger, never


def matching(model: nn.Module, patterns: Iterable[str]) -> dict[str, nn.Parameter]:
    """Return the parameters that a pattern selects, by name.

    A pattern selects a name if the name starts with the pattern, or if the pattern, as a regular expression, matches
    the start of the name.

    Raises:
        ModelError: if a pattern selects no name. The error suggests the most similar module name.
    """
    named = dict(model.named_parameters())
    found: dict[str, nn.Parameter] = {}
    for pattern in patterns:
        hits = {name: weight for name, weight in named.items() if name.startswith(pattern) or re.match(pattern, name)}
        if not hits:
            modules = [name for name, _ in model.named_modules() if name]
            raise ModelError(
                f"Freeze({pattern!r}): no parameter of {type(model).__name__} matches{nearest(pattern, modules)} "
                "Correct the pattern. Freeze parameters of a loss module with `requires_grad_(False)`."
            )
        found |= hits
    return found


@dataclass
class Freeze(Callback):
    """Freezes parameters until the trigger `until` is due, or for the whole run.

    Frozen parameters get no gradient, no update and no weight decay. The optimizer holds the frozen parameters from the
    start of the run, so one schedule applies to all parameters. After the run, each parameter has the `requires_grad`
    that it had before the run. The patterns match only parameters of the model. To freeze parameters of a loss module,
    call the method `requires_grad_(False)` of these parameters.

        Freeze("encoder")                                    # the whole run
        Freeze("encoder", until=at(500))                     # train the head for 500 steps, then all weights
        Freeze(("encoder.layer.0", "embeddings"), until=every(1, "epoch"))  # freeze in epoch 1

    Raises:
        ModelError: if a pattern matches no parameter, or if all parameters are frozen.
    """

    patterns: str | tuple[str, ...] = ()
    """The parameters to freeze: one or several prefixes of parameter names, or regular expressions that match the start
    of parameter names. Default: no parameters."""
    until: Trigger = field(default_factory=never)
    """When to unfreeze the parameters. The callback checks the trigger at the end of each step and each epoch. Default:
    never."""
    id: str | None = None
    """The name of the callback in the ledger and in checkpoints. None: the name of the class."""
    thawed: bool = field(default=False, init=False)
    """Whether the parameters were unfrozen in this run."""
    _frozen: list[nn.Parameter] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_triggers(self)
        self.patterns = (self.patterns,) if isinstance(self.patterns, str) else tuple(self.patterns)

    @order(Stage.PREPARE)
    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            self.thawed = False
            matching(run.model, self.patterns)  # report a misspelt name before anything is built

    @order(Stage.PREPARE)
    def on_train_begin(self, run: Run) -> None:
        if not self.thawed:
            for weight in matching(run.model, self.patterns).values():
                if weight.requires_grad:
                    weight.requires_grad_(False)
                    self._frozen.append(weight)
            if not any(weight.requires_grad for group in run.optimizer.param_groups for weight in group["params"]):
                self._unfreeze()
                raise ModelError(
                    f"Freeze({', '.join(map(repr, self.patterns))}) freezes every parameter of "
                    f"{type(run.model).__name__}, so there is nothing to train. Leave some of them out."
                )

    def on_step_end(self, run: Run) -> None:
        self._unfreeze_if_due(run, "step")

    def on_epoch_end(self, run: Run) -> None:
        self._unfreeze_if_due(run, "epoch")

    def _unfreeze_if_due(self, run: Run, place: str) -> None:
        if self._frozen and self.until.due(run.moment(place)):  # type: ignore[arg-type]
            self.thawed = True
            self._unfreeze()

    def _unfreeze(self) -> None:
        frozen, self._frozen = self._frozen, []
        for weight in frozen:
            weight.requires_grad_(True)

    def on_close(self) -> None:
        self._unfreeze()

    def state_dict(self) -> dict[str, bool]:
        return {"thawed": self.thawed}

    def load_state_dict(self, state: dict[str, bool]) -> None:
        self.thawed = state["thawed"]

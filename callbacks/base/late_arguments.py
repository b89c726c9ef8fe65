"""Tell a program that a change of an argument during a training has no effect on the training."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.errors import ArgumentError
from ..compose import unfollowed

logger = logging.getLogger(__name__)

ACCUMULATION = "gradient_accumulation_steps"
HUB = ("hub_always_push", "hub_model_id", "hub_private_repo", "hub_revision", "hub_strategy", "push_to_hub")
"""The arguments of `PushToHub`. A Trainer builds this callback only once, from these arguments."""
WATCHED = (
    *("eval_delay", "eval_on_start", "eval_strategy", "greater_is_better", "include_num_input_tokens_seen"),
    *("load_best_model_at_end", "logging_first_step", "logging_strategy", "metric_for_best_model", "save_strategy"),
    *("save_total_limit", "torch_empty_cache_steps", ACCUMULATION, *HUB),
)
"""The arguments that a training reads when it begins, and that transformers reads during a training."""

_read = attrgetter(*WATCHED)


class LateArguments:
    """Looks in each step for changes of the arguments in `WATCHED`."""

    def __init__(self, run: Run, begun: TrainingArguments) -> None:
        """Store the values of the arguments.

        Args:
            run: the run. Handlers may change the values of `run.args`.
            begun: a copy of the arguments with the values that the training read.
        """
        self.run, self.begun = run, begun
        self._known = _read(begun)

    def check(self) -> None:
        """Log one warning for each change that has no effect on this training.

        Raises:
            ArgumentError: if `gradient_accumulation_steps` changed. transformers would use the new value in the next
                step.
        """
        found = _read(self.run.args)
        if found != self._known:
            self._tell([name for name, was, now in zip(WATCHED, self._known, found) if was != now])
            self._known = found

    def _tell(self, changed: list[str]) -> None:
        args = self.run.args
        if ACCUMULATION in changed:
            raise ArgumentError(
                f"`{ACCUMULATION}` changed from {getattr(self.begun, ACCUMULATION)} to {getattr(args, ACCUMULATION)} "
                "during the training. The training planned its steps with the first value. Set the argument before "
                "`train`, or set `gradient_accumulation_schedule={epoch: batches}` to change the number of batches at "
                "the beginning of an epoch."
            )
        if names := unfollowed(self.run.bus, self.begun, args, [name for name in changed if name not in HUB]):
            logger.warning(
                "%s changed during the training. The training read the former value when it began, so the change has "
                "no effect before the next `train()`. Handlers can change the run with requests, such as "
                "`control.request('save')`.",
                _listed(args, names),
            )
        if names := [name for name in changed if name in HUB and self._concerns_hub(name)]:
            logger.warning(
                "%s changed during the training. The change has no effect, because the Trainer built its callbacks "
                "from the former value. Set the argument before you build the Trainer, or change the `PushToHub` of "
                "the Trainer.",
                _listed(args, names),
            )

    def _concerns_hub(self, name: str) -> bool:
        """Return whether an argument of the Hub matters for this run: a callback reads it, or it is `push_to_hub`."""
        attached = self.run.bus.subscribers.values()
        return name == "push_to_hub" or any(name in getattr(each, "arguments", ()) for each in attached)


def _listed(args: TrainingArguments, names: Iterable[str]) -> str:
    return ", ".join(f"`{name}={_plain(getattr(args, name))!r}`" for name in names)


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)

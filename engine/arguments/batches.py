"""The arguments for batch sizes and gradient accumulation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ._base import Group, arg, must


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class BatchArguments(Group):
    """Batch sizes and gradient accumulation. Samples per step = batch size x accumulated batches x devices."""

    per_device_train_batch_size: int = arg(8, "Samples per training batch on each device.")
    per_device_eval_batch_size: int = arg(8, "Samples per evaluation or prediction batch on each device.")
    gradient_accumulation_steps: int = arg(
        1,
        "Number of batches per optimizer step. The step accumulates the gradients of these batches. Intervals of "
        "logs, evaluations and saves count optimizer steps.",
    )
    gradient_accumulation_schedule: dict[int, int] | None = arg(
        None,
        "Number of batches per optimizer step, as a dict of epoch -> batches. {0: 8, 4: 2} accumulates 8 batches "
        "from epoch 0, and 2 from epoch 4. Epochs before the first key use `gradient_accumulation_steps`.",
        json=True,
    )
    auto_find_batch_size: bool = arg(
        False,
        "If a batch does not fit into memory, start training again with a batch size that is 10 % smaller. With "
        "several processes, a batch that does not fit ends the run. The error names the rank that ran out of memory. "
        "`auto_find_batch_size` does not work with the Trainer's parameter `optimizers`. Use the parameter "
        "`optimizer_cls_and_kwargs` instead of `optimizers`.",
    )
    limit_train_batches: float | None = arg(
        None,
        "Number of batches per rank to train on in each epoch. A value below 1 is a fraction of the epoch. None: all "
        "batches. Each epoch uses the first batches and leaves the other batches out.",
    )
    limit_eval_batches: float | None = arg(
        None,
        "Number of batches of each dataset that a rank evaluates. A value below 1 is a fraction of the batches. "
        "None: all batches. The evaluation uses the first batches of each dataset.",
    )
    average_tokens_across_devices: bool = arg(
        True, "Average the loss over the tokens of all processes. False: each process averages over its own tokens."
    )

    @property
    def accumulation_by_epoch(self) -> dict[str, int]:
        """The `gradient_accumulation_schedule` with text as keys, as in JSON; an empty dict if there is no schedule.

        Each key is an epoch. Epochs count from 0. The value is the number of batches per step, from this epoch until
        the epoch of the next key begins.
        """
        return {str(epoch): batches for epoch, batches in (self.gradient_accumulation_schedule or {}).items()}

    def accumulation_in(self, epoch: int) -> int:
        """Return the batches per optimizer step in an epoch. The first epoch is 0."""
        known = {int(first): batches for first, batches in (self.gradient_accumulation_schedule or {}).items()}
        begun = [first for first in known if first <= epoch]
        return known[max(begun)] if begun else self.gradient_accumulation_steps

    @property
    def most_accumulated(self) -> int:
        """The largest number of batches per optimizer step in any epoch."""
        return max([self.gradient_accumulation_steps, *(self.gradient_accumulation_schedule or {}).values()])

    @property
    def train_batch_size(self) -> int:
        """Samples per training batch of this process, over all devices that it uses."""
        return self.per_device_train_batch_size * self._devices

    @property
    def eval_batch_size(self) -> int:
        """Samples per evaluation batch of this process, over all devices that it uses."""
        return self.per_device_eval_batch_size * self._devices

    @property
    def _devices(self) -> int:
        args: Any = self  # another group declares `n_gpu`
        return max(1, int(args.n_gpu))

    def problems(self) -> Iterator[str]:
        sizes = ("per_device_train_batch_size", "per_device_eval_batch_size")
        yield from must(self, lambda n: n >= 1, "set it to 1 sample or more.", *sizes)
        for epoch, batches in (self.gradient_accumulation_schedule or {}).items():
            if not (str(epoch).isdecimal() and isinstance(batches, int) and batches >= 1):
                yield (
                    f"`gradient_accumulation_schedule` has {epoch!r}: {batches!r}; write an epoch from 0 and a number "
                    "of batches of 1 or more, as in {0: 8, 4: 2}."
                )
        limits = ("limit_train_batches", "limit_eval_batches")
        remedy = "set it to a whole number of batches, to a fraction in (0, 1), or to None for all."
        yield from must(self, lambda n: n is None or 0 < n < 1 or (n >= 1 and n == int(n)), remedy, *limits)
        yield from must(
            self, lambda n: n >= 1, "set it to 1 or more; 1 accumulates nothing.", "gradient_accumulation_steps"
        )

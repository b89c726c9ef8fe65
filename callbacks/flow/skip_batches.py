"""Skip batches before their forward: batches in a list, or batches that a function selects."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...engine.run import Run
from ...events.callback import Callback
from ...events.control import TrainerControl
from ...events.errors import ArgumentError, DataError
from ...events.stages import Stage

SKIP_LIST = "skipped_batches.json"
"""The name of the skip list in the output folder. `SkipSpikes` writes this file, and `SkipBatches` can read it."""


def read_list(path: str | Path) -> frozenset[tuple[int, int]]:
    """Return the batches of a skip list, as pairs of epoch and number of the batch, both from 0.

    The number counts the batches of one rank in the epoch.

    Raises:
        DataError: if the file is missing or is not a skip list.
    """
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))
        return frozenset((int(row["epoch"]), int(row["batch"])) for row in rows)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{path} is not a skip list: {type(error).__name__}: {error}. Write a JSON list of objects with `epoch` "
            "and `batch`, both counted from 0."
        ) from error


@dataclass
class SkipBatches(Callback):
    """Skips batches before their forward.

    A skipped batch has no loss and no gradients.

        SkipBatches("skipped_batches.json")                          # a file that `SkipSpikes` wrote
        SkipBatches(when=lambda batch: batch["input_ids"].shape[1] > 4096)

    A skipped batch counts as a batch of its step, so the run has as many steps as without the callback. If all batches
    of a step are skipped, there is no update, and `state.steps_skipped` grows by one. If only some batches of a step
    are skipped, the gradients of the other batches are not scaled up. For example, if one of 4 batches is skipped, the
    sum of the other 3 gradients is still divided by 4.

    The mean loss in the log is the mean over the batches that are not skipped.

    On several ranks, all ranks skip their batch if `when` returns True on one rank.

    Raises:
        DataError: if the skip list is missing or invalid.
        ArgumentError: if the run has several ranks and gradient accumulation.
    """

    stage = Stage.PREPARE

    listed: str | Path | None = None
    """The path of a skip list: a JSON list of objects with `epoch` and `batch`, both counted from 0. Default: none."""
    when: Callable[[Any], bool] | None = None
    """A function that receives a batch and returns whether to skip this batch. Default: none."""
    id: str | None = None
    """The name of the callback in the ledger and in checkpoints. None: the name of the class."""
    _list: frozenset[tuple[int, int]] = field(default=frozenset(), init=False, repr=False, compare=False)
    _number: int = field(default=0, init=False, repr=False, compare=False)
    """The number of batches of the current step so far."""
    _skipped: int = field(default=0, init=False, repr=False, compare=False)
    """The number of skipped batches of the current step so far."""

    def on_setup(self, run: Run) -> None:
        if run.mode != "train":
            return
        if not run.ranks.single_process and run.args.most_accumulated > 1:
            raise ArgumentError(
                "SkipBatches does not work with gradient accumulation on several ranks: the ranks average gradients in "
                "the last batch of a step only. Set `gradient_accumulation_steps=1`."
            )
        self._list = frozenset() if self.listed is None else read_list(self.listed)
        run.seams.fill("SkipBatches", train_batch=lambda train: self._around(run, train))

    def on_step_begin(self) -> None:
        self._number = self._skipped = 0

    def _around(self, run: Run, train: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def train_or_skip(model: Any, inputs: Any, items: Any = None) -> torch.Tensor:
            position, number = run.position, self._number
            self._number += 1
            known = position is not None and (position.epoch, position.batches + number) in self._list
            if not (known or self._refused(run, inputs)):
                return train(model, inputs, items)
            self._skipped += 1
            accumulate = run.args.accumulation_in(0 if position is None else position.epoch)
            for window in run.losses.windows:
                window.add_mean(run.state.global_step - window.since + number / accumulate, 1 / accumulate)
            return torch.zeros((), device=run.device)

        return train_or_skip

    def _refused(self, run: Run, batch: Any) -> bool:
        if self.when is None:
            return False
        mine = bool(self.when(batch))
        return mine if run.ranks.single_process else any(any(row) for row in run.ranks.gather_numbers(int(mine)))

    def on_pre_optimizer_step(self, control: TrainerControl) -> None:
        if self._skipped and self._skipped == self._number:
            control.request("skip_update", "every batch of the step was skipped before its forward")

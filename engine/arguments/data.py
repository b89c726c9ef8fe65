"""How batches are loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...events.errors import nearest
from ._base import Group, arg, must

ACCELERATOR: dict[str, tuple[Any, ...]] = {
    "non_blocking": (True, False),
    "split_batches": (False,),
    "dispatch_batches": (None, False),
    "even_batches": (True,),
    "use_seedable_sampler": (True,),
    "use_configured_state": (False,),
    "gradient_accumulation_kwargs": (None, {}),
}
"""The keys of `accelerator_config` and the values they may have: what else accelerate does is done otherwise here."""

REMEDIES = {
    "split_batches": "divide `per_device_train_batch_size` by the number of processes.",
    "dispatch_batches": "each process reads the data and takes its share, which needs no dispatching: leave it out.",
    "even_batches": "processes that get fewer batches would leave the others waiting: leave it out.",
    "use_seedable_sampler": "the order follows from the seed and the epoch: leave it out.",
}
"""What to do instead of the values that are refused."""


@dataclass(kw_only=True)
class DataArguments(Group):
    """How rows become batches, and who loads them."""

    dataloader_drop_last: bool = arg(False, "Whether a last batch that is not full is left out.")
    dataloader_num_workers: int = arg(
        0, "Processes that load data ahead, for each loader; 0 loads in the training one."
    )
    dataloader_pin_memory: bool = arg(
        True, "Whether batches are put into page-locked memory, from where they reach a GPU faster."
    )
    dataloader_persistent_workers: bool = arg(
        False, "Whether workers, and the datasets they hold, live on from one epoch to the next."
    )
    dataloader_prefetch_factor: int | None = arg(
        None, "Batches each worker loads ahead; None leaves it to PyTorch, which loads 2."
    )
    dataloader_in_order: bool = arg(
        True, "Whether batches come in their order, rather than as workers are ready, which then no resume can repeat."
    )
    dataloader_multiprocessing_context: str | None = arg(
        None,
        "How workers are started: 'fork', 'spawn' or 'forkserver'; None leaves it to Python.",
        choices=(None, "fork", "spawn", "forkserver"),
    )
    train_sampling_strategy: str = arg(
        "random",
        "The order of the training rows: 'random', 'sequential' as they stand in the dataset, or 'group_by_length', "
        "random but with rows of similar length together, so that batches need little padding.",
        choices=("random", "sequential", "group_by_length"),
    )
    length_column_name: str = arg(
        "length", "Column that says how long a row is, for 'group_by_length'; where it is missing, inputs are measured."
    )
    remove_unused_columns: bool = arg(True, "Whether columns that `model.forward` has no parameter for are dropped.")
    label_names: list[str] | None = arg(
        None, "Keys of a batch that hold labels; None finds them in the parameters of `model.forward`."
    )
    ignore_data_skip: bool = arg(
        False, "Whether a resumed run starts its epoch over, rather than at the batch where it was interrupted."
    )

    accelerator_config: dict[str, Any] | str | None = arg(
        None,
        "What Transformers hands to accelerate, as a dict or a JSON file; here `non_blocking` copies while computing, "
        "and `dispatch_batches=False` has each process read shards of its own of a stream.",
        json=True,
    )

    @property
    def non_blocking(self) -> bool:
        """Whether batches are copied to the device while it computes; they must be pinned for that."""
        return bool(self._accelerator_config().get("non_blocking", False))

    @property
    def reads_own_shards(self) -> bool:
        """Whether each process reads shards of its own of a stream that has enough, rather than its share of all."""
        return self._accelerator_config().get("dispatch_batches") is False

    def _accelerator_config(self) -> dict[str, Any]:
        given = self.accelerator_config
        if isinstance(given, str):
            with open(given, encoding="utf-8") as file:
                given = json.load(file)
        return {} if given is None else dict(given)

    def problems(self) -> Iterator[str]:
        yield from must(self, lambda n: n >= 0, "give 0 or more processes.", "dataloader_num_workers")
        yield from must(self, lambda n: n >= 1, "give at least 1 batch, or None.", "dataloader_prefetch_factor")
        yield from self._accelerator_problems()
        if self.dataloader_num_workers == 0:
            alone = "needs worker processes, and `dataloader_num_workers` is 0; give at least 1, or leave it out."
            if self.dataloader_prefetch_factor is not None:
                yield f"`dataloader_prefetch_factor={self.dataloader_prefetch_factor}` {alone}"
            if self.dataloader_persistent_workers:
                yield f"`dataloader_persistent_workers=True` {alone}"

    def _accelerator_problems(self) -> Iterator[str]:
        try:
            config = self._accelerator_config()
        except (OSError, TypeError, ValueError) as error:
            yield f"`accelerator_config` is {self.accelerator_config!r}, which cannot be read as JSON: {error}"
            return
        for name, value in config.items():
            if name not in ACCELERATOR:
                yield f"`accelerator_config` has {name!r}{nearest(name, ACCELERATOR)} Known: {', '.join(ACCELERATOR)}."
            elif value not in ACCELERATOR[name]:
                remedy = REMEDIES.get(name, "leave it out.")
                yield f"`accelerator_config` has {name}={value!r}, which is not to be had here; {remedy}"

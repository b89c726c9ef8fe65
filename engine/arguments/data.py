"""How batches are loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ._base import Group, arg, must


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
    remove_unused_columns: bool = arg(True, "Whether columns that `model.forward` has no parameter for are dropped.")
    label_names: list[str] | None = arg(
        None, "Keys of a batch that hold labels; None finds them in the parameters of `model.forward`."
    )
    ignore_data_skip: bool = arg(
        False, "Whether a resumed run starts its epoch over, rather than at the batch where it was interrupted."
    )

    def problems(self) -> Iterator[str]:
        yield from must(self, lambda n: n >= 0, "give 0 or more processes.", "dataloader_num_workers")
        yield from must(self, lambda n: n >= 1, "give at least 1 batch, or None.", "dataloader_prefetch_factor")
        if self.dataloader_num_workers == 0:
            alone = "needs worker processes, and `dataloader_num_workers` is 0; give at least 1, or leave it out."
            if self.dataloader_prefetch_factor is not None:
                yield f"`dataloader_prefetch_factor={self.dataloader_prefetch_factor}` {alone}"
            if self.dataloader_persistent_workers:
                yield f"`dataloader_persistent_workers=True` {alone}"

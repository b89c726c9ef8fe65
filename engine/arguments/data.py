"""The arguments for data loading: workers, sampling order, columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ._base import Group, arg, must
from .accelerator_config import AcceleratorConfig, accelerator_problems


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class DataArguments(Group):
    """How samples are ordered, loaded and collated into batches."""

    dataloader_drop_last: bool = arg(False, "Drop the last batch of an epoch if it is not full.")
    dataloader_num_workers: int = arg(
        0, "Worker processes per data loader. 0: the training process loads the data itself."
    )
    dataloader_pin_memory: bool = arg(
        True, "Load batches into pinned (page-locked) memory. A GPU copies pinned batches faster."
    )
    dataloader_persistent_workers: bool = arg(
        False,
        "Keep the worker processes and their datasets alive between epochs. Needs `dataloader_num_workers` of 1 or "
        "more.",
    )
    dataloader_prefetch_factor: int | None = arg(
        None,
        "Number of batches that each worker loads in advance. None: 2, the default of PyTorch. Needs "
        "`dataloader_num_workers` of 1 or more.",
    )
    dataloader_in_order: bool = arg(
        True,
        "Return batches in the order of the sampler. False: return batches in the order in which the workers finish. "
        "A resumed run cannot repeat the order of `dataloader_in_order=False`.",
    )
    dataloader_multiprocessing_context: str | None = arg(
        None,
        "Start method of the worker processes. None: Python's default.",
        choices=(None, "fork", "spawn", "forkserver"),
    )
    train_sampling_strategy: str = arg(
        "random",
        "Order of the training samples: 'random', 'sequential' (the order of the dataset) or 'group_by_length'. "
        "'group_by_length' puts samples of similar length into one batch, so that batches need little padding. The "
        "order of these batches is random.",
        choices=("random", "sequential", "group_by_length"),
    )
    length_column_name: str = arg(
        "length",
        "Dataset column with the length of each sample. 'group_by_length' reads this column. If the column is "
        "missing, the trainer measures the inputs.",
    )
    remove_unused_columns: bool = arg(
        True, "Remove a dataset column if `model.forward` has no parameter with the name of the column."
    )
    label_names: list[str] | None = arg(
        None,
        "Names of the labels in a batch, as a list. None: the trainer finds the names in the parameters of "
        "`model.forward`.",
    )
    ignore_data_skip: bool = arg(
        False,
        "Start a resumed run with the first batch of the epoch. False: start with the next batch after the checkpoint.",
    )

    accelerator_config: AcceleratorConfig | dict[str, Any] | str | None = arg(
        None,
        "Settings that transformers passes to accelerate, as an `AcceleratorConfig`, a dict or the path of a JSON "
        "file. `non_blocking=True` copies batches to the device while the device computes. `dispatch_batches=False` "
        "makes each process read its own shards of a streaming dataset. `gradient_accumulation_kwargs={'num_steps': "
        "4}` sets `gradient_accumulation_steps`. Other keys of transformers have no effect, but some of "
        "their values are refused with an error. After construction, `args.accelerator_config` is an "
        "`AcceleratorConfig`.",
        json=True,
        object=AcceleratorConfig,
    )

    @property
    def non_blocking(self) -> bool:
        """Whether batches are copied to the device while the device computes. This needs pinned batches."""
        return AcceleratorConfig.read(self.accelerator_config).non_blocking

    @property
    def reads_own_shards(self) -> bool:
        """Whether `dispatch_batches=False` is set. Each rank then reads its own shards of a streaming dataset.

        Without this setting, each rank reads the whole stream, and skips the samples of the other ranks. The same
        happens if the dataset has fewer shards than ranks.
        """
        return AcceleratorConfig.read(self.accelerator_config).dispatch_batches is False

    def problems(self) -> Iterator[str]:
        yield from must(self, lambda n: n >= 0, "set it to 0 or more.", "dataloader_num_workers")
        yield from must(self, lambda n: n >= 1, "set it to 1 or more, or to None.", "dataloader_prefetch_factor")
        yield from self._accelerator_problems()
        if self.dataloader_num_workers == 0:
            remedy = "needs worker processes, but `dataloader_num_workers` is 0; set that to 1 or more, or remove it."
            if self.dataloader_prefetch_factor is not None:
                yield f"`dataloader_prefetch_factor={self.dataloader_prefetch_factor}` {remedy}"
            if self.dataloader_persistent_workers:
                yield f"`dataloader_persistent_workers=True` {remedy}"

    def _accelerator_problems(self) -> Iterator[str]:
        try:
            settings = AcceleratorConfig.settings(self.accelerator_config)
        except (OSError, TypeError, ValueError) as error:
            yield (
                f"`accelerator_config` is {self.accelerator_config!r}, which cannot be read as JSON ({error}); give a "
                "dict or a JSON file."
            )
            return
        args: Any = self  # other groups declare these
        yield from accelerator_problems(settings, args.gradient_accumulation_steps, args.world_size)

"""Length grouping: samples of similar length are in one batch, so that batches need little padding."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from ...events.errors import DataError
from ..distributed.ranks import Ranks
from .columns.lengths import column_lengths

logger = logging.getLogger(__name__)


class LengthGroupedSampler(Sampler[int]):
    """A sampler that orders samples so that neighbors have similar length.

    With a seed, each iteration yields the same order. Without a seed, each iteration draws a new order from torch's
    global generator, as transformers' `LengthGroupedSampler` does. All ranks use the order of rank 0. The sampler
    stores the RNG state before this draw, so that a resumed run can draw the same order.
    """

    def __init__(self, lengths: Sequence[float], group_size: int, ranks: Ranks, seed: int | None = None) -> None:
        """Create the sampler. It draws its first order when it is iterated over.

        Args:
            lengths: length of each sample, in any unit.
            group_size: how many consecutive samples have similar length. In training, this is the number of samples of
                one rank in an optimizer step. In evaluation, this is the batch size of one rank.
            ranks: the ranks that divide the samples.
            seed: with a seed, every iteration yields the same order. With None, each iteration draws a new order from
                torch's global generator.
        """
        self.lengths = lengths
        self.group_size = group_size
        self.ranks = ranks
        self.seed = seed
        self.state: Any = None
        """The values that determine the last order: `generator`, the RNG state, and `group_size`. None before the
        first order, and with a seed. Checkpoints of earlier versions contain only the RNG state, as a tensor."""
        self.order: list[int] = []
        """The last order; empty before the first iteration."""
        self._again = False

    def same_order(self) -> LengthGroupedSampler:
        """Return a sampler that yields the last order of this sampler.

        If this sampler has not drawn an order yet, this method draws a new order for the returned sampler. The global
        RNG state does not change.
        """
        twin = copy.copy(self)
        if self.seed is None and self.state is None:
            before = torch.get_rng_state()
            twin._draw_state()
            torch.set_rng_state(before)
        twin._again = True
        return twin

    def repeat(self) -> None:
        """Make the next iteration yield the last order again, for a resume in the middle of an epoch.

        If both attributes `state` and `seed` are None, log a warning, and let the next iteration draw a new order.
        """
        self._again = True
        if isinstance(self.state, torch.Tensor):
            self.state = {"generator": self.state, "group_size": self.group_size}
        if self.state is None and self.seed is None:
            logger.warning(
                "The checkpoint does not contain the order of its epoch, so a new order is drawn. Some samples may "
                "come twice in this epoch, and others not at all."
            )

    def __iter__(self) -> Iterator[int]:
        again, self._again = self._again, False
        generator, group_size = torch.Generator(), self.group_size
        if self.seed is not None:
            generator.manual_seed(self.seed)
        else:
            if self.state is None or not again:
                self._draw_state()
            generator.set_state(self.state["generator"])
            group_size = self.state["group_size"]
        self.order = grouped_by_length(self.lengths, group_size, generator)
        return iter(self.order)

    def _draw_state(self) -> None:
        state = self.ranks.gather_objects(torch.get_rng_state())[0]
        self.state = {"generator": state, "group_size": self.group_size}
        torch.randperm(len(self))  # advances the global generator as if the order came from it

    def __len__(self) -> int:
        return len(self.lengths)


def grouped_by_length(lengths: Sequence[float], group_size: int, generator: torch.Generator) -> list[int]:
    """Draw a random order of all sample indices, in which neighbors have similar length.

    The samples are divided at random into chunks of `50 * group_size` samples. Each chunk is sorted by length, longest
    first. If this gives fewer than four chunks, the chunks are smaller.

    The longest of all samples comes first, so that the first step runs out of memory if any step does. The
    function draws the same random numbers, and returns the same indices, as transformers' `get_length_grouped_indices`.

    Args:
        lengths: length of each sample.
        group_size: number of samples of a group.
        generator: draws the random order.
    """
    rows = torch.randperm(len(lengths), generator=generator).numpy()
    width = group_size * max(1, min(len(lengths) // (group_size * 4), 50))
    shorter = np.asarray(lengths) * -1  # a stable sort keeps the random order of samples of one length
    chunks = [
        chunk[np.argsort(shorter[chunk], kind="stable")].tolist()
        for chunk in (rows[start : start + width] for start in range(0, len(rows), width))
    ]
    if chunks:
        longest = max(chunks, key=lambda chunk: lengths[chunk[0]])
        chunks[0][0], longest[0] = longest[0], chunks[0][0]
    return [row for chunk in chunks for row in chunk]


def lengths_of(dataset: Any, column: str, inputs: str) -> list[float]:
    """Return the length of each sample: the value under the key `column`, else the length of the main input.

    Args:
        dataset: a map-style dataset. For a dataset with `column_names`, only the needed column is read.
        column: key under which samples store their length.
        inputs: key of the model's main input. If samples lack the key `column`, the length of this input counts.

    Raises:
        DataError: if samples have neither key, if a value under `column` is not a number, or if a main input has no
            length.
    """
    if not len(dataset):
        return []
    columns = getattr(dataset, "column_names", None)
    known = columns if isinstance(columns, list) else _keys_of_first(dataset)
    name = next((name for name in (column, inputs) if name in known), None)
    if name is None:
        raise DataError(
            f"The samples cannot be grouped by length: they have neither {column!r} nor {inputs!r}, but "
            f"{', '.join(map(str, known)) or 'no keys'}. Add a column of lengths and set `length_column_name` to its "
            "name, or set `train_sampling_strategy='random'`."
        )
    lengths = column_lengths(dataset, name, name == column)
    if lengths is not None:
        return [*lengths]
    values = dataset[name] if known is columns else (dataset[row][name] for row in range(len(dataset)))
    return [_length(value, name == column, name, row) for row, value in enumerate(values)]


def _keys_of_first(dataset: Any) -> list[Any]:
    """Return the keys of the first sample; an empty list if the sample is not a mapping."""
    first = dataset[0]
    return [*first] if isinstance(first, Mapping) else []


def _length(value: Any, is_length: bool, name: str, row: int) -> float:
    """Return the length of one sample.

    Args:
        value: the length itself, or the input to measure.
        is_length: whether `value` is the length itself.
        name: key of `value`, for the error.
        row: index of the sample, for the error.

    Raises:
        DataError: if `value` has no length.
    """
    length: Any = value if is_length else len(value) if hasattr(value, "__len__") else None
    if hasattr(length, "item"):
        length = length.item()
    if not isinstance(length, (int, float)):
        raise DataError(
            f"Sample {row} cannot be grouped by length: its {name!r} is {value!r}, which has no length. Correct it, or "
            "set `train_sampling_strategy='random'`."
        )
    return length

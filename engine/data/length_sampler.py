"""Rows of similar length together: batches that need little padding, in an order that can be returned to."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler

from ...events.errors import DataError
from ..distributed.ranks import Ranks

logger = logging.getLogger(__name__)


class LengthGroupedSampler(Sampler[int]):
    """All rows in an order in which neighbours are of similar length: another one each time, or with `seed` the same.

    Without a seed the order comes from torch's global generator, as transformers' sampler of this name has it. All
    processes take that of the first, whose state at the draw is kept: with it, the order can be drawn again.
    """

    def __init__(self, lengths: Sequence[float], group_size: int, ranks: Ranks, seed: int | None = None) -> None:
        """Order rows of these lengths.

        Args:
            lengths: of each row, in any unit.
            group_size: rows of similar length that follow each other: those of a batch, or of an optimizer step.
            ranks: the processes that share the rows.
            seed: of the order; None draws from the global generator.
        """
        self.lengths = lengths
        self.group_size = group_size
        self.ranks = ranks
        self.seed = seed
        self.state: Any = None
        """What the last order was made from, the generator's state and the size of the groups; None before the first,
        and with a seed. Earlier checkpoints hold the former only."""
        self.order: list[int] = []
        """The last order."""
        self._again = False

    def repeat(self) -> None:
        """Give out once more, the next time, the order that belongs to `state`."""
        self._again = True
        if isinstance(self.state, torch.Tensor):
            self.state = {"generator": self.state, "group_size": self.group_size}
        if self.state is None and self.seed is None:
            logger.warning("The checkpoint does not say in which order its epoch was, so another one is drawn.")

    def __iter__(self) -> Iterator[int]:
        again, self._again = self._again, False
        generator, group_size = torch.Generator(), self.group_size
        if self.seed is not None:
            generator.manual_seed(self.seed)
        else:
            if self.state is None or not again:
                state = self.ranks.gather_objects(torch.get_rng_state())[0]
                self.state = {"generator": state, "group_size": group_size}
                torch.randperm(len(self))  # the global generator goes on as if the order came from it
            generator.set_state(self.state["generator"])
            group_size = self.state["group_size"]
        self.order = grouped_by_length(self.lengths, group_size, generator)
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.lengths)


def grouped_by_length(lengths: Sequence[float], group_size: int, generator: torch.Generator) -> list[int]:
    """Return all rows in random order, sorted within stretches of up to 50 groups from the longest to the shortest.

    There are at least four stretches, where there are so many groups. The longest row of all comes first, so that a
    step that takes too much memory is the first one. The draw and the result are those of transformers' function
    `get_length_grouped_indices`.
    """
    rows = torch.randperm(len(lengths), generator=generator).tolist()
    width = group_size * max(1, min(len(lengths) // (group_size * 4), 50))
    stretches = [
        sorted(rows[start : start + width], key=lengths.__getitem__, reverse=True)
        for start in range(0, len(rows), width)
    ]
    if stretches:
        longest = max(stretches, key=lambda stretch: lengths[stretch[0]])
        stretches[0][0], longest[0] = longest[0], stretches[0][0]
    return [row for stretch in stretches for row in stretch]


def lengths_of(dataset: Any, column: str, inputs: str) -> list[float]:
    """Return the length of each row: what stands in its `column`, or else the length of its `inputs`.

    Args:
        dataset: map-style; where it has columns, as a `datasets` one, only the column in question is read.
        column: the key of a length that was measured before.
        inputs: the key of the model's main input.

    Raises:
        DataError: if the rows have neither, or one of them has no length.
    """
    if not len(dataset):
        return []
    columns = getattr(dataset, "column_names", None)
    known = columns if isinstance(columns, list) else _keys_of_first(dataset)
    name = next((name for name in (column, inputs) if name in known), None)
    if name is None:
        raise DataError(
            f"The rows cannot be grouped by length: they have neither {column!r} nor {inputs!r}, but "
            f"{', '.join(map(str, known)) or 'no names at all'}. Add a column of lengths, and name it in "
            "`length_column_name`, or set `train_sampling_strategy='random'`."
        )
    values = dataset[name] if known is columns else (dataset[row][name] for row in range(len(dataset)))
    return [_length(value, name == column, name, row) for row, value in enumerate(values)]


def _keys_of_first(dataset: Any) -> list[Any]:
    first = dataset[0]
    return [*first] if isinstance(first, Mapping) else []


def _length(value: Any, is_length: bool, name: str, row: int) -> float:
    length: Any = value if is_length else len(value) if hasattr(value, "__len__") else None
    if hasattr(length, "item"):
        length = length.item()
    if not isinstance(length, (int, float)):
        raise DataError(
            f"Row {row} cannot be grouped by length: its {name!r} is {value!r}, which has none. Fill it in, or set "
            "`train_sampling_strategy='random'`."
        )
    return length

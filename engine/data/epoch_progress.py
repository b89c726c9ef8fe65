"""Progress of a loader within an epoch, and the state from which another loader resumes."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import Any

from ..checkpoint.rng_state import QuickStates, changed_states, random_states

logger = logging.getLogger(__name__)

END = object()
"""Marks the end of an epoch in place of a batch."""


@dataclass
class EpochProgress:
    """One iteration of a loader over its data: the RNG states at its start, and the position that it has reached."""

    began: dict[str, Any]
    """RNG states at the start of the iteration. They seed the workers, and a stream that is read again needs them."""
    first: dict[int, int] = field(default_factory=dict)
    """The number of samples, over all ranks, that an earlier session took, by worker number. Without workers, or for
    map-style data, the worker number is 0."""
    rows: dict[int, int] = field(default_factory=dict)
    """The number of samples, over all ranks, that are done, by worker number: `first` plus the batches that were
    yielded."""
    part: int = 0
    """Number of the worker that made the last batch."""
    pulled: int = 0
    """Batches taken from the dataset, the prefetched one included."""
    ahead: Any = None
    """The prefetched batch; `END` if there are no more; None before the first."""
    keeps_state: bool = False
    """Whether the dataset saves and restores its own position."""
    dataset: Any = None
    """The dataset's own position before the last batch was taken, if `keeps_state`."""
    workers: dict[int, Any] = field(default_factory=dict)
    """RNG states of each worker after its last batch, by worker number."""
    workers_began: dict[int, Any] = field(default_factory=dict)
    """RNG states of persistent workers at the start of the iteration, by worker number. Only for a stream that they
    have read in an earlier epoch, because a resumed run reads the stream from its start."""
    resumes: bool = True
    """Whether a checkpoint may need the position. If not, the RNG states before each batch are not read."""
    before: Any = None
    """RNG states of this process before it took the last batch, from `QuickStates.read`; None with workers, or
    without `resumes`."""
    own: dict[str, Any] | None = None
    """States of the dataset's and the collator's own generators before the last batch, from `OwnGenerators.read`; None
    without any."""
    maker: tuple[int, Any] | None = None
    """The worker that made the last batch, and its RNG states before that batch; None without workers."""

    def lose_dataset_state(self) -> None:
        """Leave the dataset's own position out of the state, because another iteration of the dataset changes it.

        A resumed run then reads the samples of the epoch from its start.
        """
        self.keeps_state, self.dataset = False, None

    def resume_state(self, parts: list[int], order: Any) -> dict[str, Any]:
        """Return the state that a checkpoint saves: nested values with tensors. From it, another loader resumes here.

        The state does not contain the prefetched batch. It contains the RNG states before this batch was fetched, if
        they differ from the states at the start of the iteration. So a resumed run fetches the same batch again. If you
        repair the dataset or the collator before you resume, the run gets the repaired batch.

        Args:
            parts: the value of `Loader.parts`.
            order: the state of the sampler, if the sampler draws a new order in each epoch; else None.
        """
        over = self.ahead is END
        before = None if self.before is None else QuickStates.named(self.before)
        if before is not None and self.own is not None:
            before["own"] = self.own
        workers = dict(self.workers)
        if self.maker is not None and not over:
            worker, states = self.maker
            workers[worker] = states
            if states is None:  # the first batch of the worker, which was seeded before
                del workers[worker]
        return {
            "began": self.began,
            "first": by_name(self.first),
            "rows": by_name(self.rows),
            "parts": parts,
            "part": self.part,
            "pulled": self.pulled - (not over),
            "over": over,
            "before": None if before is None else changed_states(before, self.began),
            "workers": by_name(workers),
            **({"workers_began": by_name(self.workers_began)} if self.workers_began else {}),
            "order": order,
            "dataset": self.dataset,
        }


def at_row(state: dict[str, Any], parts: list[int], *, is_stream: bool, warns: bool) -> dict[str, Any]:
    """Reduce a state to the samples that are done, so that a loader with another batch size can resume from it.

    Args:
        state: some or all entries of `EpochProgress.resume_state`. If it has no entry `rows`, or if its entry `parts`
            differs from `parts`, it must have the entry `row`: the finished samples of the epoch over all ranks.
        parts: the value of `Loader.parts` in this session.
        is_stream: whether the loader reads a stream.
        warns: whether to log a warning if the stream was divided into other parts when the checkpoint was saved.
    """
    resumed = {**state, "pulled": 0, "ahead": None, "before": None, "over": False, "workers": {}, "dataset": None}
    resumed.pop("workers_began", None)
    if not is_stream:
        # With a map-style dataset, these states only seed workers. With the saved states, workers would repeat their
        # random draws.
        resumed["began"] = random_states()
    if "rows" not in state or state.get("parts") != parts:
        resumed["rows"] = by_name(divided(state["row"], parts))
        before = state.get("parts", [1, 1])
        if warns and before != parts:
            logger.warning(
                "The stream of this epoch was read in %d part(s), and is now read in %d, because the number of ranks "
                "or workers changed. The checkpoint does not say which samples of the new parts are done. Some samples "
                "may come twice in this epoch, and others not at all. To avoid this, resume with the same number of "
                "ranks and workers.",
                math.prod(before),
                math.prod(parts),
            )
    resumed["first"] = resumed["rows"]
    return resumed


def divided(rows: int, parts: list[int]) -> dict[int, int]:
    """Divide the finished samples evenly over all ranks, and over the workers of each rank.

    Args:
        rows: samples that are done, over all ranks.
        parts: the value of `Loader.parts`.

    Returns:
        A dict for one rank. Each key is the number of a worker, from 0. Each value is its number of finished samples.
    """
    processes, workers = parts
    ends = [rows // processes * part // workers for part in range(workers + 1)]
    return {part: ends[part + 1] - ends[part] for part in range(workers)}


def by_name(values: dict[int, Any]) -> dict[str, Any]:
    """Convert the integer keys of a dict to strings, because checkpoints store string keys."""
    return {str(number): value for number, value in values.items()}


def by_number(values: dict[str, Any]) -> dict[int, Any]:
    """Convert string keys back to integers. This undoes `by_name`."""
    return {int(name): value for name, value in values.items()}

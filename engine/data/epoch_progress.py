"""Progress of a loader within an epoch, and the state from which another loader resumes."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import Any

from ..checkpoint.rng_state import QuickStates, changed_states, random_states

logger = logging.getLogger(__name__)

END = object()
"""The value that takes the place of a batch at the end of an epoch."""


@dataclass
class EpochProgress:
    """One iteration of a loader over its data: the RNG states at its start, and the position that it has reached."""

    began: dict[str, Any]
    """RNG states at the start of the iteration. The workers are seeded from these states. A resumed run restores these
    states before it starts the iteration again."""
    first: dict[int, int] = field(default_factory=dict)
    """The value of `rows` when the batch size, the world size or the number of workers changed in this epoch; empty if
    none of them changed."""
    rows: dict[int, int] = field(default_factory=dict)
    """The number of samples that are done, by worker number. Without workers, or for map-style data, the only key is 0.
    If each rank reads its own part of a stream, only the samples of this rank count. Otherwise the samples of all ranks
    count."""
    part: int = 0
    """Number of the worker that made the last fetched batch. 0 without workers, or for map-style data."""
    pulled: int = 0
    """Number of fetched batches, the prefetched batch included."""
    ahead: Any = None
    """The prefetched batch; `END` if no batch is left; None before the first batch is fetched."""
    keeps_state: bool = False
    """Whether the position is saved with `state_dict` of the dataset. Only for a stream without workers."""
    dataset: Any = None
    """The dataset's own state before the last batch was fetched; None if `keeps_state` is False."""
    workers: dict[int, Any] = field(default_factory=dict)
    """RNG states of each worker after its last batch, by worker number."""
    workers_began: dict[int, Any] = field(default_factory=dict)
    """RNG states of persistent workers at the start of the iteration, by worker number. Only for a stream, because a
    resumed run reads a stream from its start again. Empty in the epoch in which the run first starts the workers."""
    resumes: bool = True
    """Whether a checkpoint may need the position. If False, the RNG states before each batch are not read."""
    before: Any = None
    """RNG states of this process before the last batch was fetched, from `QuickStates.read`. None with workers, or if
    `resumes` is False."""
    own: dict[str, Any] | None = None
    """States of the dataset's and the collator's own generators before the last batch was fetched, from
    `OwnGenerators.read`. None if neither has a generator, with workers, or if `resumes` is False."""
    maker: tuple[int, Any] | None = None
    """The number of the worker that made the last fetched batch, and the RNG states of this worker before this batch.
    None without workers."""

    def continue_workers(self, states: dict[int, Any], *, is_stream: bool) -> None:
        """Store the RNG states with which persistent workers start this iteration.

        Args:
            states: RNG states by worker number. The method stores them in the attribute `workers`.
            is_stream: whether the loader reads a stream. If True, also store the states in `workers_began`.
        """
        self.workers = dict(states)
        if is_stream:
            self.workers_began = dict(states)

    def restore(self, state: dict[str, Any], parts: list[int]) -> None:
        """Set the attributes `first` and `rows` from a state.

        If the state is from the end of an epoch, also set the attributes `pulled`, `ahead` and `workers`.

        Args:
            state: the result of `resume_state` or of `at_row`.
            parts: the value of `Loader.parts`.
        """
        self.first = by_number(state.get("first", {}))
        self.rows = by_number(state["rows"]) if "rows" in state else divided(state.get("row", 0), parts)
        if state["over"]:
            self.pulled, self.ahead, self.workers = state["pulled"], END, by_number(state["workers"])

    def lose_dataset_state(self) -> None:
        """Save no state of the dataset from now on, because another iteration of the same dataset changes this state.

        A resumed run then reads the epoch from its first sample, and drops the samples that are already done.
        """
        self.keeps_state, self.dataset = False, None

    def resume_state(self, parts: list[int], order: Any) -> dict[str, Any]:
        """Return the state that a checkpoint saves: nested values with tensors. Another loader resumes from this state.

        The state does not contain the prefetched batch, which is in the attribute `ahead`. The state contains the RNG
        states before this batch was fetched, so that a resumed run fetches the same batch again.

        Args:
            parts: the value of `Loader.parts`.
            order: the `state` of a `LengthGroupedSampler` or a `UserSampler`; None for any other sampler.
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
    """Convert a saved state for a loader with another batch size, or with another number of ranks or workers.

    The result has the number of finished samples of each worker. If `state` has these numbers, and `parts` has not
    changed, the function copies the numbers. In all other cases, the function divides the number of all finished
    samples evenly over the workers. The result has no number of finished batches and no states of workers.

    Args:
        state: some or all entries of `EpochProgress.resume_state`, and the entry `row`: the number of finished samples
            of the epoch, over all ranks.
        parts: the value of `Loader.parts` in this session.
        is_stream: whether the loader reads a stream.
        warns: whether to log a warning if `parts` has changed.
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
    """Divide a number of finished samples evenly over ranks and workers.

    Args:
        rows: the number of finished samples, over all ranks.
        parts: the value of `Loader.parts`. For example, `[2, 4]`: 2 ranks read separate parts of a stream, and each
            rank has 4 workers.

    Returns:
        The number of finished samples for each worker number 0, 1, ..., as in `EpochProgress.rows`. Equal on all ranks.
    """
    processes, workers = parts
    ends = [rows // processes * part // workers for part in range(workers + 1)]
    return {part: ends[part + 1] - ends[part] for part in range(workers)}


def by_name(values: dict[int, Any]) -> dict[str, Any]:
    """Convert the integer keys of a dict to strings, because checkpoints store string keys."""
    return {str(number): value for number, value in values.items()}


def by_number(values: dict[str, Any]) -> dict[int, Any]:
    """Convert the string keys of a dict from a checkpoint to integers."""
    return {int(name): value for name, value in values.items()}

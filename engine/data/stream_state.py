"""Where a stream of rows is: the state of a dataset that can say so, and can go on from it exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def dataset_state(dataset: Any) -> Any:
    """Return where a dataset is; None where it cannot say so, and is read anew."""
    return dataset.state_dict() if keeps_state(dataset) else None


def keeps_state(dataset: Any) -> bool:
    """Say whether a dataset can say where it is, by `state_dict`, and go on from there, by `load_state_dict`.

    A `datasets.IterableDataset` that shuffles in a buffer cannot: its state leaves out what is in the buffer.
    """
    return hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict") and not _shuffles(dataset)


def restore_dataset(dataset: Any, state: Any) -> bool:
    """Put a dataset to where `dataset_state` found it; False where there is no state to put it to."""
    if state is None or not hasattr(dataset, "load_state_dict"):
        return False
    dataset.load_state_dict(state)
    return True


def _shuffles(dataset: Any) -> bool:
    return any(type(stage).__name__.startswith("BufferShuffled") for stage in _stages(dataset))


def _stages(dataset: Any) -> Iterator[Any]:
    """Yield the stages of a `datasets.IterableDataset`, from the last to its sources."""
    waiting = [getattr(dataset, "_ex_iterable", None)]
    while waiting:
        stage = waiting.pop()
        if stage is not None:
            yield stage
            waiting += [getattr(stage, "ex_iterable", None), *getattr(stage, "ex_iterables", ())]

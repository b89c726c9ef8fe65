"""The position of a streaming dataset, for datasets that can save and restore their position."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any


def dataset_state(dataset: Any) -> Any:
    """Return the position of a streaming dataset; None if the dataset cannot save its position.

    Without a position, a resumed run reads the epoch from the first sample, and drops the samples that are done.
    """
    return dataset.state_dict() if keeps_state(dataset) else None


def keeps_state(dataset: Any) -> bool:
    """Return whether a dataset saves its position in `state_dict` and restores the position in `load_state_dict`.

    Return False for a `datasets.IterableDataset` that shuffles with a buffer, because its state does not contain the
    samples in the buffer.
    """
    return hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict") and not _shuffles(dataset)


def restore_dataset(dataset: Any, state: Any) -> bool:
    """Restore a position that `dataset_state` returned.

    Returns:
        True if the position was restored; False if `state` is None, or if the dataset has no `load_state_dict`.
    """
    if state is None or not hasattr(dataset, "load_state_dict"):
        return False
    dataset.load_state_dict(state)
    return True


def unresumed(dataset: Any) -> Any:
    """Return a dataset of the same samples that starts at the first sample of the epoch.

    All iterations of a `datasets.IterableDataset` share one position, which `load_state_dict` sets. For such a dataset,
    the function returns a copy that has its own position and starts at the first sample. It returns any other dataset
    unchanged.
    """
    if not hasattr(dataset, "_ex_iterable"):
        return dataset
    twin = object.__new__(type(dataset))  # a copy by `copy.copy` would share the attributes
    vars(twin).update(vars(dataset), _ex_iterable=_copy_stages(dataset._ex_iterable), _starting_state_dict=None)
    return twin


def _copy_stages(stage: Any) -> Any:
    """Copy a processing stage of a `datasets.IterableDataset`, and the stages before it, without their position."""
    twin = copy.copy(stage)
    own = vars(twin)
    for name, value in own.items():
        if name == "ex_iterable":
            own[name] = _copy_stages(value)
        elif name == "ex_iterables":
            own[name] = type(value)(map(_copy_stages, value))
        elif name == "_state_dict":
            own[name] = None
    return twin


def _shuffles(dataset: Any) -> bool:
    """Return whether any processing stage of a `datasets.IterableDataset` shuffles with a buffer."""
    return any(type(stage).__name__.startswith("BufferShuffled") for stage in _stages(dataset))


def _stages(dataset: Any) -> Iterator[Any]:
    """Yield the processing stages of a `datasets.IterableDataset`, from the last stage back to the sources."""
    waiting = [getattr(dataset, "_ex_iterable", None)]
    while waiting:
        stage = waiting.pop()
        if stage is not None:
            yield stage
            waiting += [getattr(stage, "ex_iterable", None), *getattr(stage, "ex_iterables", ())]

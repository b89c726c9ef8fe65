"""Explain index errors, such as a label that is not a class: name the batch, the samples and the valid range."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import SequentialSampler

from ...events.activity import EVALUATION, PREDICTION, activity_of
from ...events.errors import DataError, ModelError, note
from ..data.batches import IGNORED_LABEL, map_tensors, rows_of
from ..data.build import order_of
from ..data.loader import Loader
from ..data.samplers import BatchedSampler, ShuffledSampler
from ..data.streaming_shards import StreamShard
from .dtype_errors import dtype_note
from .gradient_errors import gradient_note
from .left_out import explain_left_out
from .target_errors import CLASSES, FUNCTIONAL, target_note

if TYPE_CHECKING:
    from ..run import Run

_OUT_OF_BOUNDS = "out of bounds"
"""Text of the error of `linear_cross_entropy`, which is a RuntimeError."""

DEVICE_ASSERT = "device-side assert triggered"
"""Text of the error of CUDA, which does not give the cause."""


class OutOfRange(NamedTuple):
    """A tensor of labels or input ids, with the valid range. Used if an index in the tensor is out of range."""

    what: str
    """`labels` or `input ids`."""
    indices: torch.Tensor
    """The whole tensor, including the valid indices."""
    limit: int
    """The number of valid indices. Valid indices are 0 to `limit - 1`."""
    ignored: int | None
    """One more valid index, such as -100; None if there is none."""

    @property
    def rows(self) -> list[int]:
        """The positions along the first dimension at which an index is out of range; `[0]` if `indices` is a scalar."""
        return self.positions(0)

    def positions(self, dimension: int) -> list[int]:
        """Return the positions along a dimension at which an index is out of range; `[0]` if `indices` is a scalar."""
        wrong = (self.indices < 0) | (self.indices >= self.limit)
        if self.ignored is not None:
            wrong &= self.indices != self.ignored
        if not wrong.dim():
            return [0]
        wrong = wrong.transpose(0, dimension)
        found: list[int] = wrong.reshape(wrong.shape[0], -1).any(1).nonzero().flatten().tolist()
        return found


def out_of_range(error: BaseException) -> OutOfRange | None:
    """Return the labels or input ids that caused an index error of torch; None if the error has another cause.

    The function reads the labels or input ids from the frames of the traceback.
    """
    if not isinstance(error, IndexError) and _OUT_OF_BOUNDS not in str(error):
        return None
    for frame, _ in reversed([*traceback.walk_tb(error.__traceback__)]):
        if not frame.f_code.co_filename.replace("\\", "/").endswith(FUNCTIONAL):
            continue
        values, name = frame.f_locals, frame.f_code.co_name
        if name in CLASSES:
            scores, labels = values["input"], values["target"]
            classes = scores.shape[1] if scores.dim() > 1 else scores.shape[0]
            return OutOfRange("labels", labels.detach(), classes, values.get("ignore_index", IGNORED_LABEL))
        if name == "linear_cross_entropy":
            return OutOfRange("labels", values["target"].detach(), len(values["linear_weight"]), values["ignore_index"])
        if name == "embedding":
            return OutOfRange("input ids", values["input"].detach(), values["weight"].shape[0], None)
    return None


@contextmanager
def indices_explained(run: Run) -> Iterator[None]:
    """Replace index errors in a `with` block by errors that name the batch, the samples and the valid range.

    Other errors are raised again. Some of them get a text that names a likely cause, such as tensors with a wrong data
    type or shape, samples that look like whole batches, columns of texts, or a loss without a gradient.

    Raises:
        DataError: if the cause is a label that is not a class, or an input id without an embedding.
    """
    try:
        yield
    except (IndexError, RuntimeError, ValueError) as error:
        found = out_of_range(error)
        if found is not None and found.rows:
            raise DataError(_message(run, found, error)) from error
        if DEVICE_ASSERT in str(error) and hasattr(error, "add_note"):
            error.add_note(
                "A common cause is a label or an input id that is out of range. Run one step with `use_cpu=True`: the "
                "error then names the batch and the sample."
            )
        elif (rows := _rows_in_sample(run)) and hasattr(error, "add_note"):
            error.add_note(
                f"Each batch has one sample, and each tensor of it has {rows} rows: the shapes are (1, {rows}, ...). "
                f"If the dataset is batched already, as by `Dataset.batch({rows})`, pass it without that, or pass "
                f"`trainbus.unbatched(dataset)`, and set `per_device_train_batch_size={rows}`."
            )
        if text := target_note(error) or dtype_note(run, error) or gradient_note(run, error):
            note(error, text)
        if isinstance(error, ModelError):
            _explain_left_out(run, error)
        raise
    except (TypeError, AttributeError) as error:  # the loss or the model receives None, or texts
        _explain_left_out(run, error)
        raise


def _explain_left_out(run: Run, error: BaseException) -> None:
    place = _failing(run, error)
    dataset = getattr(place.loader, "dataset", None)
    dataset = dataset.rows if isinstance(dataset, StreamShard) else dataset
    row = place.indices[0] if place.indices else None
    explain_left_out(run, error, place.batch, dataset, row, place.dataset)


def _rows_in_sample(run: Run) -> int:
    """Return n if all values of the training batch are tensors of shape (1, n, ...), with the same n > 1; otherwise 0.

    The only sample of such a batch looks like a whole batch of n samples. Return 0 if the batch has only one value,
    or if the training batch size is not 1.
    """
    batch = run.batch
    if run.mode != "train" or run.train_batch_size != 1 or not isinstance(batch, Mapping) or len(batch) < 2:
        return 0
    shapes = {tuple(value.shape[:2]) if isinstance(value, torch.Tensor) else () for value in batch.values()}
    shape: tuple[int, ...] = shapes.pop()
    return shape[1] if not shapes and len(shape) == 2 and shape[0] == 1 < shape[1] else 0


def _message(run: Run, found: OutOfRange, error: BaseException) -> str:
    return message_of(found, *_place(run, found, error))


def message_of(found: OutOfRange, where: str, samples: str) -> str:
    """Return the text of the error about indices out of range.

    Args:
        found: the labels or input ids of the batch, with their valid range.
        where: a text that names the batch, such as `a batch of step 3`.
        samples: a text that names the samples with an index out of range, such as `samples 0, 2 of the batch`.
    """
    indices, what, limit = found.indices, found.what, found.limit
    counted = indices if found.ignored is None else indices[indices != found.ignored]
    wrong = sorted({*counted[(counted < 0) | (counted >= limit)].tolist()})
    noun, remedy = ("classes", _LABEL_REMEDY) if what == "labels" else ("embeddings", _INPUT_REMEDY)
    if max(wrong) < 0:
        ignored = "" if found.ignored is None or what != "labels" else f", or {found.ignored}, which is ignored"
        remedy = f"Make them 0 or more{ignored}."
    shown = ", ".join(map(str, wrong[:5])) + (", ..." if len(wrong) > 5 else "")
    span = f"those of this batch go from {counted.min().item()} to {counted.max().item()}"
    return (
        f"The {what} {shown} are out of range in {where}: {samples}. The model has {limit} {noun}, so {what} go from 0 "
        f"to {limit - 1}; {span}. {remedy.format(least=max(wrong) + 1)}"
    )


_LABEL_REMEDY = "Set the number of classes of the model to {least} or more, or count labels from 0; -100 is ignored."
_INPUT_REMEDY = "Use the tokenizer of the model, or resize its embeddings to {least} or more."


class FailingBatch(NamedTuple):
    """The batch in which an error was raised."""

    where: str
    """A text that names the batch, such as `a batch of step 3`."""
    dataset: str
    """A text that names the dataset, such as `the training dataset`."""
    batch: Any
    """The batch; None if it is unknown."""
    indices: list[int] | None
    """The dataset index of each sample; None if the indices are unknown."""
    loader: Any
    """The loader that made the batch."""


def _failing(run: Run, error: BaseException) -> FailingBatch:
    """Return the batch in which an error was raised."""
    activity = activity_of(error) or run.activity.name
    if activity not in (EVALUATION, PREDICTION):
        where = f"a batch of step {run.state.global_step + 1}"
        of_batch = dataset_indices(run, [run.step.batch_index])
        indices = None if of_batch is None else of_batch[0]
        return FailingBatch(where, "the training dataset", run.batch, indices, run.train_dataloader)
    name = run.dataset_name
    where = f"a batch of {activity}" + (f" of the dataset {name!r}" if name else "")
    dataset = f"the dataset {name!r}" if name else "the dataset"
    return FailingBatch(where, dataset, _evaluated_batch(error), _evaluated_indices(run), run.eval_dataloader)


def _place(run: Run, found: OutOfRange, error: BaseException) -> tuple[str, str]:
    """Return two texts for an error: one names the batch, the other names its samples with an index out of range.

    Args:
        run: the run.
        found: the labels or input ids of the batch.
        error: the index error.
    """
    where, dataset, batch, indices, _ = _failing(run, error)
    rows = rows_in_batch(found, batch, None if indices is None else len(indices))
    if rows is None:
        return where, f"one or more of the samples {_listed(indices or [])} of {dataset}"
    samples = f"samples {_listed(rows)} of the batch, counted from 0"
    if indices is not None:
        samples += (
            f", which are the samples {_listed([indices[row] for row in rows if row < len(indices)])} of {dataset}"
        )
    return where, samples


def _evaluated_batch(error: BaseException) -> Any:
    """Return the batch of an evaluation in which an error was raised; None if the traceback does not have it."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename.replace("\\", "/").endswith("evaluation/loop.py") and "batch" in frame.f_locals:
            return frame.f_locals["batch"]
    return None


def rows_in_batch(found: OutOfRange, batch: Any, size: int | None) -> list[int] | None:
    """Return the positions in the batch, from 0, of the samples that have a label or input id out of range.

    Args:
        found: the labels or input ids of the batch, with their valid range.
        batch: the whole batch; None if it is unknown. Its shapes show which dimension counts the samples.
        size: the number of samples of the batch. If None, the first dimension of the batch counts the samples.

    Returns:
        The positions. If the shapes in the batch do not match `size`, the positions are unknown, and the result is
        None. For example, a packed batch has all samples in one row, so its first dimension is 1 and not `size`.
    """
    known = size is not None
    size = size if size is not None else None if batch is None else rows_of(batch)
    if not size or not found.indices.dim():
        return found.rows
    shape, shapes = found.indices.shape, _shapes_in(batch) or [found.indices.shape]
    time_major = any(each[:1] != (size,) == each[1:2] for each in shapes)
    time_major &= not any(each[:1] == (size,) != each[1:2] for each in shapes if len(each) > 1)
    if known and not time_major and not any(each[:1] == (size,) for each in shapes):
        return None
    if time_major and shape[1:2] == (size,):
        return found.positions(1)
    if len(found.indices) == size:
        return found.rows
    if len(found.indices) % size:
        return None if known else found.rows
    # Labels of tokens, flattened to one dimension.
    parts = len(found.indices) // size
    return sorted({row % size if time_major else row // parts for row in found.rows})


def _shapes_in(batch: Any) -> list[torch.Size]:
    """Return the shapes of all tensors in a batch, except scalars."""
    shapes: list[torch.Size] = []
    map_tensors(lambda tensor: shapes.append(tensor.shape), batch)
    return [shape for shape in shapes if shape]


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")


def dataset_indices(run: Run, numbers: Iterable[int]) -> list[list[int]] | None:
    """Return one list of dataset indices per training batch.

    Args:
        run: the run.
        numbers: the number of each batch in the current step, from 0.

    Returns:
        The lists; None if the indices are unknown. They are known for a `Loader` with a `ShuffledSampler` or a
        `SequentialSampler`, except in an epoch that was resumed with another batch size.
    """
    loader = run.train_dataloader
    batches = loader.batch_sampler if isinstance(loader, Loader) else None
    if not isinstance(batches, BatchedSampler) or run.position is None or loader.starts_at_row:
        return None
    if not isinstance(batches.sampler, (ShuffledSampler, SequentialSampler)):
        return None  # the order cannot be drawn again without random draws
    order, first = [*batches.sampler], run.position.batches
    return [_indices(batches, order, first + number) for number in numbers]


def _evaluated_indices(run: Run) -> list[int] | None:
    """Return the dataset index of each sample of the current evaluation batch; None if the indices are unknown."""
    loader = run.eval_dataloader
    batches = loader.batch_sampler if isinstance(loader, Loader) else None
    if not isinstance(batches, BatchedSampler):
        return None
    order = order_of(loader) or ([*batches.sampler] if isinstance(batches.sampler, SequentialSampler) else None)
    return None if order is None else _indices(batches, order, run.evaluation.batch_number)


def _indices(batches: BatchedSampler, order: Sequence[int], number: int) -> list[int]:
    """Return the dataset index of each sample of a batch of this rank.

    Args:
        batches: the batch sampler.
        order: the dataset indices in the order of the sampler.
        number: the number of the batch among the batches of this rank, from 0.
    """
    start = number * batches.stride + batches.rank * batches.batch_size
    end = start + batches.batch_size
    if batches.world_size == 1 or not batches.even:
        end = min(end, len(order))  # otherwise samples from the start of the epoch fill up the batch
    return [order[row % len(order)] for row in range(start, end)]

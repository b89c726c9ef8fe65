"""Results of an evaluation in progress: losses, predictions, labels and inputs of all ranks, and the number of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..distributed.ranks import Ranks
from .gathering import BatchLosses, Gathered, copied, first_rows, gather_batches, gather_rows
from .outputs import EvalPrediction

GATHERED_TOGETHER = 8
"""The number of batches whose results are gathered from all ranks at once."""


class BatchResult(NamedTuple):
    """The results of this rank for one batch.

    A field is None if the evaluation does not have this value, such as `labels` for a batch without labels.
    """

    rows: int
    """Number of rows, without padding rows."""
    loss: Any
    """Mean loss, a scalar tensor."""
    predictions: Any
    """Logits of shape (rows, ...), or mappings and sequences of such tensors."""
    labels: Any
    """Labels of shape (rows, ...), or mappings and sequences of such tensors."""
    inputs: Any
    """Main input of the model, shape (rows, ...)."""


class Results:
    """The results of one evaluation, from all batches and ranks."""

    def __init__(
        self,
        *,
        concat: bool,
        dataset_size: int | None,
        rows_to_read: Callable[[], int | None] = lambda: None,
        include_losses: bool,
        as_objects: bool,
        together: bool = False,
        copies: bool = True,
        copies_labels: bool = True,
    ) -> None:
        """Create an empty collection.

        Args:
            concat: whether to join batches into one array. False keeps a list of batches.
            dataset_size: number of rows of the dataset; None if the dataset has no length, or if a limit leaves out
                batches.
            rows_to_read: a function that returns how many rows all ranks together read, without padding rows. Gathered
                rows after this number are padding rows. If the function returns None, no row counts as a padding row.
            include_losses: give `compute_metrics` the losses.
            as_objects: gather pickled objects instead of tensors.
            together: gather the results of `GATHERED_TOGETHER` batches at once, so that fast ranks wait less often. If
                True, do not call `last_prediction`, and call `finish` after the last batch. True has no effect if
                `concat` is False or `as_objects` is True.
            copies: in a single process, store copies of predictions, labels and inputs, because the next batch may
                overwrite them. Pass False if you call `drop_batch` after each batch.
            copies_labels: if `copies` is True, copy labels and inputs too. Pass False if the collator makes new tensors
                for each batch.
        """
        self.losses = BatchLosses(True)
        self.predictions, self.labels, self.inputs = Gathered(concat), Gathered(concat), Gathered(concat)
        self.dataset_size, self.rows_to_read = dataset_size, rows_to_read
        self.rows_gathered = 0
        """Rows of all gathered batches, over all ranks, padding rows included."""
        self.last_rows = 0
        """Rows of the last gathered batch, over all ranks, padding rows included."""
        self._concat, self._include_losses, self._as_objects = concat, include_losses, as_objects
        self._copies, self._copies_labels = copies, copies and copies_labels
        self._batch_rows: list[int] = []
        self._fills_up = False
        self._together = together and concat and not as_objects
        self._waiting: list[tuple[int, tuple[Any, ...]]] = []
        """Number of rows and parts of each batch that is not gathered yet."""

    @property
    def rows(self) -> int:
        """Number of rows: `dataset_size`. If `dataset_size` is None: `rows_gathered`."""
        return self.rows_gathered if self.dataset_size is None else self.dataset_size

    @property
    def padding_rows(self) -> int:
        """Number of padding rows at the end of the gathered rows. They make the batches of all ranks equally large.

        0 in a single process.
        """
        expected = self.rows_to_read() if self._fills_up else None
        return 0 if expected is None else max(0, self.rows_gathered - expected)

    @property
    def has_last_pair(self) -> bool:
        """Whether the method `last_prediction` returns both predictions and labels. Metrics need both."""
        return bool(self.predictions.parts and self.labels.parts)

    def add(self, result: BatchResult, ranks: Ranks) -> None:
        """Gather the results of one batch from all ranks, and add them. Every rank must call this method."""
        if ranks.single_process:
            self._add_own(*result)
            return
        losses = None if result.loss is None else result.loss.repeat(result.rows)
        parts = (losses, result.predictions, result.labels, result.inputs)
        self._fills_up = True
        if self._together:
            self._waiting.append((result.rows, (losses, *map(copied, parts[1:]))))
            if len(self._waiting) == GATHERED_TOGETHER:
                self.finish(ranks)
            return
        gathered = tuple(zip(self._collections, parts))
        self.last_rows = gather_rows(gathered, ranks, result.rows, as_objects=self._as_objects)
        self.rows_gathered += self.last_rows
        self._batch_rows.append(self.last_rows)

    def _add_own(self, rows: int, loss: Any, predictions: Any, labels: Any, inputs: Any) -> None:
        """Add the results of one batch in a single process. The parameters are the fields of `BatchResult`."""
        if loss is not None:
            if loss.dim() or self._include_losses:
                self.losses.add(loss.repeat(rows))
            else:
                self.losses.add_scalar(loss, rows)
        if predictions is not None:
            self.predictions.add(copied(predictions) if self._copies else predictions)
        if labels is not None:
            self.labels.add(copied(labels) if self._copies_labels else labels)
        if inputs is not None:
            self.inputs.add(copied(inputs) if self._copies_labels else inputs)
        self.last_rows = rows
        self.rows_gathered += rows
        self._batch_rows.append(rows)

    def finish(self, ranks: Ranks) -> None:
        """Gather the results that `add` has not gathered yet. Every rank must call this method."""
        if self._waiting:
            self.rows_gathered += gather_batches(self._collections, self._waiting, ranks)
            self._waiting = []

    @property
    def _collections(self) -> tuple[Gathered, ...]:
        return self.losses, self.predictions, self.labels, self.inputs

    def last_prediction(self) -> EvalPrediction:
        """Return the results of the last batch as tensors, without padding rows."""
        of = self.last_rows
        rows = of - self.padding_rows
        losses = self.losses.last(rows, of) if self._include_losses else None
        return EvalPrediction(
            self.predictions.last(rows, of),
            self.labels.last(rows, of),
            inputs=self.inputs.last(rows, of),
            losses=losses,
        )

    def drop_batch(self) -> None:
        """Delete the predictions, labels and inputs that `to_host` has not moved to host memory yet. Losses stay.

        The loop calls this method after each batch if the evaluation does not store predictions.
        """
        for collection in (self.predictions, self.labels, self.inputs):
            collection.drop()

    def to_host(self) -> None:
        """Move all gathered results to host memory."""
        for collection in self._collections:
            collection.to_host()

    def row_losses(self) -> Any:
        """Return for each row the mean loss of its batch, shape (rows,), in loader order; None if there are no losses.

        The losses are not sorted into dataset order, because the mean of the losses would then round differently.
        """
        return self.losses.whole(self.rows_gathered - self.padding_rows, of=self.rows_gathered)

    def prediction(self, order: list[int] | None, row_losses: Any) -> EvalPrediction:
        """Return predictions, labels, inputs and losses of all rows, as numpy arrays in dataset order.

        If this object was created with `concat=False`, return lists of batches in the order of the loader instead. The
        losses are None if this object was created with `include_losses=False`.

        Args:
            order: dataset index of each row, in the order of the loader; None if the loader has the order of the
                dataset.
            row_losses: the result of `Results.row_losses`.
        """
        kept, of = self.rows_gathered - self.padding_rows, self.rows_gathered
        predictions, labels, inputs = (
            collection.whole(kept, order, self.padding_rows, of, self.last_rows)
            for collection in (self.predictions, self.labels, self.inputs)
        )
        losses = None
        if self._include_losses and row_losses is not None:
            losses = (
                first_rows(row_losses, kept, order, kept)
                if self._concat
                else np.split(row_losses, np.cumsum(self._batch_rows)[:-1])
            )
        return EvalPrediction(predictions, labels, inputs=inputs, losses=losses)

"""The text of the warning or error about an evaluation or a prediction that gets no batch."""

from __future__ import annotations

from typing import Any

from ..arguments import TrainingArguments
from ..data.build import length_of
from ..data.streaming_shards import StreamShard


def no_batch_warning(loader: Any, description: str, name: str, args: TrainingArguments, ranks: int) -> str:
    """Return the text about missing batches: the dataset, its number of rows, the batch size and the remedy.

    Args:
        loader: the loader that yields no batch.
        description: `Evaluation` or `Prediction`.
        name: the prefix of the metrics, which contains the name of the dataset.
        args: the training arguments.
        ranks: the number of ranks.
    """
    dataset = getattr(loader, "dataset", None)
    if isinstance(dataset, StreamShard):
        dataset = dataset.rows
    rows = length_of(dataset)
    kind = "The loader" if dataset is None else f"The dataset ({type(dataset).__name__})"
    count = "an unknown number of" if rows is None else rows
    on_ranks = f" on each of {ranks} ranks" if ranks > 1 else ""
    text = f"{description} {name!r} got no batch, so it measures no loss and no metric. {kind} has {count} rows, and "
    text += f"`per_device_eval_batch_size` is {args.per_device_eval_batch_size}{on_ranks}. "
    if rows == 0:
        return text + "Pass a dataset with rows."
    if args.dataloader_drop_last:
        most = "a smaller number" if rows is None else f"{max(rows // ranks, 1)} or less"
        return text + (
            "`dataloader_drop_last=True` leaves out a batch that is not full. Set it to False, or set "
            f"`per_device_eval_batch_size` to {most}."
        )
    return text + "Pass a dataset whose iterator yields rows."

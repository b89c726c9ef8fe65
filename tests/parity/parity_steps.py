"""Cases about the length of a run, and the order and the source of its samples."""

from __future__ import annotations

from parity_case import EVAL_ROWS, TRAIN_ROWS, Case

from support.data import sentences
from support.parity_data import (
    Rotating,
    Stream,
    Thinned,
    accuracy,
    classified,
    masked,
    measured_table,
    padded,
    renamed,
    table,
    texts,
    tokenizer,
)
from support.parity_models import Plain, of_bert, plain
from support.trainers import Fresh

STREAMED = {"train_dataset": Stream(sentences(TRAIN_ROWS)), "eval_dataset": Stream(sentences(EVAL_ROWS, 1))}
TABLES = {
    "train_dataset": Fresh(lambda: table(sentences(TRAIN_ROWS))),
    "eval_dataset": Fresh(lambda: table(sentences(EVAL_ROWS, 1))),
}
UNEVEN = {
    **{"model": of_bert("SequenceClassification"), "processing_class": Fresh(tokenizer)},
    **{"train_dataset": classified(TRAIN_ROWS), "eval_dataset": classified(EVAL_ROWS, 1)},
}

LENGTH = {
    "defaults": Case(
        {}, about="By default, the order of samples, dropout, AdamW and the linear schedule are as in transformers."
    ),
    "plain model with defaults": Case(
        {},
        {"model": plain(), "compute_metrics": accuracy},
        about="A plain PyTorch model with dropout trains with all defaults.",
    ),
    "accumulation over one batch": Case(
        {"gradient_accumulation_steps": 1}, about="The value 1 turns accumulation off."
    ),
    "accumulation over three batches": Case({"gradient_accumulation_steps": 3}, about="An epoch has two full steps."),
    "accumulation over four batches": Case(
        {"gradient_accumulation_steps": 4},
        about="The last step of an epoch has two batches, and one of them is not full.",
    ),
    "accumulation over more batches than an epoch": Case(
        {"gradient_accumulation_steps": 10}, about="An epoch is one step with fewer batches."
    ),
    "accumulation over batches of one sample": Case(
        {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 1, "num_train_epochs": 1},
        about="The last step of the epoch has two batches.",
    ),
    "0.3 epochs": Case({"num_train_epochs": 0.3}, about="The number of steps is rounded up to two."),
    "1.7 epochs": Case({"num_train_epochs": 1.7}, about="The run ends inside the last epoch."),
    "1.5 epochs with accumulation": Case(
        {"num_train_epochs": 1.5, "gradient_accumulation_steps": 4},
        about="The fraction of the epoch is a fraction of its steps, not of its batches.",
    ),
    "max_steps below one epoch": Case({"max_steps": 4}, about="The number of epochs is ignored."),
    "max_steps inside the third epoch": Case({"max_steps": 15}, about="The run ends inside the third epoch."),
    "max_steps of two epochs": Case({"max_steps": 12}, about="The run ends at the end of an epoch."),
    "max_steps with accumulation": Case(
        {"max_steps": 5, "gradient_accumulation_steps": 4},
        about="The batches that remain at the end of each epoch make a step.",
    ),
    "zero epochs": Case(
        {"num_train_epochs": 0}, {"model": plain()}, about="The run makes no step, and the summary is logged."
    ),
    "0.05 epochs": Case({"num_train_epochs": 0.05}, {"model": plain()}, about="The run makes one step."),
    "2.3 epochs with accumulation": Case(
        {"num_train_epochs": 2.3, "gradient_accumulation_steps": 4},
        {"model": plain()},
        about="The number of steps is rounded up to five.",
    ),
    "one step with fewer batches": Case(
        {"max_steps": 1, "gradient_accumulation_steps": 10},
        {"model": plain()},
        about="The step takes all batches of the epoch.",
    ),
    "five epochs with all intervals": Case(
        {
            **{"num_train_epochs": 5, "gradient_accumulation_steps": 3, "dataloader_drop_last": True},
            **{"logging_steps": 2, "eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps"},
            "save_steps": 4,
        },
        {"model": plain(), "compute_metrics": accuracy},
        about="Logs, evaluations and checkpoints have different intervals.",
    ),
    "drop last": Case(
        {"dataloader_drop_last": True}, about="An incomplete batch is dropped in training and in evaluation."
    ),
    "drop last with accumulation": Case(
        {"dataloader_drop_last": True, "gradient_accumulation_steps": 2},
        about="The dropped batch is not part of the last step of an epoch.",
    ),
    "one sample": Case(
        {"num_train_epochs": 3}, {"train_dataset": sentences(1)}, about="The batch size is larger than the dataset."
    ),
    "other seed": Case({"seed": 7}, about="`seed` sets the order of samples, and dropout."),
    "other data seed": Case({"data_seed": 7}, about="`data_seed` sets the order of samples, but not dropout."),
    "both seeds": Case(
        {"seed": 3, "data_seed": 11, "num_train_epochs": 3},
        about="`seed` sets dropout, and `data_seed` sets the order of samples.",
    ),
    "full determinism": Case({"full_determinism": True}, about="Only deterministic algorithms run."),
    "model_init": Case(
        {"seed": 5}, {"model_init": lambda: Plain()}, about="`train()` calls `model_init` and trains the new model."
    ),
}
"""Cases about the length of a run and the batches of a step."""

DATA = {
    "two workers": Case(
        {"dataloader_num_workers": 2, "num_train_epochs": 1},
        {"model": plain()},
        about="The order of the samples is the same as without workers.",
    ),
    "persistent workers": Case(
        {"dataloader_num_workers": 2, "dataloader_persistent_workers": True, "dataloader_prefetch_factor": 3},
        {"model": plain()},
        about="The workers stay alive for all epochs, and load batches in advance.",
    ),
    "persistent workers for evaluations": Case(
        {
            **{"dataloader_num_workers": 2, "dataloader_persistent_workers": True},
            **{"eval_strategy": "steps", "eval_steps": 3, "max_steps": 10},
        },
        {"model": plain(), "data_collator": masked, "compute_metrics": accuracy},
        about="Each set of workers is seeded once. Evaluations do not change the random numbers of training.",
    ),
    "workers for evaluations": Case(
        {"dataloader_num_workers": 2, "eval_strategy": "epoch"},
        {"model": plain(), "data_collator": masked, "compute_metrics": accuracy},
        about="Each evaluation has new workers with a new seed.",
    ),
    "random collator": Case(
        {},
        {"data_collator": masked},
        about=(
            "The loader collates each batch one step early. The order of random draws is the same as in transformers."
        ),
    ),
    "random collator in workers": Case(
        {"dataloader_num_workers": 2, "num_train_epochs": 1},
        {"data_collator": masked, "model": plain()},
        about="Each worker has the same seed as in transformers.",
    ),
    "stream": Case(
        {"max_steps": 6}, {**STREAMED, "model": plain()}, about="The run reads a stream of unknown length once."
    ),
    "stream, several passes": Case(
        {"max_steps": 15, "eval_strategy": "epoch"},
        {**STREAMED, "compute_metrics": accuracy},
        about="The stream restarts at its end. Each pass is an epoch, so the run evaluates after each pass.",
    ),
    "stream with accumulation": Case(
        {"max_steps": 7, "gradient_accumulation_steps": 2},
        STREAMED,
        about="A step has two batches, and a pass has three steps.",
    ),
    "stream with an incomplete step": Case(
        {"max_steps": 4, "gradient_accumulation_steps": 4},
        STREAMED,
        about=(
            "At the end of a pass, the remaining batches make a step. In transformers, these batches join the next "
            "step."
        ),
        differs="incomplete step of a stream",
    ),
    "stream with drop last": Case(
        {"max_steps": 5, "dataloader_drop_last": True},
        {**STREAMED, "model": plain()},
        about="trainbus drops the incomplete batch of an evaluation. transformers keeps this batch.",
        differs="incomplete batch of a stream",
    ),
    "stream in workers": Case(
        {"max_steps": 6, "dataloader_num_workers": 2},
        {"train_dataset": Stream(sentences(TRAIN_ROWS)), "model": plain()},
        about="Each worker reads its own shard. The batches of the workers alternate.",
    ),
    "random stream in workers": Case(
        {"max_steps": 6, "dataloader_num_workers": 2},
        {"train_dataset": Thinned(sentences(TRAIN_ROWS)), "model": plain()},
        about="torch seeds the workers of a stream. The Trainer does not seed these workers.",
    ),
    "stream evaluated in workers": Case(
        {"max_steps": 3, "dataloader_num_workers": 2},
        {**STREAMED, "model": plain(), "compute_metrics": accuracy},
        about="Each worker ends with a short batch, so short batches also occur before the end.",
        differs="mean over samples",
    ),
    "datasets.Dataset": Case(
        {"eval_strategy": "epoch"},
        {**TABLES, "model": plain()},
        about="The unused column of a `datasets.Dataset` is dropped.",
    ),
    "datasets.Dataset of tensors": Case(
        {"eval_strategy": "epoch"},
        {
            **{name: Fresh(lambda make=make: make().with_format("torch")) for name, make in TABLES.items()},
            "model": plain(),
        },
        about="The samples are tensors, because the dataset has the format `torch`.",
    ),
    "dict of a stream and a list": Case(
        {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2},
        {"model": plain(), "eval_dataset": {"stream": Stream(sentences(9, 1)), "list": sentences(5, 2)}},
        about="An evaluation reads the stream once, and the list in order.",
    ),
    "sequential order with accumulation": Case(
        {"train_sampling_strategy": "sequential", "gradient_accumulation_steps": 3, "max_steps": 5},
        {"model": plain()},
        about="Each epoch has the same batches.",
    ),
    "token count of a stream": Case(
        {"include_num_input_tokens_seen": "all", "max_steps": 5, "gradient_accumulation_steps": 2},
        {"train_dataset": Stream(sentences(TRAIN_ROWS))},
        about="Some batches are loaded but not used for training. The tokens of these batches do not count.",
    ),
    "datasets.Dataset with all columns": Case(
        {"remove_unused_columns": False, "num_train_epochs": 1},
        {
            **{"model": plain(), "data_collator": lambda rows: masked([_known(row) for row in rows])},
            **TABLES,
        },
        about="The collator gets all columns.",
    ),
    "datasets.IterableDataset": Case(
        {"max_steps": 8, "eval_strategy": "epoch"},
        {
            **{name: Fresh(lambda make=make: make().to_iterable_dataset()) for name, make in TABLES.items()},
            "model": plain(),
        },
        about="The unused column of a `datasets.IterableDataset` is dropped.",
    ),
    "samples with a `label`": Case(
        {"eval_strategy": "epoch"},
        {
            **{"model": plain(), "compute_metrics": accuracy},
            "train_dataset": renamed("label", sentences(TRAIN_ROWS)),
            "eval_dataset": renamed("label", sentences(EVAL_ROWS, 1)),
        },
        about="The collator renames the column `label` to `labels`.",
    ),
    "dataset with set_epoch": Case(
        {"num_train_epochs": 3, "train_sampling_strategy": "sequential"},
        {"model": plain(), "train_dataset": Fresh(lambda: Rotating(sentences(TRAIN_ROWS)))},
        about="`set_epoch` is called at the beginning of each epoch.",
    ),
    "samples of different lengths": Case(
        {"eval_strategy": "epoch"},
        UNEVEN,
        about="The Trainer receives a tokenizer, so the default collator pads the samples.",
    ),
    "grouped by length": Case(
        {"train_sampling_strategy": "group_by_length", "gradient_accumulation_steps": 2},
        UNEVEN,
        about="Large random groups of samples are sorted by length, so samples of similar length share a batch.",
        differs="order of predictions",
    ),
    "sequential order": Case(
        {"train_sampling_strategy": "sequential"},
        {"model": plain()},
        about="The samples keep the order of the dataset.",
    ),
    "grouped by length without a tokenizer": Case(
        {"train_sampling_strategy": "group_by_length", "num_train_epochs": 3},
        {
            "model": plain(),
            "data_collator": lambda rows: _first_label(padded(rows)),
            "train_dataset": texts(TRAIN_ROWS),
            "eval_dataset": texts(EVAL_ROWS, 1),
        },
        about="The length of a sample is the length of its `input_ids`.",
        differs="order of predictions",
    ),
    "grouped by a length column": Case(
        {"train_sampling_strategy": "group_by_length", "length_column_name": "words"},
        {**UNEVEN, "train_dataset": Fresh(lambda: measured_table(classified(TRAIN_ROWS)))},
        about="The lengths come from the column, not from `input_ids`.",
        differs="order of predictions",
    ),
    "token count": Case(
        {"include_num_input_tokens_seen": True, "gradient_accumulation_steps": 4},
        UNEVEN,
        about="The log has the number of tokens seen, padding included.",
    ),
    "token count without padding": Case(
        {"include_num_input_tokens_seen": "non_padding", "max_steps": 8, "logging_steps": 4},
        UNEVEN,
        about="The attention mask selects the tokens that count.",
    ),
    "out-of-order batches": Case(
        {"dataloader_num_workers": 1, "dataloader_in_order": False, "num_train_epochs": 1},
        {"model": plain()},
        about="With one worker, the batches still come in order.",
    ),
    "batch size that fits": Case(
        {"auto_find_batch_size": True},
        {"model": plain()},
        about="The given batch size fits in memory, so the run keeps this batch size.",
    ),
    "cache emptied": Case(
        {"torch_empty_cache_steps": 2}, {"model": plain()}, about="Emptying the cache does not change the results."
    ),
}
"""Cases about datasets, loaders and workers."""


def _known(row: dict) -> dict:
    return {name: row[name] for name in ("input_ids", "labels")}


def _first_label(batch: dict) -> dict:
    return {"input_ids": batch["input_ids"], "labels": batch["input_ids"][:, 0] % 2}

"""Cases about steps: how many, of which rows, in which order, read by whom."""

from __future__ import annotations

from engine_toys import Fresh, sentences
from parity_case import EVAL_ROWS, TRAIN_ROWS, Case
from parity_models import Plain, of_bert, plain
from parity_toys import (
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
    "defaults": Case({}, about="All that nobody asked for: the order of rows, dropout, AdamW, a falling line."),
    "dropout off": Case(
        {}, {"model": plain(), "compute_metrics": accuracy}, about="The same with a model that draws otherwise."
    ),
    "one batch a step": Case({"gradient_accumulation_steps": 1}, about="Accumulation said to be off."),
    "three batches a step": Case({"gradient_accumulation_steps": 3}, about="An epoch of two whole steps."),
    "four batches a step": Case(
        {"gradient_accumulation_steps": 4}, about="The last step of an epoch has two batches, of which one is not full."
    ),
    "more batches a step than there are": Case(
        {"gradient_accumulation_steps": 10}, about="An epoch is one step, of fewer batches."
    ),
    "accumulation over batches of one row": Case(
        {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 1, "num_train_epochs": 1},
        about="A ragged end of two batches.",
    ),
    "three tenths of an epoch": Case({"num_train_epochs": 0.3}, about="A run of two steps, rounded up."),
    "one epoch and seven tenths": Case({"num_train_epochs": 1.7}, about="The last epoch is left before its end."),
    "a fraction of accumulated steps": Case(
        {"num_train_epochs": 1.5, "gradient_accumulation_steps": 4}, about="The fraction counts steps, not batches."
    ),
    "steps, fewer than an epoch has": Case({"max_steps": 4}, about="The number of epochs is no longer read."),
    "steps, more than an epoch has": Case({"max_steps": 15}, about="It takes a third epoch, and ends inside it."),
    "steps, as many as two epochs have": Case({"max_steps": 12}, about="The end of the run is the end of an epoch."),
    "accumulated steps, more than an epoch has": Case(
        {"max_steps": 5, "gradient_accumulation_steps": 4}, about="The ragged end of each epoch is a step."
    ),
    "no epoch at all": Case({"num_train_epochs": 0}, {"model": plain()}, about="No step is made, and it is told."),
    "a twentieth of an epoch": Case({"num_train_epochs": 0.05}, {"model": plain()}, about="It is one step."),
    "two epochs and three tenths of accumulated steps": Case(
        {"num_train_epochs": 2.3, "gradient_accumulation_steps": 4}, {"model": plain()}, about="Five steps, rounded up."
    ),
    "one step of fewer batches": Case(
        {"max_steps": 1, "gradient_accumulation_steps": 10}, {"model": plain()}, about="It takes what an epoch has."
    ),
    "five epochs of everything": Case(
        {
            **{"num_train_epochs": 5, "gradient_accumulation_steps": 3, "dataloader_drop_last": True},
            **{"logging_steps": 2, "eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps"},
            "save_steps": 4,
        },
        {"model": plain(), "compute_metrics": accuracy},
        about="Cadences that meet only now and then.",
    ),
    "the last batch dropped": Case({"dataloader_drop_last": True}, about="In training and in evaluation."),
    "the last batch dropped, accumulated": Case(
        {"dataloader_drop_last": True, "gradient_accumulation_steps": 2}, about="The ragged end is counted without it."
    ),
    "one row": Case({"num_train_epochs": 3}, {"train_dataset": sentences(1)}, about="A batch larger than the dataset."),
    "another seed": Case({"seed": 7}, about="Of the order and of dropout."),
    "another seed of the data": Case({"data_seed": 7}, about="Of the order alone."),
    "both seeds": Case({"seed": 3, "data_seed": 11, "num_train_epochs": 3}, about="Each has its own part."),
    "full determinism": Case({"full_determinism": True}, about="Deterministic algorithms only."),
    "a model_init": Case({"seed": 5}, {"model_init": lambda: Plain()}, about="The model is made when training begins."),
}
"""How long a run is, and what a step is made of."""

DATA = {
    "two workers": Case({"dataloader_num_workers": 2, "num_train_epochs": 1}, {"model": plain()}, about="The order."),
    "two workers that stay": Case(
        {"dataloader_num_workers": 2, "dataloader_persistent_workers": True, "dataloader_prefetch_factor": 3},
        {"model": plain()},
        about="Workers that live through all epochs, and load ahead.",
    ),
    "two workers that stay, also for evaluations": Case(
        {
            **{"dataloader_num_workers": 2, "dataloader_persistent_workers": True},
            **{"eval_strategy": "steps", "eval_steps": 3, "max_steps": 10},
        },
        {"model": plain(), "data_collator": masked, "compute_metrics": accuracy},
        about="Each set of workers is seeded once; the draws of training go on.",
    ),
    "two workers for evaluations too": Case(
        {"dataloader_num_workers": 2, "eval_strategy": "epoch"},
        {"model": plain(), "data_collator": masked, "compute_metrics": accuracy},
        about="New workers, and a new seed for them, for each evaluation.",
    ),
    "a collator that draws at random": Case(
        {}, {"data_collator": masked}, about="Batches are collated one ahead, so the draws have their order."
    ),
    "a collator that draws at random, in workers": Case(
        {"dataloader_num_workers": 2, "num_train_epochs": 1},
        {"data_collator": masked, "model": plain()},
        about="Workers are seeded alike.",
    ),
    "a stream": Case({"max_steps": 6}, {**STREAMED, "model": plain()}, about="One pass, rows of unknown number."),
    "a stream, several times over": Case(
        {"max_steps": 15, "eval_strategy": "epoch"},
        {**STREAMED, "compute_metrics": accuracy},
        about="Where it ends it begins anew, and an epoch is what the number of steps makes one.",
    ),
    "a stream, accumulated": Case(
        {"max_steps": 7, "gradient_accumulation_steps": 2},
        STREAMED,
        about="Steps of two batches, three a pass.",
    ),
    "a stream with a rest at its end": Case(
        {"max_steps": 4, "gradient_accumulation_steps": 4},
        STREAMED,
        about="What is left at the end of a pass is a step here, and goes into the next one there.",
        differs="end of a stream",
    ),
    "a stream without its last batch": Case(
        {"max_steps": 5, "dataloader_drop_last": True},
        {**STREAMED, "model": plain()},
        about="What does not fill a batch is left out of an evaluation.",
        differs="last of a stream dropped",
    ),
    "a stream in workers": Case(
        {"max_steps": 6, "dataloader_num_workers": 2},
        {"train_dataset": Stream(sentences(TRAIN_ROWS)), "model": plain()},
        about="Each worker reads its share, and their batches take turns.",
    ),
    "a stream that draws at random, in workers": Case(
        {"max_steps": 6, "dataloader_num_workers": 2},
        {"train_dataset": Thinned(sentences(TRAIN_ROWS)), "model": plain()},
        about="Workers that read a stream are seeded by torch alone.",
    ),
    "a stream evaluated in workers": Case(
        {"max_steps": 3, "dataloader_num_workers": 2},
        {**STREAMED, "model": plain(), "compute_metrics": accuracy},
        about="Each worker's last batch is short, in the middle of the evaluation.",
        differs="mean over rows",
    ),
    "a table": Case(
        {"eval_strategy": "epoch"}, {**TABLES, "model": plain()}, about="`datasets.Dataset`, with a column too many."
    ),
    "a table of tensors": Case(
        {"eval_strategy": "epoch"},
        {
            **{name: Fresh(lambda make=make: make().with_format("torch")) for name, make in TABLES.items()},
            "model": plain(),
        },
        about="`with_format`.",
    ),
    "a dict of a stream and a list": Case(
        {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2},
        {"model": plain(), "eval_dataset": {"stream": Stream(sentences(9, 1)), "list": sentences(5, 2)}},
        about="Each is read its own way.",
    ),
    "rows in their order, accumulated": Case(
        {"train_sampling_strategy": "sequential", "gradient_accumulation_steps": 3, "max_steps": 5},
        {"model": plain()},
        about="Each epoch has the same batches.",
    ),
    "tokens counted in a stream": Case(
        {"include_num_input_tokens_seen": "all", "max_steps": 5, "gradient_accumulation_steps": 2},
        {"train_dataset": Stream(sentences(TRAIN_ROWS))},
        about="They are those of the batches that were trained on.",
    ),
    "a table, all columns kept": Case(
        {"remove_unused_columns": False, "num_train_epochs": 1},
        {
            **{"model": plain(), "data_collator": lambda rows: masked([_known(row) for row in rows])},
            **TABLES,
        },
        about="The collator is given all columns.",
    ),
    "a table that is streamed": Case(
        {"max_steps": 8, "eval_strategy": "epoch"},
        {
            **{name: Fresh(lambda make=make: make().to_iterable_dataset()) for name, make in TABLES.items()},
            "model": plain(),
        },
        about="`datasets.IterableDataset`, with a column too many.",
    ),
    "rows with a `label`": Case(
        {"eval_strategy": "epoch"},
        {
            **{"model": plain(), "compute_metrics": accuracy},
            "train_dataset": renamed("label", sentences(TRAIN_ROWS)),
            "eval_dataset": renamed("label", sentences(EVAL_ROWS, 1)),
        },
        about="The collator calls it `labels`.",
    ),
    "a dataset that is told the epoch": Case(
        {"num_train_epochs": 3, "train_sampling_strategy": "sequential"},
        {"model": plain(), "train_dataset": Fresh(lambda: Rotating(sentences(TRAIN_ROWS)))},
        about="`set_epoch` is called at the beginning of each.",
    ),
    "rows of different lengths": Case(
        {"eval_strategy": "epoch"}, UNEVEN, about="A tokenizer alone makes the collator that pads."
    ),
    "rows grouped by length": Case(
        {"train_sampling_strategy": "group_by_length", "gradient_accumulation_steps": 2},
        UNEVEN,
        about="Which rows share a batch is drawn in a wide window.",
        differs="rows in order",
    ),
    "rows in their order": Case(
        {"train_sampling_strategy": "sequential"}, {"model": plain()}, about="Nothing is shuffled."
    ),
    "texts grouped by length": Case(
        {"train_sampling_strategy": "group_by_length", "num_train_epochs": 3},
        {
            "model": plain(),
            "data_collator": lambda rows: _first_label(padded(rows)),
            "train_dataset": texts(TRAIN_ROWS),
            "eval_dataset": texts(EVAL_ROWS, 1),
        },
        about="Without a tokenizer the length is that of `input_ids`.",
        differs="rows in order",
    ),
    "rows grouped by a column of lengths": Case(
        {"train_sampling_strategy": "group_by_length", "length_column_name": "words"},
        {**UNEVEN, "train_dataset": Fresh(lambda: measured_table(classified(TRAIN_ROWS)))},
        about="The lengths are there, and are not measured again.",
        differs="rows in order",
    ),
    "tokens counted": Case(
        {"include_num_input_tokens_seen": True, "gradient_accumulation_steps": 4},
        UNEVEN,
        about="The log says how many were seen, padding included.",
    ),
    "tokens counted without padding": Case(
        {"include_num_input_tokens_seen": "non_padding", "max_steps": 8, "logging_steps": 4},
        UNEVEN,
        about="The mask says which count.",
    ),
    "batches in no order": Case(
        {"dataloader_num_workers": 1, "dataloader_in_order": False, "num_train_epochs": 1},
        {"model": plain()},
        about="With one worker there is but one.",
    ),
    "a batch size that fits": Case(
        {"auto_find_batch_size": True}, {"model": plain()}, about="The one that was asked for, where memory suffices."
    ),
    "the cache emptied now and then": Case(
        {"torch_empty_cache_steps": 2}, {"model": plain()}, about="It costs time, and changes nothing."
    ),
}
"""Where rows come from."""


def _known(row: dict) -> dict:
    return {name: row[name] for name in ("input_ids", "labels")}


def _first_label(batch: dict) -> dict:
    return {"input_ids": batch["input_ids"], "labels": batch["input_ids"][:, 0] % 2}

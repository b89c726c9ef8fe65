"""Runs of transformers and trainbus on the same two ranks. Each prints the differences."""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
import transformers
from datasets import Dataset
from torch.utils.data import DataLoader, Sampler

import trainbus
from support.data import sentences
from support.models import bert
from support.outcomes import history, timeless, weights
from support.parity_data import (
    BatchwiseAccuracy,
    Stream,
    accuracy,
    everything,
    masked,
    padded,
    summed_loss,
    texts,
    twice_labelled,
)
from support.parity_models import Normalised, TwoHeaded, llama, plain, sequence_to_sequence
from support.trainers import Fresh

TRAIN_ROWS, EVAL_ROWS = 41, 33
"""In batches of 4 on two processes: the last of an epoch is filled up from its beginning."""

BASE = {
    **{"num_train_epochs": 2, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4},
    **{"learning_rate": 1e-2, "max_grad_norm": 0.5, "weight_decay": 0.01, "logging_steps": 1, "save_strategy": "no"},
    **{"use_cpu": True, "disable_tqdm": True, "report_to": "none", "ddp_timeout": 60},
}


def case(model=bert, args=None, test=None, mixin=None, **options):
    """Describe a run: how its model is made, keywords of `TrainingArguments` and of `Trainer`, and its overrides."""
    rows = {"train_dataset": sentences(TRAIN_ROWS), "eval_dataset": sentences(EVAL_ROWS, 1)}
    return {"model": model, "args": args or {}, "test": test, "mixin": mixin, "options": {**rows, **options}}


def streamed(rows):
    """Return a stream of the `datasets` library, with shards and a transform."""
    return Dataset.from_list(sentences(rows)).to_iterable_dataset(num_shards=3).map(lambda row: row)


PADDED = {"train_dataset": texts(TRAIN_ROWS), "eval_dataset": texts(EVAL_ROWS, 1), "data_collator": padded}
STREAMED = {"train_dataset": Stream(sentences(TRAIN_ROWS)), "eval_dataset": sentences(EVAL_ROWS, 1)}

LAYERS = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}


class Twice(Sampler):
    """Yields each row twice."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return 2 * len(self.rows)

    def __iter__(self):
        return iter([row for row in range(len(self.rows)) for _ in range(2)])


class TwiceWithoutLength(Twice):
    """Yields each row twice, and does not say so."""

    __len__ = None


class EvaluatesTwice:
    """Evaluates each row twice, as trainers that generate several answers do."""

    def _get_eval_sampler(self, eval_dataset):
        return Twice(eval_dataset)


class EvaluatesTwiceWithoutLength:
    """Evaluates each row twice, with a sampler without a length."""

    def _get_eval_sampler(self, eval_dataset):
        return TwiceWithoutLength(eval_dataset)


class EvaluatesPrepared:
    """Evaluates each row twice, with a loader of its own."""

    def get_eval_dataloader(self, eval_dataset=None):
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        loader = DataLoader(rows, batch_size=4, sampler=Twice(rows), collate_fn=self.data_collator)
        return self.accelerator.prepare(loader)


MBART = sequence_to_sequence("MBart", encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=16, **LAYERS)
T5 = sequence_to_sequence("T5", d_ff=32, d_kv=8, num_layers=1, num_heads=2)


def on_its_mean():
    model = MBART()
    model.accepts_loss_kwargs = False
    return model


CASES = {
    "dropout, AdamW, clipping": case(compute_metrics=everything, args={"include_for_metrics": ["inputs", "loss"]}),
    "accumulation with a ragged end": case(args={"gradient_accumulation_steps": 4}, compute_metrics=accuracy),
    "texts of different lengths": case(llama, compute_metrics=everything, **PADDED),
    "texts of different lengths, accumulated": case(llama, {"gradient_accumulation_steps": 2}, **PADDED),
    "mBART, which ignores the count": case(MBART, {"gradient_accumulation_steps": 2, "max_steps": 4}, **PADDED),
    "T5, which ignores the count": case(T5, {"max_steps": 4}, **PADDED),
    "mBART, trained on its mean": case(on_its_mean, {"gradient_accumulation_steps": 2, "max_steps": 4}, **PADDED),
    "tokens counted by each process": case(llama, {"average_tokens_across_devices": False}, **PADDED),
    "label smoothing": case(args={"label_smoothing_factor": 0.1, "gradient_accumulation_steps": 2}),
    "a loss of one's own": case(plain(), compute_loss_func=summed_loss, args={"gradient_accumulation_steps": 2}),
    "the last batches dropped": case(args={"dataloader_drop_last": True}),
    "no clipping": case(args={"max_grad_norm": 0.0, "lr_scheduler_type": "cosine", "warmup_steps": 3}),
    "one row to evaluate": case(eval_dataset=sentences(1, 1), compute_metrics=accuracy),
    "fewer rows than processes times batch": case(train_dataset=sentences(5), eval_dataset=sentences(5, 1)),
    "metrics by batch": case(args={"batch_eval_metrics": True}, compute_metrics=Fresh(BatchwiseAccuracy)),
    "several predictions and labels": case(
        TwoHeaded, train_dataset=twice_labelled(TRAIN_ROWS), eval_dataset=twice_labelled(EVAL_ROWS, 1)
    ),
    "batches kept apart": case(args={"eval_do_concat_batches": False}),
    "no unused weights looked for": case(args={"ddp_find_unused_parameters": False, "ddp_bucket_cap_mb": 1}),
    "recomputed activations": case(args={"gradient_checkpointing": True}),
    "running means": case(Normalised, {"eval_strategy": "steps", "eval_steps": 3}),
    "a collator that draws": case(data_collator=masked),
    "rows of similar length": case(llama, {"train_sampling_strategy": "group_by_length"}, **PADDED),
    **{
        f"{mixin.__doc__}": case(mixin=mixin, eval_dataset=sentences(32, 1), compute_metrics=everything)
        for mixin in (EvaluatesTwice, EvaluatesTwiceWithoutLength, EvaluatesPrepared)
    },
    "a stream": case(args={"max_steps": 14}, **STREAMED),
    "a stream, accumulated and evaluated": case(
        args={"max_steps": 7, "gradient_accumulation_steps": 2},
        compute_metrics=accuracy,
        **{**STREAMED, "eval_dataset": Stream(sentences(EVAL_ROWS, 1))},
    ),
    "a stream of datasets": case(args={"max_steps": 14}, **{**STREAMED, "train_dataset": streamed(TRAIN_ROWS)}),
}


def outcome(library, described, folder):
    """Train, evaluate and predict with one of the two libraries, and return all that came of it."""
    args = library.TrainingArguments(str(folder / library.__name__), **{**BASE, **described["args"]})
    options = {name: value() if isinstance(value, Fresh) else value for name, value in described["options"].items()}
    mixin = described["mixin"]
    kind = library.Trainer if mixin is None else type("Mine", (mixin, library.Trainer), {})
    trainer = kind(described["model"](), args, **options)
    output = trainer.train()
    predicted = trainer.predict(described["test"] or options["eval_dataset"])
    return {
        "weights": weights(trainer.model),
        "steps": trainer.state.global_step,
        "loss": output.training_loss,
        "logs": [entry for entry in history(trainer) if "train_loss" not in entry],
        "evaluated": timeless(trainer.evaluate()),
        "predictions": as_tensors(predicted.predictions),
        "labels": as_tensors(predicted.label_ids),
        "metrics": timeless(predicted.metrics),
    }


def as_tensors(arrays):
    if isinstance(arrays, dict):
        return {name: as_tensors(array) for name, array in arrays.items()}
    return [*map(as_tensors, arrays)] if isinstance(arrays, (list, tuple)) else torch.as_tensor(arrays)


def difference(name, theirs, ours):
    """Say in what two outcomes differ, in words; an empty string if in nothing."""
    if isinstance(theirs, dict):
        if theirs.keys() != ours.keys():
            return f"{name}: {sorted(theirs)} are now {sorted(ours)}"
        return "; ".join(filter(None, (difference(f"{name}.{key}", theirs[key], ours[key]) for key in theirs)))
    if isinstance(theirs, list) and len(theirs) == len(ours):
        return "; ".join(filter(None, (difference(f"{name}.{at}", *two) for at, two in enumerate(zip(theirs, ours)))))
    if isinstance(theirs, torch.Tensor):
        same = theirs.shape == ours.shape and torch.equal(theirs, ours)
        return "" if same else f"{name}: tensors of shape {[*theirs.shape]} and {[*ours.shape]}"
    return "" if repr(theirs) == repr(ours) else f"{name}: {theirs!r} is now {ours!r}"


def main(folder):
    wanted = sys.argv[2:]
    folder = Path(folder)
    warnings.simplefilter("ignore")
    found = {}
    for name, described in CASES.items():
        if wanted and name not in wanted:
            continue
        theirs, ours = (
            outcome(library, described, folder / name.replace(" ", "_")) for library in (transformers, trainbus)
        )
        found[name] = {part: difference(part, theirs[part], ours[part]) for part in theirs}
    (folder / f"found-{os.environ['RANK']}.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1])

"""Runs of transformers' trainer and of ours on the same two processes: each prints what came out otherwise."""

import json
import os
import sys
import warnings
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parent.parent / folder) for folder in ("engine", "parity")]

import transformers
from engine_toys import Fresh, bert, history, sentences, timeless, weights
from parity_models import Normalised, gpt2, llama, of_bert, plain
from parity_toys import Stream, accuracy, classified, pad_classified, pad_texts, texts

import trainbus

TRAIN_ROWS, EVAL_ROWS = 41, 33
"""In batches of 4 on two processes: the last of an epoch is filled up from its beginning."""

BASE = {
    **{"num_train_epochs": 2, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4},
    **{"learning_rate": 1e-2, "max_grad_norm": 0.5, "weight_decay": 0.01, "logging_steps": 1, "save_strategy": "no"},
    **{"use_cpu": True, "disable_tqdm": True, "report_to": "none", "ddp_timeout": 60},
}


def case(model=bert, args=None, test=None, **options):
    """Describe a run: how its model is made, keywords of `TrainingArguments` and of `Trainer`."""
    rows = {"train_dataset": sentences(TRAIN_ROWS), "eval_dataset": sentences(EVAL_ROWS, 1)}
    return {"model": model, "args": args or {}, "test": test, "options": {**rows, **options}}


def of_texts(make, collator):
    return {
        **{"train_dataset": make(TRAIN_ROWS), "eval_dataset": make(EVAL_ROWS, 1), "data_collator": collator},
    }


CASES = {
    "dropout, AdamW, clipping": case(),
}


def outcome(library, described, folder):
    """Train, evaluate and predict with one of the two libraries, and return all that came of it."""
    args = library.TrainingArguments(str(folder / library.__name__), **{**BASE, **described["args"]})
    options = {name: value() if isinstance(value, Fresh) else value for name, value in described["options"].items()}
    trainer = library.Trainer(described["model"](), args, **options)
    output = trainer.train()
    predicted = trainer.predict(described["test"] or options["eval_dataset"])
    return {
        "weights": weights(trainer.model),
        "steps": trainer.state.global_step,
        "loss": output.training_loss,
        "logs": [entry for entry in history(trainer) if "train_loss" not in entry],
        "evaluated": timeless(trainer.evaluate()),
        "predictions": torch.as_tensor(predicted.predictions),
        "labels": torch.as_tensor(predicted.label_ids),
        "metrics": timeless(predicted.metrics),
    }


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
        theirs, ours = (outcome(library, described, folder / name.replace(" ", "_")) for library in (transformers, trainbus))
        found[name] = {part: difference(part, theirs[part], ours[part]) for part in theirs}
    (folder / f"found-{os.environ['RANK']}.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1])

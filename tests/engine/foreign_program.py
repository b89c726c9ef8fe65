"""Trains two ranks with transformers, and resumes with trainbus. torchrun starts it."""

import json
import sys
from pathlib import Path

import transformers

import trainbus
from support.data import sentences
from support.models import bert
from support.outcomes import same_weights, weights


def train(library, folder, resume=None):
    """Train two epochs of four steps, the last of them with fewer rows."""
    args = library.TrainingArguments(
        folder,
        num_train_epochs=2,
        per_device_train_batch_size=4,
        learning_rate=0.01,
        weight_decay=0.1,
        save_steps=1,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        ddp_timeout=60,
    )
    collator = transformers.default_data_collator
    trainer = library.Trainer(bert(), args, train_dataset=sentences(29), data_collator=collator)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def main(folder):
    """Write down from which steps the resumed run ends where the whole one does."""
    whole = train(transformers, f"{folder}/whole")
    same = {}
    for step in (2, 4, 7):
        resumed = train(trainbus, f"{folder}/resumed-{step}", f"{folder}/whole/checkpoint-{step}")
        same[step] = same_weights(weights(whole.model), weights(resumed.model))
    if whole.is_world_process_zero():
        Path(folder, "found.json").write_text(json.dumps(same), encoding="utf-8")
    resumed.end()


if __name__ == "__main__":
    main(sys.argv[1])

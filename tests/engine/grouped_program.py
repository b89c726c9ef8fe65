"""Trains two ranks on samples grouped by length, uninterrupted and resumed. torchrun starts it."""

import json
import sys

import torch
from length_data import GROUPED, collate, texts

from support.models import bert
from support.outcomes import same_weights, weights
from trainbus import Trainer, TrainingArguments

ROWS = [{**row, "id": number} for number, row in enumerate(texts(30))]
seen: list[int] = []


def note(rows):
    """Collate, and remember which rows they were."""
    seen.extend(row["id"] for row in rows)
    return collate(rows)


def train(folder, resume=None):
    """Train two epochs of four steps."""
    args = TrainingArguments(
        folder,
        num_train_epochs=2,
        learning_rate=0.05,
        per_device_eval_batch_size=2,
        save_steps=2,
        logging_strategy="no",
        remove_unused_columns=False,
        disable_tqdm=True,
        use_cpu=True,
        ddp_timeout=60,
        **GROUPED,
    )
    trainer = Trainer(bert(), args, train_dataset=ROWS, data_collator=note)
    seen.clear()
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def main(folder):
    """Write down what was read, and whether the resumed run ends where the whole one does."""
    whole = train(f"{folder}/whole")
    read = whole.run.ranks.gather_objects(list(seen))
    draws = whole.run.ranks.gather_objects(torch.get_rng_state().tolist())
    predicted = whole.predict(ROWS)
    resumed = train(f"{folder}/resumed", f"{folder}/whole/checkpoint-2")
    if whole.is_world_process_zero():
        found = {
            "epochs": [[row for of_rank in read for row in of_rank[half]] for half in (slice(16), slice(16, 32))],
            "in_step": draws[0] == draws[1],
            "labels": predicted.label_ids.tolist(),
            "same": same_weights(weights(whole.model), weights(resumed.model)),
            "read_again": len(seen),
        }
        with open(f"{folder}/found.json", "w", encoding="utf-8") as file:
            json.dump(found, file)
    resumed.end()


if __name__ == "__main__":
    main(sys.argv[1])

"""Numbered samples as lists and streams, a model that learns from them, and runs that record the samples of a batch."""

import torch
from torch import nn

import trainbus
from support.data import Stream

BASE = {
    **{"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "learning_rate": 0.05, "logging_steps": 1},
    **{"save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "ddp_timeout": 60},
}


class Numbered(nn.Module):
    """A model of two layers. The labels are the numbers of the samples."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 1)

    def forward(self, x, labels):
        predicted = self.second(torch.tanh(self.first(x))).squeeze(-1)
        return {"loss": nn.functional.mse_loss(predicted, torch.sin(labels.float())), "logits": predicted}


def rows_of(count):
    """Return samples. The label of a sample is its number."""
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(0))
    return [{"x": row.tolist(), "labels": number} for number, row in enumerate(x)]


def stream_of_datasets(count, shards):
    """Return the samples as a stream of the `datasets` library."""
    from datasets import Dataset

    return Dataset.from_list(rows_of(count)).to_iterable_dataset(num_shards=shards)


def build(folder, rows, callbacks=(), evaluated=None, **args):
    """Return a trainer, and a list that it fills with the numbers of the samples of each batch."""
    trainer = trainbus.Trainer(
        Numbered(),
        trainbus.TrainingArguments(str(folder), **{**BASE, **args}),
        train_dataset=rows,
        eval_dataset=evaluated,
        callbacks=[*callbacks],
        compute_metrics=lambda prediction: {"rows": prediction.label_ids.tolist()},
    )
    seen = []
    trainer.on("on_batch", lambda batch: seen.append(batch["labels"].tolist()))
    return trainer, seen


CHAINS = {"2-1-1": (2, 1, 1), "1-2-2": (1, 2, 2), "1-2-1": (1, 2, 1)}
"""World sizes of the sessions of a run."""
BY_LENGTH = {"train_sampling_strategy": "group_by_length", "length_column_name": "labels"}
KINDS = {
    "rows": (lambda: rows_of(53), {"num_train_epochs": 1}),
    "grouped": (lambda: rows_of(53), {"num_train_epochs": 1, **BY_LENGTH}),
    "stream": (lambda: Stream(rows_of(53)), {"max_steps": 20}),
}


def chained(folder, processes, first, last):
    """Run the sessions from `first` to `last` whose world size is `processes`, for every chain and kind of data.

    Returns:
        A dict with a key for each run and session. Its values are the samples of the batches, and step, number of
        steps, epoch and learning rate at the end.
    """
    found = {}
    for chain, numbers in CHAINS.items():
        for kind, (make, args) in KINDS.items():
            for session in range(first, last + 1):
                if numbers[session] != processes:
                    continue
                args = {"save_strategy": "steps", "save_steps": 100, **args}
                trainer, seen = build(folder / f"{kind} {chain}", make(), **args)
                if session < 2:
                    stop = (3, 6)[session]
                    trainer.on("on_step_end", lambda control: control.request("training_stop", "as planned"), once=stop)
                    trainer.on("on_step_end", lambda control: control.request("save", "as planned"), once=stop)
                trainer.train(resume_from_checkpoint=session > 0)
                state = trainer.state
                end = [state.global_step, state.max_steps, state.epoch, trainer.run.current_learning_rate()]
                found[f"{kind} {chain} {session}"] = {"seen": seen, "end": end}
    return found


def end_of(trainer):
    """Return weights, losses and the last step of a training as plain values."""
    return {
        "weights": [weight.tolist() for weight in trainer.model.parameters()],
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "steps": trainer.state.global_step,
    }

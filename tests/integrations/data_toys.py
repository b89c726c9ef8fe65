"""Rows with numbers, as lists and as streams, and a model that learns from them; of each batch one can say its rows."""

import torch
from torch import nn
from torch.utils.data import IterableDataset, get_worker_info

import trainbus

BASE = {
    **{"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "learning_rate": 0.05, "logging_steps": 1},
    **{"save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "ddp_timeout": 60},
}


class Numbered(nn.Module):
    """Two layers; the labels are the numbers of the rows, and given back with the predictions."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 1)

    def forward(self, x, labels):
        predicted = self.second(torch.tanh(self.first(x))).squeeze(-1)
        return {"loss": nn.functional.mse_loss(predicted, torch.sin(labels.float())), "logits": predicted}


def rows_of(count):
    """Return rows, labelled with their numbers."""
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(0))
    return [{"x": row.tolist(), "labels": number} for number, row in enumerate(x)]


class Stream(IterableDataset):
    """The rows from the first to the last, of which workers take turns."""

    def __init__(self, count, sized=False):
        self.rows = rows_of(count)
        if sized:
            self.__class__ = SizedStream

    def __iter__(self):
        worker = get_worker_info()
        return iter(self.rows if worker is None else self.rows[worker.id :: worker.num_workers])


class SizedStream(Stream):
    """One that knows how many they are."""

    def __len__(self):
        return len(self.rows)


def stream_of_datasets(count, shards):
    """Return the rows as a stream of the `datasets` library, in so many shards."""
    from datasets import Dataset

    return Dataset.from_list(rows_of(count)).to_iterable_dataset(num_shards=shards)


def build(folder, rows, callbacks=(), evaluated=None, **args):
    """Return a trainer, and the list that will hold the rows of each batch that it trained on."""
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
"""Numbers of processes that a run has one after the other."""
BY_LENGTH = {"train_sampling_strategy": "group_by_length", "length_column_name": "labels"}
KINDS = {
    "rows": (lambda: rows_of(53), {"num_train_epochs": 1}),
    "grouped": (lambda: rows_of(53), {"num_train_epochs": 1, **BY_LENGTH}),
    "stream": (lambda: Stream(53), {"max_steps": 20}),
}


def chained(folder, processes, first, last):
    """Have the sessions from `first` to `last` that so many processes make, one after the other, of runs of each kind.

    Returns, by the run's name and the number of the session, the rows of its batches and where it ended.
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
    """Return what came of a training, as plain values."""
    return {
        "weights": [weight.tolist() for weight in trainer.model.parameters()],
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "steps": trainer.state.global_step,
    }

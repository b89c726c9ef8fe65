"""Runs drawn at random from a seed: arguments, callbacks, metric curve, and where the run is interrupted."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import trainbus
from trainbus import Callback, Record, Trainer, TrainingArguments
from trainbus.events.recording.files import read
from trainbus.events.recording.rows import rows_of

NAMES = {
    name: getattr(trainbus, name)
    for name in (
        *("Checkpoint", "EarlyStopping", "EarlyStoppingCallback", "Evaluate", "Keep", "KeepBest", "Log"),
        *("at", "at_end", "every", "log_spaced"),
    )
}
"""What the text of a callback may name."""


class Killed(Exception):
    """Ends a session as a kill does: nothing is saved or logged."""


class KillAt(Callback):
    """Raises an error when a step begins."""

    previews = False

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, state: Any) -> None:
        if state.global_step + 1 == self.step:
            raise Killed


@dataclass
class Configuration:
    """One run."""

    seed: int
    rows: int
    arguments: dict[str, Any]
    callbacks: list[str] = field(default_factory=list)
    several: bool = False
    """Whether there are two evaluation datasets."""
    kill_at: int = 0
    """The step before which the first session ends; 0 for an unbroken run."""

    def score(self, step: int) -> float:
        """Return the metric of a step."""
        return random.Random(f"{self.seed} {step}").choice([0.1, 0.2, 0.3, 0.4, 0.5])

    def metric_names(self) -> list[str]:
        return (
            ["eval_a_score", "eval_b_score", "eval_hard_score"] if self.several else ["eval_score", "eval_hard_score"]
        )

    def trainer(self, folder: Path, *more: Any) -> Trainer:
        """Build the trainer of the run, with a recording."""
        torch.manual_seed(0)
        x = torch.randn(self.rows, 4)
        data = TensorDataset(x, (x.sum(1) > 0).long())
        small = TensorDataset(x[:4], (x[:4].sum(1) > 0).long())
        options = {"small": small}
        args = TrainingArguments(
            str(folder),
            use_cpu=True,
            disable_tqdm=True,
            per_device_eval_batch_size=4,
            **self.arguments,
        )
        made = [eval(text, {**NAMES, **options}) for text in self.callbacks]
        trainer = Trainer(
            nn.Linear(4, 2),
            args,
            train_dataset=data,
            eval_dataset={"a": small, "b": small} if self.several else small,
            criterion=nn.CrossEntropyLoss(),
            callbacks=[*made, Record(), *more],
            compute_metrics=lambda prediction: {"score": self.score(trainer.state.global_step)},
        )
        return trainer

    def curves(self) -> dict[str, Any]:
        return dict.fromkeys(self.metric_names(), self.score)


def drawn(seed: int) -> Configuration:
    """Draw a run from a seed."""
    draw = random.Random(seed)
    batch, accumulate = draw.choice([2, 3, 4]), draw.choice([1, 1, 2, 3])
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": accumulate,
        "learning_rate": 0.01,
        "lr_scheduler_type": draw.choice(["linear", "cosine", "constant", "constant_with_warmup", "inverse_sqrt"]),
        "dataloader_drop_last": draw.random() < 0.3,
    }
    if draw.random() < 0.5:
        arguments["max_steps"] = draw.randint(3, 24)
    else:
        arguments["num_train_epochs"] = draw.choice([1, 2, 3, 1.5, 2.25])
    if draw.random() < 0.3:
        arguments["warmup_steps"] = draw.choice([3, 0.2])
    for prefix in ("logging", "eval", "save"):
        strategy = draw.choice(["no", "steps", "steps", "epoch"])
        arguments[f"{prefix}_strategy"] = strategy
        if strategy == "steps":
            arguments[f"{prefix}_steps"] = draw.choice([1, 2, 3, 5, 7, 0.2, 0.34])
    arguments["logging_first_step"] = draw.random() < 0.3
    several = draw.random() < 0.25
    metric = "eval_a_score" if several else "eval_score"
    evaluates = arguments["eval_strategy"] != "no"
    callbacks: list[str] = []
    if evaluates:
        if draw.random() < 0.3:
            arguments["eval_delay"] = draw.choice([1, 2, 4])
        arguments["eval_on_start"] = draw.random() < 0.3
        if draw.random() < 0.5:
            arguments |= {"load_best_model_at_end": True, "metric_for_best_model": metric, "greater_is_better": True}
            if draw.random() < 0.4:
                arguments["save_strategy"] = "best"
            callbacks += draw.choice([[], ["EarlyStoppingCallback(2)"]])
        elif draw.random() < 0.4:
            callbacks.append(f"KeepBest({metric!r}, mode='max', save={draw.random() < 0.7}, load_at_end=False)")
        if not callbacks and draw.random() < 0.5:
            callbacks.append(f"EarlyStopping({metric!r}, patience={draw.choice([1, 2, 3])}, mode='max')")
        if draw.random() < 0.3:
            trigger = draw.choice(["every(3)", "every(1, 'epoch')", "at(2, 5)"])
            callbacks.append(f"Evaluate({trigger}, dataset=small, name='hard')")
    if arguments["save_strategy"] in ("steps", "epoch", "best") and draw.random() < 0.5:
        arguments["save_total_limit"] = draw.choice([1, 2, 3])
    elif draw.random() < 0.4:
        keep = draw.choice(["Keep()", "Keep(last=2)", "Keep(last=1, multiples=4)", "Keep(last=1, best=1)"])
        if "best" in keep and not evaluates:
            keep = "Keep(last=1)"
        for name in ("save_strategy", "save_steps"):
            arguments.pop(name, None)
        trigger = draw.choice(["every(4)", "every(3) | at_end()", "every(0.3) | at(1)"])
        callbacks.append(f"Checkpoint({trigger}, keep={keep})")
    if draw.random() < 0.25:
        callbacks.append(f"Log({draw.choice(['every(4)', 'log_spaced(4)', 'at_end()'])}, prefix='sparse_')")
    rows = draw.randint(9, 30)
    found = Configuration(seed, rows, arguments, callbacks, several)
    if draw.random() < 0.35:
        found.kill_at = draw.randint(3, 8)
    return found


def compared(configuration: Configuration, folder: Path) -> tuple[list[Any], list[Any], Any, list[int]]:
    """Run a configuration. Return the rows of its preview, the rows of its recording, the preview, and what is left."""
    resume: Any = None
    if configuration.kill_at:
        trainer = configuration.trainer(folder, KillAt(configuration.kill_at))
        try:
            trainer.train()
        except Killed:
            resume = "auto"
    trainer = configuration.trainer(folder)
    preview = trainer.preview(metrics=configuration.curves(), resume_from_checkpoint=resume)
    trainer.train(resume_from_checkpoint=resume)
    recording = read(folder)
    records = recording.records
    if len(recording.sessions) > 1:
        begins = max(index for index, record in enumerate(records) if "session" in record)
        records = records[begins:]
    left = sorted(int(path.name.rpartition("-")[2]) for path in folder.glob("checkpoint-*"))
    return preview.rows, rows_of(records), preview, left

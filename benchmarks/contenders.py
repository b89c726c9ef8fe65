"""The contenders: one function per library that trains the same task, and the tasks that they train.

All contenders do the same work: load and collate a batch, forward, backward, clip to norm 1, fused AdamW, a linear
schedule, and a sum of the losses. Each dataset records the time at which each batch is requested. The time from one
request to the next is the time of a step, so setup and teardown do not count.
"""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from common import COMPOSER, HF, IGNITE, LIGHTNING, OURS, RAW, hushed
from torch import nn
from torch.utils.data import DataLoader, Dataset

LEARNING_RATE, LOG_EVERY = 1e-3, 500

stamps: list[float] = []
"""The times at which batches were requested."""
starts: list[float] = []
"""The wall-clock time at which the library begins to resume or to train. Model, data and trainer are already built."""
clock: Callable[[], float] = time.process_time


class Samples(Dataset[dict[str, torch.Tensor]]):
    """A dataset with columns of tensors. It records the time of each request of a batch."""

    def __init__(self, **columns: torch.Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: column[index] for name, column in self.columns.items()}

    def __getitems__(self, indices: list[int]) -> list[dict[str, torch.Tensor]]:
        """Return the samples of a batch, and record the time of the request."""
        stamps.append(clock())
        return [self[index] for index in indices]


class Perceptron(nn.Module):
    """A perceptron with one hidden layer that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, points: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.net(points)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def points(count: int) -> Samples:
    """Return samples of random points. The label says whether the sum of a point is positive."""
    values = torch.randn(count, 32, generator=torch.Generator().manual_seed(0))
    return Samples(points=values, labels=(values.sum(dim=1) > 0).long())


def bert() -> nn.Module:
    """Return a BERT with two layers of width 128."""
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(vocab_size=1000, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512)
    )


def sentences(count: int) -> Samples:
    """Return random samples of 32 tokens. The label is the parity of the first token."""
    tokens = torch.randint(0, 1000, (count, 32), generator=torch.Generator().manual_seed(0))
    return Samples(input_ids=tokens, labels=tokens[:, 0] % 2)


@dataclass(frozen=True)
class Task:
    """A model and its data, which all contenders train."""

    model: Callable[[], nn.Module]
    data: Callable[[int], Any]
    """A function that receives the number of samples and returns the dataset."""
    batch: int = 32
    save_every: int = 0
    """The number of steps from one save to the next; 0 for never."""
    resume: str = ""
    """The checkpoint to resume from."""


TASKS = {"step of a perceptron": Task(Perceptron, points), "fine-tuning of a small BERT": Task(bert, sentences, 16)}

Contender = Callable[[Task, int, Path], None]
"""A function that trains a task for a number of steps. Its last argument is the folder for its files."""


def optimizer_and_schedule(model: nn.Module, steps: int) -> tuple[Any, Any]:
    """Return fused AdamW and a linear schedule."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, partial(_linear, steps=steps))


def _linear(step: int, steps: int) -> float:
    return max(0.0, (steps - step) / max(1, steps))


def loader(task: Task, steps: int) -> DataLoader[Any]:
    """Return a loader of torch with the data of a task for this number of steps. They are one epoch."""
    return DataLoader(task.data(task.batch * steps), task.batch, shuffle=True)


def raw(task: Task, steps: int, folder: Path) -> None:
    """Train with a plain loop."""
    model = task.model().train()
    optimizer, schedule = optimizer_and_schedule(model, steps)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    starts.append(time.perf_counter())
    if task.resume:
        states = torch.load(task.resume, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(states[name])
    parameters = list(model.parameters())
    losses, history = torch.tensor(0.0), []
    for step, batch in enumerate(loader(task, steps), start=1):
        loss = model(**batch)["loss"]
        loss.backward()
        losses += loss.detach()
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        model.zero_grad()
        if step % LOG_EVERY == 0:
            history.append((losses.item() / LOG_EVERY, norm.item()))
            losses.zero_()
        if task.save_every and step % task.save_every == 0:
            torch.save({name: part.state_dict() for name, part in parts.items()}, folder / f"step-{step}.pt")


def arguments(task: Task, folder: Path) -> dict[str, Any]:
    """Return the training arguments for trainbus and transformers."""
    saves: dict[str, Any] = {"save_strategy": "no"}
    if task.save_every:
        saves = {"save_strategy": "steps", "save_steps": task.save_every}
    return {
        "output_dir": str(folder),
        "num_train_epochs": 1,
        "per_device_train_batch_size": task.batch,
        "learning_rate": LEARNING_RATE,
        "logging_steps": LOG_EVERY,
        "disable_tqdm": True,
        "report_to": "none",
        "use_cpu": True,
        **saves,
    }


def hf_style(name: str, task: Task, steps: int, folder: Path, callbacks: Sequence[Any] = (), **more: Any) -> None:
    """Train with the Trainer of trainbus or of transformers. Both take the same arguments."""
    library: Any = importlib.import_module(name)
    if name == "transformers":
        library.logging.set_verbosity_error()
    args = library.TrainingArguments(**{**arguments(task, folder), **more})
    data = task.data(task.batch * steps)
    trainer = library.Trainer(task.model(), args, train_dataset=data, callbacks=list(callbacks))
    starts.append(time.perf_counter())
    trainer.train(resume_from_checkpoint=task.resume or None)


def lightning(task: Task, steps: int, folder: Path) -> None:
    """Train with Lightning's Trainer."""
    import lightning as package

    module = lightning_module(task.model(), steps)
    callbacks: list[Any] = []
    if task.save_every:
        from lightning.pytorch.callbacks import ModelCheckpoint

        callbacks = [ModelCheckpoint(folder, "{step}", every_n_train_steps=task.save_every, save_top_k=-1)]
    off = ("logger", "enable_progress_bar", "enable_model_summary")
    trainer = package.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        gradient_clip_val=1.0,
        enable_checkpointing=bool(callbacks),
        default_root_dir=str(folder),
        callbacks=callbacks,
        **dict.fromkeys(off, False),
    )
    data = loader(task, steps)
    starts.append(time.perf_counter())
    trainer.fit(module, data, ckpt_path=task.resume or None)


def lightning_module(model: nn.Module, steps: int = 1) -> Any:
    """Return the module of Lightning that trains and evaluates a model."""
    import lightning as package

    class Module(package.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.losses = model, torch.tensor(0.0)

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            loss = self.model(**batch)["loss"]
            self.losses += loss.detach()
            return loss

        def configure_optimizers(self) -> dict[str, Any]:
            optimizer, schedule = optimizer_and_schedule(self.model, steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    return Module()


def ignite(task: Task, steps: int, folder: Path) -> None:
    """Train with ignite's Engine."""
    from ignite.engine import Engine, Events
    from ignite.handlers import Checkpoint, DiskSaver

    model = task.model().train()
    optimizer, schedule = optimizer_and_schedule(model, steps)
    parameters, losses = list(model.parameters()), torch.tensor(0.0)

    def step(engine: Any, batch: dict[str, torch.Tensor]) -> None:
        nonlocal losses
        loss = model(**batch)["loss"]
        loss.backward()
        losses += loss.detach()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        model.zero_grad()

    engine = Engine(step)
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda: schedule.step())
    engine.add_event_handler(Events.ITERATION_COMPLETED(every=LOG_EVERY), lambda: losses.item())
    starts.append(time.perf_counter())
    if task.save_every or task.resume:
        parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "engine": engine}
        if task.resume:
            Checkpoint.load_objects(parts, torch.load(task.resume, weights_only=True))
        if task.save_every:
            saver = Checkpoint(parts, DiskSaver(str(folder), require_empty=False), n_saved=None)
            engine.add_event_handler(Events.ITERATION_COMPLETED(every=task.save_every), saver)
    engine.run(loader(task, steps), max_epochs=1)


def composer(task: Task, steps: int, folder: Path) -> None:
    """Train with Composer's Trainer, which loads a checkpoint when it is built."""
    from composer import Trainer
    from composer.algorithms import GradientClipping

    module = composer_module(task.model())
    optimizer, schedule = optimizer_and_schedule(module, steps)
    files: dict[str, Any] = {}
    if task.save_every:
        files = {
            "save_folder": str(folder),
            "save_filename": "step-{batch}.pt",
            "save_latest_filename": None,
            "save_interval": f"{task.save_every}ba",
            "save_overwrite": True,
        }
    data = loader(task, steps)
    starts.append(time.perf_counter())
    Trainer(
        model=module,
        train_dataloader=data,
        max_duration="1ep",
        optimizers=optimizer,
        schedulers=schedule,
        step_schedulers_every_batch=True,
        algorithms=[GradientClipping("norm", 1.0)],
        device="cpu",
        progress_bar=False,
        log_to_console=False,
        load_path=task.resume or None,
        **files,
    ).fit()


def composer_module(model: nn.Module, with_metrics: bool = False) -> Any:
    """Return the module of Composer that trains and evaluates a model. With metrics, it computes the accuracy."""
    import torchmetrics
    from composer.models import ComposerModel

    class Module(ComposerModel):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.metrics: dict[str, Any] = {"loss": torchmetrics.MeanMetric()}
            if with_metrics:
                self.metrics["accuracy"] = torchmetrics.Accuracy("multiclass", num_classes=2)

        def forward(self, batch: dict[str, torch.Tensor]) -> Any:
            return self.model(**batch)

        def loss(self, outputs: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            loss: torch.Tensor = outputs["loss"]
            return loss

        def get_metrics(self, is_train: bool) -> dict[str, Any]:
            return {} if is_train else self.metrics

        def update_metric(self, batch: dict[str, torch.Tensor], outputs: Any, metric: Any) -> None:
            if isinstance(metric, torchmetrics.MeanMetric):
                metric.update(outputs["loss"], len(batch["labels"]))
            else:
                metric.update(outputs["logits"], batch["labels"])

    return Module()


CONTENDERS: dict[str, Contender] = {
    RAW: raw,
    OURS: partial(hf_style, "trainbus"),
    HF: partial(hf_style, "transformers"),
    LIGHTNING: lightning,
    IGNITE: ignite,
    COMPOSER: composer,
}
MODULES = {
    RAW: ("torch",),
    OURS: ("trainbus",),
    HF: ("transformers", "accelerate"),
    LIGHTNING: ("lightning",),
    IGNITE: ("ignite",),
    COMPOSER: ("composer",),
}
"""Contender -> the modules that it needs."""


def missing(name: str) -> list[str]:
    """Return the modules of a contender that are not installed here."""
    return [module for module in MODULES[name] if find_spec(module) is None]


def periods(contender: Contender, task: Task, steps: int, folder: Path, warm_up: int) -> list[float]:
    """Train once. Return the times from each batch to the next, in seconds, in ascending order."""
    torch.manual_seed(0)
    gc.collect()
    stamps.clear()
    with hushed():
        contender(task, steps, folder)
    assert len(stamps) >= steps, f"{len(stamps)} batches were requested, and {steps} are needed"
    return sorted(after - before for before, after in zip(stamps[warm_up:], stamps[warm_up + 1 :]))

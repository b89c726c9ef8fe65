"""Kinds of runs that are interrupted at any step and resumed, and what must equal the uninterrupted run.

As a program, `python interrupted_runs.py FOLDER KIND SEED [STEPS]` kills sessions: after each step, or after some
steps, in a part of the step that it draws. It forks the sessions, so that torch is imported once.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kill_program import forked
from resume_points import RandomStart, Stateful
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

import trainbus
from support.data import points
from support.models import Regression
from support.outcomes import equal, history, weights
from trainbus import EMA, Callback, EarlyStopping, RecurrentMemory, default_data_collator
from trainbus.callbacks.stopping.stop_on_signal import Stopped

ROWS = 22
"""In batches of 4, an epoch has 6 steps, and the last batch has 2 samples."""

# Data.


class Noisy:
    """A collator that draws from all global generators, for training and evaluation."""

    def __call__(self, features: list[Any]) -> Any:
        batch = default_data_collator(features)
        batch["x"] = batch["x"] + 0.1 * (torch.rand(()) + np.random.randn() + random.random())
        return batch


def images(rows: int = ROWS, seed: int = 0) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {"x": torch.randn(3, 6, 6, generator=generator), "labels": torch.randint(0, 3, (), generator=generator)}
        for _ in range(rows)
    ]


def classes(rows: int = ROWS, seed: int = 0) -> list[dict[str, Any]]:
    return [{"x": each["x"], "labels": (each["x"].sum() > 0).long()} for each in points(rows, seed)]


def series(rows: int = ROWS, seed: int = 0) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    return [{"x": torch.randn(5, 3, generator=generator), "labels": torch.tensor(row % 5 / 5)} for row in range(rows)]


class OwnNoise:
    """A collator that draws from generators of its own. It creates one of them with its first batch."""

    def __init__(self) -> None:
        self.chance, self.generator = random.Random(1), None

    def __call__(self, features: list[Any]) -> Any:
        if self.generator is None:
            self.generator = torch.Generator().manual_seed(2)
        batch = default_data_collator(features)
        batch["x"] = batch["x"] + 0.1 * (torch.rand((), generator=self.generator) + self.chance.random())
        return batch


class Shift:
    """A transform that draws from generators of its own."""

    def __init__(self) -> None:
        self.generators = [np.random.default_rng(3), np.random.RandomState(4)]

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "x": row["x"] + 0.1 * sum(float(each.random()) for each in self.generators)}


class Augmented(Dataset):
    """Rows with a random transform."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows, self.transform = rows, Shift()

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.rows[index])

    def __len__(self) -> int:
        return len(self.rows)


def augmented(rows: list[Any]) -> Any:
    """Two datasets with generators of their own, in a subset."""
    return Subset(ConcatDataset([Augmented(rows[:10]), Augmented(rows[10:])]), range(len(rows)))


class AugmentedStream(IterableDataset):
    """A stream that shifts rows by draws from a generator of its own, which lasts over epochs."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows, self.chance = rows, np.random.Generator(np.random.Philox(5))

    def __iter__(self) -> Iterator[Any]:
        first = int(self.chance.integers(len(self.rows)))
        for row in self.rows[first:] + self.rows[:first]:
            yield {**row, "x": row["x"] + 0.1 * float(self.chance.random())}


class Buffered(IterableDataset):
    """A stream that shuffles in a buffer, from a generator of its own, seeded by the epoch."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows, self.epoch = rows, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        chance, buffer = random.Random(self.epoch), list(self.rows[:5])
        for row in self.rows[5:]:
            place = chance.randrange(5)
            buffer[place], row = row, buffer[place]
            yield row
        yield from buffer


# Models.


class Images(nn.Module):
    """A convolution in channels_last, a batch normalization and dropout."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.dropout, self.head = nn.Dropout(0.3), nn.Linear(4, 3)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.norm(self.conv(x.to(memory_format=torch.channels_last))).relu()
        logits = self.head(self.dropout(x.mean((2, 3))))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Series(nn.Module):
    """An LSTM that continues from its state after the batch before."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.lstm, self.head = nn.LSTM(3, 4), nn.Linear(4, 1)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor, mems: Any = None) -> dict[str, Any]:
        if mems is not None:  # the last batch of an epoch is smaller
            mems = tuple(part[:, : len(x)].contiguous() for part in mems)
        outputs, state = self.lstm(x.transpose(0, 1), mems)
        predicted = self.head(self.dropout(outputs[-1])).squeeze(-1)
        return {"loss": nn.functional.mse_loss(predicted, labels), "mems": state, "logits": predicted}


class Points(nn.Module):
    """Features of two classes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.last, self.dropout = nn.Linear(3, 6), nn.Linear(6, 2), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.last(self.dropout(self.first(x).relu()))
        return logits if labels is None else {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Centers(nn.Module):
    """A criterion with a parameter, a running mean and dropout."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed + 100)
        self.centers, self.dropout = nn.Parameter(torch.randn(2, 2)), nn.Dropout(0.2)
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(logits.detach().mean(0), 0.1)
        return (self.dropout(logits - self.mean) - self.centers[labels]).pow(2).mean()


def with_adapters(seed: int) -> Any:
    import peft

    base = Points(0)
    torch.manual_seed(seed)
    return peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["first", "last"], lora_dropout=0.2))


# Runs.

EPOCH = {"eval_strategy": "epoch", "logging_strategy": "epoch", "save_strategy": "epoch"}
STEPS = {"eval_strategy": "steps", "eval_steps": 3, "logging_steps": 2, "save_strategy": "steps", "save_steps": 4}
BEST = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "save_total_limit": 2}


def regression(seed: int) -> nn.Module:
    return Regression(0.4, seed)


def build(
    folder: Path,
    callbacks: list[Any],
    seed: int,
    *,
    model: Callable[[int], nn.Module] = regression,
    data: Callable[..., Any] = points,
    stream: Callable[[list[Any]], Any] = lambda rows: rows,
    more: Callable[[], list[Any]] = list,
    criterion: Callable[[int], Any] | None = None,
    collator: Callable[[], Any] = Noisy,
    eval_data: Callable[[list[Any]], Any] = lambda rows: rows,
    **args: Any,
) -> Any:
    """Build a trainer of two epochs.

    Args:
        folder: the output folder.
        callbacks: callbacks of the test.
        seed: the seed of the weights. A resumed run gets another one: all that it has comes from the checkpoint.
        model: builds the model from the seed.
        data: returns samples.
        stream: turns samples into the training data.
        more: returns the callbacks of this kind.
        criterion: builds the criterion from the seed.
        collator: builds the collator.
        eval_data: turns samples into the evaluation data.
        **args: arguments of `TrainingArguments`.
    """
    defaults = {"per_device_train_batch_size": 4, "learning_rate": 0.05, "disable_tqdm": True, "use_cpu": True}
    if "max_steps" not in args:
        defaults["num_train_epochs"] = 2
    return trainbus.Trainer(
        model(seed),
        trainbus.TrainingArguments(str(folder), **{**defaults, **args}),
        train_dataset=stream(data(ROWS)),
        eval_dataset=eval_data(data(10, seed=1)),
        data_collator=collator(),
        callbacks=[*callbacks, *more()],
        **({} if criterion is None else {"criterion": criterion(seed)}),
    )


PLATEAU = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0}}
KINDS: dict[str, dict[str, Any]] = {
    "dropout": STEPS,
    "epochs": {**EPOCH, "gradient_accumulation_steps": 2, "num_train_epochs": 3},
    "early stopping": {
        **{**STEPS, **BEST, "max_steps": 20, "eval_steps": 2},
        "more": lambda: [EarlyStopping("eval_loss", patience=2, threshold=0.2)],
    },
    "plateau": {**EPOCH, **PLATEAU, "eval_strategy": "steps", "eval_steps": 2},
    "ema": {**STEPS, **BEST, "more": lambda: [EMA(0.8)]},
    "peft": {**STEPS, **BEST, "model": with_adapters, "data": classes},
    "criterion": {**STEPS, **BEST, "model": Points, "data": classes, "criterion": Centers},
    "channels_last": {**STEPS, "model": Images, "data": images, "optim": "adamw_torch_fused"},
    "compile": {
        **{**STEPS, "model": Points, "data": classes, "torch_compile": True, "torch_compile_backend": "aot_eager"}
    },
    "lstm": {**STEPS, "model": Series, "data": series, "more": lambda: [RecurrentMemory(1)]},
    "stream": {**STEPS, "stream": RandomStart, "max_steps": 12},
    "shuffled stream": {**STEPS, "stream": Buffered, "max_steps": 12},
    "stream with a state": {**STEPS, "stream": Stateful, "max_steps": 12, "gradient_accumulation_steps": 2},
    "own generators": {**STEPS, "stream": augmented, "collator": OwnNoise, "eval_data": Augmented},
    "own generators of a stream": {**STEPS, "stream": AugmentedStream, "collator": OwnNoise, "max_steps": 12},
    "own generators in workers": {**STEPS, "stream": augmented, "collator": OwnNoise, "dataloader_num_workers": 2},
    "workers": {**EPOCH, "dataloader_num_workers": 2},
    "persistent workers": {**STEPS, "dataloader_num_workers": 2, "dataloader_persistent_workers": True},
}


def untimed(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name != "last_seconds"}


def in_order(logs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort the entries of a step. A repeated evaluation may follow the log of an epoch's last step, or precede it."""
    return sorted(logs, key=lambda entry: (entry["step"], "train_loss" in entry, "loss" in entry))


def outcome(run: Any) -> dict[str, Any]:
    """Return all that must equal the uninterrupted run, in every bit."""
    state, folder = run.state, Path(run.args.output_dir)
    best = state.best_model_checkpoint
    loss = run.criterion.state_dict() if isinstance(getattr(run, "criterion", None), nn.Module) else {}
    return {
        "weights": weights(run.model),
        "criterion": loss,
        "optimizer": run.optimizer.state_dict(),
        "schedule": run.lr_scheduler.state_dict(),
        "logs": in_order(history(run)),
        "evaluations": [entry for entry in history(run) if "eval_loss" in entry],
        "last step": state.global_step,
        "best": (state.best_metric, state.best_global_step, best and os.path.relpath(best, folder)),
        "samples": state.samples_seen,
        "flos": state.total_flos,
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": list(np.random.get_state()[1]),
        "callbacks": {name: untimed(callback.state_dict()) for name, callback in run.run.bus.subscribers.items()},
    }


def differences(found: dict[str, Any], expected: dict[str, Any], where: str) -> list[str]:
    """Return the parts of an outcome that differ."""
    return [f"{where}: {name}" for name in expected if not equal(found[name], expected[name])]


def uninterrupted(folder: Path, kind: str) -> dict[str, Any]:
    """Return the outcome of a run that is not interrupted. The outcome has the number of its steps."""
    run = build(folder / "uninterrupted", [], 0, **KINDS[kind])
    run.train()
    return outcome(run)


# Signals.

PARTS = ("on_step_begin", "on_loss", "on_gradients", "on_optimizer_step", "on_step_end")
"""Events in a step at which a signal or a kill comes."""


class Ends(Callback):
    """Sends this process a signal in a part of a step."""

    def __init__(self, number: int, step: int, part: str) -> None:
        self.number, self.step, self.part, self.sent = number, step, part, False

    def _heard(self, event: str, done: int) -> None:
        if event == self.part and done + 1 == self.step and not self.sent:
            self.sent = True
            os.kill(os.getpid(), self.number)

    def on_step_begin(self, state: Any) -> None:
        self._heard("on_step_begin", state.global_step)

    def on_loss(self, state: Any) -> None:
        self._heard("on_loss", state.global_step)

    def on_gradients(self, state: Any) -> None:
        self._heard("on_gradients", state.global_step)

    def on_optimizer_step(self, state: Any) -> None:
        self._heard("on_optimizer_step", state.global_step)

    def on_step_end(self, state: Any) -> None:
        self._heard("on_step_end", state.global_step - 1)

    def on_prediction_step(self, state: Any) -> None:
        self._heard("on_prediction_step", state.global_step - 1)

    def on_snapshot(self, state: Any) -> None:
        self._heard("on_snapshot", state.global_step - 1)

    def on_save(self, state: Any) -> None:
        self._heard("on_save", state.global_step - 1)


def session(folder: Path, kind: str, ends: Ends) -> None:
    """Train from the start until the session is ended."""
    build(folder, [ends], 0, **KINDS[kind]).train()


PLACES = (*PARTS, "on_prediction_step")


def every_step(number: int, last: int) -> list[tuple[int, int, str]]:
    """Return a signal in each step before the last. The part of the step changes from step to step."""
    return [(number, step, PLACES[(step + number) % len(PLACES)]) for step in range(1, last)]


def signalled(folder: Path, kind: str, points: list[tuple[int, int, str]], everywhere: int = 0) -> list[str]:
    """Stop a run by signals and resume it; return what differs from the uninterrupted run.

    Args:
        folder: for checkpoints.
        kind: a key of `KINDS`.
        points: signal, step and part of the step of each interruption; a point that the run does not reach is left
            out. Empty: one in each step, by the signal `everywhere`.
        everywhere: a signal.
    """
    expected, wrong, stops = uninterrupted(folder, kind), [], 0
    for number, step, part in points or every_step(everywhere, expected["last step"]):
        stopped = folder / f"{number}-{step}"
        try:
            session(stopped, kind, Ends(number, step, part))
            continue  # there is no evaluation after this step
        except Stopped:
            stops += 1
        again = build(stopped, [], 1, **KINDS[kind])
        again.train(resume_from_checkpoint=True)
        wrong += differences(outcome(again), expected, f"{signal.Signals(number).name} in {part} of step {step}")
        shutil.rmtree(stopped)
    return wrong if stops else ["the run was not stopped"]


# Kills.


def killed(folder: Path, kind: str, seed: int, steps: list[int] | None = None) -> list[str]:
    """Kill a run in each step, or in some, and resume it; return what differs from the uninterrupted run.

    The part of the step is drawn. The resumed run starts from the newest checkpoint, if there is one.
    """
    expected = uninterrupted(folder, kind)
    chance, wrong, kills = random.Random(seed), [], 0
    for step in steps or range(1, expected["last step"] + 1):
        part = chance.choice([*PARTS, "on_prediction_step", "on_snapshot", "on_save"])
        stopped, where = folder / f"{step}", f"killed in {part} of step {step}"
        child = forked(partial(session, stopped, kind, Ends(signal.SIGKILL, step, part)))
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            if os.waitstatus_to_exitcode(status):
                wrong.append(f"{where}: the session failed")
            shutil.rmtree(stopped)  # there is no such part in this step
            continue
        kills += 1
        resumes = any(stopped.glob("checkpoint-*"))
        again = build(stopped, [], int(resumes), **KINDS[kind])
        again.train(resume_from_checkpoint=resumes)
        wrong += differences(outcome(again), expected, where)
        shutil.rmtree(stopped)
    return wrong if kills else ["the run was not killed"]


if __name__ == "__main__":
    found = killed(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), [*map(int, sys.argv[4:])] or None)
    sys.exit("\n".join(found) or 0)  # an empty text would be an exit code of 1

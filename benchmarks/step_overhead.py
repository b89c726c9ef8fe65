"""Measure the time of a trainbus step relative to a plain torch loop that does the same work.

    python benchmarks/step_overhead.py
    python benchmarks/step_overhead.py --with transformers lightning ignite --limit 1.2

The work is minimal (a tiny MLP, batches of 32, one thread), so that the overhead of the trainer is visible. With a
model that takes 10 ms per step, the same microseconds do not matter. All contenders do the same work: load and collate
32 samples, forward, backward, clip to norm 1, fused AdamW, a linear schedule, and a sum of the losses. Callbacks are
the defaults.

The benchmark works on a noisy machine. It measures the CPU time of the process, so other processes do not count. It
reads the clock when a batch is requested, so setup and teardown do not count. Runs are short, and the contenders
alternate. The output shows low quantiles and the median of the time per batch, each with the median of the ratios
within a round. It also shows the quietest round, which is the most reliable figure on a busy machine. `--limit` applies
to it. `--wall` measures wall-clock time instead.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import trainbus

BATCH, FEATURES, LEARNING_RATE = 32, 32, 1e-3
LOG_EVERY = 500
WARM_UP = 20
QUANTILES = (0.1, 0.25, 0.5)

Contenders = dict[str, Callable[[int], None]]
Results = dict[str, list[list[float]]]
"""Contender -> rounds -> quantiles of the time per batch, in seconds."""

stamps: list[float] = []
clock = time.process_time


class Points(Dataset[dict[str, torch.Tensor]]):
    """Random points, and whether their sum is positive."""

    def __init__(self, count: int) -> None:
        self.points = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(0))
        self.labels = (self.points.sum(dim=1) > 0).long()

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"points": self.points[index], "labels": self.labels[index]}

    def __getitems__(self, indices: list[int]) -> list[dict[str, torch.Tensor]]:
        """Return the samples of a batch, and record the time of the request."""
        stamps.append(clock())
        return [self[index] for index in indices]


class Model(nn.Module):
    """A perceptron with one hidden layer that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, points: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.net(points)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def linear(step: int, steps: int) -> float:
    """Return the factor of the learning rate: from 1 down to 0."""
    return max(0.0, (steps - step) / max(1, steps))


def optimizer_and_schedule(
    model: nn.Module, steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Return fused AdamW and a linear schedule."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, partial(linear, steps=steps))


def run_raw(steps: int) -> None:
    """Train with a plain loop."""
    model = Model().train()
    optimizer, schedule = optimizer_and_schedule(model, steps)
    parameters = list(model.parameters())
    losses, history = torch.tensor(0.0), []
    for step, batch in enumerate(DataLoader(Points(BATCH * steps), BATCH, shuffle=True), start=1):
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


def run_trainer(steps: int, library: Any) -> None:
    """Train with the Trainer of trainbus or transformers, whose arguments are the same."""
    with tempfile.TemporaryDirectory() as folder:
        args = library.TrainingArguments(
            folder,
            num_train_epochs=1,
            per_device_train_batch_size=BATCH,
            learning_rate=LEARNING_RATE,
            logging_steps=LOG_EVERY,
            disable_tqdm=True,
            use_cpu=True,
        )
        library.Trainer(Model(), args, train_dataset=Points(BATCH * steps)).train()


def run_transformers(steps: int) -> None:
    """Train with transformers' Trainer."""
    import transformers

    transformers.logging.set_verbosity_error()
    run_trainer(steps, transformers)


def run_lightning(steps: int) -> None:
    """Train with Lightning's Trainer."""
    import lightning

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.losses = Model(), torch.tensor(0.0)

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            loss = self.model(**batch)["loss"]
            self.losses += loss.detach()
            return loss

        def configure_optimizers(self) -> dict[str, Any]:
            optimizer, schedule = optimizer_and_schedule(self.model, steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, gradient_clip_val=1.0, **dict.fromkeys(off, False)
    )
    trainer.fit(Module(), DataLoader(Points(BATCH * steps), BATCH, shuffle=True))


def run_ignite(steps: int) -> None:
    """Train with ignite's Engine."""
    from ignite.engine import Engine, Events

    model = Model().train()
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
    engine.run(DataLoader(Points(BATCH * steps), BATCH, shuffle=True), max_epochs=1)


OTHERS: Contenders = {
    "transformers": run_transformers,
    "lightning": run_lightning,
    "ignite": run_ignite,
}


def periods(contender: Callable[[int], None], steps: int) -> list[float]:
    """Run a contender. Return the times from each batch to the next, in seconds, in ascending order."""
    torch.manual_seed(0)
    gc.collect()
    stamps.clear()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        contender(steps)
    return sorted(after - before for before, after in zip(stamps[WARM_UP:], stamps[WARM_UP + 1 :]))


def measure(contenders: Contenders, steps: int, rounds: int) -> Results:
    """Return the quantiles of the periods of each contender in each round. The contenders alternate."""
    results: Results = {name: [] for name in contenders}
    for turn in range(-1, rounds):
        names = list(contenders)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            ordered = periods(contenders[name], steps)
            if turn >= 0:  # round -1 is the warm-up
                results[name].append([ordered[int(len(ordered) * quantile)] for quantile in QUANTILES])
        if sys.stderr.isatty():
            print(f"\rround {turn + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    return results


def ratio(mine: list[list[float]], base: list[list[float]], index: int) -> float:
    """Return the median of the ratios within each round."""
    return statistics.median(one[index] / other[index] for one, other in zip(mine, base))


def quietest(mine: list[list[float]], index: int = 0) -> float:
    """Return the quantile of the quietest round, which is the smallest."""
    return min(one[index] for one in mine)


def show(results: Results) -> None:
    """Print microseconds per step and the ratio to the plain loop, for all rounds and for the quietest."""
    base = results["plain loop"]
    columns = [f"{quantile:.0%} of steps within" for quantile in QUANTILES] + ["in the quietest round"]
    print(f"{'':14}" + "".join(f"{column:>26}" for column in columns))
    for name, mine in results.items():
        cells = [
            (statistics.median(one[index] for one in mine), ratio(mine, base, index)) for index in range(len(QUANTILES))
        ]
        cells.append((quietest(mine), quietest(mine) / quietest(base)))
        print(f"{name:14}" + "".join(f"{typical * 1e6:14.0f} us x {times:5.3f}" for typical, times in cells))


def main() -> int:
    """Measure, print, and return 1 if trainbus exceeds the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="steps per run")
    parser.add_argument("--rounds", type=int, default=40, help="runs per contender")
    parser.add_argument("--with", nargs="*", default=[], choices=OTHERS, dest="others", help="other contenders")
    parser.add_argument("--limit", type=float, help="fail if trainbus exceeds this multiple of the plain loop")
    parser.add_argument("--wall", action="store_true", help="measure wall-clock time instead of CPU time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.wall:
        global clock
        clock = time.perf_counter
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)

    contenders: Contenders = {"plain loop": run_raw, "trainbus": partial(run_trainer, library=trainbus)}
    packages = {"transformers": "accelerate"}
    for name in options.others:
        if find_spec(name) and find_spec(packages.get(name, name)):
            contenders[name] = OTHERS[name]
        else:
            print(f"{name} is not installed and is left out")
    results = measure(contenders, options.steps, options.rounds)
    show(results)
    found = quietest(results["trainbus"]) / quietest(results["plain loop"])
    print(f"trainbus takes {found:.3f} times the plain loop, in the quietest of {options.rounds} rounds")
    return int(options.limit is not None and found > options.limit)


if __name__ == "__main__":
    sys.exit(main())

"""What a step of trainbus costs beside a plain torch loop that does the same work.

    python benchmarks/step_overhead.py
    python benchmarks/step_overhead.py --with transformers lightning ignite --limit 1.2

The work is as small as work can be (a tiny MLP, batches of 32, on one thread), so that what the trainer adds is seen:
with a model that takes 10 ms for a step, the same microseconds vanish. All do the same: load and collate 32 rows,
forward, backward, clip to norm 1, fused AdamW, a linear schedule, and a sum of the losses. Callbacks are the defaults.

The machine is taken to be noisy. Time is that of the process, so what others take of the machine is not counted, and it
is read whenever a batch is asked for, so neither is building nor ending. Runs are short and the contenders take
turns. Shown are low quantiles and the median of the periods from batch to batch, with the median of the ratios within a
round, and the round in which the machine did least else, which tells most when it is busy and is what `--limit` is for.
`--wall` reads the clock on the wall instead.
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

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import trainbus

BATCH, FEATURES, LEARNING_RATE = 32, 32, 1e-3
LOG_EVERY = 500
WARM_UP = 20
QUANTILES = (0.1, 0.25, 0.5)

stamps: list[float] = []
clock = time.process_time


class Rows(Dataset):
    """Random points, and whether their sum is positive."""

    def __init__(self, count):
        self.points = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(0))
        self.labels = (self.points.sum(dim=1) > 0).long()

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return {"points": self.points[index], "labels": self.labels[index]}

    def __getitems__(self, indices):
        """Return the rows of a batch, and note when it was asked for."""
        stamps.append(clock())
        return [self[index] for index in indices]


class Model(nn.Module):
    """A perceptron with one hidden layer, which returns its loss."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, points, labels=None):
        logits = self.net(points)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def linear(step, steps):
    """Return the factor of the learning rate: from 1 down to 0."""
    return max(0.0, (steps - step) / max(1, steps))


def optimizer_and_schedule(model, steps):
    """Return fused AdamW and a linear schedule."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, partial(linear, steps=steps))


def run_raw(steps):
    """Train by a plain loop."""
    model = Model().train()
    optimizer, schedule = optimizer_and_schedule(model, steps)
    parameters = list(model.parameters())
    losses, history = torch.tensor(0.0), []
    for step, batch in enumerate(DataLoader(Rows(BATCH * steps), BATCH, shuffle=True), start=1):
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


def run_trainer(steps, library):
    """Train with a Trainer: of trainbus, or of transformers, whose arguments are the same."""
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
        library.Trainer(Model(), args, train_dataset=Rows(BATCH * steps)).train()


def run_transformers(steps):
    """Train with transformers' Trainer."""
    import transformers

    transformers.logging.set_verbosity_error()
    run_trainer(steps, transformers)


def run_lightning(steps):
    """Train with Lightning's Trainer."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.losses = Model(), torch.tensor(0.0)

        def training_step(self, batch, index):
            loss = self.model(**batch)["loss"]
            self.losses += loss.detach()
            return loss

        def configure_optimizers(self):
            optimizer, schedule = optimizer_and_schedule(self.model, steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, gradient_clip_val=1.0, **dict.fromkeys(off, False)
    )
    trainer.fit(Module(), DataLoader(Rows(BATCH * steps), BATCH, shuffle=True))


def run_ignite(steps):
    """Train with ignite's Engine."""
    from ignite.engine import Engine, Events

    model = Model().train()
    optimizer, schedule = optimizer_and_schedule(model, steps)
    parameters, losses = list(model.parameters()), torch.tensor(0.0)

    def step(engine, batch):
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
    engine.run(DataLoader(Rows(BATCH * steps), BATCH, shuffle=True), max_epochs=1)


OTHERS: dict[str, Callable[[int], None]] = {
    "transformers": run_transformers,
    "lightning": run_lightning,
    "ignite": run_ignite,
}


def periods(contender, steps):
    """Run a contender; return the time from each batch to the next, in seconds, in ascending order."""
    torch.manual_seed(0)
    gc.collect()
    stamps.clear()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        contender(steps)
    return sorted(after - before for before, after in zip(stamps[WARM_UP:], stamps[WARM_UP + 1 :]))


def measure(contenders, steps, rounds):
    """Return for each contender and round the quantiles of its periods; the contenders take turns."""
    results = {name: [] for name in contenders}
    for turn in range(-1, rounds):
        names = list(contenders)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            ordered = periods(contenders[name], steps)
            if turn >= 0:  # the round before the first one warms up
                results[name].append([ordered[int(len(ordered) * quantile)] for quantile in QUANTILES])
        if sys.stderr.isatty():
            print(f"\rround {turn + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    return results


def ratio(mine, base, index):
    """Return the median over the rounds of the ratio within a round."""
    return statistics.median(one[index] / other[index] for one, other in zip(mine, base))


def quietest(mine, index=0):
    """Return the quantile of the round in which the machine did least else."""
    return min(one[index] for one in mine)


def show(results):
    """Print microseconds per step and the ratio to the plain loop: of all rounds, and of the quietest of each."""
    base = results["plain loop"]
    columns = [f"{quantile:.0%} of steps within" for quantile in QUANTILES] + ["in the quietest round"]
    print(f"{'':14}" + "".join(f"{column:>26}" for column in columns))
    for name, mine in results.items():
        cells = [
            (statistics.median(one[index] for one in mine), ratio(mine, base, index)) for index in range(len(QUANTILES))
        ]
        cells.append((quietest(mine), quietest(mine) / quietest(base)))
        print(f"{name:14}" + "".join(f"{typical * 1e6:14.0f} us x {times:5.3f}" for typical, times in cells))


def main():
    """Measure and show; return 1 if trainbus is slower than the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="steps of a run")
    parser.add_argument("--rounds", type=int, default=40, help="runs of each contender")
    parser.add_argument("--with", nargs="*", default=[], choices=OTHERS, dest="others", help="others to measure")
    parser.add_argument("--limit", type=float, help="fail if trainbus takes more than this many times the plain loop")
    parser.add_argument("--wall", action="store_true", help="take wall-clock time, waiting for the machine included")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.wall:
        global clock
        clock = time.perf_counter
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)

    contenders = {"plain loop": run_raw, "trainbus": partial(run_trainer, library=trainbus)}
    packages = {"transformers": "accelerate"}
    for name in options.others:
        if find_spec(name) and find_spec(packages.get(name, name)):
            contenders[name] = OTHERS[name]
        else:
            print(f"{name} is not installed and left out")
    results = measure(contenders, options.steps, options.rounds)
    show(results)
    found = quietest(results["trainbus"]) / quietest(results["plain loop"])
    print(f"trainbus takes {found:.3f} times the plain loop, in the quietest of {options.rounds} rounds")
    return int(options.limit is not None and found > options.limit)


if __name__ == "__main__":
    sys.exit(main())

"""The Python calls of a step do not grow."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from trainbus import Callback, Trainer, TrainingArguments

FIRST, LAST = 50, 150
"""The steps between which calls are counted; no log, evaluation or checkpoint is due there."""

CEILING = 350
"""Python calls of a step with the default callbacks and torch 2.13. A plain loop makes 327."""


class Calls:
    """Counts the Python functions that are called while counting is on."""

    def __init__(self) -> None:
        self.count = 0

    def start(self) -> None:
        def called(frame: Any, event: str, argument: Any) -> None:
            self.count += event == "call"

        sys.setprofile(called)

    def stop(self) -> None:
        sys.setprofile(None)


@contextmanager
def no_profiler_left() -> Iterator[None]:
    before = sys.getprofile()
    try:
        yield
    finally:
        sys.setprofile(before)


def rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(LAST * 8 + 80, 20, generator=generator)
    return TensorDataset(points, (points.sum(dim=1) > 0).long())


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))


def calls_of_trainer(folder: Path) -> float:
    calls = Calls()

    class Count(Callback):
        def on_step_end(self, state: Any) -> None:
            if state.global_step == FIRST:
                calls.start()
            elif state.global_step == LAST:
                calls.stop()

    options = {"logging_steps": 10_000, "save_strategy": "no", "report_to": "none", "use_cpu": True}
    args = TrainingArguments(str(folder), max_steps=LAST + 5, **options)
    built = Trainer(network(), args, train_dataset=rows(), criterion=nn.functional.cross_entropy, callbacks=[Count()])
    built.train()
    return calls.count / (LAST - FIRST)


def calls_of_plain_loop() -> float:
    calls, data, model = Calls(), rows(), network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / LAST)
    loader = DataLoader(data, batch_size=8, sampler=RandomSampler(data))
    losses = torch.tensor(0.0)
    for step, (points, labels) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(model(points), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses += loss.detach()
        if step == FIRST:
            calls.start()
        elif step == LAST:
            calls.stop()
            break
    return calls.count / (LAST - FIRST)


def test_a_step_makes_no_more_python_calls_than_recorded(tmp_path: Path):
    with no_profiler_left():
        ours, plain = calls_of_trainer(tmp_path), calls_of_plain_loop()
    assert plain > 200, "the counter does not see the calls of a plain loop"
    assert round(ours) <= CEILING, f"{ours} calls a step; a plain loop makes {plain}"

"""Print the Python calls of a step: of the Trainer with its default callbacks, and of a plain loop.

A process of its own: what other tests import or patch changes how many Python functions torch calls.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from trainbus import Callback, Trainer, TrainingArguments

FIRST, LAST = 50, 150
"""The steps between which calls are counted. No log, evaluation or checkpoint is due there."""


class Calls:
    """Counts the Python functions that are called between `start` and `stop`."""

    def __init__(self) -> None:
        self.count = 0

    def start(self) -> None:
        def called(frame: Any, event: str, argument: Any) -> None:
            self.count += event == "call"

        sys.setprofile(called)

    def stop(self) -> None:
        sys.setprofile(None)


def samples() -> TensorDataset:
    points = torch.randn(LAST * 8 + 80, 20)
    return TensorDataset(points, (points.sum(dim=1) > 0).long())


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))


def calls_of_trainer(folder: str) -> float:
    calls = Calls()

    class Count(Callback):
        def on_step_end(self, state: Any) -> None:
            if state.global_step == FIRST:
                calls.start()
            elif state.global_step == LAST:
                calls.stop()

    options = {"logging_steps": 10_000, "save_strategy": "no", "report_to": "none", "use_cpu": True}
    args = TrainingArguments(folder, max_steps=LAST + 5, **options)
    criterion = nn.functional.cross_entropy
    Trainer(network(), args, train_dataset=samples(), criterion=criterion, callbacks=[Count()]).train()
    return calls.count / (LAST - FIRST)


def calls_of_plain_loop() -> float:
    calls, data, model = Calls(), samples(), network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / LAST)
    losses = torch.tensor(0.0)
    for step, (points, labels) in enumerate(DataLoader(data, batch_size=8, sampler=RandomSampler(data)), 1):
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


print(round(calls_of_trainer(sys.argv[1])), round(calls_of_plain_loop()), file=sys.stderr)

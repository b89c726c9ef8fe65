"""Measure the time of a step and of an evaluation with one training batch, without an effect on the trainer."""

from __future__ import annotations

import copy
import math
import time
from typing import Any

import torch

from ...data.batches import to_device
from ...data.build import length_of
from ...evaluation.modes import to_eval, to_train


def measured(trainer: Any) -> dict[str, float]:
    """Return the estimated seconds of one step and of one evaluation, such as `{"step": 0.5, "evaluation": 20.0}`.

    One evaluation includes all eval datasets. A dataset without a length counts as 0 seconds.

    The function runs a copy of the model on one training batch. The time of a step does not include the update of the
    weights. The function changes the RNG states, and the caller restores them.
    """
    args, device = trainer.args, trainer.args.device
    model = copy.deepcopy(trainer.run.model)
    batch = to_device(next(iter(trainer.get_train_dataloader())), device, False)
    to_train(model)
    forward = _seconds(lambda: trainer.objective(model, batch), device)
    both = _seconds(lambda: torch.autograd.backward(_loss(trainer.objective(model, batch))), device)
    to_eval(model)
    with torch.no_grad():
        evaluation = _seconds(lambda: trainer.objective(model, batch), device)
    batches = 0
    given = trainer.eval_dataset
    for dataset in given.values() if isinstance(given, dict) else [given] if given is not None else []:
        batches += math.ceil((length_of(dataset) or 0) / (args.eval_batch_size * trainer.run.ranks.world_size))
    share = args.eval_batch_size / max(args.train_batch_size, 1)
    return {
        "step": max(both, forward) * args.gradient_accumulation_steps,
        "evaluation": evaluation * share * batches,
    }


def _loss(result: Any) -> torch.Tensor:
    loss: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return loss if loss.dim() == 0 else loss.mean()


def _seconds(work: Any, device: torch.device, times: int = 3) -> float:
    """Return the time of the fastest of `times` calls, in seconds."""
    least = math.inf
    for _ in range(times):
        _wait(device)
        began = time.perf_counter()
        work()
        _wait(device)
        least = min(least, time.perf_counter() - began)
    return least


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

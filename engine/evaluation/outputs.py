"""What trainers return and metric functions receive, and a few helpers of the same family."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch


class EvalPrediction:
    """What `compute_metrics` receives.

    Unpacks to `predictions, label_ids`, with `inputs` and `losses` behind them where they were asked for.

    Args:
        predictions: the model's outputs other than its loss, an array of shape (rows, ...), or a tuple of such.
        label_ids: the labels, an array of shape (rows, ...), or a tuple of such.
        inputs: the model's main input, where `include_for_metrics` names `inputs`.
        losses: the loss of each row, where `include_for_metrics` names `loss`.
    """

    def __init__(self, predictions: Any, label_ids: Any, inputs: Any = None, losses: Any = None) -> None:
        self.predictions = predictions
        self.label_ids = label_ids
        self.inputs = inputs
        self.losses = losses
        self.elements = (predictions, label_ids, *(part for part in (inputs, losses) if part is not None))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.elements)

    def __getitem__(self, index: int) -> Any:
        return self.elements[index]


class EvalLoopOutput(NamedTuple):
    """What an evaluation loop returns."""

    predictions: Any
    label_ids: Any
    metrics: dict[str, Any]
    num_samples: int


class PredictionOutput(NamedTuple):
    """What `Trainer.predict` returns."""

    predictions: Any
    label_ids: Any
    metrics: dict[str, Any]


class TrainOutput(NamedTuple):
    """What `Trainer.train` returns."""

    global_step: int
    training_loss: float
    metrics: dict[str, Any]


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seed python's, numpy's and torch's generators, those of all devices included.

    Args:
        seed: any whole number.
        deterministic: also let torch use only operations that give the same bits every time, which is slower; one that
            has no such form raises.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs for it
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False


def enable_full_determinism(seed: int, warn_only: bool = False) -> None:
    """Seed every generator, and let torch and CUDA use only operations that give the same bits every time.

    It is slower. Call it before CUDA is first used, which reads its settings once.

    Args:
        seed: any whole number.
        warn_only: warn of an operation that has no such form, rather than raise.
    """
    os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
    os.environ["FLASH_ATTENTION_DETERMINISTIC"] = "1"
    set_seed(seed, deterministic=True)
    torch.use_deterministic_algorithms(True, warn_only=warn_only)


def print_messages(level: int) -> None:
    """Have the library's messages printed from a level of `logging` on, to stderr unless the program logs elsewhere."""
    logger = logging.getLogger(__name__.partition(".")[0])
    logger.setLevel(level)
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())


def speed_metrics(prefix: str, began: float, rows: float | None = None, steps: int | None = None) -> dict[str, float]:
    """Return runtime in seconds, and rows and steps per second, rounded as transformers rounds them.

    Args:
        prefix: of the keys, as `eval`.
        began: when it began, on the clock of `time.time`.
        rows: rows processed.
        steps: batches or optimizer steps processed.
    """
    runtime = time.time() - began
    speed = {f"{prefix}_runtime": round(runtime, 4)}
    if runtime > 0 and rows is not None:
        speed[f"{prefix}_samples_per_second"] = round(rows / runtime, 3)
    if runtime > 0 and steps is not None:
        speed[f"{prefix}_steps_per_second"] = round(steps / runtime, 3)
    return speed


def plain(value: Any) -> Any:
    """Return a metric as plain numbers and containers, so that it can be written as JSON."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(item) for item in value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    return value

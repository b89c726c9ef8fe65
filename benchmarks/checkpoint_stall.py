"""Measure how long a checkpoint stalls training, compared with transformers' Trainer, and its total cost.

    python benchmarks/checkpoint_stall.py
    python benchmarks/checkpoint_stall.py --millions 60 --saves 5 --limit 0.25 --resume-limit 1

Both train the same model with AdamW, which keeps two values per weight, and save every few steps. The stall is the time
of a step with a save, minus the median step of a run without saves. Writing in the background slows down other steps.
The cost is the additional time of the whole run, per checkpoint. The two libraries alternate.

The resume time is from the call of `train` to the first step, each time in a new process. torch's compiler is imported
before: optimizers import it when the first is built, and transformers has imported it by then.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import itertools
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn
from torch.utils.data import Dataset

BETWEEN = 25
"""Steps from one save to the next."""
RESUMES = 5
"""Resumes per library."""


class ZeroDataset(Dataset[dict[str, Any]]):
    """Samples of zeros, and labels."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.zeros(8), "labels": index % 2}


class Large(nn.Module):
    """A model of some million weights. A step reads all of them once and computes little."""

    def __init__(self, millions: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        width = 1000
        self.head = nn.Linear(8, 2)
        self.rows = nn.ParameterList(nn.Parameter(torch.randn(width, width)) for _ in range(round(millions)))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Return the loss, which depends on every weight."""
        logits = self.head(x)
        loss = nn.functional.cross_entropy(logits, labels) + 1e-9 * sum(row.sum() for row in self.rows)
        return {"loss": loss, "logits": logits}


def arguments(folder: Path, saves: int) -> dict[str, Any]:
    """Return the training arguments for both libraries."""
    return {
        "output_dir": str(folder),
        "max_steps": saves * BETWEEN + 1,
        "save_steps": BETWEEN,
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "per_device_train_batch_size": 4,
    }


def measured(library: Any, folder: Path, millions: float, saves: int) -> dict[str, float]:
    """Train with and without saves. Return the seconds of a stall and of a whole checkpoint, and its bytes."""
    stamps: list[tuple[int, float]] = []

    class Stamps(library.TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            stamps.append((state.global_step, time.perf_counter()))

    def steps_of(**more: Any) -> dict[int, float]:
        """Train, and return the seconds between the beginnings of successive steps, by step."""
        stamps.clear()
        trainer(**more).train()
        return {step: later - earlier for (step, earlier), (_, later) in itertools.pairwise(stamps) if step > 1}

    def trainer(**more: Any) -> Any:
        args = library.TrainingArguments(**{**arguments(folder, saves), **more})
        return library.Trainer(Large(millions), args, train_dataset=ZeroDataset(), callbacks=[Stamps()])

    without_saves = steps_of(save_strategy="no")
    with_saves = steps_of()
    usual = statistics.median(without_saves.values())
    # `on_step_begin` after n steps announces step n + 1. A save is at the end of step `BETWEEN`, `2 * BETWEEN`, ...
    stalls = [seconds - usual for step, seconds in with_saves.items() if (step + 1) % BETWEEN == 0]
    last = folder / f"checkpoint-{saves * BETWEEN}"
    size = sum(path.stat().st_size for path in last.rglob("*") if path.is_file())
    return {
        "stall": statistics.median(stalls),
        "longest": max(stalls),
        "cost": (sum(with_saves.values()) - sum(without_saves.values())) / saves,
        "bytes": size,
    }


class FirstStep(Exception):
    """The measured run has reached its first step."""


def resumed(library: Any, folder: Path, millions: float, saves: int) -> float:
    """Resume from the last checkpoint in a folder. Return the seconds until the first step begins."""

    class Stop(library.TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            began.append(time.perf_counter())
            raise FirstStep

    args = library.TrainingArguments(**{**arguments(folder, saves), "save_strategy": "no"})
    trainer = library.Trainer(Large(millions), args, train_dataset=ZeroDataset(), callbacks=[Stop()])
    importlib.import_module("torch._dynamo")
    began = [time.perf_counter()]
    with contextlib.suppress(FirstStep):
        trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{saves * BETWEEN}"))
    return began[1] - began[0]


def resumed_in_new_process(name: str, folder: Path, millions: float, saves: int) -> float:
    """Return the result of `resumed` in a new process."""
    words = ["--resume", name, str(folder), "--millions", str(millions), "--saves", str(saves)]
    done = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.split()[-1])


def main() -> int:
    """Measure, print, and return 1 if the stall or the resume time exceeds its limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millions", type=float, default=60, help="weights of the model, in millions (default: 60)")
    parser.add_argument("--saves", type=int, default=4, help="checkpoints of a run (default: 4)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (default: 3)")
    parser.add_argument("--limit", type=float, help="fail if the stall exceeds this ratio to transformers")
    parser.add_argument("--resume-limit", type=float, help="the same limit for the resume time")
    parser.add_argument("--resume", nargs=2, metavar=("LIBRARY", "FOLDER"), help="resume once and print the seconds")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if options.resume:
        name, folder = options.resume
        with contextlib.redirect_stdout(io.StringIO()):
            seconds = resumed(importlib.import_module(name), Path(folder), options.millions, options.saves)
        print(seconds)
        return 0
    import transformers

    import trainbus

    found: dict[str, list[dict[str, float]]] = {"transformers": [], "trainbus": []}
    home = Path(tempfile.mkdtemp(prefix="stall-"))
    for _ in range(options.rounds):
        for library in (transformers, trainbus):
            folder = home / library.__name__
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.redirect_stdout(io.StringIO()):
                found[library.__name__].append(measured(library, folder, options.millions, options.saves))
    resumes: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(RESUMES):
        for name, seconds_of in resumes.items():
            seconds_of.append(resumed_in_new_process(name, home / name, options.millions, options.saves))
    shutil.rmtree(home)
    print(f"{options.millions:g} million weights, {options.saves} checkpoints, {options.rounds} rounds; medians")
    print(f"{'':14}{'stall':>10}{'longest':>10}{'cost':>10}{'MB':>10}{'resume':>10}")
    medians = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in found.items()
    }
    for name, of in medians.items():
        of["resume"] = statistics.median(resumes[name])
        size = of["bytes"] / 1e6
        seconds = "".join(f"{of[key]:9.3f}s" for key in ("stall", "longest", "cost"))
        print(f"{name:14}{seconds}{size:10.1f}{of['resume']:9.3f}s")
    ratio = {key: of / medians["transformers"][key] for key, of in medians["trainbus"].items()}
    print("ratio: " + ", ".join(f"{key} {value:.3f}" for key, value in ratio.items()))
    each = sorted(ours / theirs for theirs, ours in zip(*resumes.values()))
    print(f"resume, round by round: {each[0]:.2f} to {each[-1]:.2f}")
    limits = {"stall": options.limit, "resume": options.resume_limit}
    return int(any(limit is not None and ratio[key] > limit for key, limit in limits.items()))


if __name__ == "__main__":
    sys.exit(main())

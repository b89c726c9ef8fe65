"""Resumes on two ranks with another weight decay, for each way to shard. Rank 0 writes the final weights."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from support.data import points
from support.models import OtherDecay, Vectors
from support.ranks import write_json
from trainbus import Trainer, TrainingArguments

Weights = dict[str, list[float]]
FOLDER = Path(sys.argv[1])
WAYS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "stage 1": {"sharding": "stage1"},
    "stage 3": {"sharding": "stage3"},
    "fairscale": {"sharded_ddp": "simple"},
    "fairscale FSDP": {"sharded_ddp": "zero_dp_3"},
    **{f"DeepSpeed {stage}": {"deepspeed": {"zero_optimization": {"stage": stage}}} for stage in (0, 1, 3)},
}


class Grouped(OtherDecay, Trainer):
    """A trainer with other decaying parameters."""


def build(folder: Path, **args: Any) -> Trainer:
    settings = {
        **{"max_steps": 4, "save_steps": 2, "learning_rate": 0.01, "optim": "adamw_torch"},
        **{"per_device_train_batch_size": 4, "use_cpu": True, "disable_tqdm": True, "report_to": "none", **args},
    }
    return Grouped(Vectors(), TrainingArguments(str(folder), **settings), train_dataset=points(40))


def read(path: Path) -> Weights:
    return {name: weight.tolist() for name, weight in load_file(path).items()}


def main() -> None:
    found: dict[str, dict[str, Weights]] = {}
    for before, after in ((0.1, 0.0), (0.0, 0.1)):
        saved = FOLDER / f"saved-{before}"
        build(saved, weight_decay=before).train()
        ends: dict[str, Path] = {}
        for way, options in WAYS.items():
            folder = FOLDER / f"{way} {after}"
            resumed = build(folder, weight_decay=after, **options)
            resumed.train(resume_from_checkpoint=str(saved / "checkpoint-2"))
            ends[way] = folder / "checkpoint-4" / "model.safetensors"
        if os.environ["RANK"] == "0":
            found[f"{before} to {after}"] = {way: read(path) for way, path in ends.items()}
    if os.environ["RANK"] == "0":
        write_json(FOLDER / "found.json", found)


main()

"""Add two optimizers to the registry, one row each and nothing else, and print as JSON how the library treats them.

`python one_row_program.py FOLDER`. The rows are added before other modules are imported, as if the file had them.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainbus.engine.optim.registry import OPTIMIZERS, OptimizerSpec


class Plain(torch.optim.SGD):
    """An optimizer with state, that shards may hold."""


class Averaging(torch.optim.SGD):
    """An optimizer that depends on the shape of a weight and has two modes."""

    mode = "eval"

    def train(self) -> None:
        self.mode = "train"

    def eval(self) -> None:
        self.mode = "eval"


OPTIMIZERS["plain_row"] = OptimizerSpec(Plain, defaults={"momentum": 0.9}, options={"momentum": float}, state_bytes=4.0)
OPTIMIZERS["averaging_row"] = OptimizerSpec(
    f"{__name__}:Averaging", receives=("weight_decay",), state_bytes=16.0, shape_dependent=True, train_eval_modes=True
)


def main(folder: Path) -> None:
    import compatibility

    from trainbus import ArgumentParser, TrainingArguments
    from trainbus.callbacks import ScheduleFree
    from trainbus.callbacks.parallel.sharded_optimizer import options_to_share
    from trainbus.engine.commands.main import main as command
    from trainbus.engine.optim.build import build_optimizer, parameter_groups
    from trainbus.engine.optim.registry import is_shape_dependent
    from trainbus.events.errors import ArgumentError

    tables: list[str] = []
    compatibility.page(lambda head, rows: tables.append(str([*rows])) or "", "")
    found: dict[str, Any] = {}
    for name in ("plain_row", "averaging_row"):
        args = TrainingArguments(str(folder / name), optim=name, use_cpu=True)
        (parsed,) = ArgumentParser(TrainingArguments).parse_args_into_dataclasses(["--optim", name])
        with contextlib.redirect_stdout(io.StringIO()) as output:
            status = command(["plan", "--params", "1b", "--gpu-memory", "500", "--json", "--optimizer", name])
        estimate = json.loads(output.getvalue()) if status == 0 else {}
        optimizer = build_optimizer(name, parameter_groups(nn.Linear(2, 2), 0.0), lr=0.1)
        try:
            options_to_share(optimizer, "ShardedOptimizer")
            refusal = ""
        except ArgumentError as error:
            refusal = str(error)
        found[name] = {
            "argument": args.optim,
            "flag": parsed.optim,
            "in --help": name in ArgumentParser(TrainingArguments).format_help(),
            "in the docs": any(f"`{name}`" in table for table in tables),
            "switches modes": ScheduleFree.from_arguments(args) is not None,
            "shape-dependent": is_shape_dependent(type(optimizer).__name__),
            "sharding refuses": refusal,
            "memory in GB": [way["gb_at_the_peak"] for way in estimate["ways"]],
            "resumes": resumes(name, folder / name),
        }
    try:
        TrainingArguments(optim="plain_rwo")
    except ArgumentError as error:
        found["misspelt"] = str(error)
    print(json.dumps(found))


def resumes(name: str, folder: Path) -> bool:
    """Return whether a run that resumes at step 3 of 6 ends with the weights of an unbroken run."""
    return all(map(torch.equal, trained(name, folder / "unbroken"), trained(name, folder / "resumed", 3)))


def trained(name: str, folder: Path, resume_at: int | None = None) -> list[torch.Tensor]:
    from trainbus import Trainer, TrainingArguments

    torch.manual_seed(0)
    points = torch.randn(24, 2)
    rows = torch.utils.data.TensorDataset(points, points.sum(dim=1, keepdim=True))
    args = TrainingArguments(
        str(folder),
        optim=name,
        max_steps=6,
        per_device_train_batch_size=4,
        save_steps=3,
        use_cpu=True,
        learning_rate=0.1,
        disable_tqdm=True,
        logging_strategy="no",
    )

    def trainer() -> Trainer:
        torch.manual_seed(1)
        return Trainer(nn.Linear(2, 1), args, train_dataset=rows, criterion=nn.functional.mse_loss)

    first = trainer()
    first.train()
    if resume_at is not None:
        first = trainer()
        first.train(resume_from_checkpoint=str(folder / f"checkpoint-{resume_at}"))
    return [parameter.detach() for parameter in first.model.parameters()]


if __name__ == "__main__":
    main(Path(sys.argv[1]))

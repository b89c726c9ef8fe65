"""Measure some training steps of a program with changed arguments, in a process of `trainbus profile`."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...events.callback import Callback
from .run import execute

OFF = {
    **{"eval_strategy": "no", "save_strategy": "no", "logging_strategy": "no", "report_to": "none"},
    **{"load_best_model_at_end": False, "push_to_hub": False, "disable_tqdm": True, "record": False, "plan": None},
    **{"eval_on_start": False, "num_train_epochs": 1000, "max_time": None, "auto_find_batch_size": False},
}
"""The arguments of a measured run that differ from those of the program: it only trains."""


class Measured(BaseException):
    """Leaves a program after its first training. It is not an `Exception`, so that programs do not catch it."""


class Stopwatch(Callback):
    """Measures the time from the end of a step to the end of the last step."""

    def __init__(self, warmup: int) -> None:
        self.warmup = warmup
        self.began = self.rows = 0.0
        self.result: dict[str, Any] = {}

    def on_step_end(self, run: Any, state: Any) -> None:
        if state.global_step in (self.warmup, state.max_steps):
            if run.device.type == "cuda":
                import torch

                torch.cuda.synchronize(run.device)
            at = time.perf_counter()
            if state.global_step == self.warmup:
                self.began, self.rows = at, state.samples_seen
            else:
                seconds = at - self.began
                self.result = {
                    "rows_per_second": (state.samples_seen - self.rows) / seconds,
                    "step_seconds": seconds / (state.max_steps - self.warmup),
                }


def measure(spec: dict[str, Any], program: str, arguments: list[str]) -> dict[str, Any]:
    """Run a program up to the end of its first training, and return the rows a second of that training.

    Args:
        spec: `changes` (training arguments), `steps`, `warmup`, `folder` (the output folder), `module`.
        program: a Python file, or the name of a module.
        arguments: the arguments of the program.
    """
    from ..api.training import TrainingMethods
    from ..search.hyperparameters import with_values
    from ..trainer import Trainer

    build, train, watch = Trainer._build, TrainingMethods.train, Stopwatch(spec["warmup"])

    def build_changed(trainer: Trainer, inputs: Any, overridden: bool = False) -> None:
        known = inputs.training_arguments
        steps = {"max_steps": spec["warmup"] + spec["steps"], "output_dir": spec["folder"]}
        off = {name: value for name, value in OFF.items() if hasattr(known, name)}
        callbacks = [each for each in inputs.callbacks or [] if not is_tracker(each)]
        args = with_values(known, {**off, **steps, **spec["changes"]})
        build(trainer, replace(inputs, args=args, callbacks=callbacks), overridden)

    def train_measured(trainer: Any, *_: Any, **__: Any) -> Any:
        if spec["describe"]:
            watch.result = describe(trainer)
            raise Measured
        trainer.bus.attach(watch)
        train(trainer)
        raise Measured

    Trainer._build = build_changed  # type: ignore[method-assign,assignment]
    TrainingMethods.train = train_measured  # type: ignore[method-assign,assignment]
    try:
        execute(program, arguments, spec["module"])
    except Measured:
        return watch.result
    return {}


def describe(trainer: Any) -> dict[str, Any]:
    """Return the values of a training that `changes_for` reads."""
    import torch

    args, device = trainer.args, trainer.args.device
    names = (
        *("dataloader_num_workers", "dataloader_pin_memory", "train_sampling_strategy", "bf16", "fp16", "optim"),
        *("torch_compile", "per_device_train_batch_size", "gradient_accumulation_steps"),
    )
    values = {name: getattr(args, name) for name in names}
    columns = getattr(trainer.train_dataset, "column_names", None) or ()
    cuda = device.type == "cuda"
    return {
        "args": {name: getattr(value, "value", value) for name, value in values.items()},
        "cuda": cuda,
        "bf16": torch.cuda.is_bf16_supported() if cuda else device.type == "cpu",
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "has_lengths": "input_ids" in columns or args.length_column_name in columns,
    }


def is_tracker(callback: Any) -> bool:
    """Return whether a callback is of an outside service, such as a tracker. Measured runs are not reported."""
    kind = callback if isinstance(callback, type) else type(callback)
    return ".integrations." in kind.__module__


if __name__ == "__main__":
    spec_path, result_path, program, *arguments = sys.argv[1:]
    found = measure(json.loads(Path(spec_path).read_text(encoding="utf-8")), program, arguments)
    Path(result_path).write_text(json.dumps(found), encoding="utf-8")

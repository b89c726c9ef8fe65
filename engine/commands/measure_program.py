"""Measure the speed of some training steps of a program with changed arguments.

`trainbus profile` runs this module in a new process for each measurement.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...events.callback import Callback
from .first_training import TRAINING_ONLY, Enough, at_first_training, only_reports, with_arguments

if TYPE_CHECKING:
    from ..api.inputs import TrainerInputs


class Stopwatch(Callback):
    """A callback that measures the time from the end of step number `warmup` to the end of the last step.

    After the last step, the callback raises the exception `Enough`, which ends the training.
    """

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
                raise Enough  # the work after the last step, such as an evaluation, is not measured


def measure(spec: dict[str, Any], program: str, arguments: list[str]) -> dict[str, Any]:
    """Run the first training of a program with changed training arguments, and return the speed of the training.

    Args:
        spec: a dict with these keys. `changes`: training arguments, as name -> value. `steps`: the number of measured
            steps. `warmup`: the number of steps before the measured steps. `folder`: the output folder. `module`:
            whether the program is a module. `describe`: whether to return a description instead of training.
        program: a Python file, or the name of a module.
        arguments: the command-line arguments of the program.

    Returns:
        A dict with `rows_per_second` (samples per second) and `step_seconds` (seconds per step); empty if the training
        ended before the last measured step. With `describe`: the arguments, the device and the data of the training.
    """
    watch = Stopwatch(spec["warmup"])
    steps = {"max_steps": spec["warmup"] + spec["steps"], "num_train_epochs": 1000, "output_dir": spec["folder"]}

    def changed(inputs: TrainerInputs) -> TrainerInputs:
        return with_arguments(inputs, {**TRAINING_ONLY, **steps, **spec["changes"]}, only_reports)

    def measured(trainer: Any, train: Callable[[], Any], resume_from_checkpoint: Any) -> dict[str, Any]:
        if spec["describe"]:
            return describe(trainer)
        trainer.bus.attach(watch)
        with suppress(Enough):
            train()
        return watch.result

    return at_first_training(program, arguments, spec["module"], measured, changed)


def describe(trainer: Any) -> dict[str, Any]:
    """Describe the arguments, device and data of a training, for `changes_for` in `profile.py`."""
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


if __name__ == "__main__":
    spec_path, result_path, program, *arguments = sys.argv[1:]
    found = measure(json.loads(Path(spec_path).read_text(encoding="utf-8")), program, arguments)
    Path(result_path).write_text(json.dumps(found), encoding="utf-8")

"""Measure the memory that training, evaluation and prediction use."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from ...engine.arguments import TrainingArguments
from ...engine.distributed.cuda import uses_cuda
from ...engine.evaluation.outputs import is_train_summary
from ...engine.run import Run
from ...events.callback import Callback
from ...events.stages import Stage

PLACES = ("cpu", "gpu")
"""The words for host memory and GPU memory in the names of the metrics."""


@dataclass
class MemoryMetrics(Callback):
    """Adds memory in bytes to the metrics of `train()`, `evaluate()` and `predict()`.

    Set `skip_memory_metrics=False`, or add `MemoryMetrics()` to the callbacks. In the names of the metrics, `<stage>`
    is `train`, `eval` or `test`:

    - `<stage>_mem_cpu_alloc_delta`: how much the host memory of the process (the resident set) grew during the stage;
    - `<stage>_mem_cpu_peaked_delta`: the peak of the host memory during the stage, minus the host memory at the end of
      the stage;
    - `<stage>_mem_gpu_alloc_delta` and `<stage>_mem_gpu_peaked_delta`: the same two values for the memory that PyTorch
      allocated on the GPU, if the machine has a GPU;
    - `init_mem_...`: the values above, but for the construction of the trainer. Only the first metrics of a trainer
      have these values;
    - `before_init_mem_...`: the memory in use when the callback was built. Only the first metrics of a trainer have
      these values.

    On macOS, the host memory is the peak since the process began. On Windows, the metrics lack the host memory. Each
    measurement runs the garbage collector.
    """

    stage = Stage.MEASURE
    arguments = ("skip_memory_metrics",)

    _began: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _init_metrics: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _train_metrics: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._begin()

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> MemoryMetrics | None:
        return None if args.skip_memory_metrics else cls()

    def on_init_end(self) -> None:
        before = {f"before_init_mem_{place}": self._began[place] for place in PLACES if place in self._began}
        self._init_metrics = {**self._measured("init"), **before}

    def on_setup(self) -> None:
        self._train_metrics = {}
        self._begin()

    def on_log(self, logs: dict[str, Any]) -> None:
        # The log of the summary. `Log` may be attached before this callback, so `on_train_end` is too late for it.
        if is_train_summary(logs):
            self._train_metrics = self._with_init("train")
            logs.update(self._train_metrics)

    def on_train_end(self, run: Run) -> None:
        run.summary().update(self._train_metrics or self._with_init("train"))

    def on_evaluate(self, run: Run) -> None:
        if run.mode == "evaluate":
            run.metrics.update(self._with_init("eval"))

    def on_predict(self, run: Run) -> None:
        run.metrics.update(self._with_init("test"))

    def _begin(self) -> None:
        gc.collect()
        forget_peak()
        self._began = memory_now()

    def _with_init(self, stage: str) -> dict[str, int]:
        init, self._init_metrics = self._init_metrics, {}
        return {**init, **self._measured(stage)}

    def _measured(self, stage: str) -> dict[str, int]:
        gc.collect()
        now, measured = memory_now(), {}
        for place in PLACES:
            if place in now:
                measured[f"{stage}_mem_{place}_alloc_delta"] = now[place] - self._began[place]
                measured[f"{stage}_mem_{place}_peaked_delta"] = max(0, now[f"{place}_peak"] - now[place])
        return measured


def memory_now() -> dict[str, int]:
    """Return the memory in use, and the peak since the last call of `forget_peak`, in bytes.

    The keys are `cpu` and `cpu_peak`, and also `gpu` and `gpu_peak` if there is a CUDA GPU. On Windows, the dict lacks
    `cpu` and `cpu_peak`.
    """
    used = _host_memory()
    if torch.cuda.is_available():
        used |= {"gpu": torch.cuda.memory_allocated(), "gpu_peak": torch.cuda.max_memory_allocated()}
    return used


def forget_peak() -> None:
    """Reset the peaks that `memory_now` returns.

    Only Linux can reset the peak of the host memory. On other systems, this peak counts from the start of the process.
    """
    if uses_cuda():
        torch.cuda.reset_peak_memory_stats()  # before CUDA starts, there is no peak, and this call would start it
    with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as peaks:
        peaks.write("5")


def _host_memory() -> dict[str, int]:
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            lines = dict(line.split(":", 1) for line in status)
        now = _bytes(lines["VmRSS"])
        return {"cpu": now, "cpu_peak": _bytes(lines["VmHWM"]) if "VmHWM" in lines else now}
    except OSError:
        return _host_peak()


def _host_peak() -> dict[str, int]:
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return {}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"cpu": peak, "cpu_peak": peak}


def _bytes(text: str) -> int:
    return int(text.split()[0]) * 1024

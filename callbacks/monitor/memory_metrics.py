"""Measure how much memory training, evaluation and prediction take."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.callback import Callback
from ...events.stages import Stage, order

PLACES = ("cpu", "gpu")


@dataclass
class MemoryMetrics(Callback):
    """Adds bytes of memory to the metrics: `<stage>_mem_cpu_alloc_delta`, `_peaked_delta`, and `_gpu_` ones on a GPU.

    The first says by how much the process grew, the second how far above that it was on the way. Memory of the host is
    its resident set, as the system counts it. The first metrics of a trainer also say how much building it took:
    `init_mem_...`, and `before_init_mem_cpu`, the memory in use before.
    """

    stage = Stage.MEASURE
    arguments = ("skip_memory_metrics",)

    _began: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _of_building: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._begin()

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> MemoryMetrics | None:
        return None if args.skip_memory_metrics else cls()

    def on_init_end(self) -> None:
        before = {f"before_init_mem_{place}": self._began[place] for place in PLACES if place in self._began}
        self._of_building = {**self._measured("init"), **before}

    def on_setup(self) -> None:
        self._begin()

    @order(Stage.PREPARE)
    def on_train_end(self, run: Run) -> None:
        run.summary().update(self._reported("train"))

    def on_evaluate(self, run: Run) -> None:
        if run.mode == "evaluate":
            run.metrics.update(self._reported("eval"))

    def on_predict(self, run: Run) -> None:
        run.metrics.update(self._reported("test"))

    def _begin(self) -> None:
        gc.collect()
        forget_peak()
        self._began = memory_now()

    def _reported(self, stage: str) -> dict[str, int]:
        building, self._of_building = self._of_building, {}
        return {**building, **self._measured(stage)}

    def _measured(self, stage: str) -> dict[str, int]:
        gc.collect()
        now, measured = memory_now(), {}
        for place in PLACES:
            if place in now:
                measured[f"{stage}_mem_{place}_alloc_delta"] = now[place] - self._began[place]
                measured[f"{stage}_mem_{place}_peaked_delta"] = max(0, now[f"{place}_peak"] - now[place])
        return measured


def memory_now() -> dict[str, int]:
    """Return the bytes in use now and at most since `forget_peak`: of the host, and of the GPU where there is one."""
    used = _of_host()
    if torch.cuda.is_available():
        used |= {"gpu": torch.cuda.memory_allocated(), "gpu_peak": torch.cuda.max_memory_allocated()}
    return used


def forget_peak() -> None:
    """Count peaks from now on, where the system lets a process do so (Linux does); else they are those of its life."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as peaks:
        peaks.write("5")


def _of_host() -> dict[str, int]:
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            lines = dict(line.split(":", 1) for line in status)
        now = _bytes(lines["VmRSS"])
        return {"cpu": now, "cpu_peak": _bytes(lines["VmHWM"]) if "VmHWM" in lines else now}
    except OSError:
        return _of_unix()


def _of_unix() -> dict[str, int]:
    try:
        import resource
    except ModuleNotFoundError:  # Windows has none
        return {}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"cpu": peak, "cpu_peak": peak}


def _bytes(text: str) -> int:
    return int(text.split()[0]) * 1024

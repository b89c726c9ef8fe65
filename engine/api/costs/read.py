"""Read the costs of a training session from its timeline."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ....events.imported import imported
from ....events.timeline import CALLBACKS, PARTS, RARE, Timeline
from ...optim.tf32_settings import matmul_uses_tf32
from .costs import CallbackCost, Compilation, Costs, Part
from .peaks import peak_of
from .remedy import is_own, remedy_of
from .verdict import START_AND_END, Dearest, blame_of, judge

NANO = 1e-9
ONCE = ("on_setup", "on_train_begin", "on_train_end", "on_exception", "on_close")
"""The events that a training announces once. The time of their handlers does not grow with the number of steps. It is
the part `START_AND_END`, and the part `callbacks` has the time at all other events."""


def medians_of(timeline: Timeline) -> dict[str, float]:
    """Compute the median time of each part of a step, in seconds.

    Steps that log, evaluate, save or collect garbage do not count.
    """
    rows = [row for _, row in timeline.rows]
    return {
        part: float(np.median([row.get(part, 0) for row in rows])) * NANO if rows else 0.0
        for part in PARTS
        if part not in RARE
    }


def read_costs(run: Any, ranks: Sequence[Mapping[str, float]] = ()) -> Costs:
    """Compute the costs of the current training session, or of the last one if no training is in progress.

    Args:
        run: the run.
        ranks: one dict per rank, in order of rank: part -> seconds in the median step. The costs show the maximum of
            all ranks for each part. If `ranks` is empty, the costs show the median step of this rank.
    """
    timeline: Timeline = run.bus.timeline
    sums = timeline.sums()
    whole = sum(sums.parts.values()) * NANO
    totals = {part: value * NANO for part, value in sums.parts.items()}
    own = medians_of(timeline)
    medians = {part: max((rank.get(part, 0.0) for rank in ranks), default=own.get(part, 0.0)) for part in own}
    callbacks = [CallbackCost(*key, time * NANO, round(calls)) for key, (time, calls) in sums.handlers.items()]
    callbacks.sort(key=lambda each: -each.seconds)
    once = min(totals[CALLBACKS], sum(each.seconds for each in callbacks if each.event in ONCE))
    totals[CALLBACKS] -= once
    state, steps = run.state, timeline.steps
    step = float(np.median([row for row, _ in timeline.rows])) * NANO if timeline.rows else 0.0
    done = max(1, state.global_step)
    samples = state.samples_seen * steps / done / whole if whole else 0.0
    tokens = state.num_input_tokens_seen * steps / done / whole if whole else 0.0
    loader = run.train_dataloader
    return Costs(
        steps=steps,
        seconds=whole,
        step_seconds=step,
        parts=[
            Part(
                part, totals[part], totals[part] / whole if whole else 0.0, medians.get(part, 0.0), timeline.times[part]
            )
            for part in PARTS
        ]
        + [Part(START_AND_END, once, once / whole if whole else 0.0, 0.0)],
        callbacks=callbacks,
        verdict=judge(
            totals,
            own,
            steps=steps,
            workers=getattr(loader, "num_workers", None),
            processors=_processors(),
            dearest=_dearest(run, [each for each in callbacks if each.event not in ONCE]),
            blame=blame_of(ranks),
            start_and_end=once,
            once=_dearest(run, [each for each in callbacks if each.event in ONCE]),
        ),
        samples_per_second=samples,
        tokens_per_second=tokens or None,
        mfu=_share_of_peak(run, state.total_flos / done, step),
        ranks=[dict(rank) for rank in ranks],
        recompilations=recompilations(),
    )


def _dearest(run: Any, callbacks: Sequence[CallbackCost]) -> Dearest | None:
    """Return the callback that takes the most time; None if `callbacks` is empty.

    Args:
        run: the run.
        callbacks: the time by callback and event, the longest time first.
    """
    sums: dict[str, float] = {}
    for each in callbacks:
        sums[each.callback] = sums.get(each.callback, 0.0) + each.seconds
    if not sums:
        return None
    name = max(sums, key=lambda each: sums[each])
    event = next(each.event for each in callbacks if each.callback == name)
    subscriber = run.bus.subscribers.get(name)
    return Dearest(name, remedy_of(name, subscriber, event), is_own(name, subscriber))


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _share_of_peak(run: Any, operations: float, step: float) -> float | None:
    """Return the speed of this rank as a fraction of the peak speed of its device; None if the fraction is unknown.

    Args:
        run: the run.
        operations: the floating-point operations of a step on this rank.
        step: the seconds of a step.
    """
    if run.device.type != "cuda" or not operations or not step:
        return None
    args = run.args
    peak = peak_of(torch.cuda.get_device_name(run.device), args.bf16 or args.fp16, matmul_uses_tf32())
    return None if peak is None else operations / step / peak


def recompilations() -> list[Compilation]:
    """Return the recompilations of torch.compile in this process. torch stores only the last 64 compilations."""
    utils = imported("torch._dynamo.utils")
    read = getattr(utils, "get_compilation_metrics", None)
    if read is None:
        return []
    found = []
    for each in read():
        reason = getattr(each, "recompile_reason", None)
        if reason:
            name, seconds = str(getattr(each, "co_name", "")), getattr(each, "entire_frame_compile_time_s", None)
            found.append(Compilation(name, " ".join(str(reason).split("#")[0].split()), float(seconds or 0.0)))
    return found

"""Find the part of a training that limits its speed, from the time of each part. All functions are pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....events.activity import BACKWARD, FORWARD
from ....events.timeline import (
    APPLY,
    CALLBACKS,
    CLIP,
    COLLECT,
    COPY,
    DATA,
    EVALUATE,
    LOGS,
    RARE,
    SAVES,
    WAIT,
)

START_AND_END = "start and end"
"""The name of the part with the time of callbacks before the first step and after the last step."""
LIMITS = {
    **{DATA: 0.2, COPY: 0.15, CALLBACKS: 0.15, EVALUATE: 0.4, SAVES: 0.15, LOGS: 0.1, COLLECT: 0.1},
    START_AND_END: 0.25,
}
"""Part -> a share of the time of the session. A part with at least this share limits the speed."""
UNEVEN = 0.15
"""A share of the median step. If the other ranks wait for the slowest rank during at least this share, the slowest rank
limits the speed."""
COLLECTIVE = (BACKWARD, CLIP, APPLY, WAIT)
"""The parts in which a rank may wait for other ranks, because they contain collectives."""
SHORT = 2.0
"""A number of seconds. If the steps of a session take less time, the first calls of callbacks may dominate the time."""
ENOUGH = 20
"""A number of steps. If a session has this many steps, and all of them log, evaluate, save or collect garbage, the mean
step replaces the median step. More steps would bring no step without such work."""
MOST_WORKERS = 32
"""The largest number of workers that a verdict recommends. Each worker holds a copy of the dataset object."""
SENDING = 0.002
"""The seconds that a worker process needs to send a small batch to the training process. Measured on two CPU cores with
batches of 32 samples. If a batch loads in less time, workers make the training slower."""


@dataclass(frozen=True)
class Verdict:
    """The result of the analysis: what limits the speed, how the measurement shows this, and what to do."""

    bound: str
    """What limits the speed: `input`, `copy`, `callback`, `evaluation`, `save`, `log`, `collection` (of garbage),
    `start` (callbacks before the first step and after the last step), `rank` (the slowest rank), `compute`, or
    `unknown`."""
    evidence: str
    """The measured values that show the limit."""
    action: str
    """What to do next."""

    def __str__(self) -> str:
        name = self.bound.upper() + ("" if self.bound == "unknown" else "-BOUND")
        return f"{name}: {self.evidence}; {self.action}"


@dataclass(frozen=True)
class Blame:
    """The slowest rank, and the time that the other ranks wait for it."""

    rank: int
    """The slowest rank."""
    part: str
    """The part in which this rank loses the most time against another rank."""
    excess: float
    """The seconds per step that this rank needs for `part` more than the rank that is fastest in this part."""
    waiting: float
    """The mean seconds per step that the other ranks wait for this rank."""


@dataclass(frozen=True)
class Dearest:
    """The callback that takes the most time in the steps."""

    name: str = ""
    """The id of the callback."""
    remedy: str = "let it do its work less often"
    """What the user can do to reduce the time of the callback."""
    own: bool = False
    """Whether the callback is part of trainbus."""


def judge(
    totals: Mapping[str, float],
    medians: Mapping[str, float],
    *,
    steps: int = 0,
    workers: int | None = None,
    processors: int = 1,
    dearest: Dearest | None = None,
    blame: Blame | None = None,
    start_and_end: float = 0.0,
    once: Dearest | None = None,
) -> Verdict:
    """Find the part that limits the speed of a training.

    Args:
        totals: the seconds of each part in the session, without `start_and_end`. A part limits the speed if its share
            of the session is large enough: see `LIMITS`.
        medians: the seconds of each part in the median step. If all values are 0, no ordinary step was measured. The
            mean step then replaces the median step if there are at least `ENOUGH` steps.
        steps: the number of steps of the session.
        workers: the number of worker processes that load data; None if the loader is not a DataLoader of torch.
        processors: the number of processors of this machine that the run may use.
        dearest: the callback that takes the most time in the steps; None if no callback takes time.
        blame: the slowest rank, from `blame_of`; None for one rank.
        start_and_end: the seconds of callbacks before the first step and after the last step. They count as time of the
            session, in addition to `totals`.
        once: the callback that takes the most time of `start_and_end`; None if no callback takes time.
    """
    whole = sum(totals.values())
    if sum(medians.values()) <= 0 and steps >= ENOUGH:
        medians = {part: seconds / steps for part, seconds in totals.items() if part not in RARE}
    step = sum(medians.values())
    if whole <= 0 or step <= 0:
        return Verdict("unknown", "no ordinary step was measured", "train more steps")
    session = whole + start_and_end
    if blame is not None and blame.waiting / step >= UNEVEN:
        return Verdict(
            "rank",
            f"the other ranks wait {blame.waiting / step:.0%} of the step for rank {blame.rank}, which needs "
            f"{duration(blame.excess)} more for {blame.part!r}",
            "look at the machine and the data of this rank",
        )
    shares = {part: totals.get(part, 0.0) / session for part in LIMITS}
    shares[START_AND_END] = start_and_end / session
    shares[DATA] = max(shares[DATA], medians.get(DATA, 0.0) / step * (whole - _rare(totals)) / session)
    over = [part for part, limit in LIMITS.items() if shares[part] >= limit]
    if not over:
        model = sum(totals.get(part, 0.0) for part in (FORWARD, BACKWARD, CLIP, APPLY)) / session
        return Verdict(
            "compute",
            f"{model:.0%} of the session is forward, backward and update",
            "`trainbus profile` measures what bf16, compile and other batch sizes gain",
        )
    worst = max(over, key=lambda part: shares[part])
    share = f"{totals.get(worst, 0.0) / session:.0%} of the session"
    match worst:
        case part if part == DATA:
            evidence = f"{medians.get(DATA, 0.0) / step:.0%} of the step waits for data"
            return Verdict("input", evidence, more_workers(medians, workers, processors))
        case part if part == COPY:
            return Verdict("copy", f"{share} copies batches to the device", "set dataloader_pin_memory=True and "
                           "non_blocking in accelerator_config, or move smaller types")  # fmt: skip
        case part if part == CALLBACKS:
            return _callback_verdict(share, whole, medians.get(CALLBACKS, 0.0) / step, dearest or Dearest())
        case part if part == EVALUATE:
            return Verdict("evaluation", f"{share} is evaluation", "evaluate less often, or set a larger "
                           "per_device_eval_batch_size")  # fmt: skip
        case part if part == START_AND_END:
            return _start_verdict(shares[START_AND_END], whole, once or Dearest())
        case part if part == SAVES:
            return Verdict("save", f"{share} is saving", "save less often, or to a faster disk")
        case part if part == LOGS:
            return Verdict("log", f"{share} is logging", "set larger logging_steps")
    return Verdict("collection", f"{share} is garbage collection", "add CollectGarbage() to the callbacks")


def _callback_verdict(share: str, seconds: float, of_median: float, dearest: Dearest) -> Verdict:
    """Return the verdict for a session with much time in callbacks.

    Args:
        share: the share of the session that is in callbacks, as text, such as `20% of the session`.
        seconds: the time of all steps of the session, in seconds.
        of_median: the share of the median step that is in callbacks, from 0 to 1.
        dearest: the callback that takes the most time.
    """
    if dearest.own and seconds < SHORT and of_median < LIMITS[CALLBACKS]:
        return Verdict(
            "unknown",
            f"the steps took only {duration(seconds)}, in which the callbacks of trainbus have fixed costs ({share})",
            _TRAIN_LONGER,
        )
    return Verdict("callback", f"{share} is in callbacks, most in {dearest.name}", dearest.remedy)


def _start_verdict(share: float, seconds: float, once: Dearest) -> Verdict:
    """Return the verdict for a session with much time before the first step and after the last step.

    Args:
        share: the share of the session that is in callbacks before the first step and after the last step.
        seconds: the time of all steps of the session, in seconds.
        once: the callback that takes the most time before the first step and after the last step.
    """
    most = f", most in {once.name}" if once.name else ""
    evidence = f"{share:.0%} of the session is in callbacks before the first step and after the last step{most}"
    if seconds < SHORT:
        return Verdict("unknown", f"the steps took only {duration(seconds)}, and {evidence}", _TRAIN_LONGER)
    return Verdict("start", evidence, "train more steps in one session, or let this callback do less")


_TRAIN_LONGER = f"train for {SHORT:g} s or longer"


def more_workers(medians: Mapping[str, float], workers: int | None, processors: int) -> str:
    """Return a text that recommends a number of workers that load batches as fast as the model uses them.

    If `workers` is None, the text recommends to load ahead. If `workers` is 0 and loading a batch takes less time than
    sending it from a worker, the text recommends larger batches. If more workers than `processors` are needed, the text
    has two remedies: prepare the data before the training, or, for data that waits for a disk or a network, use more
    workers than processors. The estimate assumes that n workers are n times as fast as one.

    Args:
        medians: the seconds of each part in the median step.
        workers: the current number of workers; None if the loader is not a DataLoader of torch.
        processors: the number of processors of this machine that the run may use.
    """
    waits = medians.get(DATA, 0.0)
    computes = sum(medians.values()) - waits
    if workers is None:
        return "the loader is your own: let it load ahead, in other processes"
    if workers == 0 and waits < SENDING:
        return (
            f"a batch loads in {duration(waits)}, and a worker would take about {duration(SENDING)} to send it: use "
            "larger batches"
        )
    one = waits if workers == 0 else workers * (waits + computes)
    needed = max(workers + 1, math.ceil(one / max(computes, 1e-9)))
    if needed > max(1, processors):
        several, most = "s" if processors > 1 else "", min(needed, max(MOST_WORKERS, workers))
        return (
            f"{needed} workers would hide it, and this run has {processors} processor{several}: if the data waits for "
            f"a disk or a network, set dataloader_num_workers={most}, and if it is computed, prepare it once, before "
            "the training"
        )
    return f"{needed} worker{'s' if needed > 1 else ''} would hide it: set dataloader_num_workers={needed}"


def blame_of(ranks: Sequence[Mapping[str, float]]) -> Blame | None:
    """Find the slowest rank, and the time that the other ranks wait for this rank; None for one rank.

    All ranks leave a collective at the same time. The slowest rank arrives last, so it spends the least time in
    collectives. The other ranks spend more time there, because they wait for the slowest rank.

    Args:
        ranks: one dict per rank, in order of rank, with the seconds of each part in the median step.
    """
    if len(ranks) < 2:
        return None
    waits = waiting_of(ranks)
    slowest = min(range(len(ranks)), key=lambda rank: waits[rank])
    others = [wait for rank, wait in enumerate(waits) if rank != slowest]
    own = {part: value for part, value in ranks[slowest].items() if part not in COLLECTIVE}
    excess = {part: value - min(rank.get(part, 0.0) for rank in ranks) for part, value in own.items()}
    part = max(excess, key=lambda name: excess[name], default=BACKWARD)
    return Blame(slowest, part, excess.get(part, 0.0), sum(others) / len(others))


def waiting_of(ranks: Sequence[Mapping[str, float]]) -> list[float]:
    """Return for each rank the seconds per step during which the rank waits for other ranks.

    Args:
        ranks: one dict per rank, in order of rank, with the seconds of each part in the median step.
    """
    spent = [sum(rank.get(part, 0.0) for part in COLLECTIVE) for rank in ranks]
    return [each - min(spent) for each in spent]


def duration(seconds: float) -> str:
    """Return a duration with its unit, such as `1.25 ms` or `3 min 20 s`."""
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    if seconds >= 60:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _rare(totals: Mapping[str, float]) -> float:
    return sum(totals.get(part, 0.0) for part in RARE)

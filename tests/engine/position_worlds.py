"""Sessions of a run with any number of processes, one after the other in this process, and what each takes of the data.

All is the engine's own but the steps, which only note their rows, and the checkpoint, which is passed on as a value.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from support.data import CountedRows, SizedStream, Stream
from trainbus.engine.arguments import TrainingArguments
from trainbus.engine.checkpoint.read.world_size import position_in_samples
from trainbus.engine.data.build import build_loader, length_of
from trainbus.engine.data.feed import Feed
from trainbus.engine.data.plan import plan_run
from trainbus.engine.data.position import Position, Sizes, restore_position, save_position
from trainbus.engine.distributed.ranks import Ranks
from trainbus.engine.loop import Loop
from trainbus.events.bus import EventBus
from trainbus.events.control import TrainerControl
from trainbus.events.state import TrainerState

MAX_STEPS = 40
"""Of the runs whose number of steps is given."""


class Alike(Ranks):
    """One of several processes, of which the others are in the same state."""

    def gather_objects(self, value: Any) -> list[Any]:
        return [value] * self.world_size

    def gather_numbers(self, *numbers: int) -> list[list[int]]:
        return [[*numbers]] * self.world_size


@dataclass(frozen=True)
class Session:
    """What is chosen for a part of a run."""

    world: int = 1
    size: int = 4
    accumulate: int = 1
    steps: int = 1000
    """After how many of its own steps it is stopped, should the run not be over by then."""
    workers: int = 0


@dataclass
class Outcome:
    """What came of a run."""

    steps: int
    max_steps: int
    epoch: float
    epochs: list[list[list[int]]]
    """The rows of each batch of all processes together, epoch by epoch."""
    loader: Any
    """The last session's, of its first process."""


def run_of(kind: str, rows: int, sessions: list[Session], epochs: float = 1, **args: Any) -> Outcome:
    """Make a run in several sessions, each of which goes on from the one before, and the last to the end."""
    taken: dict[int, list[list[int]]] = {}
    saved: list[dict[str, Any]] = []
    for session in sessions:
        parts = [_of_one(kind, rows, session, rank, saved, epochs, args) for rank in range(session.world)]
        for of_all in zip(*(part.taken for part in parts), strict=True):
            epoch = of_all[0][0]
            assert {other for other, _ in of_all} == {epoch}
            taken.setdefault(epoch, []).append([row for _, own in of_all for row in own])
        saved = [part.saved for part in parts]
        assert all(other.saved["position"] == parts[0].saved["position"] for other in parts)
        if parts[0].over:
            break
    last = parts[0]
    return Outcome(last.state.global_step, last.state.max_steps, last.state.epoch, list(taken.values()), last.loader)


def _of_one(
    kind: str, count: int, session: Session, rank: int, saved: list[dict[str, Any]], epochs: float, args: dict[str, Any]
) -> SimpleNamespace:
    rows = [{"x": float(row), "input_ids": [0] * (1 + row * 7 % 13)} for row in range(count)]
    data = {"stream": Stream, "sized": SizedStream, "own shards": _in_shards}.get(kind, CountedRows)(rows)
    torch.manual_seed(1)
    strategy = "group_by_length" if kind == "grouped" else "random"
    wanted = TrainingArguments(
        use_cpu=True,
        train_sampling_strategy=strategy,
        gradient_accumulation_steps=session.accumulate,
        dataloader_num_workers=session.workers,
        accelerator_config={"dispatch_batches": False} if kind == "own shards" else None,
        **args,
    )
    loader = build_loader(
        *(data, wanted, _numbers, Alike(rank, session.world)),
        batch_size=session.size,
        training=True,
        accepted=None,
        seed=3,
    )
    by_steps = kind in ("stream", "own shards")
    plan = plan_run(
        batches=length_of(loader),
        examples=length_of(data),
        max_steps=MAX_STEPS if by_steps else -1,
        num_train_epochs=epochs,
        batch_size=session.size,
        accumulate=session.accumulate,
        world_size=session.world,
    )
    sizes = Sizes(session.size * session.world, session.accumulate)
    state, position = TrainerState(), Position()
    feed = Feed(loader, session.accumulate, torch.device("cpu"), session.world)
    if saved:
        own = saved[min(rank, len(saved) - 1)]
        state = TrainerState.from_dict(own["state"])
        position, offset = restore_position(own["position"], plan, sizes, state.global_step, loader.batches_after)
        plan = plan.moved(offset, state.global_step, position.epoch, by_steps)
        alike = (len(saved), own["position"]["rows_per_batch"]) == (session.world, sizes.rows_per_batch)
        place = own["place"] if alike else position_in_samples(saved[0]["place"])
        feed.resume({**place, "row": own["position"]["rows"]}, lambda: None)
    state.max_steps = plan.max_steps
    control = TrainerControl()
    bus = EventBus(SimpleNamespace(state=state, control=control), control)
    taken: list[tuple[int, list[int]]] = []
    last = min(state.global_step + session.steps, plan.max_steps)

    def end() -> None:
        if state.global_step >= last:
            control.request("training_stop", "for the test")

    bus.on("on_train_begin", end)
    bus.on("on_step_end", end)
    stepper = SimpleNamespace(
        step=lambda window: taken.extend((position.epoch, batch.tolist()) for batch in window.items)
    )
    loop = Loop(
        *(bus, state, control, feed, stepper),
        epochs=plan.epochs,
        batches_per_epoch=plan.batches_per_epoch,
        position=position,
        agree=lambda control: None,
    )
    loop.run()
    return SimpleNamespace(
        taken=taken,
        state=state,
        loader=loader,
        over=state.global_step >= plan.max_steps,
        saved={
            "state": state.to_dict(),
            "position": save_position(position, plan, sizes, leaves_epoch=False),
            "place": loader.resume_state(),
        },
    )


def _in_shards(rows: list[Any]) -> Any:
    import datasets

    return datasets.Dataset.from_list(rows).to_iterable_dataset(num_shards=4)


def _numbers(features: list[dict[str, Any]]) -> torch.Tensor:
    return torch.tensor([int(row["x"]) for row in features])


def wrong(batches: list[list[int]], rows: int, last: int = 1) -> str:
    """Say what is wrong with the batches of an epoch; nothing if each row comes once, but for what fills up the last.

    Args:
        batches: the rows of all processes, batch by batch.
        rows: how many the data has.
        last: how many of the last batches may be filled up.
    """
    counted = Counter(row for batch in batches for row in batch)
    before = Counter(row for batch in batches[:-last] for row in batch)
    twice = sorted(row for row, times in before.items() if times > 1)
    never = sorted({*range(rows)} - {*counted})
    return f"twice: {twice}, never: {never}" if twice or never else ""

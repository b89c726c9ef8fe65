"""Positions in the data: each sample once per epoch, for any batch size and world size."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from position_worlds import MAX_STEPS, Session, run_of, wrong
from torch.utils.data import DataLoader, DistributedSampler, WeightedRandomSampler

import trainbus
from support.data import SizedStream, Stream, points
from support.models import Regression
from support.trainers import regression_trainer
from trainbus import Trainer, TrainingArguments, default_data_collator
from trainbus.engine.data.build import epoch_rows
from trainbus.engine.data.plan import plan_run
from trainbus.engine.data.position import Position, Sizes, restore_position, save_position

ROWS = 101

SIZES = st.sampled_from([1, 2, 3, 4, 6, 8, 16])
SESSIONS = st.lists(
    st.builds(Session, world=st.integers(1, 4), size=SIZES, accumulate=st.integers(1, 3), steps=st.integers(1, 12)),
    min_size=2,
    max_size=5,
)


def sessions(*worlds: int, steps: tuple[int, ...] = (7, 9), **options: Any) -> list[Session]:
    return [Session(world, steps=own, **options) for world, own in zip(worlds, (*steps, 1000))]


def to_the_end(session: Session) -> Session:
    return Session(session.world, session.size, session.accumulate)


# Many processes, in one.


@pytest.mark.parametrize("kind", ["rows", "grouped", "sized"])
@settings(max_examples=40, derandomize=True)
@given(chosen=SESSIONS, epochs=st.sampled_from([1, 2, 1.5]))
@example(chosen=sessions(2, 1, 1), epochs=1)
@example(chosen=sessions(1, 2, 2), epochs=1)
@example(chosen=sessions(1, 2, 1), epochs=1)
@example(chosen=sessions(1, 3, 1), epochs=1)
def test_each_sample_is_used_once_per_epoch_and_the_run_ends_on_time(kind: str, chosen: list[Session], epochs: float):
    end = run_of(kind, ROWS, [*chosen[:-1], to_the_end(chosen[-1])], epochs)
    assert [wrong(batches, ROWS) for batches in end.epochs[: int(epochs)]] == [""] * int(epochs)
    assert end.steps == end.max_steps
    if epochs != 1.5:
        assert end.epoch == len(end.epochs) == epochs
    else:
        assert len(end.epochs) == 2


@settings(max_examples=40, derandomize=True)
@given(chosen=SESSIONS)
@example(chosen=sessions(2, 1, 1))
def test_a_resumed_stream_continues_at_its_next_sample_to_max_steps(chosen: list[Session]):
    end = run_of("stream", ROWS, [*chosen[:-1], to_the_end(chosen[-1])])
    assert end.steps == end.max_steps == MAX_STEPS
    assert [wrong(batches, ROWS) for batches in end.epochs[:-1]] == [""] * (len(end.epochs) - 1)
    begun = [row for batch in end.epochs[-1] for row in batch]
    assert begun[:ROWS] == [*range(min(len(begun), ROWS))]


@settings(max_examples=20, derandomize=True)
@given(chosen=SESSIONS)
def test_no_row_comes_twice_where_incomplete_batches_are_left_out(chosen: list[Session]):
    end = run_of("rows", ROWS, [*chosen, Session()], 2, dataloader_drop_last=True)
    assert end.steps == end.max_steps
    assert len(end.epochs) == 2
    for batches in end.epochs:
        rows = [row for batch in batches for row in batch]
        assert len(rows) == len(set(rows))


WORKERS = {
    "rows, and any number of workers": ("rows", [0, 2, 1]),
    "a stream, and one worker or none": ("stream", [1, 1, 0]),
    "a stream, and two workers": ("stream", [2, 2, 2]),
    "a stream in shards, of which processes read their own": ("own shards", [0, 0, 0]),
}


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # where there is one processor only
@pytest.mark.parametrize("changed", ["world", "size", "both"])
@pytest.mark.parametrize("name", WORKERS)
def test_workers_continue_with_their_own_rows(name: str, changed: str, caplog: pytest.LogCaptureFixture):
    kind, workers = WORKERS[name]
    worlds = (2, 2, 2) if changed == "size" or kind == "own shards" else (1, 2, 1)
    sizes = (4, 4, 4) if changed == "world" else (4, 6, 4)
    chosen = [
        Session(world, size, steps=steps, workers=own)
        for world, size, steps, own in zip(worlds, sizes, (7 // worlds[0], 2, 1000), workers)
    ]
    end = run_of(kind, ROWS, chosen)
    parts = max(*workers, 1) if kind == "stream" else 2 if kind == "own shards" else 1
    # Each part of a stream has a last batch of its own, which may be filled up.
    assert wrong(end.epochs[0], ROWS, last=2 * parts) == ""
    assert caplog.text == ""


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [(2, 0), (1, 2)])
def test_a_changed_number_of_workers_of_a_stream_is_warned_of(
    workers: tuple[int, int], caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING):
        run_of("stream", ROWS, [Session(steps=3, workers=workers[0]), Session(steps=2, workers=workers[1])])
    before, now = (max(1, own) for own in workers)
    assert f"read in {before} part(s), and is now read in {now}, because the number of ranks" in caplog.text


def test_rows_that_are_done_are_not_read():
    end = run_of("rows", ROWS, [Session(steps=7), Session(size=6, steps=2), Session(size=6, steps=3), Session(size=5)])
    assert sorted(end.loader.dataset.read) == sorted(row for batch in end.epochs[0][-9:] for row in batch)
    assert len(end.loader.dataset.read) == ROWS - 28 - 12 - 18


# What a checkpoint says.


def plan_of(**changes: Any) -> Any:
    wanted = {"batches": 26, "examples": ROWS, "max_steps": -1, "num_train_epochs": 2, "batch_size": 4, "accumulate": 1}
    return plan_run(**{**wanted, **changes})


def test_positions_count_samples_without_the_repeated_ones():
    said = save_position(Position(1, 9, 28, 20), plan_of(), Sizes(6, 2), leaves_epoch=False)
    assert (said["epoch"], said["rows"], said["first_row"]) == (1, 28 + 4 * 6, 28)
    assert save_position(Position(0, 26), plan_of(), Sizes(4, 1), leaves_epoch=False)["rows"] == ROWS
    assert save_position(Position(0, 3), plan_of(), Sizes(4, 1), leaves_epoch=True)["rows"] == ROWS
    endless = plan_of(batches=None, examples=None, max_steps=5)
    assert save_position(Position(0, 9), endless, Sizes(4, 1), leaves_epoch=False)["rows"] == 36


def test_positions_count_the_samples_of_all_ranks_if_the_dataset_has_no_length():
    plan = plan_of(batches=10, examples=None, num_train_epochs=1, world_size=2)
    assert (plan.num_examples, plan.num_train_samples) == (40, 40)  # as transformers reports them
    saved = save_position(Position(0, 8), plan, Sizes(8, 1), leaves_epoch=False)
    assert saved["rows"] == 64
    smaller = plan_of(batches=20, examples=None, num_train_epochs=1, batch_size=2, world_size=2)
    found, _ = restore_position(saved, smaller, Sizes(4, 1), 8, lambda rows: None)
    assert found == Position(0, 16, 64, 20)


class OfOneRank(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Twenty samples that only this rank reads."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return points(20)[index]


class Unsized(OfOneRank):
    """The same samples, without a length."""

    __len__ = None  # type: ignore[assignment]


DRAWS = WeightedRandomSampler([1.0] * 20, 50)

LOADERS = {
    "of the whole dataset": (lambda: DataLoader(points(20), 4, sampler=DistributedSampler(points(20), 2, 0)), 20),
    "of the part of a rank": (lambda: DataLoader(OfOneRank(), 4), 40),
    "of a part with an incomplete batch": (lambda: DataLoader(OfOneRank(), 3), 40),
    "of a dataset without a length": (lambda: DataLoader(Unsized(), 4, sampler=range(20)), 40),
    "of more draws than samples": (lambda: DataLoader(points(20), 4, sampler=DRAWS), 100),
    "of batches that come twice": (lambda: DataLoader(points(20), batch_sampler=[[0, 1, 2, 3]] * 9), 72),
    "of a stream with a length": (lambda: DataLoader(SizedStream(points(20)), 4), 40),
    "of batches without a dataset": (lambda: [points(4)] * 9, 72),
    "without a length": (lambda: DataLoader(Stream(points(20)), 4), None),
}


@pytest.mark.parametrize("name", LOADERS)
def test_the_most_samples_of_an_epoch_are_those_of_all_batches(name: str):
    build, most = LOADERS[name]
    loader: Any = build()
    assert epoch_rows(loader, 4, world_size=2) == most


@pytest.mark.parametrize(("size", "position"), [(4, Position(1, 7)), (6, Position(1, 5, 28, 18))])
def test_an_earlier_checkpoint_stores_only_batches(size: int, position: Position):
    earlier = {"epoch": 1, "batches": 7, "rows_per_batch": 4}
    plan = plan_of(batches=-(-ROWS // size), batch_size=size)
    found, offset = restore_position(earlier, plan, Sizes(size, 1), 33, plan_after(size))
    assert found == position
    assert offset == (0 if size == 4 else 33 + 13 - 2 * 17)


def plan_after(size: int) -> Any:
    return lambda rows: -(-(ROWS - rows) // size)


def test_a_custom_loader_counts_batches():
    found, offset = restore_position(
        {"epoch": 0, "batches": 7, "rows_per_batch": 4}, plan_of(batches=13), Sizes(8, 1), 7, lambda rows: None
    )
    assert (found, offset) == (Position(0, 4, 28, 13), 7 + 9 - 13)


def test_max_steps_stays_and_epochs_follow():
    plan = plan_of(max_steps=30)
    assert (plan.moved(0, 5, 0, True), plan.epochs) == (plan, 2)
    for offset, epochs in ((5, 1), (4, 1), (3, 2), (-22, 2), (-23, 3)):
        moved = plan.moved(offset, 5, 0, True)
        assert (moved.max_steps, moved.epochs, moved.offset) == (30, epochs, offset)
    assert plan.moved(29, 30, 1, True).epochs == 2  # it is in the second
    assert plan_of().moved(-50, 5, 0, False).max_steps == 5


# One process, with everything.


class Redrawn(trainbus.Trainer):
    """Draws 100 samples in an epoch of 20."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return WeightedRandomSampler([1.0] * 20, 100)


class OwnLoader(trainbus.Trainer):
    """Repeats a batch sampler."""

    def get_train_dataloader(self) -> Any:
        batches = [range(first, first + 4) for first in range(0, 20, 4)]
        return DataLoader(points(20), batch_sampler=batches * 5, collate_fn=default_data_collator)


@pytest.mark.parametrize("kind", [Redrawn, OwnLoader])
def test_an_epoch_with_more_draws_than_samples_resumes_with_other_sizes(kind: type[Any], tmp_path: Path):
    def build(accumulate: int) -> Any:
        args = trainbus.TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=4,
            gradient_accumulation_steps=accumulate,
            num_train_epochs=1,
            save_steps=1000,
        )
        return kind(Regression(), args, train_dataset=points(20))

    first = build(1)
    first.on("on_step_end", lambda control: control.request("training_stop", "for the test"), once=10)
    first.on("on_step_end", lambda control: control.request("save", "for the test"), once=10)
    first.train()
    resumed = build(2)
    resumed.train(resume_from_checkpoint=True)
    assert (resumed.state.global_step, resumed.state.max_steps, resumed.state.samples_seen) == (18, 18, 100)


class Numbered(Regression):
    """Is given the numbers of the rows too."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor, row: torch.Tensor) -> Any:  # type: ignore[override]
        return super().forward(x, labels)


def trained(folder: Path, kind: str, chosen: Session, stop: int | None, go_on: bool, **args: Any) -> tuple[Any, Any]:
    """Train, until a step or the end, and save there; return the trainer and the rows of each epoch."""
    rows = [{**row, "row": number} for number, row in enumerate(points(ROWS))]
    lengths = {"train_sampling_strategy": "group_by_length", "length_column_name": "row"} if kind == "grouped" else {}
    run = regression_trainer(
        *(folder, Numbered()),
        args={
            "per_device_train_batch_size": chosen.size,
            "gradient_accumulation_steps": chosen.accumulate,
            "save_strategy": "steps",
            "save_steps": 1000,
            **lengths,
            **args,
        },
        train_dataset={"stream": Stream, "sized": SizedStream}.get(kind, list)(rows),
        data_collator=default_data_collator,
    )
    seen: dict[int, list[int]] = {}
    run.on("on_batch", lambda batch: seen.setdefault(run.run.position.epoch, []).extend(batch["row"].tolist()))
    if stop is not None:
        run.on("on_step_end", lambda control: control.request("training_stop", "for the test"), once=stop)
        run.on("on_step_end", lambda control: control.request("save", "for the test"), once=stop)
    run.train(resume_from_checkpoint=go_on)
    return run, seen


class OfFour(trainbus.Trainer):
    """Has batches of four samples, whatever the arguments say."""

    def get_train_dataloader(self) -> Any:
        return DataLoader(points(40), 4, collate_fn=default_data_collator)


def test_an_own_loader_with_its_own_batch_size_resumes_with_another_one_in_the_arguments(tmp_path: Path):
    def build(size: int) -> Any:
        args = trainbus.TrainingArguments(
            str(tmp_path), per_device_train_batch_size=size, num_train_epochs=1, save_steps=4
        )
        return OfFour(Regression(), args)

    first = build(8)
    first.on("on_step_end", lambda control: control.request("training_stop", "for the test"), once=4)
    first.train()
    resumed = build(2)
    resumed.train(resume_from_checkpoint=True)
    assert (resumed.state.global_step, resumed.state.max_steps, resumed.state.samples_seen) == (10, 10, 40)


CHAINS = {
    "other batches, and those again": [(4, 1, 7), (6, 1, 9), (6, 1, None)],
    "there and back": [(4, 1, 7), (6, 1, 9), (4, 1, None)],
    "more batches a step": [(4, 1, 7), (4, 2, 9), (4, 2, 12), (4, 1, None)],
    "larger ones in fewer batches": [(4, 2, 3), (8, 1, 5), (3, 3, 8), (8, 2, None)],
    "in a later epoch": [(4, 1, 3), (6, 1, 40), (6, 1, None)],
    "at the end of an epoch": [(4, 1, 26), (6, 1, 43), (5, 2, None)],
}


@pytest.mark.parametrize("kind", ["rows", "grouped", "sized", "stream"])
@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_a_run_in_several_sessions_takes_every_row_once_per_epoch(
    chain: list[tuple[int, int, int | None]], kind: str, tmp_path: Path
):
    length = {"max_steps": 60} if kind == "stream" else {"num_train_epochs": 2}
    seen: dict[int, list[int]] = {}
    planned: list[int] = []
    for number, (size, accumulate, stop) in enumerate(chain):
        run, rows = trained(tmp_path, kind, Session(1, size, accumulate), stop, number > 0, **length)
        for epoch in rows:
            seen.setdefault(epoch, []).extend(rows[epoch])
        planned.append(run.state.max_steps)
    whole = [*seen.values()] if kind != "stream" else [*seen.values()][:-1]
    assert [sorted(rows) for rows in whole] == [[*range(ROWS)]] * len(whole)
    assert run.state.global_step == run.state.max_steps
    assert {*run.lr_scheduler.get_last_lr()} == {0.0}
    assert run.state.samples_seen == sum(map(len, seen.values()))
    if kind in ("stream", "sized"):
        assert all(rows == [*range(len(rows))] for rows in seen.values())
    if kind == "stream":
        assert planned == [60] * len(chain)
    else:
        assert run.state.epoch == len(whole) == 2
    for before, after, first, second in zip(planned, planned[1:], chain, chain[1:]):
        assert (before == after) or first[:2] != second[:2]


def test_an_epoch_that_was_cut_short_changes_no_plan(tmp_path: Path):
    """Steps are planned once, and only other sizes change them: the unbroken run would not have done it either."""
    first, _ = trained(tmp_path, "rows", Session(), None, False, max_steps=-1, num_train_epochs=1)
    assert first.state.max_steps == 26
    ended, _ = trained(tmp_path / "cut", "rows", Session(), 30, False, num_train_epochs=2, save_steps=2)
    assert ended.state.max_steps == 52
    again, seen = trained(tmp_path / "cut", "rows", Session(), None, True, num_train_epochs=3)
    assert (again.state.global_step, again.state.max_steps, len(seen[1])) == (78, 78, ROWS - 16)


class Chunks:
    """A batch sampler with batches of several sizes. It does not say a batch size."""

    def __init__(self) -> None:
        self.sizes = [4, 5, 6, 7, 8, 9, 10, 11, 12, 13]

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[list[int]]:
        start = 0
        for size in self.sizes:
            yield [*range(start, start + size)]
            start += size


@pytest.mark.parametrize("size", [1, 4, 8, 16])
def test_batches_of_an_own_loader_without_a_batch_size_do_not_follow_the_arguments(tmp_path: Path, size: int) -> None:
    def session(per_device: int, steps: list[int], **options: Any) -> Trainer:
        class Own(Trainer):
            def get_train_dataloader(self) -> Any:
                return DataLoader(points(85), batch_sampler=Chunks(), collate_fn=default_data_collator)

        args = {"per_device_train_batch_size": per_device, "num_train_epochs": 2, "save_steps": 3, **options}
        made = Own(
            Regression(),
            TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True, **args),
            train_dataset=points(85),
        )
        made.on("on_step_end", lambda batch: steps.append(len(batch["labels"])))
        return made

    first: list[int] = []
    stopped = session(8, first)
    stopped.on("on_step_end", lambda control: control.request("training_stop", "for the test"), once=3)
    stopped.train()
    rest: list[int] = []
    session(size, rest).train(resume_from_checkpoint=True)
    assert first + rest == 2 * Chunks().sizes

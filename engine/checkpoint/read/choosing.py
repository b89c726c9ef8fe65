"""Which checkpoint a run goes on from: the same on every process, and good for each of them."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ....events.activity import CHOOSE_CHECKPOINT, during
from ....events.errors import ArgumentError, CheckpointError
from ...distributed.ranks import Ranks
from ...run import Run
from ..format import files
from ..format.manifest import read_manifest
from ..store import read_state
from ..write.commit import put_back
from .listing import newest_first, survey, unfinished
from .partial import check_for, lacking, lacks_own
from .verify import STRICT, Check, problems

logger = logging.getLogger(__name__)

AUTO = "auto"
"""What resumes where there is something to resume from, and begins anew where there is nothing."""

T = TypeVar("T")


@during(CHOOSE_CHECKPOINT)
def folder_to_resume(run: Run, wanted: str | Path | bool | None) -> Path | None:
    """Return the checkpoint to go on from, the same on every process; None to begin anew.

    Args:
        run: the run; called on every process, of which the first reads, or where machines share no disk, that of each.
        wanted: the folder of a checkpoint, True for the newest good one in the output folder, "auto" for the same where
            there is any checkpoint, or nothing. What the first process wants counts; where machines share no disk,
            each may have its own folder.

    Raises:
        ArgumentError: if the processes would write one checkpoint into several folders.
        CheckpointError: if the folder is not good, or there is no good one, saying what is wrong with each.
    """
    args = run.args
    run.contents.clear()
    everyone = run.ranks.gather_objects((wanted, os.path.abspath(args.output_dir)))
    first, directory = everyone[0]
    if args.save_on_each_node:
        directory = everyone[run.ranks.rank][1]
        first = wanted if _is_path(first) and _is_path(wanted) else first
    elif args.save_strategy != "no":
        _check_same([folder for _, folder in everyone])
    look = Look(run.ranks, check_for(run), args.should_save, args.save_on_each_node)
    return choose(directory, first, look)


def _is_path(wanted: str | Path | bool | None) -> bool:
    return isinstance(wanted, (str, Path)) and wanted != AUTO


def _check_same(folders: list[str]) -> None:
    for rank, folder in enumerate(folders):
        if folder != folders[0]:
            raise ArgumentError(
                f"`output_dir` is {folders[0]} on rank 0 and {folder} on rank {rank}, and all processes write into one "
                "folder. Let all of them have the same name for it: one with the time in it is made before they are "
                "started. Where machines share no disk, set `save_on_each_node`."
            )


@dataclass(frozen=True)
class Look:
    """How the processes of a run look at checkpoints: what one finds wrong, all of them know."""

    ranks: Ranks = field(default_factory=Ranks)
    """The processes."""
    check: Check = STRICT
    """How a checkpoint is checked."""
    reads: bool = True
    """Whether this process reads the files, or only sees that they are there."""
    apart: bool = False
    """Whether each machine has files of its own."""

    def everyone(self, work: Callable[[], T]) -> list[tuple[str, T]]:
        """Do something on every process; return what it gave on each, after what says where that was.

        Raises:
            CheckpointError: on all, if it fails on one.
        """
        mine, complaint = None, ""
        try:
            mine = work()
        except OSError as error:
            complaint = str(error)
        told = self.ranks.gather_objects((socket.gethostname(), mine, complaint))
        places = [
            "" if self.ranks.single_process or (rank == 0 and not self.apart) else f"on rank {rank} ({host}), "
            for rank, (host, _, _) in enumerate(told)
        ]
        if failed := [f"{place}{said}" for place, (_, _, said) in zip(places, told) if said]:
            raise CheckpointError(f"Checkpoints cannot be read: {'; '.join(failed)}")
        return [(place, given) for place, (_, given, _) in zip(places, told)]

    def problems(self, folder: Path) -> list[str]:
        """Return what is wrong with a checkpoint on any process, a sentence each."""
        everyone = self.everyone(lambda: self._seen(folder))
        if wrong := [f"{place}{problem}" for place, (found, _) in everyone for problem in found]:
            return wrong
        first = everyone[0][1][1]
        return [
            f"{place}it is {mine}, and on rank 0 {theirs}"
            for place, (_, told) in everyone
            for mine, theirs in zip(told, first)
            if mine != theirs
        ]

    def _seen(self, folder: Path) -> tuple[list[str], list[str]]:
        """Return what is wrong with a checkpoint for this process, and if nothing is, what it is."""
        hint = "" if self.apart else "; where machines share no disk, set `save_on_each_node`"
        try:
            if self.reads:
                found = problems(folder, full=True, check=self.check)
            else:
                found = [] if folder.is_dir() else [f"there is no such folder{hint}"]
            found = found or self._lacks_own(folder)
            return found, [] if found else _told_of(folder)
        except OSError as error:
            return [str(error)], []

    def _lacks_own(self, folder: Path) -> list[str]:
        """Return what is wrong if this process wrote random states and they are not there."""
        said = self.check.lacks(files.RANDOM.format(rank=self.ranks.rank))
        return [said] if said and lacks_own(self.ranks, folder) else []


def _told_of(folder: Path) -> list[str]:
    """Return what a checkpoint is, as far as it must be the same on all processes."""
    if (folder / files.MANIFEST).exists():
        manifest = read_manifest(folder)
        step, run_id = manifest.get("step"), manifest.get("run_id", "")
    else:
        step, run_id = read_state(folder).get("global_step"), ""
    whose = f" of the run {run_id}" if run_id else ""
    parts = lacking(folder)
    return [f"of step {step}{whose}", f"without {', '.join(parts)}" if parts else "whole"]


def choose(output_dir: str | Path, wanted: str | Path | bool | None, look: Look | None = None) -> Path | None:
    """Return the checkpoint that a run goes on from; None if it is to begin anew. Called on every process.

    Args:
        output_dir: where the run writes its checkpoints.
        wanted: the folder of a checkpoint, True for the newest good one in `output_dir`, "auto" for the same where
            there is any checkpoint, or nothing.
        look: how it is looked at; by default by a single process.

    Raises:
        CheckpointError: if the folder is not good, or there is no good one, saying what is wrong with each.
    """
    look = Look() if look is None else look
    if not wanted:
        return None
    if wanted is True or wanted == AUTO:
        return _newest(Path(output_dir), look, needed=wanted is True)
    folder = Path(wanted)
    found = look.problems(folder)
    if found:
        good = _find(folder.parent, look).good
        remedy = f"Beside it, {good} is good." if good else "There is no good one beside it."
        raise CheckpointError(f"{folder} cannot be resumed from: {'; '.join(found)}. {remedy}")
    return folder


@dataclass(frozen=True)
class _Found:
    """What there is to go on from in a folder."""

    good: Path | None
    """The newest checkpoint with which nothing is wrong."""
    wrong: list[str]
    """What is wrong with others, a line for each."""
    count: int
    """How many checkpoints there are, good or not."""


def _find(directory: Path, look: Look) -> _Found:
    """Look at the checkpoints in a folder: at all of them quickly, and from the newest on at every file."""
    everyone = look.everyone(
        lambda: {found.path.name: found for found in survey(directory, look.check)} if look.reads else None
    )
    surveys = [(place, found) for place, found in everyone if found is not None]
    known = {name: checkpoint for _, found in reversed(surveys) for name, checkpoint in found.items()}
    ordered = [checkpoint.path.name for checkpoint in newest_first([*known.values()])]
    wrong = {
        name: [
            f"{place}{problem}"
            for place, found in surveys
            for problem in (found[name].problems if name in found else ("there is none",))
        ]
        for name in ordered
    }
    good = None
    for name in ordered:
        if not wrong[name]:
            wrong[name] = look.problems(directory / name)
            if not wrong[name]:
                good = directory / name
                break
    return _Found(good, [f"{name}: {'; '.join(wrong[name])}" for name in ordered if wrong[name]], len(ordered))


def _newest(output_dir: Path, look: Look, *, needed: bool) -> Path | None:
    with suppress(OSError):  # a folder that cannot be written to can still be read
        if look.reads:
            put_back(output_dir)
    found = _find(output_dir, look)
    if not found.count and not needed:
        return None
    left = unfinished(output_dir) if look.reads else []
    said = found.wrong + [f"{path.name}: {'; '.join(problems(path, full=False))}" for path in left]
    listed = "".join(f"\n- {line}" for line in said)
    if found.good is None:
        raise CheckpointError(
            f"There is no checkpoint to resume from in '{output_dir}'"
            + (
                f", no good one. What is there:{listed}\nTo begin anew, leave `resume_from_checkpoint` out."
                if said
                else "."
            )
        )
    if said and look.reads:
        logger.warning("%s is resumed from; what else is there and is not good:%s", found.good, listed)
    return found.good

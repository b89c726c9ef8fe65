"""Choosing the checkpoint to resume from: one checkpoint for all ranks, which must be good on every rank."""

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
from ....events.errors import ArgumentError, CheckpointError, closest
from ...distributed.memory_errors import lacks_memory
from ...distributed.ranks import Ranks
from ..format import files
from ..protocols import ResumableRun
from ..write.commit import put_back
from .listing import last_run, newest_first, survey, unfinished
from .missing_state import check_for
from .saved import SavedCheckpoint
from .verify import STRICT, Check, problems

logger = logging.getLogger(__name__)

AUTO = "auto"
"""The value of `resume_from_checkpoint` that resumes if there is a checkpoint, and else starts fresh."""

T = TypeVar("T")


@during(CHOOSE_CHECKPOINT)
def checkpoint_to_resume(run: ResumableRun, wanted: str | Path | bool | None) -> SavedCheckpoint | None:
    """Choose the checkpoint to resume from; None to start fresh.

    All ranks must call this function. The chosen checkpoint has the same step and the same run id on every rank. Rank 0
    verifies the files. With `save_on_each_node`, one rank of each machine verifies the files. A checkpoint is good if
    no rank finds a problem.

    Args:
        run: the run.
        wanted: the folder of a checkpoint, or True for the newest good checkpoint in the output folder. "auto" is like
            True, but starts fresh if there is no checkpoint. None and False start fresh. The value of rank 0 counts.
            With `save_on_each_node`, each rank may pass a different folder.

    Raises:
        ArgumentError: if a run that saves has different output folders on the ranks. `save_on_each_node` allows this.
            Without it, one checkpoint would be spread over several folders.
        CheckpointError: if the checkpoint in the given folder is not good, or if the output folder has checkpoints but
            no good one. If `wanted` is True, an output folder without checkpoints is also an error. The message lists
            the problems of each checkpoint.
    """
    args = run.args
    everyone = run.ranks.gather_objects((wanted, os.path.abspath(args.output_path)))
    first, directory = everyone[0]
    if args.save_on_each_node:
        directory = everyone[run.ranks.rank][1]
        first = wanted if _is_path(first) and _is_path(wanted) else first
    elif args.save_strategy != "no":
        _check_same([folder for _, folder in everyone])
    return choose(directory, first, Inspector(run.ranks, check_for(run), args.should_save, args.save_on_each_node))


def _is_path(wanted: str | Path | bool | None) -> bool:
    return isinstance(wanted, (str, Path)) and wanted != AUTO


def _check_same(folders: list[str]) -> None:
    for rank, folder in enumerate(folders):
        if folder != folders[0]:
            raise ArgumentError(
                f"`output_dir` is {folders[0]} on rank 0 and {folder} on rank {rank}, and all ranks write into one "
                "folder. Give all ranks the same name. If the name contains the time, compute it before the ranks "
                "start. If machines share no disk, set `save_on_each_node`."
            )


@dataclass(frozen=True)
class Inspector:
    """Verifies checkpoints on all ranks. Each rank learns the problems that any rank finds."""

    ranks: Ranks = field(default_factory=Ranks)
    """This process and the other ranks."""
    check: Check = STRICT
    """The settings of the verification."""
    reads: bool = True
    """Whether this rank verifies the files. If False, it only checks that the folder and its own RNG states exist."""
    separate_disks: bool = False
    """Whether each machine has its own disk, and so its own files of a checkpoint."""
    _opened: dict[Path, SavedCheckpoint] = field(default_factory=dict, init=False, repr=False, compare=False)

    def open(self, path: Path) -> SavedCheckpoint:
        """Return the object for the checkpoint in a folder. Later calls for the folder return the same object."""
        return self._opened.setdefault(path, SavedCheckpoint.open(path))

    def on_every_rank(self, work: Callable[[], T]) -> list[tuple[str, T]]:
        """Call `work` on every rank. Return (prefix, result) for each rank, in order of rank.

        The prefix is the beginning of a message about this rank and names the rank. It is empty in a single process,
        and for rank 0 if all machines share a disk.

        Raises:
            CheckpointError: on every rank, if `work` raises an OSError on any rank.
        """
        result, complaint = None, ""
        try:
            result = work()
        except OSError as error:
            complaint = str(error)
        gathered = self.ranks.gather_objects((socket.gethostname(), result, complaint))
        prefixes = [
            "" if self.ranks.single_process or (rank == 0 and not self.separate_disks) else f"on rank {rank} ({host}), "
            for rank, (host, _, _) in enumerate(gathered)
        ]
        if failed := [f"{prefix}{said}" for prefix, (_, _, said) in zip(prefixes, gathered) if said]:
            raise CheckpointError(f"Checkpoints cannot be read: {'; '.join(failed)}. Check path and permissions.")
        return [(prefix, given) for prefix, (_, given, _) in zip(prefixes, gathered)]

    def problems(self, checkpoint: SavedCheckpoint) -> list[str]:
        """Verify a checkpoint on every rank. Return the problems of all ranks; empty if the checkpoint is good."""
        everyone = self.on_every_rank(lambda: self._inspect(checkpoint))
        if wrong := [f"{prefix}{problem}" for prefix, (found, _) in everyone for problem in found]:
            checkpoint.release()
            return wrong
        first = everyone[0][1][1]
        different = [
            f"{prefix}it is {here}, and on rank 0 {there}"
            for prefix, (_, identity) in everyone
            for here, there in zip(identity, first)
            if here != there
        ]
        if different:
            checkpoint.release()
        return different

    def survey(self, directory: Path) -> dict[str, Candidate] | None:
        """Check existence and sizes of the files of all checkpoints in a folder: folder name -> result.

        Return None if the attribute `reads` of this object is False.
        """
        if not self.reads:
            return None
        found = [self._opened.setdefault(checkpoint.path, checkpoint) for checkpoint in survey(directory)]
        return {checkpoint.path.name: Candidate.of(checkpoint, self.check) for checkpoint in found}

    def _inspect(self, checkpoint: SavedCheckpoint) -> tuple[list[str], list[str]]:
        """Verify a checkpoint on this rank. Return its problems, and the result of `_identity`.

        If there are problems, the second list is empty.
        """
        hint = "" if self.separate_disks else "; if machines share no disk, set `save_on_each_node`"
        try:
            if self.reads:
                found = checkpoint.problems(check=self.check)
            else:
                found = [] if checkpoint.path.is_dir() else [f"there is no such folder{hint}"]
            found = found or self._missing_rng_states(checkpoint)
            return found, [] if found else _identity(checkpoint)
        except (OSError, CheckpointError) as error:
            if lacks_memory(error):
                raise
            return [str(error)], []

    def _missing_rng_states(self, checkpoint: SavedCheckpoint) -> list[str]:
        rank, world_size = self.ranks.rank, self.ranks.world_size
        problem = self.check.missing(files.RANDOM.format(rank=rank))
        return [problem] if problem and checkpoint.lacks_rng_states_of(rank, world_size) else []


def _identity(checkpoint: SavedCheckpoint) -> list[str]:
    """Return two texts about a checkpoint: its step and run, and its missing parts. The ranks compare these texts."""
    of_run = f" of the run {checkpoint.run_id}" if checkpoint.run_id else ""
    missing = [part.value for part in checkpoint.missing_parts()]
    return [
        f"of step {checkpoint.recorded_step}{of_run}",
        f"without {', '.join(missing)}" if missing else "complete",
    ]


@dataclass(frozen=True)
class Candidate:
    """A checkpoint, and the problems that a check of its file sizes found. The ranks exchange these objects."""

    name: str
    """The name of the folder."""
    step: int
    """The number of completed steps at the save."""
    problems: tuple[str, ...]
    """The problems of the checkpoint, one sentence each; empty if the check finds none."""
    run_id: str = ""
    """The id of the run that wrote the checkpoint; empty if it is unknown or the checkpoint is damaged."""
    time: float = 0.0
    """When the checkpoint was written, in seconds since 1970; 0 if unknown or if the checkpoint is damaged."""

    @classmethod
    def of(cls, checkpoint: SavedCheckpoint, check: Check) -> Candidate:
        """Check existence and sizes of the files of a checkpoint, and return the result."""
        found = tuple(checkpoint.problems(full=False, check=check))
        if found:
            return cls(checkpoint.path.name, checkpoint.step, found)
        return cls(checkpoint.path.name, checkpoint.step, found, checkpoint.run_id, checkpoint.time)


def choose(
    output_dir: str | Path, wanted: str | Path | bool | None, inspector: Inspector | None = None
) -> SavedCheckpoint | None:
    """Choose the checkpoint that a run resumes from; None if the run starts fresh. All ranks must call this function.

    A checkpoint is good if `inspector` finds no problem on any rank.

    Args:
        output_dir: the folder that the run writes its checkpoints into.
        wanted: the folder of a checkpoint, or True for the newest good checkpoint in `output_dir`. "auto" is like True,
            but starts fresh if there is no checkpoint. None and False start fresh.
        inspector: the object that verifies the checkpoints. Default: an inspector for a single process.

    Raises:
        ArgumentError: if `wanted` has another type.
        CheckpointError: if the checkpoint in the given folder is not good, or if `output_dir` has checkpoints but no
            good one. If `wanted` is True, an `output_dir` without checkpoints is also an error. The message lists the
            problems of each checkpoint.
    """
    inspector = Inspector() if inspector is None else inspector
    if not wanted:
        return None
    if wanted is True or wanted == AUTO:
        return _newest(Path(output_dir), inspector, needed=wanted is True)
    if not isinstance(wanted, (str, os.PathLike)):
        raise ArgumentError(
            f"resume_from_checkpoint={wanted!r} is not a checkpoint. Pass the folder of a checkpoint, or True for the "
            "newest good checkpoint of `output_dir`."
        )
    checkpoint = inspector.open(Path(wanted))
    found = inspector.problems(checkpoint)
    if found:
        remedy = _remedy(Path(wanted), Path(output_dir), inspector)
        raise CheckpointError(f"{checkpoint.path} cannot be resumed from: {'; '.join(found)}. {remedy}")
    return checkpoint


def _remedy(wanted: Path, output_dir: Path, inspector: Inspector) -> str:
    """Return the end of an error message: how to resume without `wanted`, which is not a good checkpoint.

    All ranks must call this function.
    """
    inner = _find(wanted, inspector).good  # all ranks search, because they search together
    good = _find(wanted.parent, inspector).good
    if inner is not None:
        return f"It contains checkpoints. Resume from {inner.path}, which is good."
    if good is not None:
        return f"Resume from {good.path}, which is good."
    if closest(str(wanted), [AUTO]):
        return f"Did you mean {AUTO!r}, which resumes from the newest checkpoint of `output_dir`?"
    inside = output_dir / wanted
    if inspector.reads and not wanted.exists() and inside.is_dir():
        return f"Did you mean the folder '{inside}'?"
    if wanted.name == str(wanted):  # a word such as `latest`
        return "To resume from the newest good checkpoint of `output_dir`, pass True."
    return "Its folder has no good checkpoint."


@dataclass(frozen=True)
class _Found:
    """The result of a search for a good checkpoint in a folder."""

    good: SavedCheckpoint | None
    """The newest checkpoint that is good on every rank; None if there is none."""
    wrong: list[str]
    """The problems that the search found: one line for each checkpoint with a problem."""
    count: int
    """The number of checkpoints in the folder, good or damaged."""
    last: str = ""
    """The id of the run that began last in the folder; empty if it is unknown."""


def _find(directory: Path, inspector: Inspector) -> _Found:
    """Search a folder for the newest good checkpoint. The checkpoints of the run that began last come first.

    First, existence and sizes of files are checked in all checkpoints. Then the checkpoints without a problem are read
    completely, newest first, until one checkpoint is good.
    """
    everyone = inspector.on_every_rank(lambda: (inspector.survey(directory), last_run(directory)))
    surveys = [(prefix, found) for prefix, (found, _) in everyone if found is not None]
    last = everyone[0][1][1]
    known = {name: candidate for _, found in reversed(surveys) for name, candidate in found.items()}
    ordered = [candidate.name for candidate in newest_first(known.values(), last)]
    wrong = {
        name: [
            f"{prefix}{problem}"
            for prefix, found in surveys
            for problem in (found[name].problems if name in found else ("it does not exist",))
        ]
        for name in ordered
    }
    good = None
    for name in ordered:
        if not wrong[name]:
            checkpoint = inspector.open(directory / name)
            wrong[name] = inspector.problems(checkpoint)
            if not wrong[name]:
                good = checkpoint
                break
    return _Found(good, [f"{name}: {'; '.join(wrong[name])}" for name in ordered if wrong[name]], len(ordered), last)


def _newest(output_dir: Path, inspector: Inspector, *, needed: bool) -> SavedCheckpoint | None:
    """Find the newest good checkpoint; None if the folder has no checkpoint and `needed` is False.

    Raises:
        CheckpointError: if the folder has checkpoints but no good one, or if it has no checkpoint and `needed` is True.
    """
    with suppress(OSError):  # a read-only folder can still be read
        if inspector.reads:
            put_back(output_dir)
    found = _find(output_dir, inspector)
    if not found.count and not needed:
        return None
    left = unfinished(output_dir) if inspector.reads else []
    lines = found.wrong + [f"{path.name}: {'; '.join(problems(path, full=False))}" for path in left]
    listed = "".join(f"\n- {line}" for line in lines)
    if found.good is None:
        message = f"There is no checkpoint to resume from in '{output_dir}'"
        if not lines:
            raise CheckpointError(f"{message}. To start fresh, leave out `resume_from_checkpoint`.")
        raise CheckpointError(
            f"{message}: there is no good checkpoint. These cannot be used:{listed}\n"
            "To start fresh, leave out `resume_from_checkpoint`."
        )
    if lines and inspector.reads:
        logger.warning("Resuming from %s. These cannot be used:%s", found.good.path, listed)
    if found.last and found.good.run_id != found.last and inspector.reads:
        logger.warning(
            "The run that began last in '%s' is %s, and it has no good checkpoint. Resuming from %s of another run%s. "
            "To start fresh, leave out `resume_from_checkpoint`.",
            output_dir,
            found.last,
            found.good.path,
            f", {found.good.run_id}" if found.good.run_id else "",
        )
    return found.good

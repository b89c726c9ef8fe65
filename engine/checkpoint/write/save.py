"""Writing a snapshot as a checkpoint. All ranks write together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ....events.activity import SAVE, during
from ....events.errors import CheckpointError
from ..format.files import Hidden, hidden_name
from ..format.hashing import AnyDigest
from ..format.tensor_file import write_tensors
from ..protocols import SavableRun, SavingRanks
from .commit import Staging
from .disk_space import check_space, explained
from .links import links_to_last
from .snapshot import Snapshot

T = TypeVar("T")


@during(SAVE)
def write_checkpoint(run: SavableRun, snapshot: Snapshot, ranks: SavingRanks | None = None) -> None:
    """Write a checkpoint completely, or change nothing.

    All ranks must call this function. A background thread may call this function while training continues, because
    training does not change the values of the run that the function reads, such as the arguments.

    Args:
        run: the run.
        snapshot: the contents of the checkpoint.
        ranks: the ranks that write together. For a call on a background thread, pass ranks with their own process
            group. Default: the ranks of the run.

    Raises:
        CheckpointError: if the disk is full or fails on any rank.
    """
    checkpoint = snapshot.checkpoint
    ranks = run.ranks if ranks is None else ranks
    named = ranks.gather_objects((run.args.should_save, hidden_name(checkpoint.step, run.run_id)))
    # Ranks with `should_save` create a folder: rank 0, or with `save_on_each_node` the first rank of each machine. This
    # rank writes into the folder of the last such rank up to itself.
    name: Hidden = [name for saves, name in named[: ranks.rank + 1] if saves][-1]
    staging = Staging(checkpoint.path, name)
    with explained(checkpoint.step, snapshot.needed, checkpoint.path.parent):
        try:
            together(ranks, checkpoint.step, lambda: _prepare(run, staging, snapshot.needed))
            single_process = ranks.single_process
            written = together(ranks, checkpoint.step, lambda: _write(snapshot, staging, single_process))
            together(ranks, checkpoint.step, lambda: _commit(run, snapshot, staging, written))
        except BaseException:
            if run.args.should_save:
                staging.discard()
            raise


def on_all_ranks(run: SavableRun, work: Callable[[], T]) -> list[T]:
    """Call `work` on every rank and return the results, in order of rank. All ranks must call this function.

    Raises:
        CheckpointError: if `work` fails on another rank. If `work` fails on this rank, the error of `work` is raised.
    """
    return together(run.ranks, run.state.global_step, work)


def together(ranks: SavingRanks, step: int, work: Callable[[], T]) -> list[T]:
    """Call `work` on each rank in `ranks` and return the results, in order of rank.

    Args:
        ranks: the ranks. Each of them must call this function.
        step: the step of the checkpoint, for errors.
        work: the function to call.

    Raises:
        CheckpointError: if `work` fails on another rank. If `work` fails on this rank, the error of `work` is raised.
    """
    result, failure = None, None
    try:
        result = work()
    except Exception as error:
        failure = error
    outcomes = ranks.gather_objects((result, "" if failure is None else f"{type(failure).__name__}: {failure}"))
    if failure is not None:
        raise failure
    failed = [f"on rank {rank}, {message}" for rank, (_, message) in enumerate(outcomes) if message]
    if failed:
        raise CheckpointError(f"The checkpoint of step {step} is not written: {'; '.join(failed)}")
    return [result for result, _ in outcomes]


def _prepare(run: SavableRun, staging: Staging, needed: int) -> None:
    if run.args.should_save:
        check_space(needed, staging.path.parent)
        staging.create()


def _write(snapshot: Snapshot, staging: Staging, single_process: bool) -> dict[str, AnyDigest]:
    """Write the files of this rank into the staging folder, and return their digests by file name."""
    if not staging.path.is_dir():
        raise CheckpointError(
            f"{staging.path.parent} is not the folder that the first rank writes into. Give all ranks the same "
            "`output_dir`, on a shared disk. If machines share no disk, set `save_on_each_node`."
        )
    if snapshot.link_unchanged:
        staging.links = links_to_last(staging.path.parent)
    snapshot.write_model(str(staging.path))
    if single_process:  # with several ranks, another one may be writing a file
        staging.add_written_files()
    for name, (tensors, metadata) in snapshot.tensors.items():
        with staging.open(name) as file:
            write_tensors(file, tensors, metadata)
    for name, text in snapshot.texts.items():
        staging.write_text(name, text)
    staging.flush()
    return staging.digests


def _commit(run: SavableRun, snapshot: Snapshot, staging: Staging, written: list[dict[str, AnyDigest]]) -> None:
    if not run.args.should_save:
        return
    digests = {name: digest for part in written for name, digest in part.items()} | staging.digests
    if run.args.save_on_each_node:  # a machine has the files of its own ranks only
        digests = {name: digest for name, digest in digests.items() if (staging.path / name).is_file()}
    staging.commit(snapshot.facts, digests)

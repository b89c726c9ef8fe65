"""Copy checkpoints to a remote store, and fetch the newest checkpoint back. Every store of fsspec works."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec

from ..callbacks.flow.checkpoint import Checkpoint
from ..engine.checkpoint.format.files import MANIFEST, step_of
from ..engine.checkpoint.read.listing import list_checkpoints
from ..engine.checkpoint.read.saved import SavedCheckpoint
from ..engine.checkpoint.write.background_writer import BackgroundWriter
from ..engine.distributed.memory_errors import lacks_memory
from ..engine.run import Run
from ..events.callback import Callback
from ..events.capabilities import Capability
from ..events.errors import ArgumentError, CheckpointError
from ..events.stages import Stage, order

logger = logging.getLogger(__name__)

BESIDE = ".upload-"
"""The prefix of a remote folder with a new copy of a checkpoint, while an earlier copy of this checkpoint exists."""


@dataclass
class RemoteStore(Callback):
    """Copies each checkpoint to a remote store, such as `s3://bucket/run`, so that a run on any machine can resume.

        trainer = Trainer(..., callbacks=[RemoteStore("s3://bucket/run-7")])
        trainer.train(resume_from_checkpoint="auto")

    `url` may name any store that fsspec supports, such as `s3://`, `gs://`, `az://`, `file://` or `memory://`.

    - Saving: rank 0 copies each checkpoint on a thread while training continues. The manifest is copied last. A remote
      checkpoint without a manifest is incomplete, and the callback never uses it. If the store already has a checkpoint
      of the same step, this earlier copy stays until the new copy is complete.
    - Fetching: when you construct the trainer, the callback fetches and verifies the newest checkpoint of the store, if
      this checkpoint is newer than all checkpoints in the output folder. If this checkpoint is damaged and
      `on_store_error` is `warn`, the callback logs a warning and tries the next older checkpoint.
    - Deleting: after each copy, the callback applies the retention policy to all checkpoints of this run, remote and
      local. A remote checkpoint stays if the policy keeps it, or if the output folder contains it. The callback deletes
      the other remote checkpoints of this run. It deletes no local checkpoint.
    - With `save_on_each_node`, the callback copies only the checkpoints of the machine of rank 0.

    Raises:
        ArgumentError: if `url` has no protocol, if the package for the protocol is missing, or if `on_store_error` is
            unknown.
        CheckpointError: if `on_store_error` is `raise`, and either the store fails or the newest remote checkpoint is
            damaged.
    """

    capabilities = frozenset({Capability.REPORTS})

    url: str = "memory://checkpoints"
    """The folder in the store, with the protocol of the store, such as `s3://bucket/run`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the fsspec file system, such as credentials."""
    fetch: bool = True
    """Whether to fetch the newest remote checkpoint when the trainer is constructed."""
    on_store_error: str = "warn"
    """The action when the store fails: `warn` logs a warning and continues the training, and `raise` ends the run."""
    _writer: BackgroundWriter = field(default_factory=BackgroundWriter, init=False, repr=False, compare=False)
    _elsewhere: dict[str, RemoteCheckpoint] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The remote checkpoints that the output folder did not contain at the last copy, by name of the remote folder."""

    def __post_init__(self) -> None:
        if "://" not in self.url:
            raise ArgumentError(
                f"RemoteStore({self.url!r}): write a protocol, such as s3://bucket/run or file:///path."
            )
        if self.on_store_error not in ("warn", "raise"):
            raise ArgumentError(f"RemoteStore(on_store_error={self.on_store_error!r}): set 'warn' or 'raise'.")

    def _open(self) -> tuple[Any, PurePosixPath]:
        """Return the fsspec file system of the field `url`, and the path of the remote folder in this file system."""
        try:
            system, path = fsspec.core.url_to_fs(self.url, **self.options)
        except (ValueError, ImportError) as error:
            raise ArgumentError(f"RemoteStore({self.url!r}): {error}. Correct the protocol, or install it.") from error
        return system, PurePosixPath(path)

    @order(Stage.PREPARE)
    def on_init_end(self, run: Run) -> None:
        system, folder = self._open()
        if self.fetch and run.args.should_save:
            strict = self.on_store_error == "raise"
            self._guarded(lambda: fetch_newest(system, folder, run.args.output_path, strict), "read")
        run.ranks.barrier()  # no rank looks for a checkpoint before it is here

    @order(Stage.PREPARE)
    def on_save_begin(self) -> None:
        # The retention policy may delete the checkpoint that is being copied.
        self._guarded(self._writer.wait, "written")

    @order(Stage.REPORT)
    def on_commit(self, run: Run, checkpoint: Any) -> None:
        if run.state.is_world_process_zero:
            path, best = Path(checkpoint.path), run.state.best_model_checkpoint
            self._guarded(lambda: self._writer.submit(lambda: self._copy(run, path, best)), "written")

    @property
    def slowest_write(self) -> float:
        """The seconds of the slowest copy to the store, including the copy that runs now."""
        return self._writer.slowest

    @property
    def busy(self) -> bool:
        """Whether the thread copies a checkpoint now."""
        return self._writer.busy

    def _copy(self, run: Run, path: Path, best: str | None) -> None:
        """Copy a checkpoint. Then delete the remote checkpoints of its run that the retention policy does not keep.

        A remote checkpoint stays if it is also on the local disk, in the folder `path.parent`.

        Args:
            run: the run.
            path: the local folder of the checkpoint.
            best: the path of the checkpoint with the best model; None if there is none.
        """
        system, folder = self._open()
        upload(system, folder, path)
        writers = [each for each in run.bus.subscribers.values() if isinstance(each, Checkpoint)]
        policies = [each for each in writers if not each.keep.keeps_all]
        if not policies:
            return
        own = SavedCheckpoint.open(path).run_id
        local = [saved for saved in list_checkpoints(path.parent) if saved.run_id == own]
        # Only the manifests of checkpoints that are not on the local disk are read, and only once, so that a push of a
        # run with many checkpoints costs as much as the first one.
        here = {each.name for each in path.parent.iterdir()}
        self._elsewhere = complete_checkpoints(system, folder, without=here, known=self._elsewhere)
        elsewhere = [each for each in self._elsewhere.values() if each.run_id == own]  # those of other runs stay
        found: dict[int, Any] = {each.step: each for each in elsewhere} | {saved.step: saved for saved in local}
        in_order = [found[step] for step in sorted(found)]
        surplus = {each.step for policy in policies for each in policy.superfluous(run, in_order, best)}
        for each in elsewhere:
            if each.step in surplus:
                remove(system, folder / each.name)
                del self._elsewhere[each.name]

    @order(Stage.RELEASE)
    def on_train_end(self) -> None:
        self._guarded(self._writer.wait, "written")

    def on_close(self) -> None:
        self._guarded(self._writer.close, "written")

    def _guarded(self, work: Any, how: str) -> None:
        try:
            work()
        except Exception as error:  # stores raise errors of many kinds
            if lacks_memory(error):
                raise
            text = f"The store {self.url} cannot be {how}: {type(error).__name__}: {error}."
            if self.on_store_error == "raise":
                raise CheckpointError(
                    f"{text} Check its address and credentials, or set on_store_error='warn'."
                ) from error
            logger.warning("%s Training continues.", text)


@dataclass(frozen=True)
class RemoteCheckpoint:
    """A complete checkpoint in a remote store: its folder name and step, and values from its manifest."""

    name: str
    """The name of its folder in the store."""
    step: int
    """The number of completed steps at the save."""
    time: float
    """When the checkpoint was written, in seconds since 1970."""
    run_id: str
    """The id of the run."""
    seconds: float
    """The training time of the run until the save, in seconds."""
    metrics: dict[str, Any]
    """The metrics of the evaluation at this step; {} without such an evaluation."""


def upload(system: Any, folder: PurePosixPath, checkpoint: Path) -> None:
    """Copy a checkpoint folder into a folder of a store.

    If the store already has a complete checkpoint with this name, the function first uploads a new copy under another
    name. Then it replaces the earlier copy. In this case, the store has a complete copy at every moment. If the store
    cannot copy files between its folders, the replacement uploads the files a second time.

    Args:
        system: the file system of the store.
        folder: the folder of the store.
        checkpoint: the local checkpoint folder.
    """
    target, beside = folder / checkpoint.name, folder / f"{BESIDE}{checkpoint.name}"
    local = {path.relative_to(checkpoint).as_posix(): path for path in checkpoint.rglob("*") if path.is_file()}
    if is_complete(system, target):
        remove(system, beside)
        _put(system, beside, local)
        remove(system, target)
        if not _copied_within(system, beside, target, local):
            _put(system, target, local)
    else:
        _put(system, target, local)
    remove(system, beside)


def _copied_within(system: Any, source: PurePosixPath, target: PurePosixPath, names: Collection[str]) -> bool:
    """Let the store copy the files `names` from `source` to `target`, the manifest last.

    Return whether the files are copied. If the file system has no such copy operation, return False. In this case,
    `target` may exist as an empty folder.
    """
    try:
        for name in _manifest_last(names):
            system.makedirs(str((target / name).parent), exist_ok=True)
            system.cp_file(str(source / name), str(target / name))
    except NotImplementedError:
        return False
    return True


def _manifest_last(names: Collection[str]) -> list[str]:
    return sorted(names, key=lambda name: (name == MANIFEST, name))


def _put(system: Any, target: PurePosixPath, local: Mapping[str, Path]) -> None:
    """Delete the folder `target` of a store, and then copy local files to this folder, the manifest last.

    Args:
        system: the file system of the store.
        target: the folder.
        local: the files to copy. Each key is the path inside of the folder, each value is the local file.
    """
    remove(system, target)
    for name in _manifest_last(local):
        remote = target / name
        system.makedirs(str(remote.parent), exist_ok=True)
        system.put_file(str(local[name]), str(remote))


def is_complete(system: Any, target: PurePosixPath) -> bool:
    """Return whether a checkpoint folder in a store is complete: whether the folder has a manifest."""
    return bool(system.exists(str(target / MANIFEST)))


def remove(system: Any, target: PurePosixPath) -> None:
    """Delete a folder of a store, if the folder exists. Delete the manifest first, so the rest counts as incomplete."""
    if is_complete(system, target):
        system.rm_file(str(target / MANIFEST))
    if system.exists(str(target)):  # object stores have no folders without files
        system.rm(str(target), recursive=True)


def complete_checkpoints(
    system: Any,
    folder: PurePosixPath,
    without: Collection[str] = (),
    known: Mapping[str, RemoteCheckpoint] | None = None,
) -> dict[str, RemoteCheckpoint]:
    """Find the complete checkpoints in a folder of a store.

    The result includes complete copies that a killed process left under a temporary name. For example,
    `.upload-checkpoint-4` is a copy of `checkpoint-4`.

    Args:
        system: the file system of the store.
        folder: the folder.
        without: names of checkpoints to leave out, with their copies. The function does not read these checkpoints.
        known: the result of an earlier call. If the folder still has these checkpoints, the new result includes them.
            The function does not read these checkpoints again.

    Returns:
        Name of a folder in the store -> the checkpoint in this folder.
    """
    found: dict[str, RemoteCheckpoint] = {}
    known = {} if known is None else known
    for path in system.ls(str(folder), detail=False) if system.exists(str(folder)) else ():
        name = PurePosixPath(path).name
        checkpoint = checkpoint_name(name)
        step = step_of(Path(checkpoint))
        if checkpoint in without or step is None:
            continue
        if name in known:
            found[name] = known[name]
        elif is_complete(system, folder / name):
            facts = json.loads(system.cat_file(str(folder / name / MANIFEST)))
            found[name] = RemoteCheckpoint(
                name,
                step,
                float(facts.get("time", 0.0)),
                str(facts.get("run_id", "")),
                float(facts.get("seconds", 0.0)),
                dict(facts.get("metrics", {})),
            )
    return found


def checkpoint_name(folder: str) -> str:
    """Return the name of the checkpoint in a remote folder: `checkpoint-4` for the folder `.upload-checkpoint-4`."""
    return folder.removeprefix(BESIDE)


def fetch_newest(system: Any, folder: PurePosixPath, output: Path, strict: bool = True) -> None:
    """Copy the newest complete checkpoint of a store into an output folder.

    If a checkpoint in the output folder is as new or newer, copy nothing. The newest checkpoint is the checkpoint that
    was saved last, not the checkpoint with the highest step.

    Args:
        system: the file system of the store.
        folder: the folder in the store.
        output: the output folder.
        strict: whether a damaged checkpoint is an error. If False, the function logs a warning for a damaged
            checkpoint, and tries the next older checkpoint.

    Raises:
        CheckpointError: if `strict` is True and the copied checkpoint is damaged.
    """
    remote = complete_checkpoints(system, folder)
    newest_here = max((saved.time for saved in list_checkpoints(output)), default=0.0)
    for name in sorted(remote, key=lambda each: (remote[each].time, remote[each].run_id), reverse=True):
        if remote[name].time <= newest_here:
            return
        wrong = fetch(system, folder / name, output / checkpoint_name(name))
        if not wrong:
            logger.info("Fetched %s.", folder / name)
            return
        text = f"The remote checkpoint {folder / name} is damaged: {'; '.join(wrong)}."
        if strict:
            raise CheckpointError(text)
        logger.warning("%s It is not used.", text)


def fetch(system: Any, root: PurePosixPath, target: Path) -> list[str]:
    """Copy a remote checkpoint to a local folder, and compare the copy with its manifest.

    Returns:
        The problems, such as a missing or damaged file. An empty list means that the copy is now in the local folder.
        If there are problems, the local folder does not change.
    """
    staging = target.with_name(f".fetch-{target.name}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    for path in system.find(str(root)):
        local = staging / PurePosixPath(path).relative_to(PurePosixPath(system._strip_protocol(str(root))))
        local.parent.mkdir(parents=True, exist_ok=True)
        system.get_file(path, str(local))
    if wrong := SavedCheckpoint.open(staging).problems(full=True):
        shutil.rmtree(staging)
        return [str(problem) for problem in wrong]
    shutil.rmtree(target, ignore_errors=True)
    staging.rename(target)
    return []

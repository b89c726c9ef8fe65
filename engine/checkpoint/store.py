"""Writing a checkpoint of a run, and restoring a run from one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from ...events.activity import SAVE, during
from ...events.errors import CheckpointError
from ...events.state import flattened
from ..data.position import save_position
from ..run import Run
from ..seams import LoadModel, load_model
from .format import files
from .format.codec import encode, load_values
from .format.files import Checkpoint, Hidden
from .format.hashing import Digest
from .format.manifest import has
from .format.sharded import divide, fitted, gathered, is_complete, is_split, stored_in
from .format.tensor_file import write_tensors
from .read import hf_checkpoint as foreign
from .read.optimizer_state import load_optimizer
from .read.verify import index_of, leads_out, weight_files
from .rng_state import random_states
from .write.commit import Staging
from .write.disk_space import bytes_needed, check_space, explained
from .write.host_copies import HostCopies

T = TypeVar("T")


@dataclass
class Snapshot:
    """A checkpoint that is collected and not written."""

    checkpoint: Checkpoint
    """Where it goes, and what is known of it."""
    needed: int
    """About how many bytes it takes."""
    facts: dict[str, Any]
    """What the manifest says of it."""
    values: dict[str, tuple[dict[str, torch.Tensor], dict[str, str]]]
    """Files of tensors, by name: the tensors, and the metadata."""
    texts: dict[str, str]
    """Files of text, by name."""
    write_model: Callable[[str], None]
    """Writes the model into a folder."""
    frozen: bool
    """Whether all of it is copied, so that training may go on meanwhile; else it must be written before that."""


@during(SAVE)
def take(run: Run, checkpoint: Checkpoint, callbacks: dict[str, Any], copies: HostCopies | None) -> Snapshot:
    """Collect everything that a run needs to go on from here.

    Args:
        run: what is saved; called on every process.
        checkpoint: where, and what else goes into it.
        callbacks: the states of the callbacks by id.
        copies: where it is copied to, if the model can be written from a copy too; None for no copies.

    Raises:
        CheckpointError: if the disk has no room, or the state has a value that a checkpoint cannot hold.
    """
    needed = bytes_needed(run, callbacks, checkpoint.extra)
    write_model = None
    if copies is not None:
        copies.begin()
        write_model = run.services.freeze_model(copies.copy)
    values: dict[str, Any] = {}  # that this process writes alone
    common: dict[str, Any] = {}  # that all have, and of which each writes what is split over them
    texts: dict[str, str] = {}
    saves = run.args.should_save
    if not run.args.save_only_model:
        common[files.OPTIMIZER] = run.seams.optimizer_state(run.optimizer)
        if saves:
            values[files.SCHEDULER] = _plain_state(run.lr_scheduler)
            if run.seams.scaler is not None:
                values[files.SCALER] = run.seams.scaler.state_dict()
        states = {
            **random_states(),
            "place": _place(run),
            "losses": run.losses.state_dict(),
            "last_step": _last_step(run),
        }
        values[files.RANDOM.format(rank=run.ranks.rank)] = states
    common[files.CALLBACKS] = {"callbacks": callbacks, "extra": checkpoint.extra}
    if saves:
        texts[files.STATE] = json.dumps(_state(run), indent=2, sort_keys=True) + "\n"
        texts[files.ARGUMENTS] = run.args.to_json_string()
    encoded = {name: encode(value, name) for name, value in values.items()}
    for name, value in common.items():
        tensors, metadata = encode(value, name)
        if run.args.save_on_each_node:  # where each machine is to have all
            tensors = {key: _whole(run, tensor) if is_split(tensor) else tensor for key, tensor in tensors.items()}
        parts = divide(name, tensors, metadata, run.ranks.rank, run.ranks.world_size)
        encoded |= {part: content for part, content in parts.items() if saves or part != name}
    if copies is not None and write_model is not None:
        encoded = {
            name: ({key: copies.copy(f"{name}/{key}", tensor) for key, tensor in tensors.items()}, metadata)
            for name, (tensors, metadata) in encoded.items()
        }
    return Snapshot(
        checkpoint,
        needed,
        facts={
            "format_version": files.VERSION,
            "step": checkpoint.step,
            "run_id": run.run_id,
            "time": time.time(),
            "seconds": run.seconds(),
            "world_size": run.ranks.world_size,
            "metrics": checkpoint.metrics,
        },
        values=encoded,
        texts=texts,
        write_model=run.services.save_model if write_model is None else write_model,
        frozen=write_model is not None,
    )


def _whole(run: Run, tensor: torch.Tensor) -> torch.Tensor:
    whole = gathered(tensor, run.args.device, keep=run.args.should_save)
    return torch.empty(0) if whole is None else whole


@during(SAVE)
def write(run: Run, snapshot: Snapshot) -> None:
    """Write a checkpoint: all of it is there afterwards, or everything is as it was before.

    Called on every process; where there is one, on any thread, and of the run only the arguments are read.

    Raises:
        CheckpointError: if the disk has no room or fails.
    """
    checkpoint = snapshot.checkpoint
    named = run.ranks.gather_objects((run.args.should_save, files.hidden_name(checkpoint.step, run.run_id)))
    # That of the process that makes the folder: the first, or where machines share no disk, the first of this one.
    name: Hidden = [name for saves, name in named[: run.ranks.rank + 1] if saves][-1]
    staging = Staging(checkpoint.path, name)
    with explained(checkpoint.step, snapshot.needed, checkpoint.path.parent):
        try:
            together(run, lambda: _prepare(run, staging, snapshot.needed))
            written = together(run, lambda: _write(snapshot, staging, run.ranks.single_process))
            together(run, lambda: _commit(run, snapshot, staging, written))
        except BaseException:
            if run.args.should_save:
                staging.discard()
            raise


@during(SAVE)
def together(run: Run, work: Callable[[], T]) -> list[T]:
    """Do something on every process and return what it gave on each; if it fails on one, it is an error on all."""
    result, failure = None, None
    try:
        result = work()
    except Exception as error:
        failure = error
    outcomes = run.ranks.gather_objects((result, "" if failure is None else f"{type(failure).__name__}: {failure}"))
    if failure is not None:
        raise failure
    failed = [f"on rank {rank}, {said}" for rank, (_, said) in enumerate(outcomes) if said]
    if failed:
        raise CheckpointError(f"The checkpoint of step {run.state.global_step} is not written: {'; '.join(failed)}")
    return [result for result, _ in outcomes]


def _prepare(run: Run, staging: Staging, needed: int) -> None:
    if run.args.should_save:
        check_space(needed, staging.path.parent)
        staging.create()


def _write(snapshot: Snapshot, staging: Staging, alone: bool) -> dict[str, Digest]:
    """Write this process's files, and return what is known of them."""
    if not staging.path.is_dir():
        raise CheckpointError(
            f"{staging.path.parent} is not the folder that the first process writes into: all must have the same "
            "`output_dir`, on a disk that all see. Where machines share none, set `save_on_each_node`."
        )
    snapshot.write_model(str(staging.path))
    if alone:  # another process may be in the middle of a file
        staging.take_note()
    for name, (tensors, metadata) in snapshot.values.items():
        with staging.open(name) as file:
            write_tensors(file, tensors, metadata)
    for name, text in snapshot.texts.items():
        staging.write_text(name, text)
    staging.flush()
    return staging.digests


def _commit(run: Run, snapshot: Snapshot, staging: Staging, written: list[dict[str, Digest]]) -> None:
    if not run.args.should_save:
        return
    digests = {name: digest for part in written for name, digest in part.items()} | staging.digests
    if run.args.save_on_each_node:  # a machine has the files of its own processes only
        digests = {name: digest for name, digest in digests.items() if (staging.path / name).is_file()}
    staging.commit(snapshot.facts, digests)


def _place(run: Run) -> dict[str, Any]:
    """Return where the loader is; nothing of it where its epoch is about to be left."""
    knows = hasattr(run.train_dataloader, "resume_state") and not _leaves_epoch(run)
    return run.train_dataloader.resume_state() if knows else {}


def _last_step(run: Run) -> dict[str, Any]:
    """Return what is logged of the step just made: the end of its epoch may only come when the run is resumed."""
    norm = run.grad_norm
    return {
        "grad_norm": norm.item() if isinstance(norm, torch.Tensor) else norm,
        "learning_rate": run.learning_rate,
    }


def _state(run: Run) -> dict[str, Any]:
    return run.state.to_file(
        seconds=run.seconds(),
        position=_position(run),
        ledger=run.control.ledger.to_list(),
        data_seed=run.data_seed,
        run_id=run.run_id,
    )


def _position(run: Run) -> dict[str, int]:
    """Return where in the data the run goes on: where it is, or at the end of an epoch that is about to be left."""
    if run.position is None or run.plan is None:
        return {}
    return save_position(run.position, run.plan, run.sizes, _leaves_epoch(run))


def _leaves_epoch(run: Run) -> bool:
    return run.position is not None and run.position.batches > 0 and run.control.should_epoch_stop


def _plain_state(scheduler: Any) -> dict[str, Any]:
    """Return a schedule's state without the functions it was built from, which the arguments build again."""
    if scheduler is None:
        return {}
    state: dict[str, Any] = dict(scheduler.state_dict())
    if "lr_lambdas" in state:
        state["lr_lambdas"] = [None] * len(state["lr_lambdas"])
    return state


def load_weights(model: nn.Module, folder: Path, load: LoadModel = load_model) -> None:
    """Load a checkpoint's weights into a model, strictly, on every process.

    Args:
        model: what they are loaded into.
        folder: the checkpoint.
        load: how, as the seam `load_model` says it.

    Raises:
        CheckpointError: if there are none, or they do not fit, naming the keys.
    """
    state: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    # Of a model that is split over processes, each reads its own part.
    held = model.state_dict() if load is load_model else {}
    splits = any(map(is_split, held.values()))
    for path in _weights_of(folder):
        if path.suffix == ".bin":
            state.update(foreign.load_weights(path))
            continue
        try:
            if splits:
                stored, metadata = stored_in(path)
                state.update(stored)
                aliases.update(metadata)
                continue
            with safe_open(path, framework="pt") as file:
                state.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 - it is no dict
                aliases.update(file.metadata() or {})
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
    state.update({name: state[first] for name, first in aliases.items() if first in state})
    if splits:
        state = {name: fitted(value, held.get(name)) for name, value in state.items()}
    problem = _load(model, state, load)
    if problem:
        raise CheckpointError(f"The weights in {folder} do not fit {type(model).__name__}: {problem}")


def _weights_of(folder: Path) -> list[Path]:
    try:
        index = index_of(folder)
    except CheckpointError as error:
        raise CheckpointError(f"{folder} is not read: {error}") from error
    try:
        paths = [folder / name for name in weight_files(folder)]
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{index} cannot be read: {error}") from error
    for path in paths:
        if where := leads_out(folder, path.name):
            raise CheckpointError(f"{path} is a link to {where}, outside of the checkpoint, and is not read.")
        if not has(folder, path.relative_to(folder).as_posix()):
            raise CheckpointError(f"{folder} holds no weights: there is no {path.name} in it.")
    return paths


def _load(model: nn.Module, state: dict[str, torch.Tensor], load: LoadModel) -> str:
    try:
        missing, unexpected = load(model, state)
    except RuntimeError as error:
        return str(error)
    return _complaint(set(missing) - _tied(model, state), unexpected)


def _tied(model: nn.Module, state: Container[str]) -> set[str]:
    """Return the names that a model's own saving leaves out, because they are other names of tensors it writes."""
    tied = getattr(model, "_tied_weights_keys", None) or ()
    # A part of the model may tie weights that the model itself says nothing of: those are one tensor by now.
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    loaded = {id(tensor) for name, tensor in tensors if name in state}
    return {name for name, tensor in tensors if id(tensor) in loaded or any(name.endswith(key) for key in tied)}


def _complaint(missing: Any, unexpected: Any) -> str:
    parts = []
    if missing:
        parts.append(f"missing are {', '.join(sorted(missing)[:20])}")
    if unexpected:
        parts.append(f"not of the model are {', '.join(sorted(unexpected)[:20])}")
    return "; ".join(parts)


def read_state(folder: Path) -> dict[str, Any]:
    """Return the state of the run that wrote a checkpoint.

    Raises:
        CheckpointError: if the folder is no checkpoint.
    """
    path = folder / files.STATE
    if not path.is_file():
        raise CheckpointError(f"{folder} is no checkpoint: there is no {files.STATE} in it.")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} is no state of a run.")
    return flattened(values)


def restore_optimizer(run: Run, folder: Path) -> None:
    """Load optimizer, schedule and scaler.

    Raises:
        CheckpointError: if one of them is missing.
    """
    wanted = [(files.OPTIMIZER, run.optimizer), (files.SCHEDULER, run.lr_scheduler), (files.SCALER, run.seams.scaler)]
    for name, target in wanted:
        if target is not None:
            if not is_complete(folder / name):
                if run.args.resume_partial:
                    continue
                raise CheckpointError(f"{folder} has no {name}, {files.LACKING}")
            if name == files.OPTIMIZER:
                load_optimizer(run, load_values(folder / name, whole=False, contents=run.contents), folder / name)
            else:
                target.load_state_dict(load_values(folder / name, contents=run.contents))


def read_own(run: Run, folder: Path) -> dict[str, Any]:
    """Return what this process alone saved: random states, its place in the data, its sums of losses; {} if nothing."""
    path = folder / files.RANDOM.format(rank=run.ranks.rank)
    return dict(load_values(path, contents=run.contents)) if has(folder, path.name) else {}


def callback_states(folder: Path) -> dict[str, Any]:
    """Return the states of the callbacks by id."""
    path = folder / files.CALLBACKS
    return dict(load_values(path)["callbacks"]) if has(folder, path.name) else {}

"""Writing a checkpoint of a run, and restoring a run from one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from ...events.errors import CheckpointError
from ...events.state import flattened
from ..randomness import random_states
from ..run import Run
from . import files, foreign
from .codec import encode, load_values
from .commit import Staging
from .files import Checkpoint, Hidden
from .groups import load_optimizer
from .space import bytes_needed, check_space, explained
from .tensor_file import write_tensors
from .verify import Digest, index_of, leads_out, weight_files

T = TypeVar("T")


def write_checkpoint(run: Run, checkpoint: Checkpoint, callbacks: dict[str, Any]) -> None:
    """Write a checkpoint of the run: all of it is there afterwards, or everything is as it was before.

    Args:
        run: what is saved; called on every process.
        checkpoint: where, and what else goes into it.
        callbacks: the states of the callbacks by id.

    Raises:
        CheckpointError: if the disk has no room or fails, or the state has a value that a checkpoint cannot hold.
    """
    folder = checkpoint.path.parent
    needed = bytes_needed(run, callbacks, checkpoint.extra)
    name: Hidden = run.ranks.gather_objects(files.hidden_name(checkpoint.step, run.run_id))[0]
    staging = Staging(checkpoint.path, name)
    with explained(checkpoint.step, needed, folder):
        try:
            together(run, lambda: _prepare(run, staging, needed))
            written = together(run, lambda: _write(run, checkpoint, callbacks, staging))
            together(run, lambda: _commit(run, checkpoint, staging, written))
        except BaseException:
            if run.args.should_save:
                staging.discard()
            raise


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


def _write(run: Run, checkpoint: Checkpoint, callbacks: dict[str, Any], staging: Staging) -> dict[str, Digest]:
    """Write this process's files, and return what is known of them."""
    run.services.save_model(str(staging.path))
    if not run.args.save_only_model:
        optimizer = run.seams.optimizer_state(run.optimizer)
        if run.args.should_save:
            _write_values(staging, files.OPTIMIZER, optimizer)
            _write_values(staging, files.SCHEDULER, _plain_state(run.lr_scheduler))
            if run.seams.scaler is not None:
                _write_values(staging, files.SCALER, run.seams.scaler.state_dict())
        place = run.train_dataloader.place() if hasattr(run.train_dataloader, "place") else {}
        states = {**random_states(), "place": place, "losses": run.losses.state_dict()}
        _write_values(staging, files.RANDOM.format(rank=run.ranks.rank), states)
    if run.args.should_save:
        staging.write_text(files.STATE, json.dumps(_state(run), indent=2, sort_keys=True) + "\n")
        staging.write_text(files.ARGUMENTS, run.args.to_json_string())
        _write_values(staging, files.CALLBACKS, {"callbacks": callbacks, "extra": checkpoint.extra})
    staging.flush()
    return staging.digests


def _write_values(staging: Staging, name: str, values: Any) -> None:
    tensors, metadata = encode(values, name)
    with staging.open(name) as file:
        write_tensors(file, tensors, metadata)


def _commit(run: Run, checkpoint: Checkpoint, staging: Staging, written: list[dict[str, Digest]]) -> None:
    if not run.args.should_save:
        return
    digests = {name: digest for part in written for name, digest in part.items()} | staging.digests
    if run.args.save_on_each_node:  # a machine has the files of its own processes only
        digests = {name: digest for name, digest in digests.items() if (staging.path / name).is_file()}
    facts = {
        "format_version": files.VERSION,
        "step": checkpoint.step,
        "run_id": run.run_id,
        "time": time.time(),
        "seconds": run.seconds(),
        "world_size": run.ranks.world_size,
        "metrics": checkpoint.metrics,
    }
    staging.commit(facts, digests)


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
    position, plan = run.position, run.plan
    if position is None or plan is None:
        return {}
    leaves = position.batches > 0 and run.control.should_epoch_stop
    return {"epoch": position.epoch, "batches": plan.batches_per_epoch if leaves else position.batches}


def _plain_state(scheduler: Any) -> dict[str, Any]:
    """Return a schedule's state without the functions it was built from, which the arguments build again."""
    if scheduler is None:
        return {}
    state: dict[str, Any] = dict(scheduler.state_dict())
    if "lr_lambdas" in state:
        state["lr_lambdas"] = [None] * len(state["lr_lambdas"])
    return state


def save_weights(model: nn.Module, folder: Path) -> None:
    """Write the weights of a plain module as `model.safetensors`; a tensor with several names is written once.

    The other names stand in the file's metadata, as safetensors' own `save_model` writes them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names: dict[tuple[Any, ...], str] = {}
    weights: dict[str, torch.Tensor] = {}
    metadata = {"format": "pt"}
    for name, tensor in model.state_dict().items():
        storage = tensor.untyped_storage()
        first = names.setdefault((storage.data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride()), name)
        if first != name and tensor.numel():
            metadata[name] = first
            continue
        # A view into a larger buffer, as sharding makes them, would drag the whole buffer along.
        alone = storage.nbytes() == tensor.numel() * tensor.element_size()
        weights[name] = tensor.contiguous() if alone else tensor.clone().contiguous()
    save_file(weights, folder / files.MODEL, metadata)


def load_weights(model: nn.Module, folder: Path) -> None:
    """Load a checkpoint's weights into a model, strictly.

    Raises:
        CheckpointError: if there are none, or they do not fit, naming the keys.
    """
    state: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    for path in _weights_of(folder):
        if path.suffix == ".bin":
            state.update(foreign.load_weights(path))
            continue
        try:
            with safe_open(path, framework="pt") as file:
                state.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 - it is no dict
                aliases.update(file.metadata() or {})
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
    state.update({name: state[first] for name, first in aliases.items() if first in state})
    problem = _load(model, state)
    if problem:
        raise CheckpointError(f"The weights in {folder} do not fit {type(model).__name__}: {problem}")


def _weights_of(folder: Path) -> list[Path]:
    try:
        paths = [folder / name for name in weight_files(folder)]
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{index_of(folder)} cannot be read: {error}") from error
    for path in paths:
        if where := leads_out(folder, path.name):
            raise CheckpointError(f"{path} is a link to {where}, outside of the checkpoint, and is not read.")
        if not path.is_file():
            raise CheckpointError(f"{folder} holds no weights: there is no {path.name} in it.")
    return paths


def _load(model: nn.Module, state: dict[str, torch.Tensor]) -> str:
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        return str(error)
    return _complaint(set(missing) - _tied(model), unexpected)


def _tied(model: nn.Module) -> set[str]:
    """Return the names that a model's own saving leaves out, because they are other names of tensors it writes."""
    tied = getattr(model, "_tied_weights_keys", None) or ()
    names = set(model.state_dict())
    return {name for name in names if any(name.endswith(key) for key in tied)}


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
            if not (folder / name).is_file():
                raise CheckpointError(
                    f"{folder} has no {name}, so the run cannot go on from it as it was. It may have been written with "
                    "`save_only_model`; to begin anew with its weights, load them into the model before training."
                )
            state = load_values(folder / name)
            if name == files.OPTIMIZER:
                load_optimizer(run, state, folder / name)
            else:
                target.load_state_dict(state)


def read_own(run: Run, folder: Path) -> dict[str, Any]:
    """Return what this process alone saved: random states, its place in the data, its sums of losses; {} if nothing."""
    path = folder / files.RANDOM.format(rank=run.ranks.rank)
    return dict(load_values(path)) if path.is_file() else {}


def callback_states(folder: Path) -> dict[str, Any]:
    """Return the states of the callbacks by id."""
    path = folder / files.CALLBACKS
    return dict(load_values(path)["callbacks"]) if path.is_file() else {}

"""Writing a checkpoint of a run, and restoring a run from one."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from ...events.errors import CheckpointError
from ..run import Run
from . import files
from .codec import load_values, save_values
from .files import Checkpoint
from .randomness import random_states, restore_random_states


def write_checkpoint(run: Run, checkpoint: Checkpoint, callbacks: dict[str, Any]) -> None:
    """Write a checkpoint of the run: into a hidden folder first, which is renamed when it is complete.

    Args:
        run: what is saved; called on every process.
        checkpoint: where, and what else goes into it.
        callbacks: the states of the callbacks by id.
    """
    with _staged(run, checkpoint.path) as staging:
        run.services.save_model(str(staging))
        if not run.args.save_only_model:
            optimizer = run.seams.optimizer_state(run.optimizer)
            if run.args.should_save:
                save_values(staging / files.OPTIMIZER, optimizer)
                save_values(staging / files.SCHEDULER, _plain_state(run.lr_scheduler))
                if run.seams.scaler is not None:
                    save_values(staging / files.SCALER, run.seams.scaler.state_dict())
            save_values(staging / files.RANDOM.format(rank=run.ranks.rank), random_states())
        if run.args.should_save:
            _write_state(run, checkpoint, callbacks, staging)


@contextmanager
def _staged(run: Run, path: Path) -> Iterator[Path]:
    """Give a hidden folder to write into: it becomes `path` when all is written, and is removed if that fails."""
    staging = path.with_name(f".tmp-{path.name}")
    if run.args.should_save:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
    run.ranks.barrier()
    try:
        yield staging
    except BaseException:
        if run.args.should_save:
            shutil.rmtree(staging, ignore_errors=True)
        raise
    run.ranks.barrier()
    if run.args.should_save:
        if path.exists():
            shutil.rmtree(path)
        os.rename(staging, path)
    run.ranks.barrier()


def _write_state(run: Run, checkpoint: Checkpoint, callbacks: dict[str, Any], folder: Path) -> None:
    values = run.state.to_dict()
    values["seconds"] = run.seconds()
    values["position"] = _position(run)
    values["ledger"] = run.control.ledger.to_list()
    values["data_seed"] = run.data_seed
    values["run_id"] = run.run_id
    (folder / files.STATE).write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (folder / files.ARGUMENTS).write_text(run.args.to_json_string(), encoding="utf-8")
    save_values(folder / files.CALLBACKS, {"callbacks": callbacks, "extra": checkpoint.extra})
    values = {"step": checkpoint.step, "run_id": run.run_id, "time": time.time(), "metrics": checkpoint.metrics}
    manifest = {"format_version": 1, **values}
    (folder / files.MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


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
    index = folder / f"{files.MODEL}.index.json"
    state: dict[str, torch.Tensor] = {}
    if index.is_file():
        for name in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())):
            state.update(load_file(folder / name))
    elif (folder / files.MODEL).is_file():
        with safe_open(folder / files.MODEL, framework="pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
            aliases = file.metadata() or {}
        state.update({name: state[first] for name, first in aliases.items() if first in state})
    else:
        raise CheckpointError(f"{folder} holds no weights: there is no {files.MODEL} in it.")
    problem = _load(model, state)
    if problem:
        raise CheckpointError(f"The weights in {folder} do not fit {type(model).__name__}: {problem}")


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
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


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
            target.load_state_dict(load_values(folder / name))


def restore_randomness(run: Run, folder: Path) -> None:
    """Put the random generators of this process back to where they were."""
    path = folder / files.RANDOM.format(rank=run.ranks.rank)
    if path.is_file():
        restore_random_states(load_values(path))


def callback_states(folder: Path) -> dict[str, Any]:
    """Return the states of the callbacks by id."""
    path = folder / files.CALLBACKS
    return dict(load_values(path)["callbacks"]) if path.is_file() else {}

"""Take a snapshot of a run: collect all contents of a checkpoint before they are written."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ....events.activity import SAVE, during
from ...data.position import save_position
from ..format import files
from ..format.codec import encode
from ..format.files import CheckpointRecord
from ..format.sharded import Files, files_of_rank, gathered, is_split
from ..pending_stops import pending_stops
from ..protocols import STATE_WRITERS, SavableRun
from .disk_space import bytes_needed
from .host_copies import HostCopies


@dataclass
class Snapshot:
    """The contents of a checkpoint that is not written yet."""

    checkpoint: CheckpointRecord
    """The record of the checkpoint: folder, step and metrics."""
    needed: int
    """The least number of bytes that the checkpoint needs."""
    facts: dict[str, Any]
    """The entries of the manifest, without the list of files."""
    tensors: dict[str, tuple[dict[str, torch.Tensor], dict[str, str]]]
    """File name -> the tensors of the file, and its metadata."""
    texts: dict[str, str]
    """File name -> the text of the file."""
    write_model: Callable[[str], None]
    """A function that receives the path of a folder, and writes the model into the folder."""
    frozen: bool
    """Whether the snapshot has copies of all values. If so, training may continue while the snapshot is written."""
    link_unchanged: bool = False
    """Whether files that are equal to files of the last checkpoint become hard links to these files."""


@during(SAVE)
def take_snapshot(
    run: SavableRun, checkpoint: CheckpointRecord, callbacks: dict[str, Any], copies: HostCopies | None
) -> Snapshot:
    """Collect everything that a resume from `checkpoint` needs. All ranks must call this function.

    Args:
        run: the run.
        checkpoint: the record of the checkpoint: folder, step, metrics, and the values that callbacks store.
        callbacks: id of a callback -> its state.
        copies: memory on the CPU. If given, all values are copied into it, so training may continue while the snapshot
            is written. None copies nothing. If the run cannot copy its model, nothing is copied either.

    Raises:
        CheckpointError: if a state has a value that a checkpoint cannot hold.
    """
    write_model = None
    if copies is not None:
        copies.begin()
        write_model = run.services.freeze_model(copies.copy)
    tensors, texts = _contents(run, checkpoint, callbacks)
    needed = bytes_needed(run.model, tensors, texts)
    if copies is not None and write_model is not None:
        _copy_all(tensors, copies, gathered=bool(run.seams.filled_by("optimizer_state")))
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
        tensors=tensors,
        texts=texts,
        write_model=partial(_write_live_model, run) if write_model is None else write_model,
        frozen=write_model is not None,
    )


def _contents(run: SavableRun, checkpoint: CheckpointRecord, callbacks: dict[str, Any]) -> tuple[Files, dict[str, str]]:
    """Collect the tensors and the texts that this rank writes, by file name."""
    of_rank, shared, texts = _state_of(run, checkpoint, callbacks)
    tensors = {name: encode(value, name) for name, value in of_rank.items()}
    for name, value in shared.items():
        encoded, metadata = encode(value, name)
        if run.args.save_on_each_node:  # each machine gets all shards
            encoded = {key: _gathered(run, tensor) if is_split(tensor) else tensor for key, tensor in encoded.items()}
        parts = files_of_rank(name, encoded, metadata, run.ranks.rank, run.ranks.world_size)
        tensors |= {part: content for part, content in parts.items() if run.args.should_save or part != name}
    return tensors, texts


def _copy_all(tensors: Files, copies: HostCopies, *, gathered: bool) -> None:
    """Replace all tensors by copies on the CPU.

    Args:
        tensors: the tensors by file name.
        copies: the memory for the copies. The next save uses the same memory.
        gathered: whether a callback has gathered the optimizer state of all ranks on the CPU. If True, each CPU tensor
            is copied into new memory instead of `copies`. The new memory is freed after the save, before the next save
            gathers the state again.
    """
    for name, (encoded, _) in tensors.items():
        for key, tensor in encoded.items():
            if gathered and not tensor.is_cuda:
                encoded[key] = tensor.detach().clone(memory_format=torch.contiguous_format)
            else:
                encoded[key] = copies.copy(f"{name}/{key}", tensor)


def _write_live_model(run: SavableRun, folder: str) -> None:
    """Write the current weights of the model, and the files that a subclass of the Trainer adds to a checkpoint."""
    run.services.save_model(folder)
    for writer in STATE_WRITERS if not run.args.save_only_model else ():
        run.services.at(writer, lambda: None, folder)


def _state_of(
    run: SavableRun, checkpoint: CheckpointRecord, callbacks: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """Collect the contents of the checkpoint, without the model. Return three dicts with file names as keys.

    The first dict has values that only this rank writes, such as its RNG states. The second dict has values that may
    contain sharded tensors, such as the optimizer state. The third dict has texts, such as the trainer state.
    """
    of_rank: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    texts: dict[str, str] = {}
    saves = run.args.should_save
    if not run.args.save_only_model:
        shared[files.OPTIMIZER] = run.seams.optimizer_state(run.optimizer)
        if saves:
            of_rank[files.SCHEDULER] = _schedule_state(run.lr_scheduler)
            if run.seams.scaler is not None:
                of_rank[files.SCALER] = run.seams.scaler.state_dict()
        of_rank[files.RANDOM.format(rank=run.ranks.rank)] = {
            **run.rng_states(),
            "place": _loader_position(run),
            "eval_workers": run.eval_loaders.state_dict(),
            "losses": run.losses.state_dict(),
            "last_step": _last_step(run),
        }
    shared[files.CALLBACKS] = {
        "callbacks": callbacks,
        "owners": run.callback_states.owners(),
        "extra": checkpoint.extra,
    }
    if saves:
        texts[files.STATE] = json.dumps(_trainer_state(run, callbacks), indent=2, sort_keys=True) + "\n"
        texts[files.ARGUMENTS] = run.args.to_json_string()
    return of_rank, shared, texts


def _gathered(run: SavableRun, tensor: torch.Tensor) -> torch.Tensor:
    whole = gathered(tensor, run.args.device, keep=run.args.should_save)
    return torch.empty(0) if whole is None else whole


_WITHOUT_SAMPLES = ("began", "order", "parts", "workers_epoch")
"""The entries of a loader position that do not say which samples are done."""


def _loader_position(run: SavableRun) -> dict[str, Any]:
    """Return the position of the data loader; an empty dict if it is unknown or the epoch is about to end.

    In a save inside of a step, the result has only the entries in `_WITHOUT_SAMPLES`. A resumed run repeats this step,
    so it must not skip the batches that the loader has given to the step.
    """
    known = hasattr(run.train_dataloader, "resume_state") and not _leaves_epoch(run)
    place: dict[str, Any] = run.train_dataloader.resume_state() if known else {}
    if run.position is None or not run.position.fetched:
        return place
    return {name: place[name] for name in _WITHOUT_SAMPLES if name in place}


def _last_step(run: SavableRun) -> dict[str, Any]:
    """Return gradient norm and learning rate of the last step. A resumed run restores both values."""
    norm = run.grad_norm
    return {
        "grad_norm": norm.item() if isinstance(norm, torch.Tensor) else norm,
        "learning_rate": run.learning_rate,
    }


def _trainer_state(run: SavableRun, callbacks: dict[str, Any]) -> dict[str, Any]:
    return run.state.to_file(
        exported={**run.callback_states.exported(), "TrainerControl": run.control.state()},
        seconds=run.seconds(),
        position=_data_position(run),
        ledger=run.control.ledger.to_list(),
        pending_stops=pending_stops(run, callbacks),
        data_seed=run.data_seed,
        run_id=run.run_id,
        overridden_arguments=run.overridden,
        gradient_accumulation_schedule=run.args.accumulation_by_epoch,
    )


def _data_position(run: SavableRun) -> dict[str, int]:
    """Return the epoch, batches and samples at which a resumed run continues; an empty dict outside of training.

    If a callback requested the end of the epoch, the position is the end of the epoch.
    """
    if run.position is None or run.plan is None:
        return {}
    return save_position(run.position, run.plan, run.sizes, _leaves_epoch(run))


def _leaves_epoch(run: SavableRun) -> bool:
    return run.position is not None and run.position.batches > 0 and run.control.should_epoch_stop


def _schedule_state(scheduler: Any) -> dict[str, Any]:
    """Return the state of a schedule without its functions. A resumed run builds the functions from the arguments."""
    if scheduler is None:
        return {}
    state: dict[str, Any] = dict(scheduler.state_dict())
    if "lr_lambdas" in state:
        state["lr_lambdas"] = [None] * len(state["lr_lambdas"])
    return state

"""A disk that fails during a save: earlier checkpoints stay, and the run reports the fault."""

from __future__ import annotations

import builtins
import errno
import json
import logging
import os
import re
import resource
import threading
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from support.checkpoints import chosen, files_up_to, names_in, saving
from support.data import points
from support.models import Regression
from support.outcomes import same_weights, weights
from trainbus import Checkpoint, KeepBest, Trainer, TrainingArguments
from trainbus.engine.checkpoint.read.listing import list_checkpoints
from trainbus.engine.checkpoint.read.verify import problems
from trainbus.engine.checkpoint.write import commit as committing
from trainbus.engine.checkpoint.write import disk_space as space
from trainbus.engine.checkpoint.write import model_files
from trainbus.engine.checkpoint.write import save as saving_module
from trainbus.engine.checkpoint.write.disk_errors import errno_of, is_disk_error
from trainbus.events import ArgumentError, CheckpointError, every

BROKEN = OSError(errno.EIO, "Input/output error")
FULL = OSError(errno.ENOSPC, "No space left on device")
FULL_TOO = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
FAULTS: dict[str, tuple[Any, str, Exception]] = {
    "a file is opened": (builtins, "open", BROKEN),
    "a file is written": (committing.HashedFile, "write", FULL),
    "safetensors writes": (model_files, "save_file", FULL_TOO),
    "weights are written": (model_files, "write_tensors", FULL),
    "a file is opened to be synchronised": (os, "open", BROKEN),
    "a file is synchronised": (os, "fsync", BROKEN),
    "a mode is changed": (Path, "chmod", BROKEN),
    "a folder is made": (os, "mkdir", OSError(errno.EACCES, "Permission denied")),
    "a folder is renamed": (os, "rename", OSError(errno.EROFS, "Read-only file system")),
}


class Fault:
    """Fails at one call of a function, if it is below a folder or of no path at all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str, folder: Path) -> None:
        home, name, self.error = FAULTS[kind]
        self._really: Callable[..., Any] = getattr(home, name)
        self._folder = str(folder)
        self._lock = threading.Lock()
        self.met = False
        self.arm(0)
        monkeypatch.setattr(home, name, lambda *args, **options: self._call(*args, **options))

    def arm(self, at: int) -> None:
        """Fail at the call of this number from now on; never, if it is 0."""
        self.calls, self.at = 0, at

    def _call(self, *args: Any, **options: Any) -> Any:
        if not isinstance(args[0], (str, Path)) or str(args[0]).startswith(self._folder):
            with self._lock:
                self.calls += 1
                fails = self.calls == self.at
            if fails:
                self.met = True
                raise self.error
        return self._really(*args, **options)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory) -> dict[str, Any]:
    """The weights after three steps without a fault."""
    unbroken = saving(tmp_path_factory.mktemp("unbroken"), 3)
    unbroken.train()
    return weights(unbroken.model)


@pytest.mark.parametrize("again", [False, True], ids=["a new step", "a step that is there"])
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize(
    "every", [3, pytest.param(1, marks=pytest.mark.slow)], ids=["of each third call", "of any call"]
)
def test_the_old_checkpoint_survives_a_failure(every: int, kind: str, again: bool, tmp_path: Path, monkeypatch, wanted):
    fault = Fault(monkeypatch, kind, tmp_path)
    at = 1
    while interrupted(tmp_path / str(at), fault, at, again):
        on = saving(tmp_path / str(at), 3, seed=1, save_total_limit=1)
        on.train(resume_from_checkpoint=True)
        assert same_weights(weights(on.model), wanted)
        assert names_in(tmp_path / str(at)) == ["checkpoint-3"]
        at += every
    assert at > 1, "the save makes no such call"


def interrupted(folder: Path, fault: Fault, at: int, again: bool) -> bool:
    """Train with a fault at a call of the save of step 2; return whether there was such a call.

    Args:
        folder: for the checkpoints.
        fault: the fault.
        at: the number of the call that fails.
        again: whether the checkpoint is there already, of the same run.
    """
    if again:
        saving(folder, 2).train()
    fault.met = False
    run = saving(folder, 3, save_total_limit=1)
    run.on("on_save_begin", lambda checkpoint: fault.arm(at if checkpoint.step == 2 else 0))
    before = ["checkpoint-1", "checkpoint-2"] if again else ["checkpoint-1"]
    try:
        run.train(resume_from_checkpoint=str(folder / "checkpoint-1") if again else None)
        after: list[str] = []
    except CheckpointError as error:
        after = before
        told = (error.__cause__, str(folder) in str(error))
        assert told == (fault.error, True)
    fault.arm(0)
    # Where nothing is raised, what failed is not needed, as the removal of an old checkpoint; or nothing did.
    assert names_in(folder) == after or not after
    assert [problems(found.path, full=True) for found in list_checkpoints(folder)] == [[]] * len(
        list_checkpoints(folder)
    )
    assert list_checkpoints(folder)
    return fault.met


# What is said, and what the run does.


def without_room(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """Let the disk have this many bytes free."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(space.shutil, "disk_usage", lambda folder: usage(10**12, 10**12 - free, free))


def test_a_full_disk_is_refused_before_the_save_with_sizes(tmp_path: Path, monkeypatch):
    without_room(monkeypatch, 12345)
    with pytest.raises(CheckpointError) as caught:
        saving(tmp_path / "run", 2).train()
    message = str(caught.value)
    assert f"step 1 cannot be written to {tmp_path / 'run'}" in message
    assert re.search(r"It needs at least [34]\d\.\d+ kB, and 12\.35 kB is free\.", message)
    assert "save_total_limit" in message
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert names_in(tmp_path / "run") == []


class Wide(nn.Module):
    """A model with megabytes of weights, some of which are tied or frozen."""

    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 600), nn.Linear(600, 600), nn.Linear(600, 1))
        self.also = self.body[1]  # one and the same
        self.body[1].requires_grad_(not frozen)
        self.register_buffer("table", torch.zeros(300_000), persistent=False)

    def forward(self, x, labels=None):
        return {"loss": (self.body(x).squeeze(-1) - labels).square().mean()}


class Partial(Trainer):
    """Saves only the trained weights, as programs that train an adapter do."""

    def _save(self, output_dir=None, state_dict=None):
        trained = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        torch.save(trained, Path(output_dir) / "trained.pt")


def size_of(checkpoint: Path) -> int:
    return sum(path.stat().st_size for path in checkpoint.iterdir())


def wide(folder: Path, cls: type[Trainer] = Trainer, *, frozen: bool = False, **args: Any) -> Any:
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "use_cpu": True, "disable_tqdm": True, **args}
    return cls(Wide(frozen=frozen), TrainingArguments(str(folder), **options), train_dataset=points(20))


def test_the_least_size_of_a_checkpoint_is_just_below_its_real_size(tmp_path: Path, monkeypatch):
    needed: list[int] = []
    monkeypatch.setattr(saving_module, "check_space", lambda least, folder: needed.append(least))
    wide(tmp_path, max_steps=1).train()
    taken = size_of(tmp_path / "checkpoint-1")
    assert taken > 4_000_000
    assert taken - 10_000 < needed[0] <= taken


@pytest.mark.parametrize(
    ("cls", "args"),
    [
        (Trainer, {}),
        (Trainer, {"save_only_model": True}),
        (Trainer, {"optim": "sgd"}),
        (Trainer, {"frozen": True, "link_unchanged": True, "max_shard_size": "1MB"}),
        (Partial, {"frozen": True}),
    ],
    ids=["all weights", "only the model", "no optimizer state", "linked files", "an override that saves a part"],
)
def test_a_save_that_fits_is_not_refused(cls: type[Trainer], args: dict[str, Any], tmp_path: Path, monkeypatch):
    wide(tmp_path / "measured", cls, **args).train()
    second = [*(tmp_path / "measured" / "checkpoint-2").iterdir()]
    new = sum(path.stat().st_size for path in second if path.stat().st_nlink == 1)
    run = wide(tmp_path / "run", cls, **args)
    run.on("on_save_begin", lambda checkpoint: checkpoint.step == 2 and without_room(monkeypatch, new))
    run.train()
    assert names_in(tmp_path / "run") == ["checkpoint-1", "checkpoint-2"]


def test_a_system_without_a_measure_of_free_space_allows_saving(tmp_path: Path, monkeypatch):
    def unknown_usage(folder):
        raise OSError("no")

    monkeypatch.setattr(space.shutil, "disk_usage", unknown_usage)
    saving(tmp_path, 1).train()
    assert names_in(tmp_path) == ["checkpoint-1"]


def test_a_limit_of_the_system_is_met_for_real(tmp_path: Path):
    run = saving(tmp_path, 2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    run.on("on_save_begin", lambda checkpoint: limit(600 if checkpoint.step == 2 else soft), id="limit")

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    try:
        with pytest.raises(CheckpointError, match=r"step 2 cannot be written .*File too large.*ulimit -f"):
            run.train()
    finally:
        limit(soft)
    assert names_in(tmp_path) == ["checkpoint-1"]
    assert chosen(tmp_path, True) == tmp_path / "checkpoint-1"


def test_failed_writes_that_are_retried_do_not_change_the_run(tmp_path: Path, monkeypatch, wanted, caplog):
    fault = Fault(monkeypatch, "a file is written", tmp_path)
    run = saving(tmp_path, 3, on_save_error="warn")
    run.on("on_save_begin", lambda checkpoint: fault.arm(1 if checkpoint.step < 3 else 0))
    with caplog.at_level(logging.WARNING, logger="trainbus"):
        run.train()
    assert [message.split(" cannot")[0] for message in caplog.messages] == [
        *("The checkpoint of step 1", "The checkpoint of step 2"),
    ]
    assert all(message.endswith("Training continues.") for message in caplog.messages)
    assert same_weights(weights(run.model), wanted)
    assert names_in(tmp_path) == ["checkpoint-3"]


@pytest.mark.parametrize("in_background", [False, True])
def test_failed_saves_are_in_the_ledger_the_status_and_the_closing_lines(
    in_background: bool, tmp_path: Path, monkeypatch, capsys
):
    fault = Fault(monkeypatch, "a file is written", tmp_path)
    run = saving(tmp_path, 3, on_save_error="warn", disable_tqdm=False, async_save=in_background)
    run.on("on_save_begin", lambda checkpoint: fault.arm(1 if checkpoint.step < 3 else 0))
    run.train()
    failed = [entry for entry in run.control.ledger.of("callback") if entry.action == "fail"]
    assert [entry.author for entry in failed] == ["Checkpoint", "Checkpoint"]
    assert "No space left on device" in failed[0].reason
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  failed ")]
    assert len(lines) == 1
    assert "Checkpoint 2 times, the last at step " in lines[0]
    assert "cannot be written" in lines[0]
    decisions = json.loads((tmp_path / "run_status.json").read_text())["decisions"]
    assert any("Checkpoint fail callback" in line for line in decisions)


def test_a_best_model_that_could_not_be_saved_is_not_looked_for(tmp_path: Path, monkeypatch):
    losses = [3.0, 1.0, 2.0]
    fault = Fault(monkeypatch, "a file is written", tmp_path)
    evaluating = {"eval_strategy": "steps", "eval_steps": 1}
    args = TrainingArguments(str(tmp_path), max_steps=3, use_cpu=True, disable_tqdm=True, **evaluating)
    callbacks = [KeepBest("loss"), Checkpoint(every(1), on_save_error="warn")]
    run = Trainer(Regression(), args, train_dataset=points(20), eval_dataset=points(4), callbacks=callbacks)
    run.on("on_evaluate_dataset", lambda metrics: metrics.update(eval_loss=losses.pop(0)), id="measured")
    run.on("on_save_begin", lambda checkpoint: fault.arm(1 if checkpoint.step == 2 else 0), id="arm")
    run.train()
    assert run.state.best_global_step == 2
    assert run.state.best_model_checkpoint == str(tmp_path / "checkpoint-1")
    assert names_in(tmp_path) == ["checkpoint-1", "checkpoint-3"]


def test_a_checkpoint_that_cannot_be_removed_gives_a_warning(tmp_path: Path, monkeypatch, caplog):
    def refuse(checkpoint):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("trainbus.engine.checkpoint.storage.remove", refuse)
    saving(tmp_path, 2, save_total_limit=1).train()
    assert names_in(tmp_path) == ["checkpoint-1", "checkpoint-2"]
    assert "checkpoint-1, and it cannot be deleted: [Errno 13] Permission denied" in caplog.text


def test_the_policy_is_one_of_two():
    with pytest.raises(ArgumentError, match=r"on_save_error='wran' is unknown; did you mean 'warn'\?"):
        Checkpoint(every(1), on_save_error="wran")
    with pytest.raises(ArgumentError, match="on_save_error"):
        saving(Path("nowhere"), 1, on_save_error="ignore")
    assert Checkpoint.from_arguments(saving(Path("nowhere"), 1, on_save_error="warn").args).on_save_error == "warn"


def test_an_error_other_than_a_disk_error_is_passed_on(tmp_path: Path, monkeypatch):
    def broken(*args, **options):
        raise RuntimeError("a bug")

    monkeypatch.setattr(model_files, "save_file", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        saving(tmp_path, 1, on_save_error="warn").train()
    assert names_in(tmp_path) == []


# Files that native code writes.


class OfSafetensors(Wide):
    """Writes itself with safetensors, as models of transformers do."""

    def save_pretrained(self, folder: str, state_dict: Any = None) -> None:
        weights = {name: weight.clone() for name, weight in (state_dict or self.state_dict()).items()}
        save_file(weights, Path(folder) / "model.safetensors")


class OfTorch(Wide):
    """Writes itself with `torch.save`."""

    zipped = True

    def save_pretrained(self, folder: str, state_dict: Any = None) -> None:
        path = Path(folder) / "pytorch_model.bin"
        torch.save(state_dict or self.state_dict(), path, _use_new_zipfile_serialization=self.zipped)


class OfTorchBefore(OfTorch):
    """Writes itself with `torch.save` in its former format."""

    zipped = False


class OfTorchIntoFile(Wide):
    """Writes itself with `torch.save` into an open file."""

    def save_pretrained(self, folder: str, state_dict: Any = None) -> None:
        with open(Path(folder) / "pytorch_model.bin", "wb") as file:
            torch.save(state_dict or self.state_dict(), file)


NATIVE = {
    OfSafetensors: "File too large",
    OfTorch: r"torch could not write all bytes of a file. Either the disk is full, or .* \(`ulimit -f`\)",
    OfTorchBefore: "File too large",
    OfTorchIntoFile: "File too large",
}


def limited(
    folder: Path, model: nn.Module, cls: type[Trainer] = Trainer, unlimited: Any = (1,), **args: Any
) -> Trainer:
    """A run of 3 steps that cannot write large files in the saves of other steps than `unlimited`."""
    options = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1, "use_cpu": True, "optim": "sgd", **args}
    trainer = cls(model, TrainingArguments(str(folder), **options), train_dataset=points(20))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(checkpoint: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft if checkpoint.step in unlimited else 100_000, hard))

    trainer.on("on_save_begin", limit, id="limit")
    return trainer


@pytest.mark.parametrize("async_save", [False, True])
@pytest.mark.parametrize("kind", NATIVE)
def test_a_full_disk_is_explained_for_native_writers(kind: type[Any], async_save: bool, tmp_path: Path) -> None:
    with files_up_to(resource.getrlimit(resource.RLIMIT_FSIZE)[0]), pytest.raises(CheckpointError) as caught:
        limited(tmp_path, kind(), async_save=async_save).train()
    assert re.search(f"step 2 cannot be written to .*{NATIVE[kind]}.*\\. It needs at least", str(caught.value))
    if NATIVE[kind] == "File too large":
        assert "Raise the limit of the size of a file: see `ulimit -f`" in str(caught.value)
    assert names_in(tmp_path) == ["checkpoint-1"]
    assert not list(tmp_path.glob(".tmp-*"))


@pytest.mark.parametrize("kind", NATIVE)
def test_a_full_disk_for_native_writers_ends_no_run_that_warns(kind: type[Any], tmp_path: Path, caplog: Any) -> None:
    with files_up_to(resource.getrlimit(resource.RLIMIT_FSIZE)[0]):
        limited(tmp_path, kind(), unlimited=(1, 3), on_save_error="warn", async_save=False).train()
    assert names_in(tmp_path) == ["checkpoint-1", "checkpoint-3"]
    assert "The checkpoint of step 2 cannot be written" in caplog.text


def test_a_full_disk_is_explained_for_an_override(tmp_path: Path) -> None:
    with (
        files_up_to(resource.getrlimit(resource.RLIMIT_FSIZE)[0]),
        pytest.raises(CheckpointError, match=r"step 2 cannot be written .*torch could not write all bytes"),
    ):
        limited(tmp_path, Wide(), Partial).train()


def test_another_error_of_torch_during_a_save_stays(tmp_path: Path) -> None:
    class Broken(Wide):
        def save_pretrained(self, folder: str, state_dict: Any = None) -> None:
            torch.save(self.state_dict(), Path(folder) / "missing" / "pytorch_model.bin")

    with pytest.raises(RuntimeError, match=r"Parent directory .* does not exist"):
        limited(tmp_path, Broken(), on_save_error="warn").train()


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (OSError(errno.ENOSPC, "full"), errno.ENOSPC),
        (OSError("100 requested and 50 written"), None),
        (SafetensorError("I/O error: No space left on device (os error 28)"), errno.ENOSPC),
        (RuntimeError("write(): fd 4 failed with No space left on device"), errno.ENOSPC),
        (RuntimeError("write(): fd 4 failed with something new"), None),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"), None),
    ],
)
def test_the_number_of_a_disk_error(error: Exception, number: int | None) -> None:
    assert is_disk_error(error)
    assert errno_of(error) == number


@pytest.mark.parametrize(
    "text", ["size mismatch", "[enforce fail at inline_container.cc:1] PytorchStreamReader failed"]
)
def test_other_errors_are_no_disk_errors(text: str) -> None:
    assert not is_disk_error(RuntimeError(text))

"""Files that would run code or lead out of the checkpoint folder are refused by name."""

from __future__ import annotations

import builtins
import collections
import functools
import importlib
import io
import json
import operator
import os
import pickle
import shutil
import struct
import subprocess
import webbrowser
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from support.data import points
from support.models import Regression
from support.trainers import hushed, regression_trainer
from trainbus.engine.checkpoint.format.files import BESIDE_ADAPTERS, EXTRA_STATE
from trainbus.engine.checkpoint.read.pickled import load_pickled_weights, load_plain
from trainbus.engine.checkpoint.read.saved import SavedCheckpoint
from trainbus.engine.checkpoint.read.verify import problems
from trainbus.events import CheckpointError

MARK = "it-was-run"
"""The file that every payload would make, in the folder it is loaded in."""


class Calls:
    """Pickled, it is a call; what comes of it can be called again."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None) -> None:
        self.parts = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.parts


class Tensor(torch.Tensor):
    """A tensor whose rebuilding is a call of something else."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return os.system, (f"touch {MARK}",)


def write_mark() -> None:
    """What a module that came with a checkpoint might hold."""
    Path(MARK).touch()


WRITES = f"open({MARK!r}, 'w').close()"

PAYLOADS: dict[str, tuple[Callable[[], Any], str]] = {
    "os.system": (lambda: Calls(os.system, f"touch {MARK}"), r"posix\.system"),
    "subprocess.Popen": (lambda: Calls(subprocess.Popen, ["touch", MARK]), r"subprocess\.Popen"),
    "eval": (lambda: Calls(eval, WRITES), r"builtins\.eval"),
    "exec": (lambda: Calls(exec, WRITES), r"builtins\.exec"),
    "compile": (lambda: Calls(compile, WRITES, "a", "exec"), r"builtins\.compile"),
    "operator.methodcaller": (
        lambda: Calls(operator.methodcaller("system", f"touch {MARK}"), Calls(importlib.import_module, "os")),
        r"operator\.methodcaller",
    ),
    "open": (lambda: Calls(open, MARK, "w"), r"io\.open"),
    "import": (lambda: Calls(builtins.__import__, "antigravity"), r"builtins\.__import__"),
    "importlib": (lambda: Calls(importlib.import_module, "antigravity"), r"importlib\.import_module"),
    "functools.partial": (lambda: Calls(functools.partial(os.system, f"touch {MARK}")), r"functools\.partial"),
    "a function of a module": (lambda: Calls(write_mark), r"test_hostile_files\.write_mark"),
    "shutil.rmtree": (lambda: Calls(shutil.rmtree, "."), r"shutil\.rmtree"),
    "a browser": (lambda: Calls(webbrowser.open, "file:///"), r"webbrowser\.open"),
    "pickle in pickle": (
        lambda: Calls(pickle.loads, pickle.dumps(Calls(os.system, f"touch {MARK}"))),
        r"pickle\.loads",
    ),
    "torch.load": (lambda: Calls(torch.load, "other.pt", None, None, weights_only()), r"torch\.serialization\.load"),
    "in a list of a dict": (lambda: {"state": {0: [1, (2, Calls(os.system, f"touch {MARK}"))]}}, r"posix\.system"),
    "as a key": (lambda: {Calls(os.system, f"touch {MARK}"): 1}, r"posix\.system"),
    "as a tensor": (lambda: {"weight": torch.ones(2).as_subclass(Tensor)}, r"posix\.system"),
    "in the hooks of a tensor": (
        lambda: {
            "weight": Calls(torch._utils._rebuild_tensor_v2, Calls(os.system, f"touch {MARK}"), 0, (2,), (1,), False)
        },
        r"posix\.system",
    ),
    "in an ordered dict's state": (
        lambda: Calls(collections.OrderedDict, state={"a": Calls(eval, WRITES)}),
        r"builtins\.eval",
    ),
    "a module of torch": (lambda: torch.nn.Linear(1, 1), r"torch\.nn\.modules\.linear\.Linear"),
}
"""What is written, and what of it is named in the error."""


def weights_only() -> bool:
    return False


FILES = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "pytorch_model.bin")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of transformers, with weights that are pickled. It is not to be changed."""
    folder = tmp_path_factory.mktemp("theirs")
    with hushed():
        args = transformers.TrainingArguments(
            str(folder), use_cpu=True, save_steps=2, max_steps=3, report_to="none", disable_tqdm=True
        )
        transformers.Trainer(Regression(), args, train_dataset=points(20)).train()
    checkpoint = folder / "checkpoint-2"
    torch.save(Regression().state_dict(), checkpoint / "pytorch_model.bin")
    (checkpoint / "model.safetensors").unlink()
    return checkpoint


@pytest.fixture
def checkpoint(theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of transformers to be poisoned, in a folder where the mark would be seen."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return Path(shutil.copytree(theirs, tmp_path / "theirs" / "checkpoint-2"))


def resume(checkpoint: Path) -> Any:
    run = regression_trainer(checkpoint.parent / "ours", args={"max_steps": 3})
    run.train(resume_from_checkpoint=str(checkpoint))
    return run


def untouched() -> bool:
    return not list(Path.cwd().iterdir())


def test_the_checkpoint_itself_is_good(checkpoint: Path):
    assert resume(checkpoint).state.global_step == 3


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(("make", "called"), PAYLOADS.values(), ids=PAYLOADS)
def test_a_call_in_a_pickle_is_named_and_not_run(make: Callable[[], Any], called: str, legacy: bool, checkpoint: Path):
    for name in FILES:
        path = checkpoint / name
        good = path.read_bytes()
        torch.save(make(), path, _use_new_zipfile_serialization=not legacy)
        with pytest.raises(CheckpointError, match=rf"{name} is not read: it would call .*{called.rpartition('.')[2]}"):
            resume(checkpoint)
        path.write_bytes(good)
    assert untouched()


def test_the_payloads_are_live(checkpoint: Path):
    """Each kind of file, read as torch reads what it trusts, does what it says."""
    for name in ("os.system", "eval", "a function of a module", "as a key", "as a tensor", "functools.partial"):
        torch.save(PAYLOADS[name][0](), "payload.pt")
        torch.load("payload.pt", weights_only=False)
        assert Path(MARK).is_file(), name
        Path(MARK).unlink()


INSTRUCTIONS = {
    "an instruction by name": b"cos\nsystem\n(S'touch it-was-run'\ntR.",
    "an instance": b"(S'touch it-was-run'\nios\nsystem\n.",
    "an object": b"(cos\nsystem\nS'touch it-was-run'\no.",
    "a class of another file": b"P1\n.",
    "the extension registry": b"\x82\x01.",
    "nothing": b"",
    "noise": bytes(range(256)),
    "an endless stack": b"(" * 100_000,
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("body", INSTRUCTIONS.values(), ids=INSTRUCTIONS)
def test_instructions_written_by_hand_are_not_followed(name: str, body: bytes, checkpoint: Path):
    path = checkpoint / name
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", body)
        file.writestr("archive/version", "3\n")
        file.writestr("archive/byteorder", "little")
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        resume(checkpoint)
    path.write_bytes(body)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        resume(checkpoint)
    assert untouched()


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_program_in_place_of_tensors_is_not_loaded(checkpoint: Path):
    with zipfile.ZipFile(checkpoint / "optimizer.pt", "w") as file:
        for part in ("constants.pkl", "data.pkl"):
            file.writestr(f"archive/{part}", pickle.dumps({}))
        file.writestr("archive/version", "3\n")
    with pytest.raises(CheckpointError, match=r"optimizer\.pt cannot be read"):
        resume(checkpoint)


def test_the_arguments_are_not_read_at_all(checkpoint: Path):
    torch.save(Calls(os.system, f"touch {MARK}"), checkpoint / "training_args.bin")
    assert resume(checkpoint).state.global_step == 3
    (checkpoint / "training_args.bin").write_bytes(b"noise")
    assert resume(checkpoint).state.global_step == 3
    assert untouched()


def test_a_switch_in_the_environment_does_not_open_the_door(checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    torch.save(Calls(os.system, f"touch {MARK}"), checkpoint / "optimizer.pt")
    with pytest.raises(CheckpointError, match=r"posix\.system"):
        resume(checkpoint)
    assert untouched()


def test_callables_allowed_in_rng_states_are_refused_elsewhere(checkpoint: Path):
    shutil.copyfile(checkpoint / "rng_state.pth", checkpoint / "optimizer.pt")
    with pytest.raises(CheckpointError, match=r"optimizer\.pt is not read: it would call numpy\S*_reconstruct"):
        resume(checkpoint)


def test_arrays_of_objects_are_refused(checkpoint: Path):
    import numpy as np

    torch.save({"numpy": np.array([Calls(os.system, f"touch {MARK}")], dtype=object)}, checkpoint / "rng_state.pth")
    with pytest.raises(CheckpointError, match=r"rng_state\.pth"):
        resume(checkpoint)
    assert untouched()


def test_random_states_of_an_earlier_numpy_are_read(checkpoint: Path):
    with zipfile.ZipFile(checkpoint / "rng_state.pth") as file:
        parts = {name: file.read(name) for name in file.namelist()}
    (data,) = (name for name in parts if name.endswith("data.pkl"))
    parts[data] = parts[data].replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert b"numpy.core.multiarray" in parts[data]
    with zipfile.ZipFile(checkpoint / "rng_state.pth", "w") as file:
        for name, part in parts.items():
            file.writestr(name, part)
    assert resume(checkpoint).state.global_step == 3


# Files of ours hold no instructions; their names and numbers may still lie.


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of ours."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    regression_trainer(tmp_path, args={"max_steps": 2, "save_strategy": "steps", "save_steps": 2}).train()
    return tmp_path / "checkpoint-2"


@pytest.mark.parametrize("name", ["optimizer.safetensors", "rng_state_0.safetensors", "callbacks.safetensors"])
def test_a_pickle_in_place_of_safetensors_is_not_read(name: str, own: Path):
    torch.save(Calls(os.system, f"touch {MARK}"), own / name)
    (own / "manifest.json").write_text(json.dumps({"format_version": 1}))
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        resume(own)
    assert untouched()


OUTSIDE = ["../other/model.safetensors", "/etc/passwd", "a/../../other", "..", "/", "../checkpoint-2/../x"]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("index", ["model.safetensors.index.json", "pytorch_model.bin.index.json"])
def test_an_index_that_names_a_file_outside_is_refused(index: str, name: str, checkpoint: Path):
    (checkpoint / "pytorch_model.bin").unlink()
    (checkpoint / index).write_text(json.dumps({"weight_map": {"linear.weight": name}}))
    assert problems(checkpoint, full=False) == [
        f"{index} cannot be read: it names {name!r}, which is outside of the folder"
    ]
    with pytest.raises(CheckpointError, match="outside of the folder"):
        resume(checkpoint)
    with pytest.raises(CheckpointError, match="outside of the folder"):
        SavedCheckpoint.open(checkpoint).load_weights(Regression())


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_manifest_that_names_a_file_outside_is_refused(name: str, own: Path):
    manifest = json.loads((own / "manifest.json").read_text())
    manifest["files"][name] = {"size": 1, "sha256": "0"}
    (own / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="outside of the folder"):
        resume(own)


@pytest.mark.parametrize("whose", ["own", "checkpoint"])
def test_a_link_out_of_the_folder_is_refused(whose: str, request: pytest.FixtureRequest, tmp_path: Path):
    folder = request.getfixturevalue(whose)
    for path in [path for path in folder.iterdir() if path.name != "training_args.bin"]:
        elsewhere = tmp_path / f"elsewhere-{path.name}"
        path.rename(elsewhere)
        path.symlink_to(elsewhere)
        with pytest.raises(CheckpointError, match=rf"{path.name} is a link to {elsewhere}, outside of the folder"):
            resume(folder)
        path.unlink()
        elsewhere.rename(path)
    weights = next(folder / name for name in ("model.safetensors", "pytorch_model.bin") if (folder / name).exists())
    weights.rename(tmp_path / "elsewhere")
    weights.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="outside of the checkpoint, and is not read"):
        SavedCheckpoint.open(folder).load_weights(Regression())


@pytest.mark.parametrize("link", ["adapter", "folder of an adapter", "weights beside", "extra state"])
def test_a_link_out_of_the_folder_is_refused_for_each_kind_of_weights(link: str, tmp_path: Path):
    folder, elsewhere = tmp_path / "checkpoint-1", tmp_path / "elsewhere"
    (folder / "other").mkdir(parents=True)
    state = {"base_model.model.weight": torch.ones(2)}
    for name in ("adapter_model.safetensors", "other/adapter_model.safetensors", "other_weights.safetensors"):
        save_file(state, folder / name)
    names = {
        "adapter": "other/adapter_model.safetensors",
        "folder of an adapter": "other",
        "weights beside": BESIDE_ADAPTERS,
        "extra state": EXTRA_STATE,
    }
    path = folder / names[link]
    if not path.exists():
        save_file(state, path)
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match=rf"is a link to {elsewhere}.*, outside of the checkpoint"):
        SavedCheckpoint.open(folder).weights()


def test_a_folder_that_is_a_link_out_and_a_link_to_itself_are_refused(checkpoint: Path):
    (checkpoint / "more").symlink_to("/etc")
    (checkpoint / "round").symlink_to("round")
    assert [problem.split(",")[0] for problem in problems(checkpoint, full=False)] == [
        "more is a link to /etc",
        f"round is a link to {checkpoint / 'round'}",
    ]


def test_links_within_the_folder_and_to_the_folder_are_good(checkpoint: Path, tmp_path: Path):
    (checkpoint / "pytorch_model.bin").rename(checkpoint / "weights")
    (checkpoint / "pytorch_model.bin").symlink_to("weights")
    (tmp_path / "checkpoint-2").symlink_to(checkpoint)
    assert resume(tmp_path / "checkpoint-2").state.global_step == 3


@pytest.mark.parametrize(
    "name",
    [
        *("optimizer-00001-of-00002.safetensors", "callbacks-00000-of-00001.safetensors", "rng_state_7.safetensors"),
        *("model.safetensors.index.json", "scaler.safetensors", "pytorch_model.bin", "optimizer.pt"),
    ],
)
def test_files_outside_of_the_manifest_are_ignored(name: str, own: Path, tmp_path: Path):
    (own / name).write_bytes(b"noise")
    manifest = json.loads((own / "manifest.json").read_text())
    (own / "manifest.json").write_text(json.dumps({**manifest, "world_size": 9}))  # so that it looks for others' states
    assert resume(own).state.global_step == 3


def test_an_unlisted_file_does_not_replace_a_listed_one(own: Path):
    manifest = json.loads((own / "manifest.json").read_text())
    for name in ("optimizer.safetensors", "model.safetensors"):
        files = {file: entry for file, entry in manifest["files"].items() if file != name}
        (own / "manifest.json").write_text(json.dumps({**manifest, "files": files}))
        with pytest.raises(CheckpointError, match=rf"no {name}"):
            resume(own)


def test_a_tensor_that_is_larger_than_its_file_is_refused(own: Path):
    header = json.dumps({"linear.weight": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
    (own / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        SavedCheckpoint.open(own).load_weights(Regression())


def test_pickles_that_are_not_weights_are_refused(tmp_path: Path):
    for values in ([torch.ones(2)], {"a": 1}, {1: torch.ones(2)}, torch.ones(2)):
        torch.save(values, tmp_path / "pytorch_model.bin")
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin has no weights"):
            load_pickled_weights(tmp_path / "pytorch_model.bin")


def test_values_that_are_no_file_of_torch_are_refused_by_name(tmp_path: Path):
    buffer = io.BytesIO()
    torch.save({"a": torch.ones(3)}, buffer)
    for cut in (0, 1, 40, len(buffer.getvalue()) // 2, len(buffer.getvalue()) - 1):
        (tmp_path / "optimizer.pt").write_bytes(buffer.getvalue()[:cut])
        with pytest.raises(CheckpointError, match=r"optimizer\.pt cannot be read"):
            load_plain(tmp_path / "optimizer.pt")

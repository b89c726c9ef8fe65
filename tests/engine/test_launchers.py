"""Variables and flags of launchers that describe a process."""

from __future__ import annotations

import pytest

from trainbus import HfArgumentParser, TrainingArguments
from trainbus.events.errors import ArgumentError


@pytest.fixture(autouse=True)
def nothing_launched(monkeypatch: pytest.MonkeyPatch):
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "ACCELERATE_USE_CPU"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 and no RANK"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK=2 and WORLD_SIZE=2, but ranks count from 0 to 1"),
        ({"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "4"}, "LOCAL_RANK=4 and WORLD_SIZE=2"),
        ({"WORLD_SIZE": "0", "RANK": "0"}, "WORLD_SIZE='0', which is not a number of 1 or more"),
        ({"WORLD_SIZE": "two", "RANK": "0"}, "WORLD_SIZE='two', which is not a number of 1 or more"),
        ({"WORLD_SIZE": "2", "RANK": "-1"}, "RANK='-1', which is not a number of 0 or more"),
    ],
)
def test_invalid_launcher_environment_raises(found: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch):
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ArgumentError, match=f"{said}.*start the program with a launcher, such as torchrun"):
        TrainingArguments("out", use_cpu=True)


@pytest.mark.parametrize("found", [{}, {"WORLD_SIZE": "1"}, {"LOCAL_RANK": "1"}, {"WORLD_SIZE": "1", "RANK": "0"}])
def test_a_single_process_needs_no_rank_variables(found: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    assert TrainingArguments("out", use_cpu=True).world_size == 1


@pytest.mark.parametrize(
    "words", [["--local_rank", "1"], ["--local_rank=1"], ["--local-rank", "1"], ["--local-rank=1"]]
)
def test_the_option_of_older_launchers_and_of_deepspeed_is_taken(words: list[str]):
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses([*words, "--output_dir", "out"])
    assert args.local_rank == 1
    assert args.local_process_index == 1


def test_the_environment_wins_over_the_option(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    args = TrainingArguments("out", use_cpu=True, local_rank=0)  # as in a file of arguments that all processes read
    assert (args.process_index, args.local_process_index, args.world_size) == (3, 1, 4)


def test_each_process_needs_its_own_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    for gpus in (1, 4):
        monkeypatch.setattr("torch.cuda.device_count", lambda gpus=gpus: gpus)
        if gpus == 4:
            assert str(TrainingArguments("out").device) == "cuda:3"
            continue
        with pytest.raises(ArgumentError, match=r"LOCAL_RANK=3, but this process sees 1 GPU\(s\)"):
            TrainingArguments("out")


def test_a_scheduler_may_show_each_process_its_own_gpu(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "3", "CUDA_VISIBLE_DEVICES": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert str(TrainingArguments("out").device) == "cuda:0"
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(ArgumentError, match=r"LOCAL_RANK=3, but this process sees 2 GPU\(s\)"):
        TrainingArguments("out")


def test_accelerate_may_have_it_on_the_cpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert TrainingArguments("out").device.type == "cuda"
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    assert TrainingArguments("out").device.type == "cpu"

"""Plugins on two processes: they join on both ranks, and a difference between the ranks is an error with their name."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from support.processes import TORCHRUN, environment
from trainbus import Callback
from trainbus.testing import Ended, in_processes, tiny_trainer

CALLBACKS = "trainbus.callbacks"

COUNTS = """
from dataclasses import dataclass, field
from trainbus import Callback

@dataclass
class Counts(Callback):
    '''Counts steps, and stops.'''

    stop_at: int = 3
    auto = {auto}
    steps: int = field(default=0, init=False)

    def on_step_end(self, state, control):
        self.steps += 1
        if state.global_step == self.stop_at:
            control.request("training_stop", "the plugin has counted enough")
"""

PROGRAM = """
import sys
from trainbus import ArgumentParser, TrainingArguments, Trainer
from trainbus.testing import Net, net_samples

[args] = ArgumentParser(TrainingArguments).parse_args_into_dataclasses(sys.argv[1:], look_for_args_file=False)
trainer = Trainer(Net(), args, train_dataset=net_samples())
trainer.train()
print(f"rank {args.process_index}: {trainer.plugins}, {trainer.control.why('training_stop')}", flush=True)
"""


def counts(packages: Any, auto: bool = False) -> str:
    return packages.add(COUNTS.format(auto=auto), {CALLBACKS: {"counts": "{pkg}:Counts"}}, name="acme-counts")


def trained(folder: Path, rank: int, variable: str = "", **options: Any) -> tuple[int, list[str], str]:
    """Train on this rank, and return its steps, its plugins and why it stopped."""
    if variable:
        os.environ["TRAINBUS_PLUGINS"] = variable
    trainer = tiny_trainer(folder, **{"plugins": [], "ddp_timeout": 60, **options})
    trainer.train()
    return trainer.state.global_step, trainer.plugins, trainer.control.why("training_stop")


def hide(packages: Any, rank: int) -> None:
    """Let only rank 0 find the installed package."""
    if rank == 1:
        sys.path.remove(str(packages.folder))


def assert_refused(ended: list[Ended], *names: str) -> None:
    for end in ended:
        assert end.value is None
        assert "rank 0" in end.error
        assert "rank 1" in end.error
        for name in names:
            assert name in end.error


def test_a_named_plugin_joins_on_both_ranks(packages, tmp_path):
    counts(packages)
    ended = in_processes(lambda rank: trained(tmp_path, rank, plugins=["counts(stop_at=2)"]))
    expected = (
        2,
        ["counts(stop_at=2) (acme-counts 1.0)"],
        "stopped at step 2 by Counts: the plugin has counted enough",
    )
    assert [end.error for end in ended] == ["", ""]
    assert [end.value for end in ended] == [expected, expected]


def test_an_automatic_plugin_that_is_installed_on_one_rank_only_is_refused_with_its_name(packages, tmp_path):
    counts(packages, auto=True)

    def train(rank: int) -> Any:
        hide(packages, rank)
        return trained(tmp_path, rank)

    assert_refused(in_processes(train), "installed plugins that join", "counts (acme-counts 1.0, auto)")


@pytest.mark.parametrize(
    ("first", "second"), [("counts", "none"), ("counts(stop_at=2)", "counts(stop_at=4)")], ids=["names", "options"]
)
def test_a_variable_that_differs_between_ranks_is_refused_with_the_name(packages, tmp_path, first, second):
    counts(packages)
    ended = in_processes(lambda rank: trained(tmp_path, rank, (first, second)[rank]))
    assert_refused(ended, "installed plugins that join", "counts")


class Reports(Callback):
    """Handles one event, late in a run."""

    def __init__(self, event: str) -> None:
        setattr(self, event, lambda state: None)


class Begins(Callback):
    """Fails if a step begins."""

    def on_step_begin(self) -> None:
        raise AssertionError("a step began")


@pytest.mark.parametrize("event", ["on_step_end", "on_save", "on_train_end"])
def test_a_callback_in_the_list_of_one_rank_only_is_refused_before_the_first_step(event, tmp_path):
    def train(rank: int) -> Any:
        trainer = tiny_trainer(tmp_path, Begins(), *[Reports(event)][rank:], ddp_timeout=60)
        return trainer.train()

    assert_refused(in_processes(train), f"Reports handles {event} on rank 0 and not on rank 1")


def test_a_plugin_that_one_rank_names_is_refused_with_its_name(packages, tmp_path):
    counts(packages)

    def train(rank: int) -> Any:
        trainer = tiny_trainer(tmp_path, Begins(), plugins=["counts"][rank:], ddp_timeout=60)
        return trainer.train()

    assert_refused(in_processes(train), "counts (acme-counts 1.0)")


def test_a_named_plugin_that_one_rank_lacks_is_refused_there_with_its_name(packages, tmp_path):
    counts(packages)

    def train(rank: int) -> Any:
        hide(packages, rank)
        return trained(tmp_path, rank, plugins=["counts"], ddp_timeout=5)

    first, second = in_processes(train)
    assert first.value is second.value is None
    assert "'counts', which is not an installed plugin" in second.error
    assert "1/2 clients joined" in first.error


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_flag_works_under_torchrun_and_a_missing_plugin_ends_all_ranks(packages, tmp_path):
    import subprocess

    counts(packages)
    program = tmp_path / "train.py"
    program.write_text(PROGRAM, encoding="utf-8")
    flags = [
        "--output_dir",
        str(tmp_path / "run"),
        "--use_cpu",
        "true",
        "--save_strategy",
        "no",
        "--disable_tqdm",
        "true",
    ]

    def torchrun(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *TORCHRUN, str(program), *flags, *words]
        variables = environment(PYTHONPATH=str(packages.folder), OMP_NUM_THREADS="1")
        return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=200)

    done = torchrun("--plugins", "counts(stop_at=2)", "--max_steps", "4")
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in (0, 1):
        assert f"rank {rank}: ['counts(stop_at=2) (acme-counts 1.0)'], stopped at step 2 by Counts" in done.stdout
    done = torchrun("--plugins", "cuonts")
    assert done.returncode != 0
    assert "'cuonts', which is not an installed plugin; did you mean 'counts'" in done.stderr

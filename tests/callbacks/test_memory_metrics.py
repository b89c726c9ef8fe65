"""Memory metrics: names and places of transformers, and numbers that follow allocations."""

from __future__ import annotations

import builtins
from pathlib import Path

import pytest
import torch

from support.data import sentences
from support.trainers import both, net_trainer
from trainbus import CountTokens, Evaluate, Log, MemoryMetrics, every
from trainbus.callbacks.monitor.memory_metrics import memory_now

MEGABYTE = 2**20


def of_memory(values):
    return {name for name in values if "_mem_" in name}


def test_names_and_places_are_those_of_transformers(tmp_path):
    pytest.importorskip("psutil")  # which transformers needs for them

    def do(run):
        found = [run.train().metrics, run.evaluate(), run.predict(sentences(4)).metrics]
        return [*found, *run.state.log_history]

    args = {
        **{"per_device_train_batch_size": 4, "max_steps": 2, "save_strategy": "no", "logging_strategy": "no"},
        **{"eval_strategy": "steps", "eval_steps": 1, "skip_memory_metrics": False},
    }
    (_, theirs), (_, ours) = both(tmp_path, args, do, train_dataset=sentences(8), eval_dataset=sentences(4))
    assert [of_memory(values) for values in ours] == [of_memory(values) for values in theirs]
    assert len(of_memory(ours[0])) == len(of_memory(ours[1])) + 3 > 3, "with what building took, and what was before it"


def test_memory_of_building_is_reported_with_the_first_metrics(tmp_path):
    built = net_trainer(tmp_path, skip_memory_metrics=False)
    assert {name.partition("_mem_")[0] for name in of_memory(built.evaluate())} == {"before_init", "init", "eval"}
    assert {name.partition("_mem_")[0] for name in of_memory(built.evaluate())} == {"eval"}


def test_memory_grows_with_kept_predictions(tmp_path):
    kept = []
    built = net_trainer(tmp_path, MemoryMetrics())
    built.evaluate()  # what is used once, and the metrics of building
    built.on("on_step_end", lambda: kept.append(torch.ones(64 * MEGABYTE // 4)), once=1)
    metrics = built.train().metrics
    assert metrics["train_mem_cpu_alloc_delta"] > 50 * MEGABYTE
    kept.clear()
    assert built.evaluate()["eval_mem_cpu_alloc_delta"] < 50 * MEGABYTE


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the system does not let a process reset its peak"
)
def test_peaks_are_above_the_remaining_memory(tmp_path):
    built = net_trainer(tmp_path, MemoryMetrics())
    built.on("on_prediction_step", lambda: torch.ones(64 * MEGABYTE // 4).sum())
    metrics = built.evaluate()
    assert metrics["eval_mem_cpu_peaked_delta"] > 50 * MEGABYTE
    assert metrics["eval_mem_cpu_alloc_delta"] < 50 * MEGABYTE


def test_evaluations_of_a_training_belong_to_it(tmp_path):
    built = net_trainer(tmp_path, Evaluate(every(2)), skip_memory_metrics=False)
    end = built.train()
    assert of_memory(end.metrics)
    assert [entry["step"] for entry in built.state.log_history if of_memory(entry)] == [6]
    assert any("eval_loss" in entry for entry in built.state.log_history)


@pytest.mark.parametrize("lines", [None, "VmRSS:\t 2048 kB\n"])
def test_other_systems_report_fewer_numbers(monkeypatch, lines, tmp_path):
    """One without /proc, and one whose kernel keeps no peak."""
    status, real = tmp_path / "status", open
    if lines is not None:
        status.write_text(lines)

    def fake(path, *args, **kwargs):
        return real(status if path == "/proc/self/status" else path, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", fake)
    used = memory_now()
    assert used["cpu_peak"] >= used["cpu"] > 0
    assert lines is None or used["cpu"] == 2 * MEGABYTE


def test_arguments_build_the_callback(tmp_path):
    assert net_trainer(tmp_path, skip_memory_metrics=False).callbacks["MemoryMetrics"] == MemoryMetrics()
    assert "MemoryMetrics" not in net_trainer(tmp_path).callbacks


def test_the_summary_has_the_memory_in_any_order_of_the_list(tmp_path):
    for number, callbacks in enumerate(([MemoryMetrics(), Log(every(2))], [Log(every(2)), MemoryMetrics()])):
        trainer = net_trainer(tmp_path / str(number), *callbacks)
        output = trainer.train()
        assert {"train_mem_cpu_alloc_delta", "before_init_mem_cpu"} <= trainer.state.log_history[-1].keys()
        assert {"train_mem_cpu_alloc_delta", "before_init_mem_cpu"} <= output.metrics.keys()


def test_only_the_summary_has_the_memory_with_counted_tokens_too(tmp_path):
    """`CountTokens` adds `train_runtime` to each log of the loss."""
    trainer = net_trainer(tmp_path, MemoryMetrics(), CountTokens(), logging_steps=1)
    trainer.train()
    *logs, summary = trainer.state.log_history
    assert sum("train_runtime" in entry for entry in logs) > 1
    assert [of_memory(entry) for entry in logs] == [set()] * len(logs)
    assert {"train_mem_cpu_alloc_delta", "before_init_mem_cpu"} <= summary.keys()

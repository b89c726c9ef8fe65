"""Batches that are skipped before their forward, and updates that are skipped after a loss spike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from support.callbacks import Poison, stop_at
from support.data import net_samples
from support.models import Net
from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus import Callback, Checkpoint, Log, SkipBatches, SkipSpikes, every
from trainbus.callbacks.stopping.skip_spikes import is_spike
from trainbus.events.errors import ArgumentError, DataError, SubscriptionError

PLAIN: dict[str, Any] = {"optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "max_steps": 4}


class Still(Net):
    """A `Net` without dropout."""

    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.dropout.p = 0.0


class Constant(Still):
    """A `Net` with the loss 2."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = super().forward(x, labels)
        return {**found, "loss": 2.0 + 0.0 * found["loss"]}


def write_list(folder: Path, *batches: tuple[int, int]) -> Path:
    path = folder / "list.json"
    path.write_text(json.dumps([{"epoch": epoch, "batch": batch} for epoch, batch in batches]), encoding="utf-8")
    return path


def raw_loop(skipped: set[int], accumulate: int = 1) -> Net:
    """Train in the order of the dataset, in batches of 4, with SGD."""
    model, rows = Still(), net_samples()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, start in enumerate(range(0, 16, 4)):
        batch = {name: torch.stack([row[name] for row in rows[start : start + 4]]) for name in rows[0]}
        if number not in skipped:
            (model(**batch)["loss"] / accumulate).backward()
        if (number + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    return model


def test_a_listed_batch_reaches_no_forward_and_no_update(tmp_path: Path) -> None:
    options = {**PLAIN, "train_sampling_strategy": "sequential"}
    trainer = net_trainer(tmp_path, SkipBatches(write_list(tmp_path, (0, 1))), model=Still(), **options)
    forwards: list[int] = []
    trainer.model.register_forward_pre_hook(lambda *_: forwards.append(trainer.state.global_step))
    trainer.train()
    assert forwards == [0, 2, 3]
    assert (trainer.state.global_step, trainer.state.steps_skipped) == (4, 1)
    assert "every batch of the step was skipped" in trainer.control.why("skip_update")
    assert same_weights(weights(trainer.model), weights(raw_loop({1})))


def test_one_batch_of_an_accumulated_step_is_left_out(tmp_path: Path) -> None:
    options = {**PLAIN, "train_sampling_strategy": "sequential", "gradient_accumulation_steps": 2, "max_steps": 2}
    skip = SkipBatches(when=lambda batch: bool(torch.equal(batch["x"][0], net_samples()[4]["x"])))
    trainer = net_trainer(tmp_path, skip, model=Still(), **options)
    trainer.train()
    assert trainer.state.steps_skipped == 0
    assert same_weights(weights(trainer.model), weights(raw_loop({1}, accumulate=2)))


def test_a_skipped_batch_counts_in_the_logged_loss_with_the_average(tmp_path: Path) -> None:
    options = {**PLAIN, "train_sampling_strategy": "sequential", "learning_rate": 0.0}
    losses: list[list[float]] = []
    for callbacks in ([], [SkipBatches(write_list(tmp_path, (0, 3)))]):
        trainer = net_trainer(tmp_path, Log(every(4)), *callbacks, model=Still(), **options)
        single: list[float] = []
        trainer.on("on_loss", lambda loss, single=single: single.append(loss.item()))
        trainer.train()
        logged = next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)
        losses.append([logged, *single])
    assert losses[1][0] == pytest.approx(sum(losses[0][1:4]) / 3, rel=1e-4)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("skipped", [(0,), (1,), (0, 1), (0, 3), (1, 2), (2,)])
def test_skipped_batches_do_not_change_the_mean_of_a_constant_loss(
    tmp_path: Path, skipped: tuple[int, ...], accumulate: int
) -> None:
    batches = write_list(tmp_path, *((0, number) for number in skipped))
    trainer = net_trainer(
        tmp_path,
        SkipBatches(batches),
        Log(every(3)),
        model=Constant(),
        **{**PLAIN, "max_steps": 6, "gradient_accumulation_steps": accumulate},
    )
    result = trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses == pytest.approx([2.0, 2.0])
    assert result.training_loss == pytest.approx(2.0)


def test_skipping_resumes_exactly(tmp_path: Path) -> None:
    path, options = write_list(tmp_path, (0, 2), (1, 0), (1, 1)), {"max_steps": 8}
    unbroken = net_trainer(tmp_path / "unbroken", SkipBatches(path), **options)
    unbroken.train()
    broken = net_trainer(tmp_path / "broken", SkipBatches(path), Checkpoint(every(1)), **options)
    broken.on("on_step_end", stop_at(5))
    broken.train()
    resumed = net_trainer(tmp_path / "broken", SkipBatches(path), **options)
    resumed.train(resume_from_checkpoint=True)
    assert (resumed.state.steps_skipped, unbroken.state.steps_skipped) == (3, 3)
    assert same_weights(weights(resumed.model), weights(unbroken.model))


def test_a_wrong_list_and_a_second_owner_of_the_seam_are_refused(tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text('[{"epoch": 0}]', encoding="utf-8")
    with pytest.raises(DataError, match=r"wrong.json is not a skip list: KeyError: 'batch'"):
        net_trainer(tmp_path, SkipBatches(tmp_path / "wrong.json")).train()
    with pytest.raises(SubscriptionError, match="both fill the seam train_batch"):
        net_trainer(tmp_path, SkipBatches(when=bool, id="a"), SkipBatches(when=bool, id="b")).train()


# Spikes.


def test_a_spike_is_relative_to_the_usual_loss() -> None:
    assert is_spike(3.1, 1.0, 3.0)
    assert not is_spike(2.9, 1.0, 3.0)
    assert not is_spike(-5.0, 1.0, 3.0)
    assert is_spike(1.5, -0.5, 3.0)
    assert is_spike(float("inf"), 1.0, 3.0)


class Spike(Callback):
    """Multiplies the loss of some steps by 1000."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps

    def on_loss(self, run: Any, state: Any, loss: Any) -> None:
        if state.global_step + 1 in self.steps:
            run.loss = loss * 1000


def test_the_update_of_a_spike_is_skipped_and_listed(tmp_path: Path) -> None:
    options = {"max_steps": 10, "learning_rate": 1e-3}
    trainer = net_trainer(tmp_path, Spike(7), Poison(9), SkipSpikes(factor=10.0, warmup=3), **options)
    before: dict[str, Any] = {}

    def compare(state: Any, model: Any) -> None:
        before.setdefault("moved", []).append(not same_weights(before.get("weights", {}), weights(model)))
        before["weights"] = weights(model)

    trainer.on("on_step_end", compare)
    trainer.train()
    assert [step + 1 for step, moved in enumerate(before["moved"]) if not moved] == [7, 9]
    listed = json.loads((tmp_path / "skipped_batches.json").read_text(encoding="utf-8"))
    assert [(row["epoch"], row["batch"], row["step"]) for row in listed] == [(1, 2, 7), (2, 0, 9)]
    assert listed[1]["loss"] == "nan"
    again = net_trainer(tmp_path / "again", SkipBatches(tmp_path / "skipped_batches.json"), Spike(7), **options)
    again.train()
    assert again.state.steps_skipped == 2


def test_the_usual_loss_is_resumed(tmp_path: Path) -> None:
    def made(folder: str, *more: Any) -> Any:
        spikes = SkipSpikes(factor=2.0, warmup=0, window=2)
        return net_trainer(tmp_path / folder, spikes, Spike(3, 6), *more, max_steps=8), spikes

    unbroken, whole = made("unbroken")
    unbroken.train()
    broken, _ = made("broken", Checkpoint(every(1)))
    broken.on("on_step_end", stop_at(4))
    broken.train()
    resumed, spikes = made("broken")
    resumed.train(resume_from_checkpoint=True)
    assert spikes.skipped == whole.skipped
    assert spikes.usual == whole.usual
    assert same_weights(weights(resumed.model), weights(unbroken.model))


def test_useless_settings_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"SkipSpikes\(factor=1\): set a factor above 1"):
        SkipSpikes(factor=1)
    with pytest.raises(ArgumentError, match="set a window of 1 step or more"):
        SkipSpikes(window=0)

"""A checkpoint of the last complete step, written when an error ends the training."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.callbacks import Boom
from support.data import net_samples
from support.models import Net
from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus import EMA, SWA, Callback, Checkpoint, KeepBest, Log, SaveOnException, Stage, every
from trainbus.events import CheckpointError
from trainbus.events.triggers import never


class Normed(Net):
    """A `Net` with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        return super().forward(self.norm(x), labels)


def trainer_of(folder: Path, *more: Any, **options: Any) -> Any:
    listed = (SaveOnException(), EMA(0.5), Log(every(3)), *more)
    return net_trainer(folder, *listed, model=Normed(), eval_dataset=net_samples(8), max_steps=8, **options)


def fail_at(trainer: Any, event: str, step: int) -> None:
    def fail(state: Any) -> None:
        if state.global_step == step:
            raise Boom

    trainer.on(event, fail, stage=Stage.ACT)


@pytest.mark.parametrize(
    ("event", "options"),
    [
        ("on_batch", {}),
        ("on_loss", {"dataloader_num_workers": 2}),
        ("on_gradients", {"gradient_accumulation_steps": 2}),
        ("on_step_end", {}),
        ("on_prediction_step", {"eval_strategy": "steps", "eval_steps": 5}),
        ("on_epoch_end", {}),
    ],
)
def test_the_run_resumes_exactly_from_the_last_complete_step(
    tmp_path: Path, event: str, options: dict[str, Any]
) -> None:
    unbroken = trainer_of(tmp_path / "unbroken", **options)
    unbroken.train()
    step = 4 if event == "on_epoch_end" else 5
    broken = trainer_of(tmp_path / "broken", Checkpoint(never()), **options)
    fail_at(broken, event, step)
    with pytest.raises(Boom):
        broken.train()
    assert [path.name for path in (tmp_path / "broken").glob("checkpoint-*")] == [f"checkpoint-{step}"]
    resumed = trainer_of(tmp_path / "broken", **options)
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(resumed.model.state_dict(), unbroken.model.state_dict())
    losses = [
        [entry["loss"] for entry in trainer.state.log_history if "loss" in entry] for trainer in (resumed, unbroken)
    ]
    assert losses[0] == losses[1]


class Failing(torch.utils.data.Dataset[Any]):
    """Samples of which one cannot be read."""

    def __init__(self, bad: int | None) -> None:
        self.rows, self.bad = net_samples(), bad

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        if index == self.bad:
            raise Boom
        return self.rows[index]


def test_a_run_resumes_after_a_sample_that_cannot_be_read(tmp_path: Path) -> None:
    options = {"train_sampling_strategy": "sequential"}
    unbroken = net_trainer(tmp_path / "unbroken", train_dataset=Failing(None), max_steps=4, **options)
    unbroken.train()
    broken = net_trainer(tmp_path / "run", SaveOnException(), train_dataset=Failing(13), max_steps=4, **options)
    with pytest.raises(Boom):
        broken.train()
    resumed = net_trainer(tmp_path / "run", train_dataset=Failing(None), max_steps=4, **options)
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(weights(resumed.model), weights(unbroken.model))


@pytest.mark.parametrize(("event", "step"), [("on_optimizer_step", 3), ("on_loss", 0)])
def test_nothing_is_written_inside_of_an_update_or_before_the_first_step(tmp_path: Path, event: str, step: int) -> None:
    trainer = trainer_of(tmp_path)
    fail_at(trainer, event, step)
    with pytest.raises(Boom):
        trainer.train()
    assert not list(tmp_path.glob("checkpoint-*"))


def interrupt_at(trainer: Any, step: int) -> None:
    def interrupt(state: Any) -> None:
        if state.global_step == step:
            os.kill(os.getpid(), signal.SIGINT)

    trainer.on("on_batch", interrupt)


def stop_at(trainer: Any, step: int) -> None:
    def stop(state: Any, control: Any) -> None:
        if state.global_step == step:
            control.request("training_stop", "planted")

    trainer.on("on_step_end", stop)


def ended(trainer: Any, error: type[BaseException], **options: Any) -> Any:
    with pytest.raises(error):
        trainer.train(**options)
    return trainer


def saved_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*"))


@pytest.mark.parametrize("average", [lambda: EMA(0.5), lambda: SWA(0.25, trigger=every(2))])
@pytest.mark.parametrize("how", ["signal", "error at the end"])
def test_a_run_that_ends_after_its_last_step_resumes_with_its_trained_weights(
    tmp_path: Path, average: Any, how: str
) -> None:
    def build(folder: str) -> Any:
        listed = (SaveOnException(), average())
        return net_trainer(tmp_path / folder, *listed, max_steps=8, save_strategy="no", learning_rate=0.05)

    unbroken = build("unbroken")
    unbroken.train()
    broken = build("broken")
    if how == "signal":
        interrupt_at(broken, 4)
        ended(broken, KeyboardInterrupt)
    else:
        broken.on(
            "on_step_end", lambda state, control: control.request("training_stop") if state.global_step == 5 else 0
        )
        fail_at(broken, "on_train_end", 5)
        ended(broken, Boom)
    assert saved_in(tmp_path / "broken") == ["checkpoint-5"]
    resumed = build("broken")
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(weights(resumed.model), weights(unbroken.model))


def test_ctrl_c_saves_its_step_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = net_trainer(tmp_path, SaveOnException(), save_strategy="no")
    interrupt_at(trainer, 4)
    ended(trainer, KeyboardInterrupt)
    assert saved_in(tmp_path) == ["checkpoint-5"]
    assert f"SIGINT: step 5 is saved in {tmp_path / 'checkpoint-5'}. Resume" in caplog.text
    assert "not saved" not in caplog.text
    assert "Saved a checkpoint" not in caplog.text


def test_the_line_about_resuming_knows_of_saves_in_on_exception(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Saves(Callback):
        def on_exception(self, run: Any) -> None:
            run.announce("on_save_due")

    trainer = net_trainer(tmp_path, Saves(), save_strategy="no")
    interrupt_at(trainer, 4)
    ended(trainer, KeyboardInterrupt)
    assert caplog.messages[-1].startswith(f"SIGINT: step 5 is saved in {tmp_path / 'checkpoint-5'}.")


def test_a_vetoed_checkpoint_is_not_called_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Vetoes(Callback):
        def on_save_begin(self, control: Any) -> None:
            control.veto("save", "never")

    trainer = net_trainer(tmp_path, SaveOnException(), Vetoes(), save_strategy="no")
    fail_at(trainer, "on_batch", 5)
    ended(trainer, Boom)
    assert saved_in(tmp_path) == []
    said = f"Requested a checkpoint of step 5, because of Boom, but {tmp_path / 'checkpoint-5'} does not exist."
    assert caplog.messages[-1] == said


def test_nothing_is_written_after_the_best_model_was_loaded(tmp_path: Path) -> None:
    evaluations = {"eval_strategy": "steps", "eval_steps": 2, "eval_dataset": net_samples(8)}
    trainer = net_trainer(
        tmp_path, SaveOnException(), KeepBest(), Checkpoint(never()), max_steps=8, learning_rate=0.05, **evaluations
    )
    stop_at(trainer, 5)
    fail_at(trainer, "on_best_loaded", 5)
    ended(trainer, Boom)
    assert "checkpoint-5" not in saved_in(tmp_path)
    assert saved_in(tmp_path) != []


def test_an_output_folder_that_cannot_be_written_is_refused_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    trainer = net_trainer(tmp_path / "file", SaveOnException(), save_strategy="no", max_steps=2)
    with pytest.raises(CheckpointError, match="file"):
        trainer.train()
    assert trainer.state.global_step == 0

"""Callbacks of Lightning in a run of trainbus, compared with the same training by a Lightning Trainer."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

lightning = pytest.importorskip("lightning.pytorch")

import torch  # noqa: E402
from lightning.pytorch import callbacks as known  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from trainbus import Lightning, Trainer, TrainingArguments  # noqa: E402
from trainbus.events import ArgumentError  # noqa: E402
from trainbus.integrations.lightning.callback import HOOKS, INSTEAD, WITHOUT_EVENT  # noqa: E402
from trainbus.testing import in_processes  # noqa: E402

EPOCHS, BATCH, RATE = 4, 4, 0.05


def rows(count: int, seed: int) -> TensorDataset:
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x @ torch.tensor([1.0, -2.0, 0.5]))


TRAIN, EVAL = rows(14, 0), rows(6, 1)


class Line(nn.Module):
    """A line of three weights, equal in each run."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x).squeeze(-1)


class Module(lightning.LightningModule):
    """The same model for Lightning: SGD with a constant rate, or one that falls in each step."""

    def __init__(self, falls: bool) -> None:
        super().__init__()
        self.model, self.falls = Line(), falls

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        return nn.functional.mse_loss(self.model(batch[0]), batch[1])

    def validation_step(self, batch: Any, number: int) -> None:
        self.log("eval_loss", nn.functional.mse_loss(self.model(batch[0]), batch[1]), batch_size=len(batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=RATE)
        if not self.falls:
            return optimizer
        steps = EPOCHS * 4
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (steps - step) / steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def theirs(folder: Path, callback: Any, falls: bool = False, epochs: int = EPOCHS) -> tuple[Any, Module]:
    """Train with Lightning. The data is not shuffled."""
    module = Module(falls)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            devices=1,
            default_root_dir=folder,
            logger=lightning.loggers.CSVLogger(folder),
            log_every_n_steps=1,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            callbacks=[callback],
        )
        trainer.fit(module, DataLoader(TRAIN, BATCH), DataLoader(EVAL, BATCH))
    return trainer, module


class InOrder(Trainer):
    """Takes the samples in their order, as the loader that Lightning gets."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def ours(folder: Path, *callbacks: Any, falls: bool = False, **options: Any) -> Trainer:
    """Train with trainbus."""
    trainer = build(folder, *callbacks, falls=falls, **options)
    trainer.train()
    return trainer


def build(folder: Path, *callbacks: Any, falls: bool = False, **options: Any) -> Trainer:
    args = TrainingArguments(
        str(folder / "ours"),
        **{
            **{"num_train_epochs": EPOCHS, "per_device_train_batch_size": BATCH, "learning_rate": RATE},
            **{"per_device_eval_batch_size": BATCH, "optim": "sgd", "max_grad_norm": 0.0, "logging_steps": 1},
            **{"lr_scheduler_type": "linear" if falls else "constant", "eval_strategy": "epoch", "use_cpu": True},
            **{"save_strategy": "no", "disable_tqdm": True, "report_to": "none"},
            **options,
        },
    )
    return InOrder(
        Line(),
        args,
        train_dataset=TRAIN,
        eval_dataset=EVAL,
        criterion=nn.functional.mse_loss,
        callbacks=list(callbacks),
    )


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def test_stochastic_weight_averaging_gives_the_weights_of_lightning(tmp_path):
    options = {"swa_lrs": 0.01, "swa_epoch_start": 2, "annealing_epochs": 2}
    _, module = theirs(tmp_path, known.StochasticWeightAveraging(**options))
    trainer = ours(tmp_path, Lightning(known.StochasticWeightAveraging(**options)))
    assert torch.allclose(weights(trainer.model), weights(module.model), rtol=0, atol=1e-6)
    plain = ours(tmp_path)
    assert not torch.allclose(weights(plain.model), weights(module.model), atol=1e-4)


@pytest.mark.parametrize("falls", [False, True])
def test_the_learning_rate_monitor_reads_the_rates_of_lightning(tmp_path, falls):
    expected, found = known.LearningRateMonitor("step"), known.LearningRateMonitor("step")
    theirs(tmp_path, expected, falls)
    trainer = ours(tmp_path, Lightning(found), falls=falls)
    rates = expected.lrs["lr-SGD"]
    assert len(rates) == 16
    first = "lr-SGD/pg1"  # weights and biases are two groups here
    assert set(found.lrs) == {first, "lr-SGD/pg2"}
    assert found.lrs[first] == found.lrs["lr-SGD/pg2"] == pytest.approx(rates)
    logged = [row[first] for row in trainer.state.log_history if first in row]
    assert logged == pytest.approx(rates)


@pytest.mark.parametrize("options", [{"patience": 1, "min_delta": 2.0}, {"stopping_threshold": 4.0}])
def test_early_stopping_stops_at_the_epoch_of_lightning_and_says_why(tmp_path, options):
    expected, found = (known.EarlyStopping("eval_loss", **options) for _ in range(2))
    trainer, _ = theirs(tmp_path, expected, epochs=12)
    run = ours(tmp_path, Lightning(found), num_train_epochs=12)
    assert 0 < trainer.global_step < 48
    assert run.state.global_step == trainer.global_step
    assert (found.stopped_epoch, found.wait_count) == (expected.stopped_epoch, expected.wait_count)
    assert float(found.best_score) == pytest.approx(float(expected.best_score), rel=1e-5)
    assert f"by Lightning.EarlyStopping: {found.stopping_reason_message}"[:60] in run.control.why("training_stop")


def test_a_timer_stops_the_run_and_measures_it(tmp_path):
    timer = known.Timer(duration={"seconds": 0}, interval="step")
    timer._duration = 1e-9
    assert ours(tmp_path, Lightning(timer)).state.global_step <= 1
    timer = known.Timer()
    ours(tmp_path, Lightning(timer))
    assert timer.time_elapsed("train") > 0
    assert timer.time_elapsed("validate") > 0


def test_the_device_stats_monitor_logs_what_lightning_logs(tmp_path):
    pytest.importorskip("psutil")
    trainer, _ = theirs(tmp_path, known.DeviceStatsMonitor())
    run = ours(tmp_path, Lightning(known.DeviceStatsMonitor()))
    header = next(Path(trainer.logger.log_dir).glob("metrics.csv")).read_text().splitlines()[0].split(",")
    expected = {name for name in header if name.startswith("DeviceStatsMonitor")}
    expected = {name for name in expected if "on_validation_batch_start" not in name}  # no event precedes a batch
    logged = {name for row in run.state.log_history for name in row if name.startswith("DeviceStatsMonitor")}
    assert expected
    assert logged == expected


class Recorder(known.Callback):
    """Notes the hooks that are called, with the epoch, the step and the batch."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []


ORDERED = ["setup", "on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_batch_start"]
ORDERED += ["on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_train_batch_end"]
ORDERED += ["on_train_epoch_end", "on_validation_start", "on_validation_epoch_start", "on_validation_batch_end"]
ORDERED += ["on_validation_epoch_end", "on_validation_end", "on_train_end", "on_fit_end", "teardown"]


def _note(hook: str) -> Any:
    def note(self: Recorder, trainer: Any, module: Any, *values: Any, stage: str = "") -> None:
        numbers = [value for value in values if isinstance(value, int)][:1]
        step = trainer.global_step if hook.startswith("on_") else 0
        self.calls.append((hook, step, stage, *numbers))
        assert isinstance(module, lightning.LightningModule)
        assert sum(each.numel() for each in module.parameters()) == 4

    return note


for _hook in ORDERED:
    setattr(Recorder, _hook, _note(_hook))


def test_hooks_of_a_user_are_called_as_by_lightning(tmp_path):
    expected, found = Recorder(), Recorder()
    theirs(tmp_path, expected)
    ours(tmp_path, Lightning(found))
    train = [call for call in expected.calls if "validation" not in call[0] and call[0] != "on_train_epoch_end"]
    assert [call for call in found.calls if "validation" not in call[0] and call[0] != "on_train_epoch_end"] == train
    inside = [call for call in expected.calls if "validation" in call[0]]
    assert [call for call in found.calls if "validation" in call[0]] == inside
    ends = [call for call in expected.calls if call[0] == "on_train_epoch_end"]
    assert [call for call in found.calls if call[0] == "on_train_epoch_end"] == ends, "before the evaluation here"


def test_a_callback_costs_nothing_in_steps_if_it_has_no_hook_of_a_batch(tmp_path):
    trainer = build(tmp_path, Lightning(known.LambdaCallback(on_train_end=lambda trainer, module: None)))
    handled = [event for event in trainer.bus for each in trainer.bus.order_of(event) if "Lightning" in each.owner_id]
    assert {"on_batch", "on_step_end", "on_loss", "on_gradients", "on_prediction_step"} & {*handled} == set()
    assert "on_train_end" in handled


def test_the_state_of_a_callback_is_resumed(tmp_path):
    options = {"save_strategy": "epoch", "num_train_epochs": 3}
    first = known.EarlyStopping("eval_loss", patience=50)
    ours(tmp_path, Lightning(first), **options)
    second = known.EarlyStopping("eval_loss", patience=50)
    trainer = build(tmp_path, Lightning(second), **{**options, "num_train_epochs": 4})
    trainer.train(resume_from_checkpoint=str(tmp_path / "ours" / "checkpoint-12"))
    assert float(second.best_score) <= float(first.best_score)
    assert trainer.resume_report.restored.count("Lightning.EarlyStopping") == 1


def averaging() -> Lightning:
    return Lightning(known.StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1, annealing_epochs=2))


def test_a_run_that_resumes_while_it_averages_ends_with_the_same_weights(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 1}
    whole = ours(tmp_path, averaging(), **options)
    assert not torch.equal(weights(whole.model), weights(ours(tmp_path / "plain").model))
    for step in (3, 4, 6, 8, 11, 15):
        resumed = build(tmp_path, averaging(), **options)
        resumed.train(resume_from_checkpoint=str(tmp_path / "ours" / f"checkpoint-{step}"))
        assert torch.equal(weights(resumed.model), weights(whole.model)), f"resumed at step {step}"


TWO_RANKS = {
    "averaging": averaging,
    "early stopping": lambda: Lightning(known.EarlyStopping("eval_loss", patience=1, min_delta=100.0)),
    "learning rates": lambda: Lightning(known.LearningRateMonitor()),
    "a timer": lambda: Lightning(known.Timer(duration={"seconds": 0}, interval="epoch")),
}


@pytest.mark.parametrize("name", TWO_RANKS)
def test_two_ranks_end_with_the_weights_of_one(tmp_path, name):
    def end(folder: str, batch: int) -> tuple[Any, int, str]:
        trainer = build(tmp_path / folder, TWO_RANKS[name](), per_device_train_batch_size=batch, ddp_timeout=60)
        trainer.train_dataset, trainer.eval_dataset = rows(16, 0), rows(8, 1)
        trainer.train()
        found = weights(trainer.model).tolist(), trainer.state.global_step, trainer.control.why("training_stop")
        trainer.end()
        return found

    first, second = in_processes(lambda rank: end("two", BATCH // 2))
    assert (first.error, second.error) == ("", "")
    assert first.value == second.value
    expected, steps, why = end("one", BATCH)
    assert torch.allclose(torch.tensor(first.value[0]), torch.tensor(expected), rtol=0, atol=1e-6)
    assert first.value[1:] == (steps, why)


def test_values_logged_by_the_module_and_a_stop_reach_the_run(tmp_path):
    class Logs(known.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
            module.log("twice", 2 * outputs["loss"])
            trainer.should_stop = trainer.global_step == 3

    trainer = ours(tmp_path, Lightning(Logs()))
    assert trainer.state.global_step == 3
    row = trainer.state.log_history[0]
    assert row["twice"] == pytest.approx(2 * row["loss"])


@pytest.mark.parametrize("name", ["ModelCheckpoint", "GradientAccumulationScheduler", "TQDMProgressBar"])
def test_callbacks_that_trainbus_replaces_are_refused_with_the_replacement(name):
    callback = getattr(known, name)(**({"scheduling": {0: 2}} if "Accumulation" in name else {}))
    with pytest.raises(ArgumentError, match=rf"Lightning\({name}\) does not work") as refused:
        Lightning(callback)
    assert INSTEAD[name] in str(refused.value)


@pytest.mark.parametrize("hook", WITHOUT_EVENT)
def test_hooks_without_an_event_are_refused_with_the_remedy(hook):
    callback = type("Mine", (known.Callback,), {hook: lambda self, *values: None})()
    with pytest.raises(ArgumentError, match=f"its hook '{hook}' has no event here") as refused:
        Lightning(callback)
    assert WITHOUT_EVENT[hook] in str(refused.value)


def test_every_hook_of_lightning_is_mapped_or_refused():
    hooks = {name for name in vars(known.Callback) if not name.startswith("_") and name != "state_key"}
    assert hooks == HOOKS.keys() | WITHOUT_EVENT.keys()


@pytest.mark.parametrize(
    ("does", "name"),
    [
        (lambda trainer: trainer.datamodule, "datamodule"),
        (lambda trainer: trainer.tuner, "tuner"),
        (lambda trainer: trainer.strategy.reduce, "strategy.reduce"),
    ],
)
def test_an_attribute_that_a_run_lacks_is_an_error_with_its_name(tmp_path, does, name):
    callback = known.LambdaCallback(on_train_start=lambda trainer, module: does(trainer))
    with pytest.raises(ArgumentError, match=rf"reads `trainer.{name}`"):
        ours(tmp_path, Lightning(callback))


def test_averages_of_a_model_with_batchnorm_are_refused(tmp_path):
    class Normed(Line):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(self.norm(x))

    trainer = build(tmp_path, Lightning(known.StochasticWeightAveraging(0.01)))
    normed = InOrder(
        Normed(), trainer.args, train_dataset=TRAIN, eval_dataset=EVAL, criterion=nn.functional.mse_loss,
        callbacks=[Lightning(known.StochasticWeightAveraging(0.01))],
    )  # fmt: skip
    with pytest.raises(ArgumentError, match="use the callback SWA of trainbus"):
        normed.train()


def test_an_object_that_lightning_does_not_know_is_refused():
    with pytest.raises(ArgumentError, match="List it without `Lightning`"):
        Lightning(print)

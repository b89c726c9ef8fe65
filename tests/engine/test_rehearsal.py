"""A metric that no evaluation measures is an error before the first step. Finding out has no effect on the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.callbacks import scripted
from support.outcomes import history, same_weights, weights
from support.trainers import net_trainer
from trainbus import Callback, EarlyStopping, EarlyStoppingCallback, Evaluate, KeepBest, every
from trainbus.engine.evaluation.isolation import NotIsolated, isolated
from trainbus.events import ArgumentError

CALLS: list[int] = []
TOTAL = 0


def counts(prediction: Any) -> dict[str, float]:
    """A metric function that changes globals of its module."""
    global TOTAL
    TOTAL += 1
    CALLS.append(TOTAL)
    helper()
    return {"score": 1.0 / TOTAL}


def helper() -> None:
    CALLS.append(-1)


class Restless(nn.Module):
    """A model that draws random numbers and changes buffers and attributes in each call, in each mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.norm = nn.Linear(4, 1), nn.BatchNorm1d(4)
        self.frozen = nn.BatchNorm1d(4).eval()
        self.register_buffer("called", torch.zeros(()))
        self.calls, self.sizes, self.last = 0, [], None

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        self.calls += 1
        self.sizes.append((len(x), self.training))
        self.last = x
        self.called += torch.rand(())
        out = self.linear(self.frozen(self.norm(x + 0.1 * torch.randn_like(x))))
        return {"loss": ((out.squeeze(-1) - labels.float()) ** 2).mean(), "logits": out}


def data() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [{"x": torch.randn(4, generator=generator), "labels": torch.tensor(number % 2)} for number in range(16)]


def evaluating(folder: Path, *callbacks: Any, **options: Any) -> Any:
    options = {"train_dataset": data(), "eval_dataset": data(), "model": Restless(), **options}
    return net_trainer(folder, Evaluate(every(2)), *callbacks, **options)


READERS = {
    "best": lambda: KeepBest("f1"),
    "stop": lambda: EarlyStopping("f1"),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@pytest.mark.parametrize("metrics", [None, scripted([0.5])], ids=["loss only", "metrics"])
def test_a_metric_that_no_evaluation_measures_is_an_error_before_the_first_step(reader, metrics, tmp_path):
    run = evaluating(tmp_path, reader(), compute_metrics=metrics)
    before = weights(run.model)
    with pytest.raises(ArgumentError, match=r"reads the metric 'eval_f1', but no evaluation .*eval_loss"):
        run.train()
    assert run.state.global_step == 0
    assert same_weights(weights(run.model), before)


def test_arguments_that_name_an_unknown_metric_are_an_error_before_the_first_step(tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "f1"}
    for more in ({"load_best_model_at_end": True}, {"lr_scheduler_type": "reduce_lr_on_plateau"}):
        listed = [EarlyStoppingCallback()] if "load_best_model_at_end" in more else []
        run = net_trainer(tmp_path, *listed, **options, **more)
        with pytest.raises(ArgumentError, match="reads the metric 'eval_f1', but no evaluation will measure it"):
            run.train()
        assert run.state.global_step == 0


def test_metrics_that_checkpoints_cannot_hold_are_an_error_before_the_first_step(tmp_path):
    run = evaluating(tmp_path, KeepBest("f1"), compute_metrics=lambda prediction: {"f1": torch.zeros(3)})
    with pytest.raises(ArgumentError, match="'f1' is a Tensor of shape"):
        run.train()
    assert run.state.global_step == 0


def test_a_rehearsal_has_no_effect_on_the_run(tmp_path, monkeypatch):
    def trained(folder: str, rehearses: bool) -> Any:
        CALLS.clear()
        globals()["TOTAL"] = 0
        seen: list[int] = []
        run = evaluating(tmp_path / folder, KeepBest("score", save=False, load_at_end=False), compute_metrics=counts)
        names = []
        rehearse = run.rehearse_evaluation
        monkeypatch.setattr(run, "rehearse_evaluation", lambda: names.append(rehearse() if rehearses else None))
        run.train()
        model = run.model
        return run, names, (history(run), list(CALLS), TOTAL, model.calls, model.sizes, seen), weights(model)

    run, names, outcome, found = trained("with", True)
    assert "eval_score" in names[0]
    _, _, expected, expected_weights = trained("without", False)
    assert outcome == expected
    assert same_weights(found, expected_weights)
    assert not run.model.frozen.training


def test_the_modes_and_attributes_of_modules_are_restored(tmp_path):
    model = Restless()
    run = evaluating(tmp_path, model=model, compute_metrics=counts)
    sizes, state = model.sizes, torch.get_rng_state()
    CALLS.clear()
    assert "eval_score" in run.rehearse_evaluation()
    assert (model.calls, model.sizes, model.last, model.called.item(), CALLS) == (0, [], None, 0.0, [])
    assert model.sizes is sizes
    assert model.training
    assert not model.frozen.training
    assert torch.equal(torch.get_rng_state(), state)


class Adds(Callback):
    """Adds a metric to each evaluation."""

    def on_evaluate_dataset(self, metrics: dict[str, Any]) -> None:
        metrics["eval_f1"] = 0.5


class Stateful:
    calls = 0

    def __call__(self, prediction: Any) -> dict[str, float]:
        self.calls += 1
        return {"f1": 0.5}


class Drawing(torch.utils.data.Dataset):
    """A dataset that counts how often it is read."""

    def __init__(self) -> None:
        self.rows, self.read = data(), 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        return self.rows[index]


class DrawingList(list):
    """A list that counts how often a row is read by its index."""

    def __init__(self) -> None:
        super().__init__(data())
        self.read = 0

    def __getitem__(self, index: Any) -> Any:
        self.read += 1
        return super().__getitem__(index)


class DrawingRow(dict):
    """A row that counts how often a value is read."""

    read = 0

    def __getitem__(self, name: str) -> Any:
        DrawingRow.read += 1
        return super().__getitem__(name)


def test_code_of_the_user_in_lists_and_rows_is_not_called(tmp_path):
    listed, rows = DrawingList(), [DrawingRow(row) for row in data()]
    for dataset in (listed, torch.utils.data.Subset(listed, range(4)), rows):
        trainer, before = evaluating(tmp_path, eval_dataset=dataset), (listed.read, DrawingRow.read)
        assert trainer.rehearse_evaluation() is None
        assert (listed.read, DrawingRow.read) == before


def test_the_rehearsal_is_skipped_if_it_would_have_an_effect(tmp_path):
    evaluating(tmp_path, KeepBest("f1", load_at_end=False, save=False), Adds()).train()
    stateful, dataset = Stateful(), Drawing()
    assert evaluating(tmp_path, compute_metrics=stateful).rehearse_evaluation() is None
    assert stateful.calls == 0
    assert evaluating(tmp_path, eval_dataset=dataset).rehearse_evaluation() is None
    assert dataset.read == 0


def test_functions_are_copied_with_their_closures():
    measure = scripted([1.0, 2.0, 3.0])
    assert isolated(measure)(None) == isolated(measure)(None) == measure(None) == {"score": 1.0}
    with pytest.raises(NotIsolated):
        isolated(Stateful())
    owner = Stateful()
    with pytest.raises(NotIsolated):
        isolated(lambda prediction: owner(prediction))


def test_early_stopping_without_any_evaluation_is_an_error(tmp_path):
    for callback in (EarlyStopping(), EarlyStoppingCallback()):
        run = net_trainer(tmp_path, callback, metric_for_best_model="loss")
        with pytest.raises(ArgumentError, match=rf"{type(callback).__name__} needs evaluations, but this run"):
            run.train()
        assert run.state.global_step == 0


def test_evaluations_that_a_handler_requests_count(tmp_path):
    run = net_trainer(tmp_path, EarlyStopping(patience=1, threshold=10.0))
    run.on("on_step_end", lambda control: control.request("evaluate"), id="asks")
    run.train()
    assert run.state.global_step == 2

"""Metrics computed batch by batch, compared with transformers and with metrics of all predictions."""

from __future__ import annotations

import pytest
import torch

from support.data import points, sentences
from support.models import Regression
from support.outcomes import timeless
from support.trainers import Fresh, both, hushed, regression_trainer
from trainbus.engine.evaluation.loop import with_last
from trainbus.events import ArgumentError


class Accuracy:
    """Counts over batches, and answers at the last one; notes what it was given."""

    def __init__(self):
        self.right = self.rows = 0
        self.seen = []

    def __call__(self, prediction, compute_result=False):
        logits = torch.as_tensor(prediction.predictions)
        labels = torch.as_tensor(prediction.label_ids)
        self.seen.append((type(prediction.predictions), len(labels), compute_result, prediction.losses))
        self.right += int((logits.argmax(-1) == labels).sum())
        self.rows += len(labels)
        if not compute_result:
            return {}
        result = {"accuracy": self.right / self.rows, "rows": self.rows}
        self.right = self.rows = 0
        return result


@pytest.mark.parametrize("rows", [12, 13], ids=["even", "ragged"])
@pytest.mark.parametrize("do", ["evaluate", "predict"])
def test_batch_metrics_match_transformers(tmp_path, rows, do):
    data = sentences(rows, seed=1)

    def run(built):
        return built.evaluate() if do == "evaluate" else built.predict(data)

    args = {"per_device_eval_batch_size": 4, "batch_eval_metrics": True}
    (theirs, their_end), (ours, our_end) = both(tmp_path, args, run, eval_dataset=data, compute_metrics=Fresh(Accuracy))
    metrics = [end if do == "evaluate" else end.metrics for end in (their_end, our_end)]
    unlike = f"{'eval' if do == 'evaluate' else 'test'}_model_preparation_time"
    assert {name: value for name, value in timeless(metrics[0]).items() if name != unlike} == timeless(metrics[1])
    assert timeless(metrics[1])[f"{'eval' if do == 'evaluate' else 'test'}_rows"] == rows
    flags = [[last for _, _, last, _ in built.compute_metrics.seen] for built in (theirs, ours)]
    assert flags[0] == flags[1] == [False] * (len(flags[1]) - 1) + [True]
    sizes = [[count for _, count, _, _ in built.compute_metrics.seen] for built in (theirs, ours)]
    assert sizes[0] == sizes[1]
    assert {kind for kind, _, _, _ in ours.compute_metrics.seen} == {torch.Tensor}
    if do == "predict":
        assert (our_end.predictions == their_end.predictions).all()
        assert (our_end.label_ids == their_end.label_ids).all()
        assert our_end.predictions.shape == (rows, 2)


@pytest.mark.parametrize("accumulation", [None, 2])
def test_batch_metrics_match_metrics_of_all_predictions(tmp_path, accumulation):
    """With every row's error in them, losses and inputs too."""

    def whole(prediction, compute_result=None):
        difference = torch.as_tensor(prediction.predictions) - torch.as_tensor(prediction.label_ids)
        return {"error": float((difference**2).sum()), "loss_sum": float(torch.as_tensor(prediction.losses).sum())}

    class ByBatch:
        def __init__(self):
            self.sums = {"error": 0.0, "loss_sum": 0.0}
            self.inputs = []

        def __call__(self, prediction, compute_result):
            self.inputs.append(prediction.inputs)
            for name, value in whole(prediction).items():
                self.sums[name] += value
            return self.sums if compute_result else {}

    ends = []
    for compute, by_batch in ((whole, False), (ByBatch(), True)):
        model = Regression()
        model.main_input_name = "x"
        args = {
            **{"per_device_eval_batch_size": 3, "batch_eval_metrics": by_batch},
            **{"include_for_metrics": ["loss", "inputs"], "eval_accumulation_steps": accumulation},
        }
        built = regression_trainer(tmp_path, model, eval_dataset=points(10), compute_metrics=compute, args=args)
        ends.append(timeless(built.evaluate()))
    assert ends[0].keys() == ends[1].keys()
    assert all(ends[0][name] == pytest.approx(ends[1][name], rel=1e-5) for name in ends[0])
    assert torch.equal(torch.cat(compute.inputs), torch.stack([row["x"] for row in points(10)]))


def test_predictions_of_batches_are_not_kept(tmp_path):
    built = regression_trainer(
        tmp_path,
        eval_dataset=points(10),
        compute_metrics=lambda prediction, compute_result: {},
        args={"batch_eval_metrics": True},
    )
    output = built.evaluation_loop(built.get_eval_dataloader(), "Evaluation")
    assert output.predictions is None
    assert output.label_ids is None
    assert output.num_samples == 10
    assert output.metrics["eval_loss"] > 0


def test_stream_marks_its_last_batch(tmp_path):
    flags = []

    def note(prediction, compute_result):
        flags.append((len(prediction.label_ids), compute_result))
        return {}

    built = regression_trainer(
        tmp_path,
        eval_dataset=iter_once(points(10)),
        compute_metrics=note,
        args={"batch_eval_metrics": True, "per_device_eval_batch_size": 4},
    )
    built.evaluate()
    assert flags == [(4, False), (4, False), (2, True)]


class Stream:
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def iter_once(rows):
    """Return rows that come as a stream, whose length nobody knows."""
    return Stream(rows)


def test_compute_metrics_without_compute_result_raises(tmp_path):
    with pytest.raises(
        ArgumentError, match=r"`batch_eval_metrics` calls `compute_metrics\(prediction, compute_result="
    ):
        regression_trainer(tmp_path, compute_metrics=lambda prediction: {}, args={"batch_eval_metrics": True})
    with hushed():
        regression_trainer(tmp_path, compute_metrics=lambda prediction, **more: {}, args={"batch_eval_metrics": True})


@pytest.mark.parametrize("count", range(4))
def test_with_last_marks_the_last_item(count):
    assert list(with_last(range(count))) == [(index, index == count - 1) for index in range(count)]

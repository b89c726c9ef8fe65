"""Names of metrics: optional prefixes, and directions."""

from __future__ import annotations

import pytest
import torch

from support.callbacks import scripted
from support.models import Net
from support.trainers import net_trainer
from trainbus import EarlyStopping, Evaluate, KeepBest, MetricSchedule, every
from trainbus.callbacks.base.metric_names import full_name, greater_is_better
from trainbus.events import ArgumentError


@pytest.mark.parametrize(("given", "expected"), [("loss", "eval_loss"), ("eval_f1", "eval_f1"), ("f1", "eval_f1")])
def test_the_prefix_may_be_left_out(given, expected):
    assert full_name(given) == expected


@pytest.mark.parametrize(
    ("metric", "mode", "expected"),
    [
        ("eval_loss", None, False),
        ("eval_words_loss", None, False),
        ("eval_wer", None, False),
        ("eval_WER", None, False),
        ("cer", None, False),
        ("eval_perplexity", None, False),
        ("eval_nrmse", None, False),
        ("eval_nll", None, False),
        ("eval_answer", None, True),
        ("eval_f1_cancer", None, True),
        ("power", None, True),
        ("eval_f1", None, True),
        ("eval_accuracy", None, True),
        ("eval_loss", "max", True),
        ("eval_f1", "min", False),
    ],
)
def test_metric_name_or_mode_decides_whether_greater_is_better(metric, mode, expected):
    assert greater_is_better(metric, mode) is expected


def test_an_unknown_mode_is_refused():
    with pytest.raises(ArgumentError, match=r"mode='maximum'.*'min' or 'max'"):
        greater_is_better("eval_f1", "maximum")


READERS = [EarlyStopping, MetricSchedule]
BY_CALLBACK = {"callbacks": [KeepBest("score", save=False, load_at_end=False)]}
BY_ARGUMENT = {"metric_for_best_model": "score"}


def said_of_two_metrics(folder, caplog, reader, callbacks=(), **options):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer) if isinstance(reader, MetricSchedule) else None
    options |= {"model": model, "optimizers": (optimizer, schedule), "compute_metrics": scripted([0.5])}
    built = net_trainer(folder, reader, Evaluate(every(2)), *callbacks, **options)
    built.train()
    return [each.getMessage() for each in caplog.records if "chooses the best model" in each.getMessage()]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("best", [BY_CALLBACK, BY_ARGUMENT], ids=["by a callback", "by an argument"])
def test_a_default_metric_that_differs_from_the_best_metric_is_named_once(tmp_path, caplog, reader, best):
    [said] = said_of_two_metrics(tmp_path, caplog, reader(), **best)
    name = reader.__name__
    assert said.startswith(f"{name} reads the metric 'eval_loss' by default, but 'eval_score' chooses the best model.")
    assert f"Write {name}('eval_score') to" in said


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("metric", "best"),
    [
        ("eval_loss", BY_CALLBACK),
        ("loss", BY_ARGUMENT),
        ("score", BY_CALLBACK),
        (None, {"metric_for_best_model": "loss"}),
        (None, {}),
    ],
)
def test_a_metric_that_the_user_wrote_gives_no_warning(tmp_path, caplog, reader, metric, best):
    assert said_of_two_metrics(tmp_path, caplog, reader() if metric is None else reader(metric), **best) == []


def test_a_default_metric_equals_the_same_written_metric():
    assert EarlyStopping() == EarlyStopping("eval_loss")
    assert repr(EarlyStopping()) == repr(EarlyStopping("loss"))

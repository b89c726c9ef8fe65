"""Names of metrics: optional prefixes, and directions."""

from __future__ import annotations

import pytest

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

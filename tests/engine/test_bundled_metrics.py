"""Bundled metrics, computed in batches, against scikit-learn, torch and seqeval."""

from __future__ import annotations

import itertools
import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics

from trainbus.engine.evaluation.bundled.registry import BUNDLED
from trainbus.engine.evaluation.bundled.spans import Seqeval
from trainbus.events import ArgumentError

FIXTURES = Path(__file__).parent.parent / "fixtures"
SCORES = {
    "f1": sklearn_metrics.f1_score,
    "precision": sklearn_metrics.precision_score,
    "recall": sklearn_metrics.recall_score,
}


def batched(name, predictions, references, sizes=(3, 1, 5), **options):
    """Compute a bundled metric from batches of the given sizes, and a last batch with the rest."""
    metric = BUNDLED[name](**options)
    ends = [0, *np.cumsum(sizes).tolist(), len(references)]
    for start, end in itertools.pairwise(ends):
        if references[start:end].size:
            metric.add_batch(predictions=predictions[start:end], references=references[start:end])
    return metric.compute()


def sklearn_score(function, references, predictions, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(references, predictions, **options)


def drawn_classes(seed, classes, rows=40):
    draw = np.random.default_rng(seed)
    references = draw.integers(0, classes, rows)
    return np.where(draw.random(rows) < 0.5, references, draw.integers(0, classes + 1, rows)), references


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("average", ["micro", "macro", "weighted", None])
@pytest.mark.parametrize("zero_division", [0.0, 1.0, math.nan])
def test_scores_of_classes_equal_scikit_learn(name, average, zero_division):
    for seed in range(6):
        predictions, references = drawn_classes(seed, classes=2 + seed)
        for labels in (None, [0, 2, 9]):
            options = {"average": average, "labels": labels, "zero_division": zero_division}
            expected = sklearn_score(SCORES[name], references, predictions, **options)
            found = batched(name, predictions, references, **options)[name]
            found = list(found.values()) if average is None else found
            np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("pos_label", [0, 1])
def test_binary_scores_equal_scikit_learn(name, pos_label):
    draw = np.random.default_rng(pos_label)
    for share in (0.0, 0.3, 1.0):
        predictions, references = draw.integers(0, 2, 30), (draw.random(30) < share).astype(int)
        expected = sklearn_score(SCORES[name], references, predictions, pos_label=pos_label)
        assert batched(name, predictions, references, pos_label=pos_label) == {name: pytest.approx(expected)}


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("average", ["micro", "macro", "weighted", "samples", None])
def test_scores_of_several_labels_per_row_equal_scikit_learn(name, average):
    draw = np.random.default_rng(4)
    predictions, references = draw.integers(0, 2, (30, 4)), draw.integers(0, 2, (30, 4))
    predictions[:2] = references[1:3] = predictions[:, 3] = 0
    for labels in (None, [1, 3]):
        expected = sklearn_score(SCORES[name], references, predictions, average=average, labels=labels, zero_division=0)
        found = batched(name, predictions, references, average=average, labels=labels)[name]
        np.testing.assert_allclose(list(found.values()) if average is None else found, expected, rtol=1e-12)


def test_accuracy_and_matthews_correlation_equal_scikit_learn():
    for seed in range(6):
        predictions, references = drawn_classes(seed, classes=1 + seed)
        accuracy = batched("accuracy", predictions, references)["accuracy"]
        assert accuracy == pytest.approx(sklearn_metrics.accuracy_score(references, predictions), rel=1e-12)
        right = sklearn_metrics.accuracy_score(references, predictions, normalize=False)
        assert batched("accuracy", predictions, references, normalize=False) == {"accuracy": right}
        found = batched("matthews_correlation", predictions, references)["matthews_correlation"]
        assert found == pytest.approx(sklearn_metrics.matthews_corrcoef(references, predictions), rel=1e-12)
    rows = np.random.default_rng(0).integers(0, 2, (20, 2, 3))
    assert batched("accuracy", rows[:, 0], rows[:, 1]) == {
        "accuracy": sklearn_metrics.accuracy_score(rows[:, 1], rows[:, 0])
    }
    assert batched("matthews_correlation", np.ones(9, int), np.ones(9, int)) == {"matthews_correlation": 0.0}


ERRORS = {
    "mse": (sklearn_metrics.mean_squared_error, {}),
    "mse of roots": (sklearn_metrics.root_mean_squared_error, {"squared": False}),
    "mae": (sklearn_metrics.mean_absolute_error, {}),
    "r_squared": (sklearn_metrics.r2_score, {}),
}


@pytest.mark.parametrize(("name", "function", "options"), [(name, *case) for name, case in ERRORS.items()], ids=ERRORS)
@pytest.mark.parametrize("outputs", [(), (3,)], ids=["one", "three"])
def test_metrics_of_values_equal_scikit_learn(name, function, options, outputs):
    name = name.partition(" ")[0]
    draw = np.random.default_rng(0)
    references = 1e6 + draw.normal(size=(30, *outputs))  # far from 0: a sum of squares would cancel
    predictions = references + draw.normal(size=references.shape)
    if outputs:
        references[:, 1] = 5.0
    expected = function(references, predictions)
    assert batched(name, predictions, references, **options)[name] == pytest.approx(expected, rel=1e-9)
    raw = np.atleast_1d(function(references, predictions, multioutput="raw_values"))
    found = batched(name, predictions, references, multioutput="raw_values", **options)[name]
    assert list(found.values()) == pytest.approx(raw.tolist(), rel=1e-9)


def test_r_squared_of_constant_values_equals_scikit_learn():
    same, other = np.full(12, 3.0), np.arange(12.0)
    for predictions in (same, other):
        found = batched("r_squared", predictions, same)["r_squared"]
        assert found == sklearn_metrics.r2_score(same, predictions)
    assert math.isnan(batched("r_squared", same[:1], same[:1], sizes=())["r_squared"])


def test_perplexity_and_top_k_accuracy_equal_torch_and_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(3, 7, 11, generator=generator), torch.randint(11, (3, 7), generator=generator)
    flat, flat_labels = logits.reshape(-1, 11), labels.reshape(-1)
    expected = torch.nn.functional.cross_entropy(flat.double(), flat_labels).exp().item()
    perplexity, top = BUNDLED["perplexity"](), BUNDLED["top_k_accuracy"](k=3)
    for part in (slice(0, 2), slice(2, 21)):
        perplexity.add_batch(predictions=flat[part], references=flat_labels[part])
        top.add_batch(predictions=flat[part], references=flat_labels[part])
    assert perplexity.compute()["perplexity"] == pytest.approx(expected, rel=1e-6)
    expected = sklearn_metrics.top_k_accuracy_score(flat_labels, flat, k=3, labels=range(11))
    assert top.compute() == {"top_3_accuracy": expected}


def test_perplexity_too_large_for_a_float_is_infinite():
    metric = BUNDLED["perplexity"]()
    metric.add_batch(predictions=torch.tensor([[2000.0, 0.0]]), references=torch.tensor([1]))
    assert metric.compute() == {"perplexity": math.inf}


def test_exact_match_removes_what_its_options_say():
    predictions, references = ["The 2 cats!", "a b", "x1"], ["the cats", "a b", "x2"]
    everything = {"ignore_case": True, "ignore_punctuation": True, "ignore_numbers": True, "regexes_to_ignore": [" "]}
    for options, expected in (({}, 1 / 3), ({"ignore_numbers": True}, 2 / 3), (everything, 1.0)):
        metric = BUNDLED["exact_match"](**options)
        metric.add_batch(predictions=predictions[:1], references=references[:1])
        metric.add_batch(predictions=predictions[1:], references=references[1:])
        assert metric.compute() == {"exact_match": pytest.approx(expected)}


def test_spans_equal_those_of_seqeval():
    cases = json.loads((FIXTURES / "seqeval.json").read_text())["cases"]
    for case in cases:
        metric = Seqeval(suffix=case["suffix"])
        for predicted, true in zip(case["predicted"], case["true"]):
            metric.add_batch(predictions=[predicted.split()], references=[true.split()])
        found = metric.compute()
        assert found.keys() == case["expected"].keys()
        for name, expected in case["expected"].items():
            assert found[name] == pytest.approx(expected), name
    assert len(cases) == 24


WRONG = {
    "several classes": ("f1", {}, [0, 1, 2], r"'f1' has average='binary'.*the classes 0, 1, 2. Set average='macro'"),
    "other classes": ("recall", {"pos_label": 7}, [0, 1, 1], "measures the class pos_label=7, and found only 0, 1"),
    "one label per row": ("f1", {"average": "samples"}, [0, 1, 1], "needs several labels per row"),
    "average": ("precision", {"average": "mean"}, [0, 1, 1], "average='mean' is unknown. Set one of: 'binary'"),
    "outputs": ("mse", {"multioutput": "all"}, [0, 1, 1], "multioutput='all' is unknown"),
    "k": ("top_k_accuracy", {"k": 0}, [0, 1, 1], "k=0 is not a positive integer"),
}


@pytest.mark.parametrize(("name", "options", "labels", "text"), WRONG.values(), ids=WRONG)
def test_options_that_do_not_fit_are_refused(name, options, labels, text):
    with pytest.raises(ArgumentError, match=text):
        batched(name, np.array(labels), np.array(labels), sizes=(), **options)


@pytest.mark.parametrize("name", ["f1", "matthews_correlation"])
def test_metrics_of_one_label_per_row_refuse_several(name):
    rows = np.ones((4, 2), int)
    with pytest.raises(ArgumentError, match=r"average='binary'.*2 labels per row|needs one label per row"):
        batched(name, rows, rows)

"""`Metrics` in evaluations: what it reads, batch by batch, and which mistakes it refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics
from torch import nn

from support.metrics import Outputs, rows_of
from support.trainers import both, regression_trainer
from trainbus import EvalPrediction, Metrics
from trainbus.engine.evaluation.metric_files import load_metric
from trainbus.events import ArgumentError

NAMES = ["O", "B-PER", "I-PER"]


def drawn(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def drawn_labels(*shape: int, classes: int, ignored: float = 0.0, seed: int = 1) -> Any:
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, classes, shape)
    return np.where(draw.random(shape) < ignored, -100, labels)


def f1(true: Any, predicted: Any, average: str = "macro") -> float:
    return float(sklearn_metrics.f1_score(true, predicted, average=average, zero_division=0))


def classes_case() -> Any:
    logits, labels = drawn(13, 3), drawn_labels(13, classes=3)
    predicted = logits.argmax(-1)
    expected = {"accuracy": (predicted == labels).mean(), "f1": f1(labels, predicted)}
    return Metrics("accuracy", "f1", average="macro"), logits, labels, expected


def tokens_case() -> Any:
    logits, labels = drawn(13, 5, 3), drawn_labels(13, 5, classes=3, ignored=0.3)
    counted = labels != -100
    predicted = logits.argmax(-1)[counted]
    expected = {"accuracy": (predicted == labels[counted]).mean(), "f1": f1(labels[counted], predicted)}
    return Metrics("accuracy", "f1", average="macro"), logits, labels, expected


def several_labels_case() -> Any:
    logits, labels = drawn(13, 4), drawn_labels(13, 4, classes=2)
    predicted = (1 / (1 + np.exp(-logits)) > 0.4).astype(int)
    expected = {"accuracy": (predicted == labels).all(-1).mean(), "f1": f1(labels, predicted, "micro")}
    metrics = Metrics("accuracy", "f1", reads="sigmoid", threshold=0.4, average="micro")
    return metrics, logits, labels.astype(np.float32), expected


def one_logit_case() -> Any:
    logits, labels = drawn(13, 1), drawn_labels(13, classes=2)
    expected = {"f1": f1(labels, (logits[:, 0] > 0).astype(int), "binary")}
    return Metrics("f1", reads="sigmoid"), logits, labels, expected


def values_case() -> Any:
    values, labels = drawn(13, 1), drawn(13, seed=5)
    labels[2] = -100.0  # a number as any other
    expected = {
        "mse": sklearn_metrics.mean_squared_error(labels, values),
        "r_squared": sklearn_metrics.r2_score(labels, values),
    }
    return Metrics("mse", "r_squared"), values, labels, expected


def language_case(shift: bool) -> Any:
    logits, labels = drawn(13, 5, 7), drawn_labels(13, 5, classes=7, ignored=0.2)
    read, true = (logits[:, :-1], labels[:, 1:]) if shift else (logits, labels)
    flat, flat_labels = torch.tensor(read).double().reshape(-1, 7), torch.tensor(true).reshape(-1)
    counted = true != -100
    expected = {
        "perplexity": math.exp(nn.functional.cross_entropy(flat, flat_labels)),
        "top_2_accuracy": sklearn_metrics.top_k_accuracy_score(true[counted], read[counted], k=2, labels=range(7)),
    }
    return Metrics("perplexity", "top_k_accuracy", k=2, shift=shift), logits, labels, expected


def spans_case() -> Any:
    logits, labels = drawn(13, 5, 3), drawn_labels(13, 5, classes=3, ignored=0.3)
    labels[0] = -100
    counted = labels != -100
    pairs = [
        [NAMES[label] for label in row[mask]]
        for rows in (logits.argmax(-1), labels)
        for row, mask in zip(rows, counted)
    ]
    from trainbus.engine.evaluation.bundled.spans import Seqeval

    metric = Seqeval()  # compared with seqeval in test_bundled_metrics.py
    metric.add_batch(predictions=pairs[:13], references=pairs[13:])
    found = metric.compute()
    person = {f"PER_{name}": value for name, value in found.pop("PER").items()}
    return Metrics("seqeval", label_names=NAMES), logits, labels, {**found, **person}


CASES = {
    "classes": classes_case,
    "tokens": tokens_case,
    "several labels per row": several_labels_case,
    "one logit": one_logit_case,
    "values": values_case,
    "causal language model": lambda: language_case(shift=True),
    "masked language model": lambda: language_case(shift=False),
    "spans": spans_case,
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_evaluation_reads_outputs_as_the_argument_says(case, tmp_path):
    metrics, logits, labels, expected = case()
    rows = rows_of(logits, labels)
    args = {"per_device_eval_batch_size": 4}
    run = regression_trainer(
        tmp_path, Outputs(), train_dataset=rows, eval_dataset=rows, compute_metrics=metrics, args=args
    )
    for _ in range(2):
        measured = run.evaluate()
        assert {name: measured[f"eval_{name}"] for name in expected} == pytest.approx(expected, rel=1e-5)
    predicted = run.predict(rows)
    assert predicted.metrics["test_loss"] == measured["eval_loss"]
    assert {name: predicted.metrics[f"test_{name}"] for name in expected} == pytest.approx(expected, rel=1e-5)
    np.testing.assert_array_equal(predicted.predictions, logits)
    alone = metrics(EvalPrediction(logits, labels))
    assert alone == pytest.approx(expected, rel=1e-5)
    lists = EvalPrediction(np.array_split(logits, 3), np.array_split(labels, 3))
    assert metrics(lists) == pytest.approx(expected, rel=1e-5)
    if "overall_f1" not in expected:
        assert {f"eval_{name}" for name in expected} < set(run.rehearse_evaluation())


def test_an_evaluation_keeps_no_logits(tmp_path):
    metrics, logits, labels, _ = classes_case()
    rows = rows_of(logits, labels)
    run = regression_trainer(tmp_path, Outputs(), train_dataset=rows, eval_dataset=rows, compute_metrics=metrics)
    output = run.evaluation_loop(run.get_eval_dataloader(), "Evaluation")
    assert output.predictions is None
    assert output.label_ids is None
    assert output.num_samples == 13


def test_an_evaluation_that_fails_leaves_nothing_to_the_next(tmp_path):
    metrics, logits, labels, expected = classes_case()
    rows = rows_of(logits, labels)
    args = {"per_device_eval_batch_size": 4}
    run = regression_trainer(
        tmp_path, Outputs(), train_dataset=rows, eval_dataset=rows, compute_metrics=metrics, args=args
    )
    with pytest.raises(IndexError):
        run.evaluate(torch.utils.data.Subset(rows, [0, 1, 2, 3, 99]))
    assert run.evaluate()["eval_accuracy"] == pytest.approx(expected["accuracy"])


def test_metrics_follow_the_protocol_of_batch_eval_metrics():
    metrics, logits, labels, expected = classes_case()
    for _ in range(2):
        assert metrics(EvalPrediction(torch.tensor(logits[:6]), torch.tensor(labels[:6])), compute_result=False) == {}
        last = EvalPrediction(torch.tensor(logits[6:]).bfloat16().float(), torch.tensor(labels[6:]))
        assert metrics(last, compute_result=True).keys() == expected.keys()


@pytest.mark.parametrize("by_batch", [False, True])
def test_metrics_measure_in_the_trainer_of_transformers(by_batch, tmp_path):
    metrics, logits, labels, expected = tokens_case()
    rows = rows_of(logits, labels)
    args = {"per_device_eval_batch_size": 4, "batch_eval_metrics": by_batch}
    options = {"model": Outputs, "eval_dataset": rows, "compute_metrics": metrics}
    ends = both(tmp_path, args, lambda trainer: trainer.evaluate(), **options)
    for _, measured in ends:
        assert {name: measured[f"eval_{name}"] for name in expected} == pytest.approx(expected, rel=1e-5)


class Words:
    """A tokenizer with four tokens."""

    pad_token_id = 0
    words = ("", "red", "green", "blue")

    def batch_decode(self, rows: list[list[int]], skip_special_tokens: bool) -> list[str]:
        assert skip_special_tokens
        return [" ".join(self.words[token] for token in row) for row in rows]


def test_texts_are_decoded_with_the_tokenizer():
    tokens, labels = np.array([[1, 2, 0], [3, 3, -100]]), np.array([[1, 2, -100], [3, 1, -100]])
    metrics = Metrics("exact_match", tokenizer=Words())
    assert metrics(EvalPrediction(tokens, labels)) == {"exact_match": 0.5}


def test_results_by_class_have_the_names_of_the_classes():
    prediction = EvalPrediction(np.eye(3)[[0, 2, 2]], np.array([0, 2, 0]))
    expected = {"f1_cat": pytest.approx(2 / 3), "f1_dog": 0.0, "f1_cow": pytest.approx(2 / 3)}
    assert Metrics("f1", average=None, label_names=["cat", "dog", "cow"])(prediction) == expected
    assert Metrics("f1", average=None)(prediction) == {"f1_0": pytest.approx(2 / 3), "f1_2": pytest.approx(2 / 3)}


def test_a_best_model_by_a_class_that_the_first_batch_lacks_trains(tmp_path):
    rows = rows_of(np.eye(3), [0, 1, 2])
    for metrics, name in (
        (Metrics("f1", average=None, label_names=["cat", "dog", "cow"]), "f1_cow"),
        (Metrics("f1", average=None), "f1_2"),
        (Metrics("f1", average="micro", prefix="all_"), "all_f1"),
    ):
        args = {
            **{"metric_for_best_model": name, "eval_strategy": "steps", "eval_steps": 1, "max_steps": 1},
            **{"save_strategy": "best", "per_device_eval_batch_size": 1, "learning_rate": 0.0},
        }
        options = {"train_dataset": rows, "eval_dataset": rows, "compute_metrics": metrics}
        run = regression_trainer(tmp_path, Outputs(), args=args, **options)
        run.train()
        assert run.state.best_metric == 1.0


def test_a_best_model_by_a_metric_that_is_not_measured_is_refused_before_the_first_step(tmp_path):
    rows = rows_of(np.eye(3), [0, 1, 2])
    args = {"metric_for_best_model": "f2", "eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
    options = {"train_dataset": rows, "eval_dataset": rows, "compute_metrics": Metrics("f1", average="macro")}
    run = regression_trainer(tmp_path, Outputs(), args={**args, "save_strategy": "steps", "save_steps": 1}, **options)
    with pytest.raises(ArgumentError, match=r"'eval_f2'.*did you mean 'eval_f1'"):
        run.train()


def test_metrics_combine_under_prefixes():
    _, logits, labels, expected = classes_case()
    combined = Metrics(
        "accuracy",
        Metrics("f1", average="macro", prefix="macro_"),
        Metrics("f1", average="micro", prefix="micro_"),
    )
    found = combined(EvalPrediction((logits, None), labels))
    assert found == pytest.approx(
        {"accuracy": expected["accuracy"], "macro_f1": expected["f1"], "micro_f1": expected["accuracy"]}
    )
    with pytest.raises(ArgumentError, match=r"Two metrics have the name 'f1'. Give one of them a prefix"):
        Metrics(Metrics("f1", average="macro"), Metrics("f1", average="micro"))(EvalPrediction(logits, labels))


def test_an_output_is_chosen_by_number():
    _, logits, labels, expected = classes_case()
    metrics = Metrics("accuracy", output=1)
    assert metrics(EvalPrediction((labels, logits), (labels, labels)))["accuracy"] == pytest.approx(
        expected["accuracy"]
    )
    with pytest.raises(ArgumentError, match=r"`output=1` does not exist"):
        metrics(EvalPrediction((logits,), (labels,)))


MISTAKES = {
    "unknown name": (
        ("acuracy",),
        {},
        r"'acuracy' is not bundled; did you mean 'accuracy'\?.*Metrics downloads nothing",
    ),
    "name of evaluate": (("rouge",), {}, r"'rouge' is not bundled\..*Metrics\(evaluate.load\('rouge'\), reads="),
    "no metric": ((), {}, r"Metrics\(\) needs a metric"),
    "missing file": (("./none.py",), {"reads": "argmax"}, r"no metric at './none.py': no file 'none.py'"),
    "function": ((len,), {}, "built-in function len> is not a metric. Pass a name, a path"),
    "class": ((Words,), {}, "is not a metric"),
    "reading": (("f1",), {"reads": "softmax"}, "reads='softmax' is unknown. Set one of: argmax, sigmoid"),
    "other reading": (("mse",), {"reads": "argmax"}, "'mse' cannot read 'argmax', only values"),
    "option": (("f1",), {"avrage": "macro"}, r"has the option 'avrage'; did you mean 'average'\?"),
    "option of another": (("mse",), {"average": "macro"}, "has the option 'average'"),
    "value": (("f1",), {"average": "mean"}, "average='mean' is unknown"),
    "perplexity": (("perplexity",), {}, "'perplexity' needs `shift`. Set shift=True for a causal"),
    "spans": (("seqeval",), {}, "'seqeval' needs `label_names`"),
    "text": (("exact_match",), {}, "'exact_match' reads text. Pass the tokenizer"),
    "threshold": (("f1",), {"reads": "sigmoid", "threshold": 2}, "threshold=2 is not a probability"),
    "equal names": (("f1",), {"average": None, "label_names": ["a", "a"]}, "'a' for several classes"),
}


@pytest.mark.parametrize(("metrics", "options", "text"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_refused_at_construction(metrics, options, text):
    with pytest.raises(ArgumentError, match=text):
        Metrics(*metrics, **options)


LOGITS, NUMBERS = drawn(4, 3), drawn_labels(4, classes=3)
MISFITS = {
    "class numbers": ({}, NUMBERS, NUMBERS, r"reads='argmax' needs logits.*The outputs are int64 of shape \(4,\)"),
    "one logit": ({}, LOGITS[:, :1], NUMBERS, "For one logit per label, set reads='sigmoid'"),
    "float labels": ({}, LOGITS, LOGITS, "integer labels"),
    "logits": ({"reads": "labels"}, LOGITS, NUMBERS, "For logits, set reads='argmax'"),
    "classes": ({"reads": "sigmoid"}, LOGITS, NUMBERS, "needs one logit for each label, and labels that are 0 or 1"),
    "maps": ({"reads": "sigmoid"}, LOGITS[None], LOGITS[None] > 0, r"labels of shape \(rows,\) or \(rows, labels\)"),
    "no labels": ({}, LOGITS, None, "one of them is missing. Name the labels"),
    "loss without labels": ({}, LOGITS, (), "one of them is missing. Name the labels"),
    "no sequence": ({"shift": True}, LOGITS[:, 0], NUMBERS, "`shift=True` needs several labels per row"),
}


@pytest.mark.parametrize(("options", "outputs", "labels", "text"), MISFITS.values(), ids=MISFITS)
def test_outputs_that_do_not_fit_are_refused_with_their_shapes(options, outputs, labels, text):
    with pytest.raises(ArgumentError, match=text):
        Metrics("accuracy", **options)(EvalPrediction(outputs, labels))


@pytest.mark.parametrize("name", ["perplexity", "top_k_accuracy"])
def test_a_label_beyond_the_logits_is_named(name):
    with pytest.raises(ArgumentError, match="The label 7 is out of range: the logits have 3 classes"):
        Metrics(name, shift=False)(EvalPrediction(LOGITS, np.array([0, 1, -100, 7])))


def test_logits_are_no_text_and_no_values():
    with pytest.raises(ArgumentError, match=r"reads='text' needs token numbers.*predict_with_generate=True"):
        Metrics("exact_match", tokenizer=Words())(EvalPrediction(LOGITS, NUMBERS))
    with pytest.raises(ArgumentError, match=r"reads='values' needs one output for each label"):
        Metrics("mse")(EvalPrediction(LOGITS, NUMBERS))
    with pytest.raises(ArgumentError, match=r"`label_names` has no name for the class"):
        Metrics("seqeval", label_names=NAMES[:1])(EvalPrediction(drawn(2, 5, 3), drawn_labels(2, 5, classes=3)))


def test_a_best_model_by_the_largest_error_is_refused(tmp_path):
    metrics = Metrics("r_squared", Metrics("mse", prefix="test_"))
    rows = rows_of(drawn(4, 1), drawn(4, seed=5))
    options = {"train_dataset": rows, "eval_dataset": rows, "compute_metrics": metrics}
    for name in ("test_mse", "eval_test_mse"):
        with pytest.raises(
            ArgumentError, match=r"test_mse'` is better when it is smaller.*Set `greater_is_better=False`"
        ):
            regression_trainer(tmp_path, Outputs(), args={"metric_for_best_model": name}, **options)
    for args in (
        {"metric_for_best_model": "test_mse", "greater_is_better": False},
        {"metric_for_best_model": "r_squared"},
    ):
        assert regression_trainer(tmp_path, Outputs(), args=args, **options).evaluate()["eval_test_mse"] > 0


# Metrics that are not bundled.

MODULE = """
import evaluate
import datasets
from .neighbour import share

class Share(evaluate.Metric):
    def _info(self):
        number = datasets.Value("int32")
        features = datasets.Features(predictions=number, references=number)
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references, scale=1):
        return {"share": scale * share(predictions, references)}
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The folder of a metric in the format of `evaluate`, with a file that it imports."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "share"
    folder.mkdir()
    (folder / "share.py").write_text(MODULE)
    (folder / "neighbour.py").write_text(
        "def share(one, other):\n    return sum(a == b for a, b in zip(one, other)) / len(one)\n"
    )
    return folder


def test_a_metric_of_evaluate_is_loaded_from_a_path_and_combined(module, tmp_path):
    evaluate = pytest.importorskip("evaluate")
    _, logits, labels, expected = classes_case()
    rows = rows_of(logits, labels)
    metrics = Metrics("accuracy", str(module), reads="argmax", scale=10)
    args = {"per_device_eval_batch_size": 4}
    run = regression_trainer(
        tmp_path, Outputs(), train_dataset=rows, eval_dataset=rows, compute_metrics=metrics, args=args
    )
    for _ in range(2):
        measured = run.evaluate()
        assert measured["eval_accuracy"] == pytest.approx(expected["accuracy"])
        assert measured["eval_share"] == pytest.approx(10 * expected["accuracy"])
    combined = Metrics(evaluate.combine([load_metric(module)]), Metrics("accuracy"), reads="argmax")
    found = combined(EvalPrediction(logits, labels))
    assert found == {name: pytest.approx(expected["accuracy"]) for name in ("share", "accuracy")}
    with pytest.raises(ArgumentError, match=r"The trainer does not know what Share reads from the outputs"):
        Metrics(module / "share.py")


def test_a_file_without_a_metric_and_a_missing_package_are_refused(tmp_path):
    empty, needy = tmp_path / "empty.py", tmp_path / "needy.py"
    empty.write_text("x = 1\n")
    needy.write_text("import no_such_package\n")
    with pytest.raises(
        ArgumentError, match=r"needs one class with the methods `add_batch` and `compute`. It has: none"
    ):
        Metrics(empty, reads="argmax")
    with pytest.raises(ArgumentError, match=r"needs the package 'no_such_package'. Install it"):
        Metrics(needy, reads="argmax")


@pytest.mark.parametrize("name", ["f1", "precision", "recall"])
def test_class_without_a_name_is_an_error_and_not_left_out(name: str):
    prediction = EvalPrediction(np.eye(3), np.array([0, 1, 2]))
    with pytest.raises(ArgumentError, match=r"`label_names` has no name for the class 2"):
        Metrics(name, average=None, label_names=["cat", "dog"])(prediction)
    assert len(Metrics(name, average=None, labels=[0, 1], label_names=["cat", "dog", "cow"])(prediction)) == 2


@pytest.mark.parametrize("average", [None, "macro", "micro", "weighted"])
def test_the_chosen_classes_are_measured_also_with_names(average: str | None) -> None:
    prediction = EvalPrediction(predictions=np.eye(3)[[0, 1, 2, 1, 0, 2]], label_ids=np.array([0, 1, 2, 2, 0, 1]))
    for labels in ([2], [2, 0], range(1, 3), np.array([1]), [1.0]):
        plain = Metrics("f1", average=average, labels=labels)(prediction)
        named = Metrics("f1", average=average, labels=labels, label_names=["a", "b", "c"])(prediction)
        numbers = {name.replace("_a", "_0").replace("_b", "_1").replace("_c", "_2"): name for name in named}
        assert {number: named[name] for number, name in numbers.items()} == plain
        assert len(plain) == (len(labels) if average is None else 1)


@pytest.mark.parametrize("labels", [["c"], "c", 2, [], [True], [None], [0.5], {"c": 2}])
@pytest.mark.parametrize("average", [None, "macro"])
def test_classes_that_no_prediction_can_equal_are_refused(labels: object, average: str | None) -> None:
    with pytest.raises(ArgumentError, match=r"is not a list of class numbers, .* belong in `label_names`"):
        Metrics("f1", average=average, labels=labels, label_names=["a", "b", "c"])


def test_a_chosen_class_without_a_name_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"`label_names` has no name for the class 7"):
        Metrics("f1", average=None, labels=[1, 7], label_names=["a", "b", "c"])

"""Inputs of a Trainer: tables and metrics are accepted, and inputs of a wrong type are refused with the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pytest
import torch
from torch import nn

from support.data import points
from support.models import Regression
from support.outcomes import same_weights, weights
from support.trainers import regression_trainer
from trainbus import EarlyStopping, Trainer, TrainingArguments
from trainbus.engine.evaluation.metric_modules import MetricModule
from trainbus.engine.evaluation.outputs import EvalPrediction
from trainbus.events import ArgumentError, DataError

ROWS = [{"x": [float(number), 1.0, -1.0], "labels": float(number % 3)} for number in range(12)]
FRAME = pandas.DataFrame(ROWS, index=range(100, 112))


def file_of(folder: Path, suffix: str) -> Path:
    path = folder / f"rows{suffix}"
    if suffix == ".parquet":
        FRAME.to_parquet(path)
    else:
        FRAME.to_json(path, orient="records", lines=suffix == ".jsonl")
    return path


@pytest.fixture(scope="module")
def of_rows(tmp_path_factory: pytest.TempPathFactory) -> Any:
    run = regression_trainer(tmp_path_factory.mktemp("rows"), Regression(), train_dataset=ROWS, eval_dataset=ROWS)
    run.train()
    return weights(run.model), run.evaluate()["eval_loss"], run.predict(ROWS).predictions


@pytest.mark.parametrize("kind", ["frame", ".json", ".jsonl", ".parquet", "text"])
def test_a_table_is_a_dataset_of_its_rows(kind, of_rows, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    if kind == "frame":
        table: Any = FRAME
    else:
        table = file_of(tmp_path, ".jsonl" if kind == "text" else kind)
        table = str(table) if kind == "text" else table
    run = regression_trainer(tmp_path, Regression(), train_dataset=table, eval_dataset={"a": table})
    run.train()
    expected, loss, predictions = of_rows
    assert same_weights(weights(run.model), expected)
    assert run.evaluate()["eval_a_loss"] == loss
    assert run.evaluate(table)["eval_loss"] == loss
    assert np.array_equal(run.predict(table).predictions, predictions)


def test_a_csv_file_and_a_tsv_file_are_datasets(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for suffix, separator in ((".csv", ","), (".tsv", "\t")):
        path = tmp_path / f"rows{suffix}"
        pandas.DataFrame({"x": [1.0, 2.0], "labels": [0, 1]}).to_csv(path, index=False, sep=separator)
        run = regression_trainer(tmp_path, train_dataset=path)
        assert run.train_dataset[:] == {"x": [1.0, 2.0], "labels": [0, 1]}


class Unfinished:
    """A class that a user passes in place of an instance."""


DATASETS = {
    "texts": (["good film", "bad film"], r"samples are of type str. The first is 'good film'. Tokenize texts first"),
    "integers": ([3, 4], "samples are of type int. The first is 3. Pass dicts"),
    "nothing": ([None], "samples are of type NoneType"),
    "columns": ({"x": [1], "labels": [0]}, "is a dict with the keys 'x', 'labels'. Pass rows"),
    "splits": (
        datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS)),
        r"is a DatasetDict with the splits 'train'. Pass one",
    ),
    "loader": (torch.utils.data.DataLoader(ROWS), "is a DataLoader. Pass its dataset.*get_train_dataloader"),
    "class": (Unfinished, r"is the class Unfinished. Pass an instance"),
    "number": (5, "is of type int, which is not a dataset: it needs __getitem__ and __len__"),
    "datasets": (
        [datasets.Dataset.from_list(ROWS)] * 2,
        "is a list of datasets, not of samples. Pass one dataset: join",
    ),
    "a comma": ((torch.utils.data.TensorDataset(torch.ones(2)),), "is a tuple of datasets"),
    "array of texts": (np.array(["a", "b"]), "is an array of <U1"),
}


@pytest.mark.parametrize(("dataset", "text"), DATASETS.values(), ids=DATASETS)
def test_an_invalid_dataset_is_refused_at_construction(dataset, text, tmp_path):
    with pytest.raises(ArgumentError, match=f"`train_dataset`.*{text}"):
        regression_trainer(tmp_path, train_dataset=dataset)


def test_each_eval_dataset_is_checked(tmp_path):
    with pytest.raises(ArgumentError, match=r"`eval_dataset\['bad'\]` cannot be used: The samples are of type int"):
        regression_trainer(tmp_path, eval_dataset={"good": points(4), "bad": [1, 2]})
    with pytest.raises(DataError, match="samples are of type str"):
        regression_trainer(tmp_path).predict(["a"])


EVAL_DATASETS = {
    "number": (5, "`eval_dataset` is of type int, which is not a dataset"),
    "number in a dict": ({"good": points(4), "bad": 5}, r"`eval_dataset\['bad'\]` is of type int"),
    "nothing in a dict": ({"bad": None}, r"`eval_dataset\['bad'\]` is of type NoneType"),
    "datasets": ([datasets.Dataset.from_list(ROWS)] * 2, "`eval_dataset` is a list of datasets.*Pass a dict"),
    "empty dict": ({}, "`eval_strategy='steps'` needs an `eval_dataset`"),
}


@pytest.mark.parametrize(("dataset", "text"), EVAL_DATASETS.values(), ids=EVAL_DATASETS)
def test_an_invalid_eval_dataset_is_refused_before_any_step(dataset, text, tmp_path):
    with pytest.raises(ArgumentError, match=text):
        regression_trainer(tmp_path, eval_dataset=dataset, args={"eval_strategy": "steps", "eval_steps": 1})


@pytest.mark.parametrize(("path", "text"), [("rows.csv", "There is no file 'rows.csv'"), ("imdb", "load_dataset")])
def test_a_path_without_rows_is_refused_with_the_remedy(path, text, tmp_path):
    with pytest.raises(DataError, match=text):
        regression_trainer(tmp_path, train_dataset=path)


def test_texts_from_a_dataset_of_unknown_kind_are_refused_with_the_first_one(tmp_path):
    class Texts(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return f"text {index}"

    with pytest.raises(DataError, match=r"samples are of type str. The first is 'text \d'"):
        regression_trainer(tmp_path, train_dataset=Texts()).train()


def test_a_collator_of_the_user_takes_any_samples(tmp_path):
    def collate(numbers: list[int]) -> Any:
        return {"x": torch.ones(len(numbers), 3), "labels": torch.tensor(numbers, dtype=torch.float)}

    regression_trainer(tmp_path, train_dataset=[1, 2, 3, 4], data_collator=collate).train()


def test_an_own_loader_takes_any_dataset(tmp_path):
    class Own(Trainer):
        def get_train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(points(8), batch_size=4)

    args = TrainingArguments(str(tmp_path), max_steps=2, save_strategy="no", logging_strategy="no")
    Own(Regression(), args, train_dataset="anything").train()


FUNCTIONS = {
    "data_collator": ([1], "`data_collator` is a list, which is not callable. Pass a function: samples -> batch."),
    "compute_metrics": ("accuracy", "`compute_metrics` is a str, which is not callable"),
    "preprocess_logits_for_metrics": (1, "`preprocess_logits_for_metrics` is a int"),
    "criterion": ("mse", "`criterion` is a str"),
    "compute_loss_func": (nn.MSELoss, r"`compute_loss_func` is the class MSELoss. Pass an instance: .*=MSELoss\(\)"),
    "callbacks": (EarlyStopping(), r"`callbacks` is a EarlyStopping. Pass a list: `callbacks=\[\.\.\.\]`"),
    "optimizers": (torch.optim.SGD(Regression().parameters(), lr=0.1), r"`optimizers` is a SGD, not a pair. Pass"),
    "optimizer_cls_and_kwargs": (torch.optim.SGD, "`optimizer_cls_and_kwargs` is a type, not a pair"),
}


@pytest.mark.parametrize(("name", "value", "text"), [(name, *case) for name, case in FUNCTIONS.items()], ids=FUNCTIONS)
def test_an_input_of_a_wrong_type_is_refused_at_construction(name, value, text, tmp_path):
    with pytest.raises(ArgumentError, match=text):
        regression_trainer(tmp_path, **{name: value})


def test_a_model_as_model_init_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="`model_init` is a Regression, not a function that returns one"):
        regression_trainer(tmp_path, model_init=Regression())


def test_optimizers_that_need_a_closure_are_refused_at_construction(tmp_path):
    model = Regression()
    given = {"optimizers": (torch.optim.LBFGS(model.parameters()), None)}
    for options in (given, {"optimizer_cls_and_kwargs": (torch.optim.LBFGS, {"lr": 1.0})}):
        with pytest.raises(ArgumentError, match=r"LBFGS\.step requires 'closure': .* without a closure"):
            regression_trainer(tmp_path, model, **options)


def test_an_optimizer_that_a_subclass_creates_is_refused_before_the_first_step(tmp_path):
    class Own(Trainer):
        def create_optimizer(self) -> Any:
            self.optimizer = torch.optim.LBFGS(self.model.parameters())
            return self.optimizer

    run = Own(Regression(), TrainingArguments(str(tmp_path), max_steps=2), train_dataset=points(8))
    with pytest.raises(ArgumentError, match=r"LBFGS\.step requires 'closure'"):
        run.train()


class Accuracy:
    """A metric with the interface of `evaluate`."""

    def add_batch(self, *, predictions: Any, references: Any) -> None: ...

    def compute(self, *, predictions: Any, references: Any) -> dict[str, float]:
        assert predictions.shape == references.shape
        return {"accuracy": float((predictions == references).mean())}


class Classes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.linear(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_a_metric_of_evaluate_measures_classes(tmp_path):
    rows = [{"x": row["x"], "labels": number % 2} for number, row in enumerate(points(8))]
    run = regression_trainer(tmp_path, Classes(), train_dataset=rows, eval_dataset=rows, compute_metrics=Accuracy())
    predicted = run.predict(rows)
    expected = (predicted.predictions.argmax(-1) == predicted.label_ids).mean()
    assert run.evaluate()["eval_accuracy"] == predicted.metrics["test_accuracy"] == expected


def test_a_real_metric_of_evaluate_is_accepted():
    import evaluate

    class Share(evaluate.Metric):
        def _info(self) -> Any:
            features = datasets.Features(predictions=datasets.Value("int32"), references=datasets.Value("int32"))
            return evaluate.MetricInfo(description="", citation="", features=features)

        def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
            return {"share": float((np.asarray(predictions) == np.asarray(references)).mean())}

    from trainbus.engine.evaluation.metric_modules import as_metric_function

    measure = as_metric_function(Share())
    logits = np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
    assert measure(EvalPrediction(logits, np.array([1, 1, -100]))) == {"share": 0.5}


TASKS = {
    "tokens": (np.eye(3)[[[0, 1], [2, 0]]], np.array([[0, -100], [2, 1]]), 2 / 3),
    "regression": (np.array([[1.0], [2.0]]), np.array([1.0, 3.0]), 0.5),
    "classes": (np.array([1, 0]), np.array([1, 1]), 0.5),
    "tuples": ((np.eye(2), np.zeros(5)), (np.array([0, 0]), np.zeros(5)), 0.5),
}


@pytest.mark.parametrize(("predictions", "labels", "expected"), TASKS.values(), ids=TASKS)
def test_a_metric_receives_one_prediction_per_label(predictions, labels, expected):
    assert MetricModule(Accuracy())(EvalPrediction(predictions, labels)) == {"accuracy": expected}


def test_a_metric_receives_all_batches_of_an_evaluation_that_keeps_them_apart(tmp_path):
    rows = [{"x": row["x"], "labels": number % 2} for number, row in enumerate(points(10))]
    args = {"eval_do_concat_batches": False, "per_device_eval_batch_size": 4}
    options = {"train_dataset": rows, "compute_metrics": Accuracy(), "args": args}
    predicted = regression_trainer(tmp_path, Classes(), **options).predict(rows)
    classes = np.concatenate([logits.argmax(-1) for logits in predicted.predictions])
    assert predicted.metrics["test_accuracy"] == (classes == np.concatenate(predicted.label_ids)).mean()

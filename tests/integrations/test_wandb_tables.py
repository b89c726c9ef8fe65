"""Tables and charts of evaluations, read back from the files of the real client."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from trainbus import Log, Predictions, Trainer, TrainingArguments, every
from trainbus.callbacks.base.class_counts import ClassCounts
from trainbus.callbacks.base.predictions import Collected, classes_of
from trainbus.events.errors import ArgumentError

wandb = pytest.importorskip("wandb")
PIL = pytest.importorskip("PIL.Image")
metrics = pytest.importorskip("sklearn.metrics")

from wandb_files import segments  # noqa: E402
from wandb_fixtures import QUIET, build, offline, rows_of  # noqa: E402
from wandb_fixtures import environment as environment  # noqa: E402
from wandb_fixtures import service as service  # noqa: E402


def table(folder, value):
    """Return columns and rows of a logged table."""
    [path] = folder.glob(f"wandb/offline-run-*/files/{value['path']}")
    written = json.loads(path.read_text())
    return written["columns"], written["data"]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A training of 8 steps that is evaluated twice, and the row of its last step."""
    folder = tmp_path_factory.mktemp("tables")
    callback = offline(folder, tables=Predictions(rows=10, class_names=("left", "right")))
    trainer = build(folder, callback, per_device_eval_batch_size=6)
    kept = []
    trainer.on("on_prediction_step", lambda prediction: kept.append(weakref.ref(prediction.predictions)))
    trainer.on("on_evaluate_dataset", lambda: alive.append(sum(one() is not None for one in kept)))
    alive = []
    trainer.train()
    trainer.end()
    [segment] = segments(folder)
    return trainer, segment, folder, alive


def test_a_capped_table_of_predictions_has_the_same_rows_in_each_evaluation(evaluated):
    trainer, segment, folder, _ = evaluated
    first, last = (row["eval/predictions"] for row in segment.rows if "eval/predictions" in row)
    columns, data = table(folder, last)
    assert columns == ["id", "label", "prediction", "confidence"]
    logits = trainer.predict(rows_of()).predictions
    names = ("left", "right")
    expected = [[number, names[int(rows_of()[number][1])], names[int(logits[number].argmax())]] for number in range(10)]
    assert [row[:3] for row in data] == expected
    shares = torch.tensor(logits).softmax(1).max(1).values[:10]
    assert [row[3] for row in data] == pytest.approx(shares.tolist(), abs=1e-4)
    before = table(folder, first)[1]
    assert [row[:2] for row in before] == [row[:2] for row in data]


def test_the_confusion_matrix_equals_the_one_of_scikit_learn(evaluated):
    trainer, segment, folder, _ = evaluated
    columns, cells = table(folder, segment.rows[-1]["eval/confusion_matrix_table"])
    assert columns == ["Actual", "Predicted", "nPredictions"]
    output = trainer.predict(rows_of())
    expected = metrics.confusion_matrix(output.label_ids, output.predictions.argmax(1))
    assert [cell[2] for cell in cells] == expected.flatten().tolist()
    assert [cell[:2] for cell in cells[:2]] == [["left", "left"], ["left", "right"]]


def test_the_curves_are_charts_of_the_row(evaluated):
    _, segment, folder, _ = evaluated
    for name, axes in (("roc", ["class", "fpr", "tpr"]), ("pr", ["class", "recall", "precision"])):
        columns, points = table(folder, segment.rows[-1][f"eval/{name}_table"])
        assert columns == axes
        assert {point[0] for point in points} == {"left", "right"}
    assert [row["train/global_step"] for row in segment.rows] == [2, 4, 6, 8]


def test_the_logits_of_one_batch_are_kept_at_a_time(evaluated):
    trainer, _, _, alive = evaluated
    assert alive == [0, 0]  # no batch is alive when the dataset is done
    assert trainer.evaluation_loop(trainer.get_eval_dataloader(), "Evaluation", True).predictions is None


def test_tables_change_neither_metrics_nor_weights(evaluated, tmp_path):
    trainer, _, _, _ = evaluated
    plain = build(tmp_path, per_device_eval_batch_size=6)
    plain.train()
    losses = [
        [entry["eval_loss"] for entry in run.state.log_history if "eval_loss" in entry] for run in (trainer, plain)
    ]
    assert losses[0] == losses[1]
    for one, other in zip(plain.model.parameters(), trainer.model.parameters()):
        assert torch.equal(one, other)


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_the_curves_equal_those_of_scikit_learn(classes, scale):
    generator = torch.Generator().manual_seed(classes)
    labels = torch.randint(0, classes, (300,), generator=generator)
    logits = scale * (torch.randn(300, classes, generator=generator) + nn.functional.one_hot(labels, classes))
    counts = ClassCounts(classes)
    for start in range(0, 300, 64):
        counts.add(logits[start : start + 64], labels[start : start + 64])
    shares = logits.double().softmax(1).numpy()
    assert counts.confusion.numpy().tolist() == metrics.confusion_matrix(labels, logits.argmax(1)).tolist()
    for number in range(classes):
        found = counts.curves(number)
        rates = metrics.roc_curve(labels == number, shares[:, number], drop_intermediate=False)[:2]
        area = np.trapezoid(found.recall, found.false_positive_rate)
        assert area == pytest.approx(metrics.roc_auc_score(labels == number, shares[:, number]), abs=2e-3)
        exact = set(zip(*(np.round(values, 9).tolist() for values in rates)))
        points = set(zip(np.round(found.false_positive_rate, 9).tolist(), np.round(found.recall, 9).tolist()))
        assert len(points - exact) <= 0.05 * len(points)  # samples in one bin of 0.01 share a threshold
        precision, recall, _ = metrics.precision_recall_curve(labels == number, shares[:, number])
        exact = set(zip(np.round(precision, 9).tolist(), np.round(recall, 9).tolist()))
        points = set(zip(np.round(found.precision, 9).tolist(), np.round(found.recall, 9).tolist()))
        assert len(points - exact) <= 0.05 * len(points)


def test_a_class_without_samples_has_no_curve_and_ignored_labels_do_not_count():
    counts = ClassCounts(3)
    counts.add(torch.randn(6, 3), torch.tensor([0, 1, 0, -100, 1, 7]))
    assert int(counts.confusion.sum()) == 4
    assert counts.curves(2) is None
    assert counts.curves(0) is not None


INTEGERS = torch.tensor([0, 1, 1, 0])


@pytest.mark.parametrize(
    ("logits", "labels", "task", "shape"),
    [
        (torch.randn(4, 3), INTEGERS, None, (4, 3)),
        (torch.randn(4), INTEGERS, None, (4, 2)),
        (torch.randn(4, 1), INTEGERS, None, (4, 2)),
        (torch.randn(4, 5, 3), torch.zeros(4, 5, dtype=torch.long), None, (20, 3)),
        (torch.randn(4, 1), INTEGERS.float(), None, None),
        (torch.randn(4, 1), INTEGERS.float(), "classification", (4, 2)),
        (torch.randn(4, 1), INTEGERS * 3, None, None),
        (torch.randn(4, 3), INTEGERS, "other", None),
        (torch.randn(4, 3), torch.randint(0, 2, (4, 3)), None, None),
        (torch.zeros(4, dtype=torch.long), INTEGERS, None, None),
        (torch.randn(4, 3), None, None, None),
    ],
)
def test_shapes_and_types_tell_a_classification_from_other_tasks(logits, labels, task, shape):
    found = classes_of(logits, labels, task)
    assert (None if found is None else tuple(found[0].shape)) == shape
    if found is not None and logits.shape[-1] in (1, 4):
        assert torch.equal(found[0].argmax(1), (logits.flatten() > 0).long())


class Words:
    """A tokenizer with one letter per token."""

    def decode(self, tokens, skip_special_tokens=False):
        return "".join(chr(97 + token) for token in tokens)


def test_the_table_has_texts_and_images_of_the_batch(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(12, 1)

        def forward(self, input_ids, pixel_values, labels):
            predicted = self.linear(pixel_values.flatten(1)).squeeze(-1)
            return {"loss": nn.functional.mse_loss(predicted, labels), "logits": predicted}

    torch.manual_seed(0)
    samples = [
        {"input_ids": torch.tensor([n, 1]), "pixel_values": torch.randn(3, 2, 2), "labels": torch.tensor(0.5 * n)}
        for n in range(6)
    ]
    args = TrainingArguments(
        str(tmp_path / "out"), max_steps=1, per_device_eval_batch_size=4, use_cpu=True, disable_tqdm=True
    )
    callbacks = [Log(every(1)), offline(tmp_path, tables=Predictions(rows=5))]
    trainer = Trainer(
        Model(), args, train_dataset=samples, eval_dataset={"a": samples, "b": samples[:2]}, processing_class=Words(),
        callbacks=callbacks,
    )  # fmt: skip
    trainer.evaluate()
    trainer.end()
    [segment] = segments(tmp_path)
    row = {name: value for each in segment.rows for name, value in each.items()}
    columns, data = table(tmp_path, row["eval/a_predictions"])
    assert columns == ["id", "text", "image", "label", "prediction"]
    assert [entry[:2] for entry in data] == [[n, f"{chr(97 + n)}b"] for n in range(5)]
    assert [entry[3] for entry in data] == [0.0, 0.5, 1.0, 1.5, 2.0]
    [artifact, _] = [each for each in segment.artifacts if each.type == "run_table"]
    files = {each.path: each.local_path for each in artifact.manifest.contents}  # the client keeps media there
    entries = [entry[2] for entry in json.loads(Path(files["eval/a_predictions.table.json"]).read_text())["data"]]
    for entry, sample in zip(entries, samples):
        expected = sample["pixel_values"]
        expected = (255 * (expected - expected.min()) / (expected.max() - expected.min())).round()
        assert np.asarray(PIL.open(files[entry["path"]])).transpose(2, 0, 1).tolist() == expected.tolist()
    assert len(entries) == 5
    assert len(table(tmp_path, row["eval/b_predictions"])[1]) == 2
    assert "eval/a_confusion_matrix_table" not in row


def test_a_failure_of_the_tables_leaves_the_evaluation_alone(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("trainbus.callbacks.base.predictions.classes_of", lambda *_: 1 / 0)
    trainer = build(tmp_path, offline(tmp_path, tables=Predictions()), steps=4)
    trainer.train()
    trainer.end()
    [segment] = segments(tmp_path)
    assert "eval/loss" in segment.rows[-1]
    assert "eval/predictions" not in segment.rows[-1]
    assert "division by zero" in caplog.text


@pytest.mark.parametrize(
    "options",
    [
        {"rows": -1},
        {"rows": 20_000},
        {"rows": "all"},
        {"task": "regresion"},
        {"class_names": "ab"},
        {"max_classes": -1},
    ],
)
def test_wrong_options_are_errors(options):
    with pytest.raises(ArgumentError, match="Predictions"):
        Predictions(**options)


def test_class_names_of_another_model_are_warned_of_one_time(caplog):
    collected = Collected(Predictions(class_names=["a", "b", "c"]))
    run = SimpleNamespace(model=None)
    assert [collected.names(run, 2) for _ in range(2)] == [["0", "1"]] * 2
    assert caplog.text.count("has 3 names, but the model has 2 classes") == 1


def test_code_is_saved_on_request_only(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("print('hello')\n")
    (tmp_path / "data.txt").write_text("secret\n")
    monkeypatch.chdir(tmp_path)
    for asked in (False, True):
        folder = tmp_path / f"asked-{asked}"
        trainer = build(folder, offline(folder, save_code=asked, options={"settings": QUIET}), steps=2)
        trainer.train()
        trainer.end()
        [segment] = segments(folder)
        code = [artifact for artifact in segment.artifacts if artifact.type == "code"]
        assert len(code) == asked
        if asked:
            assert [entry.path for entry in code[0].manifest.contents] == ["train.py"]

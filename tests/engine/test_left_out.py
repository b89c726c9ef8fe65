"""Errors about a batch without a column name the column that holds texts or None, and the value."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

from support.data import CountedRows
from trainbus import Trainer, TrainingArguments
from trainbus.engine.data.collators.default import default_data_collator
from trainbus.events.errors import DataError, ModelError

datasets = pytest.importorskip("datasets")
pandas = pytest.importorskip("pandas")

ROWS = [{"id": 0, "area": 1.0, "age": float(row), "price": 2.0} for row in range(16)]


class Price(nn.Module):
    """Takes two numbers, and computes its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, area: torch.Tensor, age: torch.Tensor, price: torch.Tensor) -> Any:
        return {"loss": (self.linear(torch.stack([area, age], 1)).squeeze(1) - price).square().mean()}


class Optional(Price):
    """The same, with inputs that are optional."""

    def forward(self, area: Any, age: Any = None, price: Any = None) -> Any:  # type: ignore[override]
        guess = self.linear(torch.stack([area, area], 1)).squeeze(1)
        return {"guess": guess} if price is None else {"loss": (guess - price).square().mean()}


class Row(NamedTuple):
    area: float
    age: Any
    price: float


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(with_age("n.a."))


def with_age(value: Any, first: int = 0) -> list[dict[str, Any]]:
    return [{**row, "age": value} if number >= first else row for number, row in enumerate(ROWS)]


def table(value: str) -> Any:
    """Return a table in which the ages are texts, and the age in row 3 is `value`."""
    return datasets.Dataset.from_list([{**row, "age": value if row["age"] == 3 else "5"} for row in ROWS])


def csv(folder: Path) -> str:
    frame = pandas.DataFrame(ROWS).astype({"age": object})
    frame.loc[3, "age"] = "n.a."
    frame.to_csv(folder / "rows.csv", index=False)
    return str(folder / "rows.csv")


def trained(folder: Path, data: Any, model: nn.Module | None = None, **inputs: Any) -> None:
    options = inputs.pop("args", {})
    args = TrainingArguments(str(folder / "run"), use_cpu=True, report_to="none", max_steps=2, **options)
    Trainer(model or Price(), args, train_dataset=data, **inputs).train()


TEXT, ANY = "'age' is text, such as 'n.a.' in row 3", "'age' is text, such as 'n.a.' in row "
CASES: dict[str, tuple[Any, str]] = {
    "a file": (csv, TEXT),
    "a table": (lambda _: table("n.a."), TEXT),
    "a decimal comma": (lambda _: table("1,0"), "'age' is text, such as '1,0' in row 3"),
    "numbers as texts": (lambda _: table("7"), "'age' is text, such as '"),
    "a stream of a table": (lambda _: table("n.a.").to_iterable_dataset(), "'age' is text."),
    "a data frame": (lambda _: pandas.DataFrame(with_age("n.a.")), ANY),
    "gaps": (lambda _: pandas.DataFrame(with_age(None)), "'age' is None in row "),
    "dicts": (lambda _: with_age("n.a."), ANY),
    "dicts with None": (lambda _: with_age(None), "'age' is None in row "),
    "named tuples": (lambda _: [Row(1.0, "n.a.", 2.0)] * 16, ANY),
    "objects": (lambda _: CountedRows(with_age("n.a.")), ANY),
}


@pytest.mark.parametrize("case", CASES)
def test_the_error_names_the_column_and_its_text(case: str, tmp_path: Path) -> None:
    make, text = CASES[case]
    with pytest.raises(ModelError, match="missing a required argument: 'age'") as caught:
        trained(tmp_path, make(tmp_path))
    assert f"In the training dataset, {text}" in str(caught.value)
    assert "replace other texts and None" in str(caught.value)
    assert "'id'" not in str(caught.value)


def test_a_stream_without_types_keeps_the_general_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"By default, columns that forward does not take, texts, and None are left"):
        trained(tmp_path, Streamed())


def test_workers_make_the_same_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"'age' is text, such as 'n\.a\.' in row 3"):
        trained(tmp_path, table("n.a."), args={"dataloader_num_workers": 1})


def test_the_error_names_the_dataset_of_an_evaluation(tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    trainer = Trainer(Price(), args, train_dataset=ROWS, eval_dataset={"clean": ROWS, "raw": with_age("n.a.")})
    with pytest.raises(ModelError) as caught:
        trainer.evaluate()
    assert str(caught.value).count("In the dataset 'raw', 'age' is text, such as 'n.a.' in row 0.") == 1


def test_labels_that_are_texts(tmp_path: Path) -> None:
    rows = [{"input": torch.zeros(2), "labels": "cat"}] * 16
    text = r"'labels' is text, such as 'cat' in row \d+\."
    with pytest.raises(ModelError, match=rf"no 'labels' for the criterion.*{text}"):
        trained(tmp_path, rows, nn.Linear(2, 2), criterion=nn.functional.cross_entropy)
    with pytest.raises(ModelError, match=r"returned no loss.*'price' is text, such as '\?' in row "):
        trained(tmp_path, [{**row, "price": "?"} for row in ROWS], Optional())

    def loss_of(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        return nn.functional.cross_entropy(outputs, labels)

    with pytest.raises(TypeError) as caught:
        trained(tmp_path, rows, nn.Linear(2, 2), compute_loss_func=loss_of)
    assert "'labels' is text, such as 'cat' in row " in "\n".join(caught.value.__notes__)
    with pytest.raises(TypeError) as caught:
        trained(tmp_path, [(torch.zeros(2), "cat")] * 16, nn.Linear(2, 2), criterion=nn.functional.cross_entropy)
    assert "position 1 is text, such as 'cat'." in "\n".join(caught.value.__notes__)


def test_a_warning_names_an_optional_input_that_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="trainbus"):
        trained(tmp_path, table("n.a."), Optional())
        trained(tmp_path, datasets.Dataset.from_list(ROWS), Optional())
        trained(tmp_path, table("n.a."), Optional(), data_collator=lambda rows: default_data_collator(rows))
    [warning] = [each.getMessage() for each in caplog.records if "leaves out" in each.getMessage()]
    assert warning.startswith("Training leaves out columns that the model's forward takes: 'age' is text.")


def test_a_column_of_texts_and_numbers_is_an_error() -> None:
    for values, row in ((["n.a.", 1.0], 0), ([1.0, "n.a."], 1), ([torch.zeros(()), "n.a."], 1)):
        with pytest.raises(DataError, match=rf"column 'age' is the text 'n\.a\.' in sample {row} of a batch"):
            default_data_collator([{"age": value, "area": 1.0} for value in values])
    assert [*default_data_collator([{"age": "a", "area": 1.0}, {"age": None, "area": 1.0}])] == ["area"]
    with pytest.raises(DataError, match=r"data frame cannot become a dataset: .*column age.*'n\.a\.'"):
        trained(Path("unused"), pandas.DataFrame({"age": [1, "n.a."], "area": [1.0, 1.0]}))


def test_a_dataset_that_fails_does_not_hide_the_error(tmp_path: Path) -> None:
    class Once(CountedRows):
        def __getitem__(self, index: int) -> Any:
            if len(self.read) >= len(self.rows):  # the first two batches are read ahead
                raise OSError("closed")
            return super().__getitem__(index)

    with pytest.raises(ModelError, match="missing a required argument: 'age'"):
        trained(tmp_path, Once(with_age("n.a.")))

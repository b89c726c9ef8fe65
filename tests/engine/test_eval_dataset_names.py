"""Names of eval datasets: an unknown name raises the same error everywhere, and before the first step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainbus import Callback, Evaluate, Trainer, TrainingArguments, every
from trainbus.events.errors import ArgumentError, DataError

ROWS = TensorDataset(torch.randn(8, 4), torch.zeros(8, dtype=torch.long))
NAMED = {"test": ROWS, "dev": ROWS}


def trainer(folder: Path, eval_dataset: Any = None, *callbacks: Callback, cls: type[Trainer] = Trainer) -> Trainer:
    options: dict[str, Any] = {"per_device_train_batch_size": 4, "max_steps": 2, "save_strategy": "no"}
    return cls(
        nn.Linear(4, 2),
        TrainingArguments(str(folder), use_cpu=True, disable_tqdm=True, **options),
        train_dataset=ROWS,
        eval_dataset=eval_dataset,
        criterion=nn.functional.cross_entropy,
        callbacks=list(callbacks),
    )


TAKE_A_NAME: dict[str, Callable[[Trainer, str], Any]] = {
    "evaluate": lambda made, name: made.evaluate(name),
    "evaluate with a dict": lambda made, name: made.evaluate({"first": ROWS, "second": name}),
    "get_eval_dataloader": lambda made, name: made.get_eval_dataloader(name),
    "check_evaluation": lambda made, name: made.check_evaluation(name),
    "run.evaluate": lambda made, name: made.run.evaluate(eval_dataset=name),
}


@pytest.mark.parametrize("take", TAKE_A_NAME.values(), ids=TAKE_A_NAME)
def test_unknown_name_raises_one_error_everywhere(tmp_path: Path, take: Callable[[Trainer, str], Any]) -> None:
    made = trainer(tmp_path, NAMED)
    with pytest.raises(ArgumentError) as raised:
        take(made, "tset")
    expected = "Unknown eval dataset 'tset'; did you mean 'test'? There are: ['test', 'dev']."
    assert str(raised.value) == expected
    assert made.state.log_history == []  # no other dataset of the dict was evaluated before


@pytest.mark.parametrize("take", TAKE_A_NAME.values(), ids=TAKE_A_NAME)
@pytest.mark.parametrize("data", [None, ROWS], ids=["no dataset", "one dataset"])
def test_name_without_named_datasets_says_how_to_name_them(tmp_path: Path, data: Any, take: Any) -> None:
    with pytest.raises(ArgumentError, match=r"no eval datasets with names\. Pass `eval_dataset=\{'dev': \.\.\.\}`"):
        take(trainer(tmp_path, data), "dev")


@pytest.mark.parametrize("take", TAKE_A_NAME.values(), ids=TAKE_A_NAME)
def test_known_name_is_taken(tmp_path: Path, take: Callable[[Trainer, str], Any]) -> None:
    take(trainer(tmp_path, NAMED), "dev")


def test_prediction_for_a_name_says_to_pass_the_dataset(tmp_path: Path) -> None:
    made = trainer(tmp_path, NAMED)
    for predict in (made.predict, made.get_test_dataloader):
        with pytest.raises(ArgumentError, match=r"pass it: `trainer\.eval_dataset\['test'\]`"):
            predict("tset")


class OwnLoaders(Trainer):
    """Makes loaders of data that the trainer does not know."""

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return super().get_eval_dataloader(ROWS)


class OwnEvaluate(Trainer):
    """Evaluates data that the trainer does not know."""

    def evaluate(self, eval_dataset: Any = None, *args: Any, **options: Any) -> dict[str, float]:
        return super().evaluate(ROWS)


CANNOT_BEGIN = {
    "unknown name": ({"dataset": "tset"}, ArgumentError, "did you mean 'test'"),
    "unknown name in a dict": ({"dataset": {"a": "tset"}}, ArgumentError, "did you mean 'test'"),
    "unknown name with rows": ({"dataset": "tset", "rows": 3}, ArgumentError, "did you mean 'test'"),
    "missing file": ({"dataset": "missing.csv", "name": "x"}, DataError, "There is no file 'missing.csv'"),
    "loader": ({"dataset": DataLoader(ROWS), "name": "x"}, DataError, "override `get_eval_dataloader`"),
    "class": ({"dataset": TensorDataset, "name": "x"}, DataError, "is the class TensorDataset"),
}


@pytest.mark.parametrize(("options", "error", "match"), CANNOT_BEGIN.values(), ids=CANNOT_BEGIN)
def test_evaluation_that_cannot_begin_fails_before_the_first_step(tmp_path: Path, options, error, match) -> None:
    made = trainer(tmp_path, NAMED, Evaluate(every(2), id="x", **options))
    with pytest.raises(error, match=match):
        made.train()
    assert made.state.global_step == 0


def test_evaluation_without_a_dataset_fails_before_the_first_step(tmp_path: Path) -> None:
    made = trainer(tmp_path, None, Evaluate(every(2)))
    with pytest.raises(DataError, match="There is no eval dataset"):
        made.train()
    assert made.state.global_step == 0


@pytest.mark.parametrize("cls", [OwnLoaders, OwnEvaluate])
def test_override_that_has_its_own_data_needs_no_dataset(tmp_path: Path, cls: type[Trainer]) -> None:
    made = trainer(tmp_path, None, Evaluate(every(2)), cls=cls)
    made.train()
    assert "eval_loss" in made.state.log_history[-2]


def test_preview_checks_the_name(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="did you mean 'test'"):
        trainer(tmp_path, NAMED, Evaluate(every(2), dataset="tset")).preview()
    trainer(tmp_path, NAMED, Evaluate(every(2), dataset=ROWS, name="x")).preview()


def test_name_of_the_callback_names_the_metrics_of_a_named_dataset(tmp_path: Path) -> None:
    made = trainer(tmp_path, NAMED, Evaluate(every(2), dataset="test", name="hard"))
    made.train()
    assert {"eval_hard_loss"} == {name for log in made.state.log_history for name in log if name.endswith("_loss")} - {
        "train_loss"
    }


@pytest.mark.parametrize("method", ["get_eval_dataloader", "get_test_dataloader"])
def test_loader_as_a_dataset_names_the_method_to_override(tmp_path: Path, method: str) -> None:
    with pytest.raises(DataError, match=f"override `{method}`"):
        getattr(trainer(tmp_path), method)(DataLoader(ROWS))


def test_a_handler_may_add_or_fill_a_dataset_before_the_evaluation_is_due(tmp_path: Path) -> None:
    filled: list[Any] = []
    late = [
        Evaluate(every(2), id="late", dataset="surprise"),
        Evaluate(every(2), id="filled", dataset=filled, name="f"),
    ]
    made = trainer(tmp_path, dict(NAMED), *late)

    def add() -> None:
        made.eval_dataset["surprise"] = ROWS
        filled.extend(ROWS)

    made.on("on_step_begin", add, once=1)
    made.train()
    names = {name for entry in made.state.log_history for name in entry}
    assert {"eval_surprise_loss", "eval_f_loss"} <= names


def test_an_overridden_loader_receives_any_name(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Own(Trainer):
        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            seen.append(eval_dataset)
            return super().get_eval_dataloader(ROWS)

    trainer(tmp_path, NAMED, Evaluate(every(2), id="x", dataset="foo", name="foo"), cls=Own).train()
    assert seen == ["foo"]

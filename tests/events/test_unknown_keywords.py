"""An unknown keyword of a class or function: the error suggests the nearest name and lists the known names."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

import trainbus
from support.data import points
from support.models import Regression
from support.trainers import regression_trainer
from trainbus import (
    Callback,
    DataCollatorForSeq2Seq,
    DefaultDataCollator,
    EarlyStopping,
    Evaluate,
    Event,
    Keep,
    Packing,
    Predictions,
    TrainingArguments,
    at_end,
    every,
    log_spaced,
    order,
)
from trainbus.events.errors import ArgumentError, UnknownArgument


@dataclass
class Own(Callback):
    """A callback of a user."""

    factor: float = 1.0
    _hidden: int = 0


class Inheriting(Own):
    """A subclass without the decorator."""


class Plain(Callback):
    """A callback without a constructor."""


class Written(Callback):
    """A callback with its own constructor."""

    def __init__(self, factor: float, /, *, limit: int = 0) -> None:
        self.factor, self.limit = factor, limit


class Open(Callback):
    """A callback that accepts every keyword."""

    def __init__(self, **options: Any) -> None:
        self.options = options


class OpenChild(Open):
    """A subclass that passes its keywords on."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)


class Single(Callback):
    """A callback with its own `__new__`, which takes the arguments."""

    label: str

    def __new__(cls, label: str) -> Single:
        made = super().__new__(cls)
        made.label = label
        return made


class Mapping(Callback, dict[str, int]):
    """A callback that is also a dict, whose `__new__` takes any keyword."""


class Abstract(Callback, ABC):
    """An abstract callback."""

    @abstractmethod
    def rate(self) -> float:
        """Return the rate."""


@dataclass
class Concrete(Abstract):
    """A callback below an abstract class."""

    speed: float = 1.0

    def rate(self) -> float:
        return self.speed


OPTIONS = (Keep, Packing, Predictions, DefaultDataCollator, DataCollatorForSeq2Seq, Event)


def public_classes() -> list[type]:
    """Return the public callbacks of the library that need no optional package, and the classes of options."""
    named = (getattr(trainbus, name) for name in trainbus.__all__)
    callbacks = [each for each in named if isinstance(each, type) and issubclass(each, Callback)]
    return [*dict.fromkeys([*callbacks, *OPTIONS])]


def test_every_keyword_of_every_public_class_is_suggested_for_its_typo() -> None:
    suggested = 0
    for cls in public_classes():
        for name in inspect.signature(cls).parameters:
            with pytest.raises(TypeError) as caught:
                cls(**{f"{name}_": None})
            assert f"{cls.__name__} takes no '{name}_'; did you mean {name!r}? It takes: " in str(caught.value)
            suggested += 1
    assert suggested > 100


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Evaluate(row=5), "Evaluate takes no 'row'; did you mean 'rows'? It takes: trigger, "),
        (lambda: Keep(lats=1), "Keep takes no 'lats'; did you mean 'last'? It takes: last, best, multiples, total, "),
        (
            lambda: Packing(max_lenght=3),
            "Packing takes no 'max_lenght'; did you mean 'max_length'? It takes: max_length",
        ),
        (lambda: EarlyStopping("eval_loss", patiance=2), "EarlyStopping takes no 'patiance'; did you mean 'patience'?"),
        (lambda: Own(factr=2), "Own takes no 'factr'; did you mean 'factor'? It takes: factor."),
        (lambda: Inheriting(factr=2), "Inheriting takes no 'factr'; did you mean 'factor'? It takes: factor."),
        (lambda: Concrete(sped=2), "Concrete takes no 'sped'; did you mean 'speed'? It takes: speed."),
        (lambda: Own(qqq=1, factr=2), "Own takes no 'qqq'. Own takes no 'factr'; did you mean 'factor'? It takes: "),
        (lambda: Written(1.0, limt=2), "Written takes no 'limt'; did you mean 'limit'? It takes: limit."),
        (lambda: Plain(factor=2), "Plain takes no 'factor'. It takes no keywords."),
        (lambda: replace(Own(), factr=2), "Own takes no 'factr'; did you mean 'factor'?"),
        (lambda: every(5, aftr=1), "every() takes no 'aftr'; did you mean 'after'? It takes: interval, unit, after, "),
        (lambda: at_end(erly=True), "at_end() takes no 'erly'; did you mean 'early'? It takes: early."),
        (lambda: log_spaced(pionts=3), "log_spaced() takes no 'pionts'; did you mean 'points'? It takes: points."),
        (
            lambda: order(befor="Log"),
            "order() takes no 'befor'; did you mean 'before'? It takes: stage, before, after.",
        ),
    ],
)
def test_error_names_the_class_the_keyword_the_nearest_name_and_the_known_names(
    call: Callable[[], object], text: str
) -> None:
    with pytest.raises(UnknownArgument) as caught:
        call()
    assert str(caught.value).startswith(text)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ArgumentError)


@pytest.mark.parametrize(
    ("method", "typo", "text"),
    [
        ("train", "resume_from_checkpont", "train() takes no 'resume_from_checkpont'; did you mean 'resume_from_"),
        ("train", "model_path", "train() takes no 'model_path'. It takes: resume_from_checkpoint, trial, ignore_keys_"),
        ("evaluate", "eval_datasets", "evaluate() takes no 'eval_datasets'; did you mean 'eval_dataset'?"),
        ("predict", "metric_prefix", "predict() takes no 'metric_prefix'; did you mean 'metric_key_prefix'?"),
        ("preview", "metric", "preview() takes no 'metric'; did you mean 'metrics'?"),
        ("save_model", "output", "save_model() takes no 'output'; did you mean 'output_dir'? It takes: output_dir."),
        ("export_model", "input", "export_model() takes no 'input'; did you mean 'inputs'?"),
        ("create_model_card", "licence", "create_model_card() takes no 'licence'; did you mean 'license'?"),
        ("init_hf_repo", "privat", "init_hf_repo() takes no 'privat'; did you mean 'private'?"),
    ],
)
def test_methods_of_the_trainer_suggest_the_nearest_keyword(tmp_path, method: str, typo: str, text: str) -> None:
    with pytest.raises(TypeError) as caught:
        getattr(regression_trainer(tmp_path), method)(**{typo: None})
    assert str(caught.value).startswith(text)


def test_on_suggests_the_nearest_filter_before_it_decorates(tmp_path) -> None:
    trainer = regression_trainer(tmp_path)
    with pytest.raises(TypeError, match=r"on\(\) takes no 'evry'; did you mean 'every'\? It takes: every, once"):
        trainer.on("on_step_end", evry=10)
    with pytest.raises(TypeError, match="'evry'; did you mean 'every'"):
        trainer.on("on_step_end", lambda: None, evry=10)


def test_a_subclass_of_the_trainer_may_pass_keywords_on(tmp_path) -> None:
    class Passing(trainbus.Trainer):
        def train(self, *args: Any, **options: Any) -> Any:
            return super().train(*args, **options)

    trainer = Passing(Regression(), TrainingArguments(str(tmp_path)), train_dataset=points(4))
    with pytest.raises(TypeError, match="did you mean 'resume_from_checkpoint'"):
        trainer.train(resume_from_checkpont=True)


def test_constructors_that_accept_other_arguments_keep_working() -> None:
    assert Open(anything=1).options == {"anything": 1}
    assert OpenChild(anything=1).options == {"anything": 1}
    assert (Single("a").label, Single(label="b").label) == ("a", "b")
    assert Mapping(a=1) == {"a": 1}
    assert Written(2.0, limit=3).limit == 3
    assert Inheriting(2.0).factor == 2.0


def test_other_wrong_arguments_raise_the_errors_of_python() -> None:
    with pytest.raises(TypeError, match=r"^Plain\(\) takes no arguments$"):
        Plain(1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="takes from 1 to 3 positional arguments but 4 were given"):
        Own(1, 2, 3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="multiple values for argument 'factor'"):
        Own(1, factor=2)  # type: ignore[misc]
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        Written(limit=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="abstract"):
        Abstract()  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("cls", "signature"),
    [
        (Own, "(factor: 'float' = 1.0, _hidden: 'int' = 0) -> None"),
        (Inheriting, "(factor: 'float' = 1.0, _hidden: 'int' = 0) -> None"),
        (Plain, "()"),
        (Callback, "()"),
        (Open, "(**options: 'Any') -> 'None'"),
        (Single, "(label: 'str') -> 'Single'"),
        (Keep, None),
    ],
)
def test_signature_is_the_one_of_the_constructor(cls: type, signature: str | None) -> None:
    shown = inspect.signature(cls)
    if signature is None:
        assert list(shown.parameters) == [field.name for field in fields(cls)]
    else:
        assert str(shown) == signature


def test_every_attribute_that_dir_lists_can_be_read() -> None:
    for listed in (Own, Own(), Inheriting, Inheriting(), Keep, Keep()):
        for name in dir(listed):
            getattr(listed, name)


@pytest.mark.parametrize("made", [Own(3.0), Inheriting(3.0), Keep(last=2), Concrete(2.0)])
def test_copies_and_pickles_are_equal(made: Any) -> None:
    assert copy.copy(made) == copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == replace(made) == made


def translated(init: Callable[..., None]) -> Any:
    """Decorate a constructor that takes `new`, so that it also takes the older name `old`."""

    @functools.wraps(init)
    def wrapper(self: Any, **options: Any) -> None:
        init(self, **{"new" if name == "old" else name: value for name, value in options.items()})

    return wrapper


def test_a_decorator_of_the_constructor_may_take_other_names() -> None:
    class Renamed(Callback):
        @translated
        def __init__(self, new: int) -> None:
            self.new = new

    renamed: Any = Renamed
    assert renamed(old=1).new == 1


def test_a_checked_function_keeps_its_name_and_signature() -> None:
    assert (every.__name__, at_end.__name__) == ("every", "at_end")
    assert list(inspect.signature(every).parameters) == ["interval", "unit", "after", "times", "overhead"]

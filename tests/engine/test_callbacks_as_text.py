"""Callbacks as text: parsed, checked, built, and written back."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_every_callback import FOUND, each, setting
from torch import nn

import trainbus
from support.trainers import net_trainer, regression_trainer
from trainbus import ArgumentParser, Callback, Checkpoint, EarlyStopping, Keep, Trainer, TrainingArguments
from trainbus.engine.arguments.plugins.build import as_yaml, build, written
from trainbus.engine.arguments.plugins.names import find, own_names, snake_case
from trainbus.engine.arguments.plugins.options import options_of
from trainbus.engine.arguments.plugins.python import as_python
from trainbus.engine.arguments.plugins.text import Spec, as_texts, split, value_of
from trainbus.engine.commands.main import main
from trainbus.events import ArgumentError, SubscriptionError, Trigger, at, at_end, every, log_spaced, never
from trainbus.events.triggers import Moment
from trainbus.integrations import INTEGRATIONS


@dataclass
class Mine(Callback):
    """A callback of this module, with options of many types."""

    number: int = 1
    share: float = 0.5
    name: str | None = None
    switch: bool = False
    words: tuple[str, ...] = ()
    numbers: list[float] = field(default_factory=list)
    table: dict[str, int] = field(default_factory=dict)
    trigger: Trigger = field(default_factory=never)
    keep: Keep = field(default_factory=Keep)
    work: Callable[[Any], Any] | None = None
    kinds: tuple[type[nn.Module], ...] = ()
    secret: str | None = field(default=None, repr=False, compare=False)


@dataclass
class Nested(Callback):
    share: float = 1.0
    table: dict[str, int] = field(default_factory=dict)
    pair: tuple[int, int] = (1, 2)


@dataclass
class Sets(Callback):
    numbers: set[int] = field(default_factory=set)
    names: frozenset[str] = frozenset({"a"})


class AnyOption(Callback):
    """A callback whose constructor takes options of any name."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def on_step_end(self) -> None:
        """Do nothing."""


class Plain:
    """A callback that derives from nothing."""

    def __init__(self, pace: float, label: str = "a") -> None:
        self.pace, self.label = pace, label

    def on_step_end(self, **options: Any) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class FullMoon(Trigger):
    """A trigger of another package."""

    days: int = 29

    def due(self, now: Moment, before: Moment | None = None) -> bool:
        return now.step % self.days == 0


def same(one: Any, other: Any) -> bool:
    """Say whether two callbacks have the same class and settings. Plain classes define no equality."""
    return type(one) is type(other) and (one == other or vars(one) == vars(other))


def one(text: str) -> Any:
    """Return the callback of a text."""
    [callback] = build([text], None)
    return callback


# The form.


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a b", ["a", "b"]),
        ("a(x=1, y='p q'), b", ["a(x=1, y='p q')", "b"]),
        ('a(x="(,")  c', ['a(x="(,")', "c"]),
        (r"a(x='it\'s, b') c", [r"a(x='it\'s, b')", "c"]),
        ("a(x=[1, 2], y={'k': (3, 4)})", ["a(x=[1, 2], y={'k': (3, 4)})"]),
        ("  ", []),
    ],
)
def test_splits_outside_of_brackets_and_quotes(text: str, parts: list[str]) -> None:
    assert split(text) == parts


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("-3", -3),
        ("1e-4", 1e-4),
        ("inf", float("inf")),
        ("true", True),
        ("null", None),
        ("[1, (2, 'x')]", [1, (2, "x")]),
        ("{'a': 1}", {"a": 1}),
        ("{1, 2}", {1, 2}),
        ("every(100) | at_end()", every(100) | at_end()),
        ("every(2, 'epoch', after=1)", every(2, "epoch", after=1)),
        ("every('10min')", every("10min")),
        ("every('auto', overhead=0.03)", every("auto", overhead=0.03)),
        ("at(1, 2) & every(2)", at(1, 2) & every(2)),
        ("log_spaced(5)", log_spaced(5)),
    ],
)
def test_reads_literals_and_triggers(expression: str, value: Any) -> None:
    assert value_of(expression) == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a(x=1", "is not a callback"),
        ("a b(", "is not a callback"),
        ("a(1)", "value without the name of an option"),
        ("a(**{'x': 1})", "value without the name of an option"),
        ("a(x=)", "cannot be parsed"),
        ("a(x=eval_loss)", "Put text in quotes: 'eval_loss'"),
        ("a(x=__import__('os').system('true'))", "Write a literal"),
        ("a(x=[i for i in 'ab'])", "Write a literal"),
        ("a(x=1 + 1)", "Write a literal"),
        ("a(x=every(-1))", "above 0"),
        ("a(x=every())", "missing"),
        ("a)(b", "is not a callback"),
        ("a(x=1)(y=2)", "is not a callback"),
        ("a-b(x=1)", "The name has underscores: 'a_b'"),
        ("a(x={[1]: 2})", "Write a literal"),
        ("a(x=none)", "Write None"),
        ("a(x=evry(10))", "has the unknown trigger 'evry'; did you mean 'every'?"),
        ("a(x={[1]})", "Write a literal"),
        ("a(" + "(" * 500 + ")" * 500 + ")", "parsed"),
    ],
)
def test_refuses_other_expressions(text: str, says: str) -> None:
    with pytest.raises(ArgumentError, match=says.replace("(", r"\(").replace(")", r"\)")):
        Spec.parse(text)
    with pytest.raises(ArgumentError):
        TrainingArguments(callbacks=[text])


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (None, []),
        ("none", ["none"]),
        ("a(x=1) b", ["a(x=1)", "b"]),
        ({"a": {"x": 1}, "b": None}, ["a(x=1)", "b"]),
        (["a", {"b": {"when": "every(2)"}}], ["a", "b(when='every(2)')"]),
        (3, 3),
        ([3], [3]),
    ],
)
def test_reads_every_notation(given: Any, texts: Any) -> None:
    assert as_texts(given) == texts


def test_objects_belong_to_the_list_of_the_trainer() -> None:
    with pytest.raises(ArgumentError, match="pass objects to the Trainer"):
        TrainingArguments(callbacks=[EarlyStopping()])


@pytest.mark.parametrize(
    ("listed", "says"),
    [
        (
            ["EarlyStoping"],
            "'EarlyStoping' is a text; did you mean 'early_stopping'? Write texts of callbacks in the arguments: "
            "`TrainingArguments(callbacks=['early_stopping'])`. Or pass an object: `EarlyStopping()`.",
        ),
        (
            "EarlyStopping(patience=2)",
            "'EarlyStopping(patience=2)' is a text; did you mean 'early_stopping'? Write texts of callbacks in the "
            "arguments: `TrainingArguments(callbacks=['early_stopping(patience=2)'])`. Or pass an object: "
            "`EarlyStopping(patience=2)`.",
        ),
        (
            ["ema"],
            "'ema' is a text. Write texts of callbacks in the arguments: `TrainingArguments(callbacks=['ema'])`. Or "
            "pass an object: `EMA()`.",
        ),
        (
            ["package.module.Thing"],
            "'package.module.Thing' is a text; did you mean 'package.module:Thing'? Write texts of callbacks in the "
            "arguments: `TrainingArguments(callbacks=['package.module:Thing'])`.",
        ),
        (
            ["xyzzy(a=1)"],
            "'xyzzy(a=1)' is a text, and no callback has this name. Pass an object, such as "
            "`EarlyStopping(patience=3)`.",
        ),
    ],
)
def test_a_text_in_the_list_of_the_trainer_names_the_callback_and_the_remedies(
    tmp_path: Path, listed: Any, says: str
) -> None:
    with pytest.raises(SubscriptionError) as caught:
        regression_trainer(tmp_path, callbacks=listed)
    assert str(caught.value) == says
    trainer = regression_trainer(tmp_path)
    with pytest.raises(SubscriptionError) as caught:
        trainer.add_callback(listed if isinstance(listed, str) else listed[0])
    assert str(caught.value) == says


def test_one_error_names_all_texts_in_the_list_of_the_trainer(tmp_path: Path) -> None:
    with pytest.raises(SubscriptionError, match=r"'NanGard' is a text; did you mean 'nan_guard'.*'ema' is a text\."):
        regression_trainer(tmp_path, callbacks=["NanGard", EarlyStopping(), "ema"])


def test_an_unknown_id_to_remove_names_the_nearest_id(tmp_path: Path) -> None:
    with pytest.raises(SubscriptionError, match=r"'Checkpont' is not attached.*did you mean 'Checkpoint'\? Attached:"):
        net_trainer(tmp_path).remove_callback("Checkpont")


# Building.


def test_every_name_is_found_and_is_the_one_of_its_class() -> None:
    classes = {cls.__name__: cls for cls in FOUND}
    assert set(classes) <= set(own_names().values()), "each callback has a name"
    missing = {row.class_name for row in INTEGRATIONS.values() if row.package and find_spec(row.package) is None}
    for text, name in own_names().items():
        if name in classes:
            assert find(text) is classes[name]
        else:
            assert name in {"ProgressCallback", *missing}  # the first is a name of transformers for Progress
    assert snake_case("StopAtMaxSteps") == "stop_at_max_steps"
    assert {"ema", "nan_guard", "tf32", "fsdp", "mlflow", "push_to_hub"} <= own_names().keys()


def test_values_become_the_types_of_the_options() -> None:
    module = __name__
    made = one(
        f"{module}:Mine(number='3', share=2, switch='yes', words=['a'], numbers=['1.5'], table={{'k': 1}}, "
        f"trigger='every(3) | at_end()', keep=Keep(last=2), work='{module}:one', kinds=['torch.nn:Linear'], id='x')"
    )
    assert (made.number, made.share, made.switch, made.words, made.numbers) == (3, 2, True, ("a",), [1.5])
    assert (made.table, made.trigger, made.keep) == ({"k": 1}, every(3) | at_end(), Keep(last=2))
    assert made.work is one
    assert made.kinds == (nn.Linear,)
    assert made.id == "x"
    assert one(f"{module}:Mine(trigger='{module}:FullMoon(days=3)')").trigger == FullMoon(3)
    assert one(f"{module}:Plain(pace='2')").pace == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("table={'k': 'x'}", "it takes an int"),
        ("table={'k': [1]}", "it takes"),
        ("pair=(1, 2, 3)", "it takes 2 values"),
    ],
)
def test_values_inside_of_a_value_have_its_types_too(options: str, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        one(f"{__name__}:Nested({options})")


def test_sets_are_written_and_read_back() -> None:
    for given, text in (
        (Sets(), "Sets"),
        (Sets({3, 1}, frozenset()), "Sets(numbers=[1, 3], names=[])"),
        (Sets(names=frozenset({"c", "b"})), "Sets(names=['b', 'c'])"),
    ):
        assert written([given]) == [f"{__name__}:{text}"]
        assert one(f"{__name__}:{text}") == given
        scope: dict[str, Any] = {}
        exec(as_python([given]), scope)
        assert scope["callbacks"] == [given]
    assert one(f"{__name__}:Sets(numbers={{1, 2}})") == Sets({1, 2})
    assert str(Spec.parse("a(x={2, 1})")) == "a(x={1, 2})"


def test_a_constructor_with_any_option_does_not_receive_the_options_of_all_callbacks() -> None:
    made = one(f"{__name__}:AnyOption(size=1, id='mine', on_error='warn', budget='2%', over_budget='thin')")
    assert made.options == {"size": 1}
    assert (made.id, made.on_error, made.budget, made.over_budget) == ("mine", "warn", "2%", "thin")


def test_nan_is_written_and_read_back() -> None:
    [text] = written([Nested(share=float("nan"), table={"k": 1})])
    assert text == f"{__name__}:Nested(share=nan, table={{'k': 1}})"
    assert one(text).table == {"k": 1}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([{"early_stopping": None, "patience": 3}], "'patience' is not a mapping of options"),
        ({"early_stopping": 3}, "'early_stopping' is not a mapping of options"),
        ({"ema(decay=0.9)": {"every": 2}}, "is not a callback"),
    ],
)
def test_a_mapping_of_another_form_is_refused_with_the_form(given: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        TrainingArguments(callbacks=given)


def test_all_errors_are_in_one_message() -> None:
    with pytest.raises(ArgumentError) as caught:
        build(
            [
                "early_stoping(patience=3)",
                "ema(decay='x', dekay=1)",
                f"{__name__}:Plain",
                f"{__name__}:Plane(pace=1)",
                "nosuchmodule:Thing",
                "EarlyStopping",
                "torch.nn.Linear",
                "nan_guard(action='skp')",
                "ema(decay=2)",
                "checkpoint(keep=Keep(lst=2))",
                "checkpoint(trigger=Keep(last=2))",
            ],
            None,
        )
    said = str(caught.value)
    assert said.startswith("12 problems:")
    for part in (
        "Unknown callback 'early_stoping'; did you mean 'early_stopping'?",
        "`ema`: decay is 'x'; it takes a float.",
        "`ema` has no option 'dekay'; did you mean 'decay'?",
        f"`{__name__}:Plain` needs `pace`.",
        "has no 'Plane'; did you mean 'Plain'?",
        "nosuchmodule cannot be imported",
        "Unknown callback 'EarlyStopping'; did you mean 'early_stopping'?",
        "did you mean 'torch.nn:Linear'?",
        "action is 'skp'; did you mean 'skip'?",
        "`ema(decay=2)`: EMA(decay=2): set a decay",
        "`Keep` has no option 'lst'; did you mean 'last'?",
        "trigger is Keep(last=2)",
    ):
        assert part in said, part


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        trainbus.integrations, "load", lambda name: (_ for _ in ()).throw(trainbus.events.MissingExtra(f"pip {name}"))
    )
    with pytest.raises(ArgumentError, match="pip swanlab"):
        build(["swanlab"], None)


def test_a_callback_of_transformers_is_built_and_written(tmp_path: Path) -> None:
    text = "transformers:EarlyStoppingCallback(early_stopping_patience=7, early_stopping_threshold='0.5')"
    made = one(text)
    assert (made.early_stopping_patience, made.early_stopping_threshold) == (7, 0.5)
    assert type(made).__module__.startswith("transformers")
    again = one(written([made])[0])
    assert vars(again) == vars(made)
    trainer = regression_trainer(tmp_path, args={"callbacks": ["transformers:PrinterCallback"], "max_steps": 1})
    assert "PrinterCallback" in trainer.callbacks


# Writing.


def other_values(default: Any, hint: Any) -> Iterator[Any]:
    """Yield values of the kind of a default that differ from it."""
    if isinstance(default, bool) or hint is bool:
        yield not default
    elif isinstance(default, (int, float)):
        yield from (default + 1, default * 0.5 if isinstance(default, float) else default + 7)
    elif isinstance(default, Trigger):
        yield from (every(3), every(2, "epoch") | at_end(early=False), at(2, 4), every("90s", after=5), every(0.25))
        yield (every(4) | at(3)) & every(2)
    elif isinstance(default, Keep):
        yield from (Keep(last=3, best=2), Keep(minutes=1.5))
    elif isinstance(default, dict):
        yield {"it's": [1, {"b": None}]}
    elif isinstance(default, (list, tuple)):
        yield from (type(default)(["one", 'tw"o']), type(default)())
    elif default is None or isinstance(default, str):
        yield from ("bf16", "text with 'quotes', (brackets\n and a line", 3, 0.5, True, "max", ["a", "b"], {"a": "b"})


@each(FOUND)
def test_every_callback_is_written_and_read_back(cls: type[Callback], tmp_path: Path) -> None:
    """With its defaults, with the options of the conformance suite, and with every option changed by itself."""
    made = [cls(), cls(**{k: v for k, v in setting(cls).options(tmp_path).items() if v is not callable})]
    tried = 0
    for option in options_of(cls).values():
        for value in other_values(option.default, option.hint) if option.is_shown else ():
            tried += 1
            try:
                if option.convert(value) != value:
                    continue  # not of the type of the option
                named = option.name if option.name in {each.name for each in dataclasses.fields(cls)} else None
                made.append(cls(**{option.name: value}) if named else copy.copy(cls()))
            except Exception:  # the callback refuses this value
                continue
            if not named:
                setattr(made[-1], option.name, value)
    assert tried
    for callback in made:
        [text] = written([callback])
        again = one(text)
        assert same(again, callback), text
        assert (again.id, again.on_error) == (callback.id, callback.on_error)
        assert yaml.safe_load(as_yaml([callback])) == {"callbacks": [text]}
    space: dict[str, Any] = {}
    exec(as_python(made), space)
    assert all(map(same, space["callbacks"], made))


def test_one_error_names_all_values_without_a_text() -> None:
    with pytest.raises(ArgumentError) as caught:
        written([Mine(work=lambda run: run), trainbus.Evaluate(dataset=object()), EarlyStopping(), Mine(secret="x")])
    said = str(caught.value)
    assert said.startswith("2 problems:")
    assert "Mine.work cannot be written as text" in said
    assert "Evaluate.dataset cannot be written as text" in said
    assert written([Mine(secret="hidden")]) == [f"{__name__}:Mine"]


def test_a_trainer_writes_its_list_and_reads_it_back(tmp_path: Path) -> None:
    listed = [EarlyStopping(patience=5), Checkpoint(every(3) | at_end(), keep=Keep(last=2)), Mine(kinds=(nn.Linear,))]
    first = net_trainer(tmp_path, *listed, criterion=nn.MSELoss())
    first.on("on_step_end", lambda: None)
    config = first.callbacks_as_config()
    assert "early_stopping(patience=5)" in config
    args = TrainingArguments(str(tmp_path), max_steps=6, callbacks=json.loads(json.dumps(config)))
    second = Trainer(nn.Linear(2, 2), args)
    assert [*second.callbacks.values()] == [
        each for each in first.callbacks.values() if isinstance(each, Callback) and type(each).__name__ != "LossModule"
    ]


def test_text_and_list_are_one_list(tmp_path: Path) -> None:
    trainer = regression_trainer(tmp_path, args={"callbacks": "early_stopping"}, callbacks=[EarlyStopping()])
    assert [name for name in trainer.callbacks if name.startswith("Early")] == ["EarlyStopping"]
    with pytest.raises(ArgumentError, match="contradicts the arguments"):
        regression_trainer(tmp_path, args={"callbacks": "early_stopping"}, callbacks=[EarlyStopping(patience=9)])
    with pytest.raises(ArgumentError, match="logging_steps=7 in the arguments"):
        regression_trainer(
            tmp_path, args={"callbacks": "log(trigger=every(3))", "logging_strategy": "steps", "logging_steps": 7}
        )


def test_callbacks_that_are_assigned_after_construction_are_refused(tmp_path: Path) -> None:
    trainer = regression_trainer(tmp_path)
    trainer.args.callbacks = ["early_stopping"]
    with pytest.raises(ArgumentError, match="callbacks changed after the Trainer was built"):
        trainer.train()


# The command line and files.


def test_flags_add_up_and_override_a_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("callbacks:\n  - ema: {decay: 0.9}\nplugins: [a, b(x=1)]\n", encoding="utf-8")

    def parsed(*words: str) -> Any:
        return ArgumentParser(TrainingArguments).parse_args_into_dataclasses([str(file), *words])[0]

    assert (parsed().callbacks, parsed().plugins) == (["ema(decay=0.9)"], ["a", "b(x=1)"])
    assert parsed("--callbacks", "tf32", "early_stopping(patience=3)", "--callbacks", "swa").callbacks == [
        *("tf32", "early_stopping(patience=3)", "swa")
    ]
    assert parsed("-p", "no:a", "-p", "no:c").plugins == ["a", "b(x=1)", "no:a", "no:c"]
    assert parsed("--plugins", "c", "-p", "no:a").plugins == ["c", "no:a"]
    assert parsed("--plugins", "none").plugins == []


def test_arguments_with_callbacks_are_written_and_read(tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path), callbacks=["ema(decay=0.5)"], plugins={"a": {"x": "it's"}})
    again = ArgumentParser(TrainingArguments).parse_dict(json.loads(args.to_json_string()))[0]
    assert (again.callbacks, again.plugins) == (args.callbacks, args.plugins)


def test_compose_prints_a_list_that_builds_the_same_callbacks(tmp_path: Path, capsys: Any) -> None:
    words = ["--save_strategy", "epoch", "--callbacks", "early_stopping(patience=3)", "ema(decay=0.9, id='mean')"]
    assert main(["compose", *words, "--only", "python"]) == 0
    space: dict[str, Any] = {}
    exec(capsys.readouterr().out, space)
    args = ArgumentParser(TrainingArguments).parse_args_into_dataclasses(words)[0]
    composed = Trainer.compose(args)
    assert space["callbacks"] == composed
    assert EarlyStopping(patience=3) in composed
    assert main(["compose", *words, "--only", "yaml"]) == 0
    assert build(yaml.safe_load(capsys.readouterr().out)["callbacks"], args) == composed


def test_compose_names_all_errors(capsys: Any) -> None:
    assert main(["compose", "--callbacks", "early_stoping", "ema(decay=3)"]) == 2
    said = capsys.readouterr().err
    assert "did you mean 'early_stopping'" in said
    assert "ema(decay=3)" in said

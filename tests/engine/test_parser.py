"""The parser: dataclasses from flags, files and dictionaries, as in transformers' HfArgumentParser."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import warnings
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, List, Literal, Optional, Union  # noqa: UP035  # scripts still write them so

import pytest

from trainbus.engine.arguments import ALIASES, IntervalStrategy, TrainingArguments
from trainbus.engine.arguments._base import Group
from trainbus.engine.arguments.cli.files import read_flags
from trainbus.engine.arguments.cli.parser import ArgumentParser, HfArgumentParser, PdArgumentParser
from trainbus.events.errors import ArgumentError, MissingExtra


class Colour(str, Enum):
    RED = "red"
    DARK_BLUE = "dark-blue"


class Width(Enum):
    NARROW = 1
    WIDE = 2


@dataclass
class DataArguments:
    """What the script reads."""

    dataset: str = field(default=None, metadata={"help": "The dataset to use, 100% of it."})
    max_seq_length: int = field(default=128, metadata={"help": "Tokens, at most; %(default)s if left out."})


@dataclass
class ModelArguments:
    model_name_or_path: str = field(metadata={"help": "Name or folder of the model.", "aliases": ["--model", "-m"]})
    dtype: str = field(default="auto", metadata={"help": "Its type.", "choices": ["auto", "float32", "bfloat16"]})
    heads: int = field(kw_only=True)


@dataclass
class Everything:
    """Fields of every kind that both parsers know, and agree on."""

    model: str
    switch: bool
    count: int = 3
    rate: float = 0.1
    note: str | None = None
    limit: int | None = None
    share: Optional[float] = None  # noqa: UP045
    on_disk: bool = False
    pin_memory: bool = True
    maybe: bool | None = None
    colour: Colour = Colour.RED
    size: Literal["small", "large"] = "small"
    level: Literal[1, 2, "max"] = 1
    tags: List[str] = field(default_factory=list)  # noqa: UP006
    layers: list[int] = field(default_factory=lambda: [1, 2])
    names: list[str] | None = None
    folder: Path = Path("here")
    example: str = field(default="x", metadata={"aliases": ["--ex", "-e"]})
    kind: str = field(default="a", metadata={"choices": ["a", "b"]})
    untold: str = None


@dataclass
class Ours:
    """Fields of kinds that only this parser knows."""

    names: Union[str, list[str], None] = "none"  # noqa: UP007
    steps: float | str = 1.0
    amount: int | str = 1
    size: int | float | None = None
    options: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] | str | None = None
    resume: bool | str | None = None
    width: Width = Width.NARROW
    betas: tuple[float, float] = (0.9, 0.999)
    sizes: tuple[int, ...] = ()
    rows: list[list[int]] = field(default_factory=list)
    anything: Any = None
    pin: bool | None = True


@dataclass
class Extended(TrainingArguments):
    """What a user adds."""

    learning_rate: float = 1e-3
    temperature: float = 1.0


def parsed(cls, *words):
    """The one instance that a command line makes."""
    (made,) = ArgumentParser(cls).parse_args_into_dataclasses([*words], look_for_args_file=False)
    return made


def helped(*classes, **options):
    return ArgumentParser(*classes, prog="train.py", **options).format_help()


@pytest.fixture
def complaint(capsys):
    """The message, without the usage line, that a command line ends the program with."""

    def run(classes, *words):
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            ArgumentParser(classes, prog="train.py").parse_args_into_dataclasses([*words], look_for_args_file=False)
        assert left.value.code == 2
        printed = capsys.readouterr().err
        assert printed.startswith("usage: train.py [config.json|.yaml|.args]")
        return printed.partition("train.py: error: ")[2].rstrip("\n")

    return run


@pytest.fixture
def hf():
    return pytest.importorskip("transformers.hf_argparser").HfArgumentParser


# The forms of the call.


@pytest.mark.parametrize("given", [(TrainingArguments, DataArguments), ((TrainingArguments, DataArguments),)], ids=len)
def test_dataclasses_come_one_by_one_or_as_a_tuple(given):
    args, data = ArgumentParser(*given).parse_args_into_dataclasses(["--max_steps", "3", "--dataset", "chnsenticorp"])
    assert (type(args), args.max_steps) == (TrainingArguments, 3)
    assert data == DataArguments(dataset="chnsenticorp")


def test_other_names_and_other_ways_to_name_the_dataclasses():
    assert HfArgumentParser is PdArgumentParser is ArgumentParser
    assert ArgumentParser(dataclass_types=[DataArguments]).dataclass_types == [DataArguments]
    assert ArgumentParser([DataArguments]).dataclass_types == [DataArguments]
    assert ArgumentParser().parse_args_into_dataclasses([]) == ()


def test_options_of_argparse_are_passed_on():
    parser = ArgumentParser(DataArguments, prog="mine", description="Trains.", allow_abbrev=True)
    assert "usage: mine" in parser.format_help()
    assert "Trains." in parser.format_help()
    assert parser.parse_args_into_dataclasses(["--max_seq", "3"]) == (DataArguments(max_seq_length=3),)


def test_words_are_those_of_the_program_by_default(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--dataset", "mnist"])
    assert ArgumentParser(DataArguments).parse_args_into_dataclasses() == (DataArguments(dataset="mnist"),)


def test_a_flag_of_two_dataclasses_is_refused_with_both_names():
    @dataclass
    class Rival:
        dataset: int = 1
        learning_rate: float = 1.0
        help: str = ""

    with pytest.raises(ArgumentError) as caught:
        ArgumentParser(TrainingArguments, DataArguments, Rival)
    message = str(caught.value)
    assert "`--dataset` is defined by DataArguments and by test_a_flag" in message
    assert "`--learning_rate` is defined by TrainingArguments and by test_a_flag" in message
    assert "`--help` is defined by the parser itself and by test_a_flag" in message


def test_a_class_other_than_a_dataclass_is_refused():
    with pytest.raises(ArgumentError, match="not a dataclass"):
        ArgumentParser(DataArguments())
    with pytest.raises(ArgumentError, match="not a dataclass"):
        ArgumentParser(dict)


def test_an_annotation_out_of_reach_is_refused_with_the_remedy():
    class Hidden(Enum):
        A = 1

    @dataclass
    class Local:
        hidden: Hidden = Hidden.A

    with pytest.raises(ArgumentError, match="'Hidden' is not defined; define the class"):
        ArgumentParser(Local)


def test_fields_that_init_does_not_take_are_no_flags():
    @dataclass
    class Derived:
        a: int = 1
        b: int = field(default=2, init=False)

    assert "--b" not in helped(Derived)
    assert parsed(Derived, "--a", "5").b == 2


# The same as Transformers.

NEEDED = ["--model", "bert"]
LINES = [
    NEEDED,
    ["--model=bert"],
    [*NEEDED, "--switch"],
    [*NEEDED, "--switch", "no", "--on_disk", "yes", "--pin_memory", "0"],
    [*NEEDED, "--on_disk"],
    [*NEEDED, "--on-disk", "TRUE"],
    [*NEEDED, "--no_pin_memory"],
    [*NEEDED, "--no-pin-memory"],
    [*NEEDED, "--no_pin_memory", "--pin_memory"],
    [*NEEDED, "--pin_memory=f"],
    [*NEEDED, "--maybe", "true"],
    [*NEEDED, "--maybe", "n"],
    [*NEEDED, "--count", "-4", "--rate", "1e-3", "--limit", "7", "--share", "1"],
    [*NEEDED, "--rate", "2", "--rate=3"],
    [*NEEDED, "--colour", "dark-blue", "--size", "large"],
    [*NEEDED, "--level", "2"],
    [*NEEDED, "--level", "max"],
    [*NEEDED, "--tags", "a", "b", "--layers", "5", "-6"],
    [*NEEDED, "--tags", "a", "--tags", "b", "c"],
    [*NEEDED, "--names", "one", "two words"],
    [*NEEDED, "--folder", "/tmp/x", "--note", "", "--untold", "told"],
    [*NEEDED, "--ex", "1", "--kind", "b"],
    ["-e", "2", *NEEDED],
    ["--note", "a=b", "--example=c=d", *NEEDED],
]


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_the_same_words_make_the_same_instance_as_under_transformers(hf, words):
    (theirs,) = hf(Everything).parse_args_into_dataclasses(words, look_for_args_file=False)
    ours = parsed(Everything, *words)
    assert ours == theirs
    for name, value in vars(theirs).items():
        assert isinstance(getattr(ours, name), type(value)), name


def test_words_left_over_are_those_of_transformers(hf):
    words = [*NEEDED, "--what", "1", "--count", "2", "--why"]
    for parser in (hf(Everything), ArgumentParser(Everything)):
        made, rest = parser.parse_args_into_dataclasses(words, return_remaining_strings=True)
        assert made.count == 2
        assert rest == ["--what", "1", "--why"]


def test_added_arguments_come_back_as_under_transformers(hf):
    for parser in (hf([Everything, DataArguments]), ArgumentParser(Everything, DataArguments)):
        parser.add_argument("--mine", type=int, default=5)
        made, data, more, rest = parser.parse_args_into_dataclasses(
            [*NEEDED, "--mine", "6"], return_remaining_strings=True
        )
        assert (made.model, data, more, rest) == ("bert", DataArguments(), argparse.Namespace(mine=6), [])
        assert parser.parse_args_into_dataclasses(NEEDED)[2] == argparse.Namespace(mine=5)


def test_files_of_flags_are_read_as_under_transformers(hf, tmp_path, monkeypatch):
    own, named, chosen = tmp_path / "train.args", tmp_path / "named.args", tmp_path / "chosen.args"
    own.write_text("--count 10\n--rate 0.5 --note own")
    named.write_text("--count 20 --note named")
    chosen.write_text("--count 30")
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py"), *NEEDED])
    for options, count, rate, note in [
        ({}, 10, 0.5, "own"),
        ({"args": [*NEEDED, "--count", "1"]}, 1, 0.5, "own"),
        ({"look_for_args_file": False}, 3, 0.1, None),
        ({"args_filename": named}, 20, 0.1, "named"),
        ({"args": [*NEEDED, "--file", str(chosen), "--note", "x"], "args_file_flag": "--file"}, 30, 0.5, "x"),
        (
            {"args": [*NEEDED, "--file", str(chosen), "--file", str(named)], "args_file_flag": "--file"},
            20,
            0.5,
            "named",
        ),
    ]:
        for parser in (hf(Everything), ArgumentParser(Everything)):
            (made,) = parser.parse_args_into_dataclasses(**options)
            assert (made.count, made.rate, made.note) == (count, rate, note)


def test_dictionaries_and_files_are_read_as_under_transformers(hf, tmp_path):
    pytest.importorskip("yaml")
    values = {"model": "bert", "switch": True, "layers": [3], "names": ["a"], "rate": 1, "limit": None, "size": "large"}
    (tmp_path / "a.json").write_text(json.dumps(values))
    (tmp_path / "a.yaml").write_text("{model: bert, switch: true, layers: [3], names: [a], rate: 1, size: large}")
    for parser in (hf(Everything), ArgumentParser(Everything)):
        read = [parser.parse_dict(values), parser.parse_json_file(tmp_path / "a.json")]
        assert [*read, parser.parse_yaml_file(tmp_path / "a.yaml")] == [(Everything(**values),)] * 3
        with pytest.raises(ValueError, match="other"):
            parser.parse_dict({**values, "other": 1})
        assert parser.parse_dict({**values, "other": 1}, allow_extra_keys=True) == (Everything(**values),)


# What one word means.


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--names", "a"], {"names": "a"}),
        (["--names", "a", "b"], {"names": ["a", "b"]}),
        (["--names"], {"names": []}),
        (["--names", "none"], {"names": "none"}),  # a name: the default
        (["--names", "null"], {"names": None}),
        (["--steps", "0.5"], {"steps": 0.5}),
        (["--steps", "half"], {"steps": "half"}),
        (["--amount", "5"], {"amount": 5}),
        (["--amount", "all"], {"amount": "all"}),
        (["--size", "2"], {"size": 2}),
        (["--size", "2.5"], {"size": 2.5}),
        (["--size", "None"], {"size": None}),
        (["--options", '{"a": [1, null]}'], {"options": {"a": [1, None]}}),
        (["--config", '{"a": 1}'], {"config": {"a": 1}}),
        (["--config", "ds.json"], {"config": "ds.json"}),
        (["--resume"], {"resume": True}),
        (["--resume", "false"], {"resume": False}),
        (["--resume", "1"], {"resume": "1"}),
        (["--resume", "out/checkpoint-5"], {"resume": "out/checkpoint-5"}),
        (["--width", "2"], {"width": Width.WIDE}),
        (["--betas", "0.8", "0.9"], {"betas": (0.8, 0.9)}),
        (["--sizes", "1", "2", "3"], {"sizes": (1, 2, 3)}),
        (["--anything", "at all"], {"anything": "at all"}),
        (["--no_pin"], {"pin": False}),
        (["--pin", "none"], {"pin": None}),
    ],
    ids=str,
)
def test_a_word_is_read_by_the_type_of_its_field(words, value):
    assert parsed(Ours, *words) == Ours(**value)


@pytest.mark.parametrize(
    ("cls", "words", "message"),
    [
        (TrainingArguments, ["--learning-rate", "fast"], "`--learning-rate` is 'fast'; it takes a float."),
        (TrainingArguments, ["--max_steps=1.5"], "`--max_steps` is '1.5'; it takes an int."),
        (TrainingArguments, ["--fp16", "maybe"], "`--fp16` is 'maybe'; it takes true or false."),
        (TrainingArguments, ["--eval_steps", "x"], "`--eval_steps` is 'x'; it takes a float or none."),
        (TrainingArguments, ["--max_steps"], "argument --max_steps/--max-steps: expected one argument"),
        (
            TrainingArguments,
            ["--lr_scheduler_kwargs", "{a: 1}"],
            "`--lr_scheduler_kwargs` is '{a: 1}'; it takes a JSON object.",
        ),
        (
            TrainingArguments,
            ["--eval_strategy", "step"],
            "`eval_strategy` is 'step'; did you mean 'steps'? Known: 'no', 'steps', 'epoch'.",
        ),
        (Ours, ["--config", '{"a"'], "`--config` is '{\"a\"'; it takes a JSON object."),
        (Ours, ["--options", "[1]"], "`--options` is '[1]'; it takes a JSON object."),
        (Ours, ["--width", "3"], "`--width` is '3'. Known: '1', '2'."),
        (Ours, ["--betas", "0.8"], "`--betas` is '0.8'; it takes 2 values."),
        (Ours, ["--sizes", "1", "b"], "`--sizes` is '1 b'; it takes an int."),
        (Everything, [*NEEDED, "--colour", "darkblue"], "did you mean 'dark-blue'? Known: 'red', 'dark-blue'."),
        (Everything, [*NEEDED, "--size", "smal"], "did you mean 'small'? Known: 'small', 'large'."),
        (Everything, [*NEEDED, "--kind", "c"], "`--kind` is 'c'. Known: 'a', 'b'."),
    ],
    ids=str,
)
def test_a_value_of_the_wrong_type_is_refused_with_its_flag_and_type(complaint, cls, words, message):
    assert complaint(cls, *words).endswith(message)


# What is passed on.


def test_only_set_values_reach_the_dataclass():
    args = parsed(TrainingArguments, "--eval_strategy", "epoch", "--logging_steps", "20")
    assert args == TrainingArguments(eval_strategy="epoch", logging_steps=20)
    assert args.given == {"eval_strategy", "logging_steps"}
    assert args.do_eval
    assert parsed(TrainingArguments).given == frozenset()
    assert parsed(Extended, "--temperature", "2").given == {"temperature"}


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--output_dir", "~/out"], {"output_dir": "~/out"}),
        (["--report_to", "wandb", "tensorboard"], {"report_to": ["wandb", "tensorboard"]}),
        (["--resume-from-checkpoint"], {"resume_from_checkpoint": True}),
        (["--sharded_ddp", "simple"], {"sharded_ddp": "simple"}),
        (["--lr_scheduler_kwargs", '{"num_cycles": 2}'], {"lr_scheduler_kwargs": {"num_cycles": 2}}),
        (["--no_dataloader_pin_memory"], {"dataloader_pin_memory": False}),
        (["--max_grad_norm", "none"], {"max_grad_norm": None}),
        (["--label_names", "a", "b"], {"label_names": ["a", "b"]}),
        (["--max_steps", "-1"], {}),
    ],
    ids=str,
)
def test_training_arguments_are_those_of_the_call(words, value):
    assert parsed(TrainingArguments, *words) == TrainingArguments(**value)


def test_every_field_of_training_arguments_reads_its_default_as_shown():
    words = []
    for each in dataclasses.fields(TrainingArguments):
        default = getattr(TrainingArguments(), each.name)
        if default not in (None, "", []):
            words += [f"--{each.name}", str(getattr(default, "value", default))]
    assert parsed(TrainingArguments, *words) == TrainingArguments()


@pytest.mark.parametrize("name", [name for name, alias in ALIASES.items() if alias.values])
def test_aliases_with_their_own_values_are_flags_too(name, capsys):
    value = ALIASES[name].values[0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        expected = TrainingArguments(**{name: value})
        args = parsed(TrainingArguments, f"--{name.replace('_', '-')}", str(value))
    assert args == expected
    assert caught[0].message.args == caught[1].message.args
    assert f"--{name} " not in helped(TrainingArguments)
    with pytest.raises(SystemExit):
        parsed(TrainingArguments, f"--{name}", "else")
    assert "is 'else'; it takes" in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name, alias in ALIASES.items() if not alias.values])
def test_other_names_of_arguments_are_flags_that_the_help_hides(name):
    new = ALIASES[name].new
    kind = str(next(each.type for each in dataclasses.fields(TrainingArguments) if each.name == new))
    word = "epoch" if "Strategy" in kind else "true" if kind.startswith("bool") else "{}" if "dict" in kind else "4"
    word = "eager" if new == "torch_compile_backend" else word
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        args = parsed(TrainingArguments, f"--{name.replace('_', '-')}", word)
    assert args == parsed(TrainingArguments, f"--{new}", word)
    assert [str(each.message) for each in caught] == [f"`{name}` is now `{new}`."] * ALIASES[name].outdated
    assert f"--{name} " not in helped(TrainingArguments)


def test_of_two_names_of_an_argument_the_last_flag_wins():
    args = parsed(TrainingArguments, "--evaluation_strategy", "steps", "--eval_strategy", "epoch")
    assert args.eval_strategy == IntervalStrategy.EPOCH


def test_a_field_of_another_dataclass_wins_over_an_alias():
    @dataclass
    class Mine:
        recompute: int = 0
        no_remove_unused_columns: int = 0
        device: str = ""

    words = ["--recompute", "2", "--gradient_checkpointing", "--no_remove_unused_columns", "3", "--device", "mine"]
    args, mine = ArgumentParser(TrainingArguments, Mine).parse_args_into_dataclasses(words)
    assert mine == Mine(2, 3, "mine")
    assert args.gradient_checkpointing
    assert args.remove_unused_columns


def test_argparse_itself_returns_the_set_values(capsys):
    parser = ArgumentParser(TrainingArguments, DataArguments)
    assert parser.parse_args(["--max_steps", "5"]) == argparse.Namespace(max_steps=5)
    with pytest.raises(SystemExit):
        parser.parse_args(["--max_steps", "x"])
    assert "it takes an int" in capsys.readouterr().err


# What is refused.


def test_unknown_flags_are_refused_at_once_with_the_nearest(complaint):
    message = complaint(
        (TrainingArguments, DataArguments),
        "--learning_rat",
        "1",
        "--max-seq-lenght=3",
        "--zzz",
        "--fp16",
        "no",
        "stray",
    )
    assert message == (
        "3 problems:\n"
        "  - `--learning_rat` is not a flag; did you mean '--learning_rate'?\n"
        "  - `--max-seq-lenght` is not a flag; did you mean '--max-seq-length'?\n"
        "  - `--zzz` is not a flag."
    )
    assert complaint(DataArguments, "--dataset", "a", "b") == "'b' does not follow a flag; remove it."
    assert complaint(DataArguments, "--dataset", "a", "b.json").endswith(
        "does not follow a flag; write a configuration file first."
    )


def test_abbreviations_are_refused_with_the_whole_flag(complaint):
    assert complaint(TrainingArguments, "--learning_r", "1").endswith("did you mean '--learning_rate'?")


def test_required_fields_that_are_missing_are_listed(complaint):
    assert complaint(ModelArguments) == "`--model_name_or_path`, `--heads` must be given."
    assert complaint(ModelArguments, "--heads", "x", "-m", "bert") == "`--heads` is 'x'; it takes an int."
    with pytest.raises(ArgumentError, match=r"^`heads` must be given\.$"):
        ArgumentParser(ModelArguments).parse_dict({"model_name_or_path": "bert"})
    with pytest.raises(ArgumentError, match=r"^`switch` must be given\.$"):
        ArgumentParser(Everything).parse_dict({"model": "bert"})
    assert parsed(ModelArguments, "-m", "bert", "--heads", "2") == ModelArguments("bert", heads=2)


def test_everything_wrong_is_shown_together(complaint, tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"dtype": "float31", "head": 3}')
    assert complaint(ModelArguments, str(config), "--heads", "many", "--headz").splitlines() == [
        "5 problems:",
        f"  - {config}: `dtype` is 'float31'; did you mean 'float32'? Known: 'auto', 'float32', 'bfloat16'.",
        f"  - {config}: `head` is not an argument; did you mean 'heads'?",
        "  - `--heads` is 'many'; it takes an int.",
        "  - `--headz` is not a flag; did you mean '--heads'?",
        "  - `--model_name_or_path` must be given.",
    ]


def test_refused_arguments_are_shown_as_text(complaint):
    message = complaint(TrainingArguments, "--fp16", "--bf16", "--learning_rate", "-1")
    assert message.startswith("2 problems:\n  - `learning_rate` is -1.0; set it to a finite number")
    assert "`bf16` and `fp16` are both True" in message


def test_a_command_line_can_raise_instead_of_ending_the_program():
    parser = ArgumentParser(TrainingArguments, exit_on_error=False)
    for words in (["--max_steps", "x"], ["--max_steps"], ["--nothing"], ["--max_steps", "0"], ["absent.json"]):
        with pytest.raises(ArgumentError):
            parser.parse_args_into_dataclasses(words)


# Files.


def test_flags_win_over_the_configuration_file(tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"learning_rate": 3e-4, "max_steps": 7, "evaluation_strategy": "steps", "dataset": "mnist"}')
    parser = ArgumentParser(TrainingArguments, DataArguments)
    words = ["--learning_rate", "1e-4", "--eval_strategy", "no"]
    for line in ([str(config), *words], ["--local_rank=0", str(config), *words]):
        args, data = parser.parse_args_into_dataclasses(line)
        assert (args.learning_rate, args.max_steps, args.eval_strategy) == (1e-4, 7, "no")
        assert data.dataset == "mnist"


@pytest.mark.parametrize("ending", ["json", "yaml", "yml", "args"])
def test_a_configuration_file_has_one_of_four_endings(tmp_path, ending):
    pytest.importorskip("yaml")
    text = {
        "json": '{"dataset": "a b", "max_seq_length": 64}',
        "args": "# words\n--dataset 'a b'\n  # more\n--max_seq_length 32 --max_seq_length 64\n",
    }.get(ending, "dataset: a b\nmax_seq_length: 64\n")
    config = tmp_path / f"config.{ending}"
    config.write_text(text)
    assert parsed(DataArguments, str(config)) == DataArguments("a b", 64)
    assert parsed(DataArguments, str(config), "--max_seq_length=8") == DataArguments("a b", 8)


def test_files_of_flags_take_json_with_and_without_quotes(tmp_path):
    (tmp_path / "a.args").write_text("""--options {"a":1} --config '{"b": 2}' --names "" """)
    made = parsed(Ours, str(tmp_path / "a.args"))
    assert made == Ours(options={"a": 1}, config={"b": 2}, names="")


def test_quotes_in_files_of_flags_group_words(tmp_path):
    for text, words in {
        '--run_name="my run"': ["--run_name=my run"],
        "--run_name='my \"own\" run' -x=''": ['--run_name=my "own" run', "-x="],
        "--run_name 'my run' \"\"": ["--run_name", "my run", ""],
        '--config=\'{"b": 2}\' --options={"a":1}': ['--config={"b": 2}', '--options={"a":1}'],
        'a="b" --x=a"b"': ['a="b"', '--x=a"b"'],
        '# --a="b c"\n--d=#e': ["--d=#e"],
    }.items():
        (tmp_path / "a.args").write_text(text)
        assert read_flags(tmp_path / "a.args") == words
    (tmp_path / "a.args").write_text('--dataset="a b"\n--max_seq_length=64')
    assert parsed(DataArguments, str(tmp_path / "a.args")) == DataArguments("a b", 64)


def test_a_configuration_file_takes_the_place_of_the_programs_own(tmp_path, monkeypatch):
    (tmp_path / "train.args").write_text("--max_seq_length 1 --dataset own")
    (tmp_path / "config.json").write_text('{"max_seq_length": 2}')
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py"), str(tmp_path / "config.json")])
    assert ArgumentParser(DataArguments).parse_args_into_dataclasses() == (DataArguments(None, 2),)


def test_a_first_word_that_another_argument_wants_is_no_configuration_file():
    parser = ArgumentParser(DataArguments)
    parser.add_argument("input")
    assert parser.parse_args_into_dataclasses(["in.json"]) == (DataArguments(), argparse.Namespace(input="in.json"))


def test_text_in_a_file_is_read_where_the_field_is_no_text(tmp_path):
    pytest.importorskip("yaml")
    config = tmp_path / "config.yaml"
    config.write_text("{learning_rate: 1e-4, eval_strategy: no, save_strategy: epoch, fp16: 'false', run_name: '5'}")
    (args,) = ArgumentParser(TrainingArguments).parse_yaml_file(config)
    assert (args.learning_rate, args.eval_strategy, args.fp16, args.run_name) == (1e-4, "no", False, "5")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"width": 2}, {"width": Width.WIDE}),
        ({"betas": [0.5, 1]}, {"betas": (0.5, 1)}),
        ({"sizes": []}, {"sizes": ()}),
        ({"rows": [[1], ["2"]]}, {"rows": [[1], [2]]}),
        ({"names": ["a"]}, {"names": ["a"]}),
        ({"names": "null"}, {"names": "null"}),
        ({"size": "none"}, {"size": None}),
        ({"options": '{"a": 1}'}, {"options": {"a": 1}}),
        ({"names": Path("a")}, {"names": "a"}),
        ({"anything": object}, {"anything": object}),
    ],
    ids=str,
)
def test_values_of_a_dictionary_become_those_of_their_fields(values, expected):
    assert ArgumentParser(Ours).parse_dict(values) == (Ours(**expected),)


def test_all_errors_of_a_dictionary_are_in_one_message():
    values = {"learning_rat": 1, "dataset": 5, "max_seq_length": True, "max_steps": "x", 3: 4}
    with pytest.raises(ArgumentError) as caught:
        ArgumentParser(TrainingArguments, DataArguments).parse_dict(values)
    assert str(caught.value).splitlines() == [
        "5 problems:",
        "  - `learning_rat` is not an argument; did you mean 'learning_rate'?",
        "  - `dataset` is 5; it takes text or none.",
        "  - `max_seq_length` is True; it takes an int.",
        "  - `max_steps` is 'x'; it takes an int.",
        "  - `3` is not an argument.",
    ]


def test_training_arguments_check_values_of_a_dictionary_as_in_a_call():
    parser = ArgumentParser(TrainingArguments)
    assert parser.parse_dict({"output_dir": None, "sharded_ddp": True}) == (TrainingArguments(sharded_ddp=True),)
    for values in ({"max_steps": 1.5}, {"bf16": 1}, {"eval_strategy": 3}, {"label_names": 1}):
        with pytest.raises(ArgumentError) as ours:
            parser.parse_dict(values)
        with pytest.raises(ArgumentError) as theirs:
            TrainingArguments(**values)
        assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "cannot be parsed (Expecting property name"),
        ("a.json", "[1]", "contains a list. Write a mapping"),
        ("a.json", '{"data": 1}', "`data` is not an argument"),
        ("a.yaml", "a: [", "cannot be parsed (while parsing"),
        ("a.yaml", "- 1", "contains a list"),
        ("b.json", None, "No such file"),
        ("b.yaml", None, "No such file"),
    ],
)
def test_invalid_file_is_named(tmp_path, complaint, name, text, message):
    pytest.importorskip("yaml")
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    parser = ArgumentParser(DataArguments)
    read = parser.parse_json_file if name.endswith("json") else parser.parse_yaml_file
    with pytest.raises(ArgumentError) as caught:
        read(path)
    for said in (str(caught.value), complaint(DataArguments, str(path))):
        assert said.startswith(str(path))
        assert message in said


def test_an_empty_yaml_file_sets_no_argument(tmp_path):
    pytest.importorskip("yaml")
    (tmp_path / "a.yaml").write_text("# later\n")
    assert ArgumentParser(DataArguments).parse_yaml_file(tmp_path / "a.yaml") == (DataArguments(),)


def test_a_yaml_file_without_pyyaml_names_the_package(tmp_path, monkeypatch, complaint):
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "a.yaml").write_text("dataset: a")
    with pytest.raises(MissingExtra, match="pip install"):
        ArgumentParser(DataArguments).parse_yaml_file(tmp_path / "a.yaml")
    assert "pip install" in complaint(DataArguments, str(tmp_path / "a.yaml"))


def test_a_named_file_of_flags_that_is_not_there_is_refused(tmp_path):
    parser = ArgumentParser(DataArguments, exit_on_error=False)
    with pytest.raises(ArgumentError, match="No such file"):
        parser.parse_args_into_dataclasses([], args_filename=tmp_path / "absent.args")


# The help.


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")


def sections(text):
    """The flags that a help text shows under each title."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith(" ") and line.endswith(":"):
            shown = found.setdefault(line.removesuffix(":"), [])
        elif line.startswith("  --") and found:
            shown.append(line.split()[0])
    return found


def test_the_help_has_a_section_for_each_group_of_arguments(wide):
    shown = sections(helped(Extended, DataArguments, ModelArguments))
    assert next(iter(shown)) in ("options", "optional arguments")
    assert shown["The length of the run, in epochs or in steps"] == [
        *("--num_train_epochs", "--max_steps", "--fast_dev_run", "--max_time")
    ]
    assert shown["The output folder"] == ["--output_dir"]
    assert "--learning_rate" in shown["The optimizer, weight decay, gradient clipping and label smoothing"]
    assert shown["Extended"] == ["--temperature"]
    assert shown["DataArguments"] == ["--dataset", "--max_seq_length"]
    groups = [base for base in TrainingArguments.__bases__ if issubclass(base, Group)]
    assert len(shown) == 1 + len([group for group in groups if dataclasses.fields(group)]) + 3
    fields = {f"--{each.name}" for each in dataclasses.fields(TrainingArguments)}
    assert fields <= {flag for flags in shown.values() for flag in flags}


def test_the_help_shows_type_text_and_default_of_each_flag(wide):
    text = " ".join(helped(TrainingArguments, DataArguments, ModelArguments, Ours).split())
    for shown in [
        "usage: train.py [config.json|.yaml|.args] --model_name_or_path str --heads int [--flag value ...]",
        "DataArguments: What the script reads. --dataset str The dataset to use, 100% of it. (default: none)",
        "--max_seq_length int Tokens, at most; 128 if left out. (default: 128)",
        "--learning_rate float Peak learning rate of the optimizer.",
        "(default: 5e-05)",
        "--fp16 [bool] ",
        "(one of: no, steps, epoch; default: no)",
        "(default: true; --no_remove_unused_columns for false)",
        "-m str Name or folder of the model. (required)",
        "--dtype str Its type. (one of: auto, float32, bfloat16; default: auto)",
        "--names [str ...] (default: none)",
        "--options JSON (default: {})",
        "--steps float|str (default: 1.0)",
        "--width int (one of: 1, 2; default: 1)",
        "--betas [float ...] (default: 0.9 0.999)",
        "--sizes [int ...] (default: empty)",
    ]:
        assert shown in text
    assert "--learning-rate" not in text
    text = " ".join(helped(Everything).split())
    assert "--model str [--flag value ...]" in text
    assert "--switch [bool] (default: false)" in text


def test_help_ends_the_program_well(capsys):
    with pytest.raises(SystemExit) as left:
        ArgumentParser(TrainingArguments).parse_args_into_dataclasses(["--help"])
    assert left.value.code == 0
    assert "--learning_rate" in capsys.readouterr().out


def test_a_dataclass_may_name_its_section():
    @dataclass
    class Titled:
        _argument_group_name = "Inference"
        beams: int = 1

    assert sections(helped(Titled))["Inference"] == ["--beams"]


@pytest.mark.parametrize(("name", "words"), [("sharded_ddp", "zero_dp_3"), ("fsdp", "full_shard offload")])
def test_a_flag_that_takes_true_or_words_may_stand_alone(name, words):
    parser = ArgumentParser(TrainingArguments)
    (args,) = parser.parse_args_into_dataclasses([f"--{name}", "--output_dir", "out"])
    assert getattr(args, name) is True
    (args,) = parser.parse_args_into_dataclasses([f"--{name}", words, "--output_dir", "out"])
    assert args.way_to_shard == "fsdp"


def test_the_parser_of_transformers_says_which_parser_reads_these_arguments():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")
    with pytest.raises(TypeError, match="import HfArgumentParser from trainbus"):
        transformers.HfArgumentParser(TrainingArguments)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"learning_rate": 0.5,\r\n "max_steps": 3}\r\n'),
        ("a.yaml", "learning_rate: 0.5\r\nmax_steps: 3\r\n"),
        ("a.args", "--learning_rate 0.5\r\n--max_steps 3\r\n"),
    ],
)
def test_files_of_windows_editors_are_read(tmp_path, name, text):
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
    (args,) = ArgumentParser(TrainingArguments).parse_args_into_dataclasses([str(tmp_path / name)])
    assert (args.learning_rate, args.max_steps) == (0.5, 3)


def test_configurations_that_arguments_name_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"split_batches": false}')
    assert TrainingArguments(str(tmp_path), accelerator_config=str(path)).accelerator_config.split_batches is False
    path.write_bytes(b"\xef\xbb\xbf" + b'{"min_num_params": "many"}')
    with pytest.raises(ArgumentError, match="min_num_params"):  # the file is read, and its sizes are checked
        TrainingArguments(str(tmp_path), fsdp=True, fsdp_config=str(path))

"""The command line: flags, configuration files and dictionaries become instances of dataclasses."""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ....events.errors import ArgumentError, MissingExtra, TrainbusError, nearest
from .._base import refusal
from .fields import Argument, arguments_of, heading
from .values import Unreadable

__all__ = ["ArgumentParser", "HfArgumentParser", "PdArgumentParser"]

_CONFIGS = (".json", ".yaml", ".yml", ".args")
_PROBLEMS = "_problems"


class ArgumentParser(argparse.ArgumentParser):
    """Makes instances of dataclasses from a command line, from a configuration file, or from both.

    ```python
    parser = ArgumentParser(TrainingArguments, DataArguments)  # or one tuple of them
    args, data = parser.parse_args_into_dataclasses()
    ```
    then reads `train.py --learning_rate 1e-4 --fp16` and `train.py config.json --learning_rate 1e-4`. A field is a
    flag: `--name value`, `--name=value`, dashes as good as underscores. A bool needs no value, and one that is True by
    default has `--no_name`. A list takes several values, a dict takes JSON, `none` is None where the field takes None.

    A dataclass gets what was given and nothing else, so its own defaults hold. What `add_argument` adds comes back in a
    namespace after the instances. `prog`, `description` and the like are those of `argparse`; with
    `exit_on_error=False`, a wrong command line raises `ArgumentError` instead of ending the program with status 2.

    Raises:
        ArgumentError: if two dataclasses define the same flag.
    """

    def __init__(self, *dataclasses: Any, dataclass_types: Any = (), **options: Any) -> None:
        super().__init__(**{"formatter_class": _Formatter, "allow_abbrev": False, **options})
        self.dataclass_types: list[type[Any]] = [*_flat([*dataclasses, dataclass_types])]
        arguments = arguments_of(self.dataclass_types)
        self._by_key = {name: argument for argument in arguments for name in argument.names}
        self._required = [argument for argument in arguments if argument.is_required]
        self._add_flags(arguments)
        if arguments and self.usage is None:
            required = "".join(f" {each.flags[0]} {each.metavar}" for each in self._required if not each.is_switch)
            self.usage = f"%(prog)s [config.json|.yaml|.args]{required} [--flag value ...]"

    def parse_args_into_dataclasses(
        self,
        args: Sequence[str] | None = None,
        return_remaining_strings: bool = False,
        look_for_args_file: bool = True,
        args_filename: str | os.PathLike[str] | None = None,
        args_file_flag: str | None = None,
    ) -> tuple[Any, ...]:
        """Read a command line; whatever is wrong with it is printed, and the program ends with status 2.

        The first word may be a configuration file: .json, .yaml, or .args, which holds flags. In an .args file, white
        space separates words; quotes hold a word together, and a line may be a `# comment`. Flags of the command line
        win over files, and .args files over others.

        Args:
            args: the words; those of the program (`sys.argv`) by default.
            return_remaining_strings: whether unknown words come back as a list, the last result, instead of being
                refused.
            look_for_args_file: whether flags are also taken from the program's own .args file (`train.args` beside
                `train.py`) if it is there, and neither `args_filename` nor a .json or .yaml file is given.
            args_filename: a configuration file.
            args_file_flag: a flag that names a configuration file, and may be given several times.

        Returns:
            An instance of each dataclass, in the order of the parser's; then a namespace of other arguments, if some
            were added to the parser; then the remaining words, if asked for.
        """
        try:
            words = [*(sys.argv[1:] if args is None else args)]
            files = self._files(words, look_for_args_file, args_filename, args_file_flag)
            return self._parse(words, files, return_remaining_strings)
        except TrainbusError as error:
            self._refuse(error)

    def parse_json_file(self, json_file: str | os.PathLike[str], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Return `parse_dict` of the object in a JSON file; its `ArgumentError` names the file."""
        return self._from_file(Path(json_file), json.loads, allow_extra_keys)

    def parse_yaml_file(self, yaml_file: str | os.PathLike[str], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Return `parse_dict` of the mapping in a YAML file; `MissingExtra` is raised if PyYAML is not installed."""
        return self._from_file(Path(yaml_file), _yaml, allow_extra_keys)

    def parse_dict(self, args: Mapping[str, Any], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Return an instance of each dataclass, made from the values under its fields' names.

        Text under a field that is no text is read as on the command line: YAML has `1e-4` as text.

        Raises:
            ArgumentError: with all that is wrong: keys that no dataclass has, unless `allow_extra_keys`; values of the
                wrong type; required fields that are missing.
        """
        values, problems = self._adapted(args, allow_extra_keys)
        return self._made(values, problems)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """What `argparse` does: a namespace, with the fields that were given; and the words that are unknown."""
        namespace, rest, problems = self._scan(args, namespace)
        if problems:
            self._refuse(refusal(problems))
        return namespace, rest

    def _add_flags(self, arguments: Sequence[Argument]) -> None:
        """Add the flags of all fields, then those that give way to them: other names of arguments, and `--no_x`."""
        owners = dict.fromkeys(["--help", "-h"], "the parser itself") if self.add_help else {}
        clashes = []
        for argument in (each for each in arguments if not each.is_hidden):
            owner = argument.owner.__qualname__
            for flag in dict.fromkeys(map(_underscored, argument.flags)):
                if flag in owners:
                    clashes.append(f"`{flag}` is defined by {owners[flag]} and by {owner}; rename one of the two.")
                owners[flag] = owner
        if clashes:
            raise refusal(clashes)
        sections: dict[type[Any], Any] = {}
        for argument in arguments:
            if argument.is_hidden:
                if f"--{argument.name}" not in owners:
                    hidden: dict[str, Any] = {"argument": argument, "help": argparse.SUPPRESS, **argument.shape}
                    self.add_argument(*_spellings(f"--{argument.name}"), dest=argument.name, action=_Read, **hidden)
                continue
            section = argument.section
            if section not in sections:
                sections[section] = self.add_argument_group(*heading(section))
            shared = {"action": _Read, "argument": argument, "metavar": argument.metavar}
            add = partial(sections[section].add_argument, **shared)
            add(*_spellings(*argument.flags), dest=argument.name, help=argument.help, **argument.shape)
            for name in argument.other_names:
                if f"--{name}" not in owners:
                    add(*_spellings(f"--{name}"), dest=name, help=argparse.SUPPRESS, **argument.shape)
            if argument.default is True and f"--no_{argument.name}" not in owners:
                flags = _spellings(f"--no_{argument.name}")
                add(*flags, dest=argument.name, help=argparse.SUPPRESS, nargs=0, const=False)

    def _from_file(self, path: Path, reader: Callable[[str], Any], allow_extra_keys: bool) -> tuple[Any, ...]:
        values = _loaded(path, reader)
        try:
            return self.parse_dict(values, allow_extra_keys)
        except ArgumentError as error:
            raise ArgumentError(f"{path}: {error}") from error

    def _files(
        self, words: list[str], look: bool, filename: str | os.PathLike[str] | None, flag: str | None
    ) -> list[Path]:
        """Return the configuration files, those that win last, and take their names out of `words`."""
        files = [] if filename is None else [Path(filename)]
        if flag is not None:
            finder = argparse.ArgumentParser(self.prog, self.usage, add_help=False, allow_abbrev=False)
            finder.add_argument(flag, action="append", dest="files", default=[])
            found, words[:] = finder.parse_known_args(words)
            files += map(Path, found.files)
        if (place := self._place_of_file(words)) is not None:
            files.append(Path(words.pop(place)))
        if look and filename is None and sys.argv and sys.argv[0] and all(file.suffix == ".args" for file in files):
            files = [file for file in [Path(sys.argv[0]).with_suffix(".args")] if file.is_file()] + files
        return files

    def _place_of_file(self, words: Sequence[str]) -> int | None:
        if any(not action.option_strings for action in self._actions):
            return None  # `add_argument("input")` wants that word
        for place, word in enumerate(words):
            if not word.startswith("-"):
                return place if Path(word).suffix in _CONFIGS else None
            if "=" not in word:
                return None
        return None  # before it come only the flags of launchers, as --local_rank=0

    def _parse(self, words: Sequence[str], files: Sequence[Path], keeps_rest: bool) -> tuple[Any, ...]:
        flags: list[str] = []
        values: dict[str, Any] = {}
        problems: list[str] = []
        for file in files:
            if file.suffix in _READERS:
                found, wrong = self._adapted(_loaded(file, _READERS[file.suffix]), allow_extra_keys=False)
                for name in found:
                    _forget(values, self._by_key[name])
                values |= found
                problems += [f"{file}: {problem}" for problem in wrong]
            else:
                flags += _words_of(_text_of(file))
        namespace, rest, wrong = self._scan([*flags, *words], argparse.Namespace(**values))
        problems += [*wrong, *([] if keeps_rest else self._unknown(rest))]
        left = vars(namespace)
        given = {name: left.pop(name) for name in self._by_key if name in left}
        for argument in self._required:
            if argument.is_switch:
                given.setdefault(argument.name, False)
        made = self._made(given, problems, "--")
        return (*made, *([namespace] if left else []), *([rest] if keeps_rest else []))

    def _scan(self, words: Sequence[str] | None, namespace: Any) -> tuple[argparse.Namespace, list[str], list[str]]:
        """Return what `argparse` found, the words it does not know, and the problems that `_Read` left there."""
        found: argparse.Namespace
        try:
            found, rest = super().parse_known_args(words, namespace)
        except argparse.ArgumentError as error:  # with exit_on_error=False
            raise ArgumentError(str(error)) from error
        return found, rest, vars(found).pop(_PROBLEMS, [])

    def _unknown(self, rest: Sequence[str]) -> Iterator[str]:
        known = [flag for each in self._actions if each.help != argparse.SUPPRESS for flag in each.option_strings]
        follows = False
        for word in rest:
            flag = word.partition("=")[0]
            if len(flag) > 1 and flag.startswith("-"):
                follows = True
                yield f"`{flag}` is not a flag{nearest(flag, known)}"
            elif not follows:
                remedy = "; a configuration file comes first." if Path(word).suffix in _CONFIGS else "."
                yield f"{word!r} belongs to no flag{remedy}"

    def _adapted(self, values: Mapping[str, Any], allow_extra_keys: bool) -> tuple[dict[str, Any], list[str]]:
        """Return the `values` that fields have, as they have them, and what is wrong with the others."""
        adapted, problems = {}, []
        for name, value in values.items():
            if argument := self._by_key.get(name):
                adapted[name] = value
                try:
                    adapted[name] = argument.adapt(value)
                except Unreadable as error:
                    problems.append(f"`{name}` is {value!r}{error}")
            elif not allow_extra_keys:
                problems.append(f"`{name}` is not an argument{nearest(name, self._by_key)}")
        return adapted, problems

    def _made(self, values: Mapping[str, Any], problems: Sequence[str], dashes: str = "") -> tuple[Any, ...]:
        """Return the instances, or raise one error for the `problems` and the fields that are missing."""
        missing = [f"`{dashes}{each.name}`" for each in self._required if values.keys().isdisjoint(each.names)]
        if missing:
            problems = [*problems, f"{', '.join(missing)} must be given."]
        if problems:
            raise refusal(problems)
        return tuple(
            cls(**{name: value for name, value in values.items() if self._by_key[name].owner is cls})
            for cls in self.dataclass_types
        )

    def _refuse(self, error: TrainbusError) -> NoReturn:
        if not self.exit_on_error:
            raise error
        self.error(str(error))


class _Read(argparse.Action):
    """Reads what follows a flag into the namespace. The last flag for a field wins, whatever it calls the field."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, argument: Argument, **options: Any) -> None:
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, **options)
        self.argument = argument

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        """Put the value into the namespace, or, that all can be shown at once, what is wrong with it."""
        found = vars(namespace)
        _forget(found, self.argument)
        if self.nargs == 0 or values is self.const:
            found[self.dest] = self.const
            return
        words = values if isinstance(values, list) else [values]
        try:
            found[self.dest] = self.argument.read(words)
        except Unreadable as error:
            found[self.dest] = None  # given, if wrong: it is not missing
            found.setdefault(_PROBLEMS, []).append(f"`{option_string}` is {' '.join(words)!r}{error}")


class _Formatter(argparse.HelpFormatter):
    """Shows the spelling with underscores only."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        shown, flags = copy.copy(action), action.option_strings
        shown.option_strings = [flag for flag in flags if _underscored(flag) not in {*flags} - {flag}]
        return super()._format_action_invocation(shown)


def _underscored(flag: str) -> str:
    return f"--{flag[2:].replace('-', '_')}" if flag.startswith("--") else flag


def _spellings(*flags: str) -> list[str]:
    """Return the `flags`, each with the spelling that has dashes for underscores."""
    dashed = [flag.replace("_", "-") if flag.startswith("--") else flag for flag in flags]
    return [*dict.fromkeys(spelling for pair in zip(flags, dashed) for spelling in pair)]


def _flat(classes: Any) -> Iterator[Any]:
    for each in classes if isinstance(classes, (list, tuple)) else [classes]:
        if isinstance(each, (list, tuple)):
            yield from _flat(each)
        else:
            yield each


def _forget(values: dict[str, Any], argument: Argument) -> None:
    for name in argument.names:
        values.pop(name, None)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path} cannot be read: {error}") from error


def _words_of(text: str) -> list[str]:
    """Return the words of an .args file."""
    found = re.finditer(r"""^[ \t]*#.*$|"([^"]*)"|'([^']*)'|(\S+)""", text, re.MULTILINE)
    return [match[match.lastindex] for match in found if match.lastindex]


def _loaded(path: Path, reader: Callable[[str], Any]) -> dict[str, Any]:
    text = _text_of(path)
    try:
        found = reader(text)
    except ValueError as error:
        raise ArgumentError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ArgumentError(f"{path} holds a {type(found).__name__}; it must map the names of arguments to values.")
    return found


def _yaml(text: str) -> Any:
    try:
        yaml = importlib.import_module("yaml")
    except ModuleNotFoundError as error:
        raise MissingExtra("YAML files are read by PyYAML: pip install pyyaml") from error
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    return {} if found is None else found  # an empty file


_READERS: dict[str, Callable[[str], Any]] = {".json": json.loads, ".yaml": _yaml, ".yml": _yaml}
"""What reads a file with this ending; any other holds flags."""

HfArgumentParser = PdArgumentParser = ArgumentParser

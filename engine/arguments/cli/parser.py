"""`ArgumentParser`: builds dataclasses from flags, configuration files and dicts."""

from __future__ import annotations

import argparse
import copy
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ....events.errors import ArgumentError, TrainbusError, closest, nearest
from ....events.installed import installed
from .._base import refusal
from ..plugins import argument_groups
from ..plugins.text import as_texts
from ..unique_keys import parse_json, parse_yaml
from .fields import Argument, arguments_of, heading
from .files import ENDINGS, VALUE_READERS, read_flags, read_values
from .values import Unreadable

__all__ = ["ArgumentParser", "HfArgumentParser", "PdArgumentParser"]

_PROBLEMS = "_problems"
"""Attribute of the namespace in which `_StoreValue` collects problems."""

_REPEATED = "_repeated"
"""Attribute of the namespace with a set of field names. The next flag of such a field adds to the value of the field
instead of replacing the value."""


class ArgumentParser(argparse.ArgumentParser):
    """Builds instances of dataclasses from a command line, a configuration file, or both.

    ```python
    parser = ArgumentParser(TrainingArguments, DataArguments)  # or one tuple of them
    args, data = parser.parse_args_into_dataclasses()
    ```
    This parser reads `train.py --learning_rate 1e-4 --fp16` and `train.py config.json --learning_rate 1e-4`.

    Each field is a flag: `--name value` or `--name=value`, with underscores or dashes. A bool needs no value; a bool
    with default True also has `--no_name`. A list takes several values, a dict takes JSON, and `none` is None if the
    field accepts None. Fields that are not set keep the default of their dataclass.

    `add_argument` works as in `argparse`. The values of such arguments are returned in a namespace after the instances.
    The constructor also takes the options of `argparse.ArgumentParser`, such as `prog` and `description`. With
    `exit_on_error=False`, an invalid command line raises `ArgumentError` instead of ending the program with status 2.

    Raises:
        ArgumentError: Two dataclasses define the same flag.
    """

    def __init__(self, *dataclasses: Any, dataclass_types: Any = (), **options: Any) -> None:
        super().__init__(**{"formatter_class": _Formatter, "allow_abbrev": False, **options})
        self.dataclass_types: list[type[Any]] = [*_flatten([*dataclasses, dataclass_types])]
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
        """Parse a command line. With `exit_on_error=True`, the default, problems are printed and end the program.

        The first word may be a configuration file: .json and .yaml hold values, .args holds `--flag value`. In .args,
        white space separates words, quotes group words, and a line may be a `# comment`. Flags of the command line
        override files, and .args files override other files.

        Args:
            args: The words. Default: the command line of the program (`sys.argv`).
            return_remaining_strings: Return unknown words as a list, the last result. False: unknown words are errors.
            look_for_args_file: Also read flags from the .args file of the program (`train.args` beside `train.py`), if
                it exists. The parser does not read this file if `args_filename`, or a .json or .yaml file, is given.
            args_filename: A configuration file.
            args_file_flag: A flag that names a configuration file. A command line may have the flag several times.

        Returns:
            An instance of each dataclass, in the order of the attribute `dataclass_types`. If `add_argument` added
            arguments, a namespace with their values follows. If `return_remaining_strings`, the unknown words follow.
        """
        try:
            words = [*(sys.argv[1:] if args is None else args)]
            files = self._files(words, look_for_args_file, args_filename, args_file_flag)
            return self._parse(words, files, return_remaining_strings)
        except TrainbusError as error:
            self._fail(error)

    def parse_json_file(self, json_file: str | os.PathLike[str], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Read an object from a JSON file and pass it to `parse_dict`. Return the instances of the dataclasses.

        Raises:
            ArgumentError: The file cannot be read, or its values have problems. The message names the file.
        """
        return self._from_file(Path(json_file), parse_json, allow_extra_keys)

    def parse_yaml_file(self, yaml_file: str | os.PathLike[str], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Read a mapping from a YAML file and pass it to `parse_dict`. Return the instances of the dataclasses.

        Raises:
            ArgumentError: The file cannot be read, or its values have problems. The message names the file.
            MissingExtra: PyYAML is not installed.
        """
        return self._from_file(Path(yaml_file), parse_yaml, allow_extra_keys)

    def parse_dict(self, args: Mapping[str, Any], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Build an instance of each dataclass from values by field name. Return the instances.

        If a value is a string and its field has another type, the string is parsed as on the command line. For example,
        YAML reads `1e-4` as a string.

        Args:
            args: The values by field name.
            allow_extra_keys: Ignore unknown names instead of refusing them.

        Raises:
            ArgumentError: Lists all problems: unknown names, values of the wrong type, missing required fields.
        """
        values, problems = self._convert(args, allow_extra_keys)
        return self._build(values, problems)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse words as `argparse` does. Return the given fields in a namespace, and the list of unknown words."""
        namespace, rest, problems = self._scan(args, namespace)
        if problems:
            self._fail(refusal(problems))
        return namespace, rest

    def _add_flags(self, arguments: Sequence[Argument]) -> None:
        """Add the flags of all fields. Aliases and `--no_x` are added only if no field has that flag."""
        owners = dict.fromkeys(["--help", "-h"], "the parser itself") if self.add_help else {}
        clashes = []
        for argument in (each for each in arguments if not each.is_hidden):
            owner = argument.owner.__qualname__
            for flag in dict.fromkeys(map(_with_underscores, argument.flags)):
                if flag in owners:
                    clashes.append(f"`{flag}` is defined by {owners[flag]} and by {owner}; rename one of the two.")
                owners[flag] = owner
        if clashes:
            raise refusal(clashes)
        sections: dict[type[Any], Any] = {}
        for argument in arguments:
            if argument.is_hidden:
                if f"--{argument.name}" not in owners:
                    hidden: dict[str, Any] = {"argument": argument, "help": argparse.SUPPRESS, **argument.nargs}
                    self.add_argument(
                        *_spellings(f"--{argument.name}"), dest=argument.name, action=_StoreValue, **hidden
                    )
                continue
            section = argument.section
            if section not in sections:
                sections[section] = self.add_argument_group(*heading(section))
            shared = {"action": _StoreValue, "argument": argument, "metavar": argument.metavar}
            add = partial(sections[section].add_argument, **shared)
            add(*_spellings(*argument.flags), dest=argument.name, help=argument.help, **argument.nargs)
            for name in argument.aliases:
                if f"--{name}" not in owners:
                    add(*_spellings(f"--{name}"), dest=name, help=argparse.SUPPRESS, **argument.nargs)
            if argument.default is True and f"--no_{argument.name}" not in owners:
                flags = _spellings(f"--no_{argument.name}")
                add(*flags, dest=argument.name, help=argparse.SUPPRESS, nargs=0, const=False)

    def _from_file(self, path: Path, reader: Callable[[str], Any], allow_extra_keys: bool) -> tuple[Any, ...]:
        values = read_values(path, reader)
        try:
            return self.parse_dict(values, allow_extra_keys)
        except ArgumentError as error:
            raise ArgumentError(f"{path}: {error}") from error

    def _files(
        self, words: list[str], look: bool, filename: str | os.PathLike[str] | None, flag: str | None
    ) -> list[Path]:
        """Return the configuration files, and remove their names from `words`. Later files override earlier files.

        Args:
            words: The words of the command line.
            look: The parameter `look_for_args_file` of `parse_args_into_dataclasses`.
            filename: A configuration file; None if the program names none.
            flag: A command-line option whose values are configuration files, such as `--config`; None for no option.
        """
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
        """Return the index of the configuration file among the words; None if there is none.

        The file is the first word without a leading dash. Only flags such as `--local_rank=0` may precede the file.
        """
        if any(not action.option_strings for action in self._actions):
            return None  # a positional argument, such as `add_argument("input")`, takes that word
        for place, word in enumerate(words):
            if not word.startswith("-"):
                return place if Path(word).suffix in ENDINGS else None
            if "=" not in word:
                return None  # launchers put --local_rank=0 before the file; other flags do not stand there
        return None

    def _parse(self, words: Sequence[str], files: Sequence[Path], keeps_rest: bool) -> tuple[Any, ...]:
        flags: list[str] = []
        values: dict[str, Any] = {}
        problems: list[str] = []
        for file in files:
            if file.suffix in VALUE_READERS:
                found, wrong = self._convert(read_values(file, VALUE_READERS[file.suffix]), allow_extra_keys=False)
                for name in found:
                    _remove(values, self._by_key[name])
                values |= found
                problems += [f"{file}: {problem}" for problem in wrong]
            else:
                flags += read_flags(file)
        namespace, rest, wrong = self._scan([*flags, *words], argparse.Namespace(**values))
        problems += [*wrong, *([] if keeps_rest else self._unknown(rest))]
        left = vars(namespace)
        given = {name: left.pop(name) for name in self._by_key if name in left}
        for argument in self._required:
            if argument.is_switch:
                given.setdefault(argument.name, False)
        instances = self._build(given, problems, "--")
        return (*instances, *([namespace] if left else []), *([rest] if keeps_rest else []))

    def _scan(self, words: Sequence[str] | None, namespace: Any) -> tuple[argparse.Namespace, list[str], list[str]]:
        """Parse `words`; None: `sys.argv`. Return the namespace, the unknown words, and the problems of the values."""
        found: argparse.Namespace
        words = [*(sys.argv[1:] if words is None else words)]
        if self._has_plugins:
            argument_groups.add_groups(self, argument_groups.named_in(words))
        try:
            found, rest = super().parse_known_args(words, namespace)
        except argparse.ArgumentError as error:  # with exit_on_error=False
            raise ArgumentError(str(error)) from error
        vars(found).pop(_REPEATED, None)
        return found, rest, vars(found).pop(_PROBLEMS, [])

    @property
    def _has_plugins(self) -> bool:
        """Whether a dataclass has the argument `plugins` of `TrainingArguments`.

        Otherwise the parser ignores plugins.
        """
        argument = self._by_key.get("plugins")
        return argument is not None and bool(argument.field.metadata.get("texts"))

    def format_help(self) -> str:
        """Return the help text, with a section for the options of each installed plugin."""
        if self._has_plugins:
            argument_groups.add_groups(self, installed())
        return super().format_help()

    def _unknown(self, rest: Sequence[str]) -> Iterator[str]:
        """Yield a problem for each unknown flag in `rest`, and for each word before the first unknown flag."""
        known = [flag for each in self._actions if each.help != argparse.SUPPRESS for flag in each.option_strings]
        after_flag = False
        for word in rest:
            flag = word.partition("=")[0]
            if len(flag) > 1 and flag.startswith("-"):
                after_flag = True
                if self._has_plugins and (problem := argument_groups.unknown_plugin(flag.lstrip("-"))):
                    yield f"`{flag}` is not a flag{problem}"
                    continue
                plain = {name.lstrip("-"): name for name in known}
                name = closest(flag.lstrip("-"), plain)  # the dashes would make short flags similar
                yield f"`{flag}` is not a flag{f'; did you mean {plain[name]!r}?' if name else '.'}"
            elif not after_flag:
                is_file = Path(word).suffix in ENDINGS
                yield (
                    f"{word!r} does not follow a flag; "
                    f"{'write a configuration file first' if is_file else 'remove it'}."
                )

    def _convert(self, values: Mapping[str, Any], allow_extra_keys: bool) -> tuple[dict[str, Any], list[str]]:
        """Convert values by field name to the types of the fields. Return the converted values, and the problems.

        The problems are values that cannot be converted. Without `allow_extra_keys`, unknown names are problems too.
        """
        converted, problems = {}, []
        for name, value in values.items():
            if name == "plugins" and name in converted:
                continue  # an option of a plugin came first, and has read the value of `plugins` already
            if argument := self._by_key.get(name):
                converted[name] = value
                try:
                    converted[name] = argument.convert(value)
                except Unreadable as error:
                    problems.append(f"`{name}` is {value!r}{error}")
            elif self._has_plugins and (plugin := argument_groups.plugin_of(str(name))):
                given = converted.get("plugins", values.get("plugins"))
                option = name.removeprefix(f"{plugin}.")
                converted["plugins"] = argument_groups.with_option(given, plugin, option, value)
            elif not allow_extra_keys:
                plugin_hint = argument_groups.unknown_plugin(str(name)) if self._has_plugins else ""
                problems.append(f"`{name}` is not an argument{plugin_hint or nearest(name, self._by_key)}")
        return converted, problems

    def _build(self, values: Mapping[str, Any], problems: Sequence[str], dashes: str = "") -> tuple[Any, ...]:
        """Return an instance of each dataclass. Raise one error for the given problems and for missing fields.

        In the error, `dashes` precede the names of missing fields.
        """
        missing = [f"`{dashes}{each.name}`" for each in self._required if values.keys().isdisjoint(each.names)]
        if missing:
            problems = [*problems, f"{', '.join(missing)} must be given."]
        if problems:
            raise refusal(problems)
        return tuple(
            cls(**{name: value for name, value in values.items() if self._by_key[name].owner is cls})
            for cls in self.dataclass_types
        )

    def _fail(self, error: TrainbusError) -> NoReturn:
        if not self.exit_on_error:
            raise error
        self.error(str(error))


class _StoreValue(argparse.Action):
    """Stores the value of a command-line flag in the namespace.

    A field may have several flags: `--name`, `--no_name` and aliases. The last flag on the command line sets the value.
    If the metadata of the field contains `repeats=True`, the values of all its flags are joined instead.
    """

    def __init__(self, option_strings: Sequence[str], dest: str, *, argument: Argument, **options: Any) -> None:
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, **options)
        self.argument = argument

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        """Store the value. For an invalid value, store the problem, so that the parser reports all problems at once."""
        found = vars(namespace)
        repeats, repeated = self.argument.field.metadata.get("repeats"), found.setdefault(_REPEATED, set())
        before = found.get(self.dest) if self.dest in repeated or option_string == "-p" else None
        _remove(found, self.argument)
        if self.nargs == 0 or values is self.const:
            found[self.dest] = self.const
            return
        words = values if isinstance(values, list) else [values]
        try:
            found[self.dest] = self.argument.read(words)
            if repeats:  # the first flag overrides a configuration file, further ones and `-p` add to the value
                repeated.add(self.dest)
                found[self.dest] = [*as_texts(before), *as_texts(found[self.dest])]
        except Unreadable as error:
            found[self.dest] = None  # so that a required field is not also reported as missing
            found.setdefault(_PROBLEMS, []).append(f"`{option_string}` is {' '.join(words)!r}{error}")


class _Formatter(argparse.HelpFormatter):
    """Shows flags with underscores, not with dashes."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        shown, flags = copy.copy(action), action.option_strings
        shown.option_strings = [flag for flag in flags if _with_underscores(flag) not in {*flags} - {flag}]
        return super()._format_action_invocation(shown)


def _with_underscores(flag: str) -> str:
    return f"--{flag[2:].replace('-', '_')}" if flag.startswith("--") else flag


def _spellings(*flags: str) -> list[str]:
    """Return the flags with underscores, and with dashes."""
    dashed = [flag.replace("_", "-") if flag.startswith("--") else flag for flag in flags]
    return [*dict.fromkeys(spelling for pair in zip(flags, dashed) for spelling in pair)]


def _flatten(classes: Any) -> Iterator[Any]:
    for each in classes if isinstance(classes, (list, tuple)) else [classes]:
        if isinstance(each, (list, tuple)):
            yield from _flatten(each)
        else:
            yield each


def _remove(values: dict[str, Any], argument: Argument) -> None:
    """Remove the values of an argument under all of its names."""
    for name in argument.names:
        values.pop(name, None)


HfArgumentParser = PdArgumentParser = ArgumentParser

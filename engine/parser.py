"""The command line: flags, configuration files and dictionaries become instances of dataclasses."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass
from pathlib import Path
from typing import Any

from ..events.errors import TrainbusError
from .arguments import ALIASES, TrainingArguments
from .arguments._base import Group, default_of, refusal
from .parser_values import (
    Unreadable,
    adapt,
    among,
    choices_of,
    members_of,
    read,
    shown_type,
    shown_value,
)

__all__ = ["ArgumentParser", "HfArgumentParser", "PdArgumentParser"]

_CONFIGS = (".json", ".yaml", ".yml", ".args")
_PROBLEMS = "_problems"


@dataclass(frozen=True)
class _Argument:
    """A field of a dataclass as the command line has it."""

    owner: type[Any]
    field: Field[Any]
    hint: Any

    @property
    def name(self) -> str:
        return self.field.name

    @property
    def default(self) -> Any:
        return default_of(self.field)

    @property
    def is_required(self) -> bool:
        return self.default is MISSING

    @property
    def flags(self) -> list[str]:
        """The field's own flag, and those that its metadata has as aliases."""
        aliases = self.field.metadata.get("aliases", ())
        return [f"--{self.name}", *([aliases] if isinstance(aliases, str) else aliases)]

    @property
    def other_names(self) -> list[str]:
        """What else the dataclass calls the field: it translates these itself."""
        return [name for name, alias in ALIASES.items() if alias.new == self.name] if _is_spelt(self.owner) else []

    @property
    def section(self) -> type[Any]:
        """The class under whose title the help shows the field: the group of arguments it is declared in, if any."""
        family = reversed(self.owner.__mro__)
        declares = next(cls for cls in family if self.name in vars(cls).get("__dataclass_fields__", {}))
        return declares if issubclass(declares, Group) else self.owner

    @property
    def explains_itself(self) -> bool:
        """Whether the dataclass checks the field's value, and can say more about it than its type."""
        return self.section in TrainingArguments.__mro__

    @property
    def metavar(self) -> str:
        return str(self.field.metadata.get("metavar") or shown_type(self.hint))

    @property
    def help(self) -> str:
        """The help text, with the values there are and the default."""
        choices = self.field.metadata.get("choices") or {k for m in members_of(self.hint) for k in choices_of(m)}
        notes = [f"one of: {', '.join(shown_value(choice) for choice in choices)}"] if choices else []
        notes.append("required" if self.is_required else f"default: {shown_value(self.default)}")
        if self.default is True:
            notes.append(f"--no_{self.name} for false")
        text = str(self.field.metadata.get("help") or "").replace("%(default)s", shown_value(self.default))
        return f"{text} ({'; '.join(notes)})".strip().replace("%%", "%").replace("%", "%%")

    def read(self, words: Sequence[str]) -> Any:
        """Return what `words` after the flag mean, or raise `Unreadable`."""
        if [self.default] == [*words]:
            return self.default  # where the default is 'none', that is no None
        value = read(words, self.hint)
        return value if self.explains_itself else self._checked(value)

    def adapt(self, value: Any) -> Any:
        """Return what a `value` from a file means, or raise `Unreadable`."""
        try:
            adapted = adapt(value, self.hint)
        except Unreadable:
            if self.explains_itself and not isinstance(value, str):
                return value
            raise
        return adapted if self.explains_itself else self._checked(adapted)

    def _checked(self, value: Any) -> Any:
        choices = self.field.metadata.get("choices")
        return value if choices is None else among(value, choices)


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
        arguments = [argument for cls in self.dataclass_types for argument in _arguments_of(cls)]
        self._add_flags(arguments)
        self._by_key = {name: argument for argument in arguments for name in argument.other_names}
        self._by_key |= {argument.name: argument for argument in arguments}
        if arguments and self.usage is None:
            required = "".join(f" {each.flags[0]} {each.metavar}" for each in arguments if each.is_required)
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

        Its first word may be a configuration file: .json, .yaml, or .args, which holds flags. Flags win over it. In an
        .args file, words are separated by white space; quotes hold a word together, and a line may be a `# comment`.

        Args:
            args: the words; those of the program (`sys.argv`) by default.
            return_remaining_strings: whether unknown words come back as a list, the last result, instead of being
                refused.
            look_for_args_file: whether flags are also taken from the program's own .args file (`train.args` beside
                `train.py`) if it is there, and no other file is named by `args_filename` or as the first word.
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
        return self._made_from(_loaded(Path(json_file), _json), allow_extra_keys, f"{json_file}: ")

    def parse_yaml_file(self, yaml_file: str | os.PathLike[str], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Return `parse_dict` of the mapping in a YAML file; `MissingExtra` is raised if PyYAML is not installed."""
        return self._made_from(_loaded(Path(yaml_file), _yaml), allow_extra_keys, f"{yaml_file}: ")

    def parse_dict(self, args: Mapping[str, Any], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Return an instance of each dataclass, made from the values under its fields' names.

        Text under a field that is no text is read as on the command line: YAML has `1e-4` as text.

        Raises:
            ArgumentError: with all that is wrong: keys that no dataclass has, unless `allow_extra_keys`; values of the
                wrong type; required fields that are missing.
        """
        return self._made_from(args, allow_extra_keys)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        """What `argparse` does: a namespace, with the fields that were given; and the words that are unknown."""
        namespace, rest, problems = self._scan(args, namespace)
        if problems:
            self._refuse(refusal(problems))
        return namespace, rest

    def _add_flags(self, arguments: Sequence[_Argument]) -> None:
        taken = {"--help": "the parser", "-h": "the parser"} if self.add_help else {}
        clashes = []
        for argument in arguments:
            for flag in argument.flags:
                if taken.setdefault(flag, owner := argument.owner.__qualname__) != owner or flags_seen_twice:
                    ...

"""Fields of dataclasses as command-line arguments: flags, help texts and values."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from typing import Any

from ....events.errors import ArgumentError
from .. import ALIASES, TrainingArguments
from .._base import Group, default_of
from ..keywords import AliasMeta
from .values import (
    SEVERAL,
    Unreadable,
    adapt,
    among,
    choices_of,
    hints_of,
    kind_of,
    members_of,
    read,
    shown_type,
    shown_value,
)


@dataclass(frozen=True)
class Argument:
    """A field of a dataclass on the command line."""

    owner: type[Any]
    field: Field[Any]
    hint: Any
    aliases: tuple[str, ...] = ()
    """Other names of the field. The dataclass of the field translates these names."""
    is_hidden: bool = False
    """Whether `--help` does not list the field. True for an alias whose values differ from the values of the argument,
    such as `adafactor` for `optim`."""

    @property
    def name(self) -> str:
        """Name of the field."""
        return self.field.name

    @property
    def names(self) -> tuple[str, ...]:
        """The `name` and the `aliases` of the field."""
        return (self.name, *self.aliases)

    @property
    def default(self) -> Any:
        """Default of the field; `dataclasses.MISSING` if it is required."""
        return default_of(self.field)

    @property
    def is_required(self) -> bool:
        """Whether the field has no default."""
        return self.default is MISSING

    @property
    def is_switch(self) -> bool:
        """Whether the field is a bool without a default.

        On a command line, such a field is False unless its flag is given.
        """
        return self.is_required and self.hint is bool

    @property
    def flags(self) -> list[str]:
        """The command-line flags: `--` and the name of the field, then the `aliases` in the metadata of the field."""
        others = self.field.metadata.get("aliases", ())
        return [f"--{self.name}", *([others] if isinstance(others, str) else others)]

    @property
    def section(self) -> type[Any]:
        """The class whose section of `--help` lists the field.

        If an argument group declares the field, the class is this group. Otherwise the class is `owner`.
        """
        family = reversed(self.owner.__mro__)
        declaring = (cls for cls in family if self.name in vars(cls).get("__dataclass_fields__", {}))
        declares = next(declaring, self.owner)
        return declares if issubclass(declares, Group) else self.owner

    @property
    def nargs(self) -> dict[str, Any]:
        """The keywords of `add_argument` that say how many words follow the flag."""
        members = members_of(self.hint)
        if any(kind_of(member) in SEVERAL for member in members):
            return {"nargs": "*"}
        return {"nargs": "?", "const": True} if bool in members else {}

    @property
    def metavar(self) -> str:
        """The placeholder after the flag in `--help`."""
        return str(self.field.metadata.get("metavar") or shown_type(self.hint))

    @property
    def help(self) -> str:
        """The help text of the field with its choices and its default. `%` is escaped for `argparse`."""
        known = self.field.metadata.get("choices") or [word for m in members_of(self.hint) for word in choices_of(m)]
        notes = [f"one of: {', '.join(map(shown_value, known))}"] if known else []
        default = "false" if self.is_switch else shown_value(self.default)
        notes.append("required" if self.is_required and not self.is_switch else f"default: {default}")
        if self.default is True:
            notes.append(f"--no_{self.name} for false")
        text = str(self.field.metadata.get("help") or "").replace("%(default)s", default)
        return f"{text} ({'; '.join(notes)})".strip().replace("%%", "%").replace("%", "%%")

    @property
    def _checks_itself(self) -> bool:
        """Whether `TrainingArguments` defines the field.

        If True, the constructor of `TrainingArguments` checks the value. The parser then does not compare the value
        with the choices of the field.
        """
        return self.section in TrainingArguments.__mro__

    def read(self, words: Sequence[str]) -> Any:
        """Convert the words that follow the flag to a value of the field.

        Raises:
            Unreadable: The words cannot be converted.
        """
        if [self.default] == [*words]:
            return self.default  # the string 'none', for fields such as report_to
        if not words and bool in members_of(self.hint):
            return True  # a bare flag
        return self._checked(read(words, self.hint))

    def convert(self, value: Any) -> Any:
        """Convert a value from a configuration file to the type of the field.

        If the value cannot be converted, there are two cases:

        - `TrainingArguments` defines the field, and the value is not text: the method returns the value unchanged. The
          constructor of `TrainingArguments` then raises a better error.
        - All other cases: the method raises `Unreadable`.

        Raises:
            Unreadable: The value cannot be converted, except in the first case.
        """
        try:
            return self._checked(adapt(value, self.hint))
        except Unreadable:
            if self._checks_itself and not isinstance(value, str):
                return value
            raise

    def _checked(self, value: Any) -> Any:
        choices = self.field.metadata.get("choices")
        return value if choices is None or self._checks_itself else among(value, choices)


def arguments_of(classes: Sequence[type[Any]]) -> list[Argument]:
    """Return the arguments of all classes, and hidden arguments for some aliases.

    Some aliases of `TrainingArguments` accept a different type or form of value than the argument. For example, the
    alias `group_by_length` accepts a bool, and the argument `train_sampling_strategy` accepts a text. If `classes`
    contains `TrainingArguments` or a subclass, these aliases become hidden arguments. `--help` does not show hidden
    arguments. A field of any class overrides an alias with the same name.

    Raises:
        ArgumentError: A class is not a dataclass, or has an annotation that cannot be resolved.
    """
    found = [argument for cls in classes for argument in _fields_of(cls)]
    free = sorted(ALIASES.keys() - {argument.name for argument in found})
    same = [name for name in free if not ALIASES[name].values]
    named = [
        replace(argument, aliases=tuple(name for name in same if ALIASES[name].new == argument.name))
        if isinstance(argument.owner, AliasMeta)
        else argument
        for argument in found
    ]
    translating = next((cls for cls in classes if isinstance(cls, AliasMeta)), None)
    own = [] if translating is None else [_hidden(translating, name) for name in free if ALIASES[name].values]
    return [*named, *own]


def heading(section: type[Any]) -> tuple[str, str | None]:
    """Return the title and the description of the `--help` section of a class.

    For an argument group of `TrainingArguments`, the title is the first line of the docstring, up to a period or colon.
    The description is then None.

    For another class, the title is the attribute `_argument_group_name`, or else the name of the class. The description
    is the first line of the docstring; None if the user wrote no docstring.
    """
    doc = inspect.cleandoc(section.__doc__ or "").partition("\n")[0]
    if issubclass(section, Group) and section in TrainingArguments.__mro__:
        return re.split(r"[.:](?: |$)", doc)[0], None
    is_generated = doc.startswith(f"{section.__name__}(")  # `@dataclass` writes a docstring if there is none
    return getattr(section, "_argument_group_name", section.__name__), doc if doc and not is_generated else None


def _hidden(owner: type[Any], name: str) -> Argument:
    """Return the command-line option of an alias. `--help` does not show this option.

    An alias is another name of a training argument, such as `group_by_length` for `train_sampling_strategy`. The
    function is for aliases that take other values than the argument. The class `owner` converts the values of the alias
    to values of the argument.

    Args:
        owner: the class of arguments that accepts the alias.
        name: the name of the alias.
    """
    made: Any = field(default=None)
    made.name = name
    return Argument(owner, made, bool if True in ALIASES[name].values else str, is_hidden=True)


def _fields_of(cls: type[Any]) -> Iterator[Argument]:
    if not (isinstance(cls, type) and is_dataclass(cls)):
        raise ArgumentError(f"{cls!r} is not a dataclass; pass classes decorated with `@dataclass`.")
    hints = hints_of(cls)
    for each in fields(cls):
        if each.init:
            hint = hints[each.name]
            yield Argument(cls, each, hint | None if each.default is None else hint)  # scripts write `x: str = None`

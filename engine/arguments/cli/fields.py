"""What a field of a dataclass is on the command line: its flags, its help, the values it takes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from typing import Any, get_type_hints

from ....events.errors import ArgumentError
from .. import ALIASES, TrainingArguments
from .._base import Group, default_of
from ..keywords import AliasMeta
from .values import SEVERAL, Unreadable, adapt, among, choices_of, kind_of, members_of, read, shown_type, shown_value


@dataclass(frozen=True)
class Argument:
    """A field of a dataclass as the command line has it."""

    owner: type[Any]
    field: Field[Any]
    hint: Any
    other_names: tuple[str, ...] = ()
    """What else its dataclass calls it, and translates itself."""
    is_hidden: bool = False
    """Whether the help leaves it out: it is a name of earlier trainers, with values that the argument has not."""

    @property
    def name(self) -> str:
        """The field's name."""
        return self.field.name

    @property
    def names(self) -> tuple[str, ...]:
        """Every key its value may have."""
        return (self.name, *self.other_names)

    @property
    def default(self) -> Any:
        """The field's default; `dataclasses.MISSING` if there is none."""
        return default_of(self.field)

    @property
    def is_required(self) -> bool:
        """Whether it must be given."""
        return self.default is MISSING

    @property
    def is_switch(self) -> bool:
        """Whether it is a bool without a default: on a command line, it is off unless given."""
        return self.is_required and self.hint is bool

    @property
    def flags(self) -> list[str]:
        """Its own flag, and those that the field's metadata has as aliases."""
        aliases = self.field.metadata.get("aliases", ())
        return [f"--{self.name}", *([aliases] if isinstance(aliases, str) else aliases)]

    @property
    def section(self) -> type[Any]:
        """The class under whose title the help shows it: the group of arguments that declares it, if one does."""
        family = reversed(self.owner.__mro__)
        declaring = (cls for cls in family if self.name in vars(cls).get("__dataclass_fields__", {}))
        declares = next(declaring, self.owner)
        return declares if issubclass(declares, Group) else self.owner

    @property
    def shape(self) -> dict[str, Any]:
        """How many words follow its flag, in the terms of `argparse`."""
        members = members_of(self.hint)
        if any(kind_of(member) in SEVERAL for member in members):
            return {"nargs": "*"}
        return {"nargs": "?", "const": True} if bool in members else {}

    @property
    def metavar(self) -> str:
        """What the help puts after the flag."""
        return str(self.field.metadata.get("metavar") or shown_type(self.hint))

    @property
    def help(self) -> str:
        """The field's help, the values there are, and the default; in the terms of `argparse`, which reads `%`."""
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
        """Whether its dataclass checks the value, and can say more about it than the type does."""
        return self.section in TrainingArguments.__mro__

    def read(self, words: Sequence[str]) -> Any:
        """Return what the `words` after its flag mean, or raise `Unreadable`."""
        if [self.default] == [*words]:
            return self.default  # 'none', where it is a name
        if not words and bool in members_of(self.hint):
            return True  # a bare flag
        return self._checked(read(words, self.hint))

    def adapt(self, value: Any) -> Any:
        """Return what a `value` from a file means, or raise `Unreadable`."""
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
    """Return the arguments of all `classes`, and the other names of those that have values of their own.

    A name that one of the classes has as a field is no other name of an argument.

    Raises:
        ArgumentError: if one is no dataclass, or has an annotation that cannot be resolved.
    """
    found = [argument for cls in classes for argument in _fields_of(cls)]
    free = sorted(ALIASES.keys() - {argument.name for argument in found})
    same = [name for name in free if not ALIASES[name].values]
    named = [
        replace(argument, other_names=tuple(name for name in same if ALIASES[name].new == argument.name))
        if isinstance(argument.owner, AliasMeta)
        else argument
        for argument in found
    ]
    translating = next((cls for cls in classes if isinstance(cls, AliasMeta)), None)
    own = [] if translating is None else [_hidden(translating, name) for name in free if ALIASES[name].values]
    return [*named, *own]


def heading(section: type[Any]) -> tuple[str, str | None]:
    """Return title and description of a section of the help, from the class it is about."""
    doc = inspect.cleandoc(section.__doc__ or "").partition("\n")[0]
    if issubclass(section, Group) and section in TrainingArguments.__mro__:
        return re.split(r"[.:](?: |$)", doc)[0], None
    is_generated = doc.startswith(f"{section.__name__}(")  # `@dataclass` writes one where there is none
    return getattr(section, "_argument_group_name", section.__name__), doc if doc and not is_generated else None


def _hidden(owner: type[Any], name: str) -> Argument:
    """Return the argument that reads another name's own values, for `owner` to translate."""
    made: Any = field(default=None)
    made.name = name
    return Argument(owner, made, bool if True in ALIASES[name].values else str, is_hidden=True)


def _fields_of(cls: type[Any]) -> Iterator[Argument]:
    if not (isinstance(cls, type) and is_dataclass(cls)):
        raise ArgumentError(f"{cls!r} is not a dataclass; give classes decorated with `@dataclass`.")
    try:
        hints = get_type_hints(cls)
    except NameError as error:
        raise ArgumentError(
            f"{cls.__qualname__} has an annotation that cannot be resolved: {error}; "
            "define the class, and the types it names, at the top level of a module."
        ) from error
    for each in fields(cls):
        if each.init:
            hint = hints[each.name]
            yield Argument(cls, each, hint | None if each.default is None else hint)  # seeds write `x: str = None`

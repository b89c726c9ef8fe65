"""Parse and write callbacks as text, such as `early_stopping(patience=3)` and `package.module:Class(x=1)`.

Values are Python literals and triggers: `every(100) | at_end()`. Nothing is evaluated as code.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from ....events.errors import ArgumentError, nearest
from ....events.triggers import Trigger, at, at_end, every, log_spaced, never

TRIGGERS = {function.__name__: function for function in (every, at, at_end, log_spaced, never)}
"""The functions that a text may call to make a trigger."""

_SPEC = re.compile(
    r"\s*(?P<name>[^\W\d]\w*(?:\.\w+)*(?::[^\W\d]\w*(?:\.\w+)*)?)\s*(?:\((?P<options>.*)\))?\s*", re.DOTALL
)
_DASHED = re.compile(r"[^\W\d]\w*(?:-\w+)+")
_CONSTANTS = {"inf": math.inf, "nan": math.nan}


@dataclass(frozen=True)
class Call:
    """A call inside of the text of a callback, such as `Keep(last=2)` in `checkpoint(keep=Keep(last=2))`.

    This call becomes an instance of `Keep` only if the type of the option `keep` includes the dataclass `Keep`. A call
    such as `every(100)` is not stored as a `Call`, but as a trigger.
    """

    name: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Spec:
    """A callback as text: its name and its options."""

    name: str
    """The name of a callback or of a plugin, or `package.module:Class`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The values by option. A value is a literal, a trigger or a `Call`."""

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Parse a text such as `damp_spikes(factor=4)`.

        Raises:
            ArgumentError: if the text is not `name`, `name(option=value)` or `package.module:Class`.
        """
        match = _SPEC.fullmatch(text)
        call = _tree(f"_({match['options'] or ''})", text) if match is not None else None
        if match is None or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            name = text.partition("(")[0].strip()
            dashed = f" The name has underscores: {name.replace('-', '_')!r}." if _DASHED.fullmatch(name) else ""
            raise ArgumentError(
                f"{text!r} is not a callback. Write `name`, `name(option=value)` or `package.module:Class`.{dashed}"
            )
        return cls(match["name"], _options(call, text))

    def __str__(self) -> str:
        """Return a text that `parse` can read, such as `damp_spikes(factor=4)`."""
        options = ", ".join(f"{name}={as_text(value)}" for name, value in self.options.items())
        return f"{self.name}({options})" if options else self.name


def split(text: str) -> list[str]:
    """Split a text at spaces and commas, except inside of brackets and quotes."""
    parts, depth, quote, escaped = [""], 0, "", False
    for character in text:
        if quote:
            quote = "" if character == quote and not escaped else quote
            escaped = character == "\\" and not escaped
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif depth == 0 and (character.isspace() or character == ","):
            parts.append("")
            continue
        parts[-1] += character
    return [part for part in parts if part]


def as_texts(value: Any) -> Any:
    """Convert callbacks to a list of texts. Return a value of any other form unchanged.

    Args:
        value: a text with one or more callbacks, a dict of callback name -> dict of options, or a list of such texts
            and dicts. None gives an empty list.
    """
    if value is None:
        return []
    if isinstance(value, str):
        return split(value)
    if isinstance(value, Mapping):
        if all(isinstance(options, Mapping) or options is None for options in value.values()):
            return [_with_options(str(name), dict(options or {})) for name, options in value.items()]
        return value
    if isinstance(value, (list, tuple)):
        found = [as_texts(item) if isinstance(item, (str, Mapping)) else item for item in value]
        return [text for item in found for text in (item if isinstance(item, list) else [item])]
    return value


def _with_options(name: str, options: dict[str, Any]) -> str:
    """Return the text of a callback with options: `ema(decay=0.9)` for the name `ema` and the options `{"decay": 0.9}`.

    If there are options in both `name` and `options`, the result is a text that `Spec.parse` refuses.
    """
    return f"{name} {Spec('', options)}" if options and "(" in name else str(Spec(name, options))


def value_of(text: str) -> Any:
    """Parse an expression and return its value: a literal, a trigger, or a `Call` such as `Keep(last=2)`.

    Raises:
        ArgumentError: if the expression is something else.
    """
    return _value(_tree(text, text), text)


def as_text(value: Any) -> str:
    """Convert a literal, a trigger or a `Call` to text that `value_of` can parse. Any other value gives its `repr`.

    An empty set becomes `[]`, because Python has no literal for an empty set. Sets are sorted, also in the fields of a
    dataclass.
    """
    if isinstance(value, Call):
        return f"{value.name}({', '.join(f'{name}={as_text(each)}' for name, each in value.options.items())})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_text(key)}: {as_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(as_text, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(as_text, value))}{',' * (len(value) == 1)})"
    if isinstance(value, (set, frozenset)):  # Python has no literal of an empty set
        return f"{{{', '.join(sorted(map(as_text, value)))}}}" if value else "[]"
    if is_dataclass(value) and hasattr(type(value).__repr__, "__wrapped__"):  # the `repr` of `dataclass`
        shown = (f"{each.name}={as_text(getattr(value, each.name))}" for each in fields(value) if each.repr)
        return f"{type(value).__qualname__}({', '.join(shown)})"
    return repr(value)


def _tree(expression: str, text: str) -> ast.expr:
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "msg", None) or type(error).__name__
        raise ArgumentError(
            f"{text!r} cannot be parsed ({reason}). Write options as Python literals, such as `patience=3` or "
            "`metric='eval_loss'`."
        ) from None


def _options(call: ast.Call, text: str) -> dict[str, Any]:
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        raise ArgumentError(f"{text!r} has a value without the name of an option. Write `option=value`.")
    return {str(keyword.arg): _value(keyword.value, text) for keyword in call.keywords}


def _value(node: ast.expr, text: str) -> Any:
    match node:
        case ast.Constant(value=value) if value is not Ellipsis:
            return value
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.Name(id="true" | "false" | "null" as name):  # as YAML and JSON write them
            return {"true": True, "false": False, "null": None}[name]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            value = _value(operand, text)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return -value if isinstance(sign, ast.USub) else value
        case ast.List(elts=items):
            return [_value(item, text) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_value(item, text) for item in items)
        case ast.Set(elts=items):
            with suppress(TypeError):  # a list cannot be an element
                return {_value(item, text) for item in items}
        case ast.Dict(keys=keys, values=values) if None not in keys:
            found = [(_value(key, text), _value(value, text)) for key, value in zip(keys, values) if key is not None]
            with suppress(TypeError):  # a list cannot be a key
                return dict(found)
        case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() as joint, right=right):
            sides = _value(left, text), _value(right, text)
            if all(isinstance(side, Trigger) for side in sides):
                return sides[0] | sides[1] if isinstance(joint, ast.BitOr) else sides[0] & sides[1]
        case ast.Call(func=ast.Name(id=name)) if name in TRIGGERS:
            return _trigger(name, node, text)
        case ast.Call(func=ast.Name(id=name), args=positional):
            if positional and (close := nearest(name, TRIGGERS)) != ".":
                raise ArgumentError(f"{text!r} has the unknown trigger {name!r}{close}")
            return Call(name, _options(node, text))
    if isinstance(node, ast.Name):
        if (written := node.id.capitalize()) in ("None", "True", "False"):
            raise ArgumentError(f"{text!r} has the value {node.id}. Write {written}, or put text in quotes.")
        raise ArgumentError(f"{text!r} has an unquoted value. Put text in quotes: {node.id!r}.")
    raise ArgumentError(
        f"{text!r} has the value `{ast.unparse(node)}`. Write a literal, or a trigger such as every(100) | at_end()."
    )


def _trigger(name: str, call: ast.Call, text: str) -> Trigger:
    values = [_value(argument, text) for argument in call.args]
    options = {str(keyword.arg): _value(keyword.value, text) for keyword in call.keywords}
    try:
        return TRIGGERS[name](*values, **options)
    except TypeError as error:
        problem = str(error).removesuffix(".")
        raise ArgumentError(f"{text!r}: {problem}. The reference of {name} is in trainbus.events.triggers.") from None


def problems_of(name: str, texts: Any) -> Iterable[str]:
    """Yield the syntax errors in the texts of an argument.

    Args:
        name: the name of the argument, for the messages.
        texts: the value of the argument, as `as_texts` returns it.
    """
    if not isinstance(texts, list):
        yield (
            _of_another_form(name, texts) or f"`{name}` is {texts!r}; write texts such as 'early_stopping(patience=3)'."
        )
        return
    for text in texts:
        if problem := _of_another_form(name, text):
            yield problem
            continue
        if not isinstance(text, str):
            yield f"`{name}` takes only text and has {text!r}; pass objects to the Trainer: callbacks=[...]."
            continue
        try:
            Spec.parse(text.removeprefix("no:") if name == "plugins" else text)
        except ArgumentError as error:
            yield f"`{name}`: {error}"


def _of_another_form(argument: str, value: Any) -> str:
    """Return the error message for a mapping that `as_texts` cannot convert; an empty string for any other value.

    `as_texts` converts `{'ema': {'decay': 0.9}}` and `{'ema': None}`. It cannot convert `{'ema': 0.9}`. `argument` is
    the name of the training argument, for the message.
    """
    if not isinstance(value, Mapping):
        return ""
    given = next(name for name, options in value.items() if options is not None and not isinstance(options, Mapping))
    return (
        f"`{argument}` has {dict(value)!r}: the value of {given!r} is not a mapping of options. Write the options "
        "below the name of the callback, as {'early_stopping': {'patience': 3}}."
    )


def unknown_name(name: str, known: Iterable[str]) -> str:
    """Return the end of the error message about an unknown name: the nearest name in `known`, or all of `known`.

    Example: `name` is `damp_spikes`, and `known` has the name of an entry point, `damp-spikes`. The text then says that
    the name of the entry point needs underscores.
    """
    known = sorted(known)
    close = nearest(name, known)
    if unusable := next((each for each in known if each != name == re.sub(r"\W", "_", each)), ""):
        return f". No run can name the installed plugin {unusable!r}: its entry point needs underscores."
    return close if close != "." else f". Known: {', '.join(known) or 'none'}."

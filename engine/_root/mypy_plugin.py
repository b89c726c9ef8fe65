"""A mypy plugin that checks the annotations of handlers against the catalogue of events.

mypy refuses a method with fewer parameters than the method that it overrides, but a handler names only the parameters
that it needs. Therefore `Callback` declares its handlers with parameters of any type, and mypy alone does not find a
wrong annotation in a subclass. With this plugin, mypy reports a wrong annotation as an error.
Add to the configuration of mypy:

    [mypy]
    plugins = trainbus.mypy_plugin
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mypy.nodes import ARG_STAR, ARG_STAR2, ClassDef, Decorator, FuncDef, TypeInfo
from mypy.plugin import ClassDefContext, Plugin
from mypy.types import CallableType, Instance, NoneType, Type, UnionType, get_proper_type

CALLBACK = "trainbus.events.callback.Callback"
CATALOGUE = "trainbus.events.event_methods.TypedEventMethods"
NUMBERS = ("builtins.int", "builtins.float", "builtins.complex")
"""The classes of numbers. Where a class is expected, type checkers also accept the classes before it in this list
(PEP 484)."""


class HandlerPlugin(Plugin):
    """Checks the handlers of every subclass of `Callback`."""

    def get_base_class_hook(self, fullname: str) -> Callable[[ClassDefContext], None] | None:
        """Return `check_handlers` if `fullname` is `Callback` or a subclass of it; None for any other class.

        mypy calls this method for each base class of a class.
        """
        found = self.lookup_fully_qualified(fullname)
        base = found.node if found is not None else None
        is_callback = isinstance(base, TypeInfo) and any(cls.fullname == CALLBACK for cls in base.mro)
        return check_handlers if is_callback else None


def check_handlers(context: ClassDefContext) -> None:
    """Report an error to mypy for each parameter of a handler that is annotated with a wrong type.

    The type is wrong if it does not accept the value that the event passes. The handlers are the methods `on_...` of
    the class in `context`.
    """
    found = context.api.lookup_fully_qualified_or_none(CATALOGUE)
    if found is None or not isinstance(found.node, TypeInfo):
        return
    for handler in _handlers(context.cls):
        symbol = found.node.names.get(handler.name)
        if symbol is None or not isinstance(symbol.node, FuncDef):
            continue
        values = dict(_parameters(symbol.node))
        for name, unbound in _parameters(handler):
            annotation = context.api.anal_type(unbound) if name in values else None
            if annotation is not None and not _accepts(annotation, values[name]):
                context.api.fail(
                    f'Parameter "{name}" of "{handler.name}" is annotated as "{annotation}", but the event passes '
                    f'"{values[name]}"',
                    handler,
                )


def _handlers(cls: ClassDef) -> Iterator[FuncDef]:
    for statement in cls.defs.body:
        function = statement.func if isinstance(statement, Decorator) else statement
        if isinstance(function, FuncDef) and function.name.startswith("on_"):
            yield function


def _parameters(function: FuncDef) -> Iterator[tuple[str, Type]]:
    """Yield the annotated parameters of a method."""
    if isinstance(function.type, CallableType):
        for kind, name, type in zip(function.type.arg_kinds, function.type.arg_names, function.type.arg_types):
            if name not in (None, "self") and kind not in (ARG_STAR, ARG_STAR2):
                yield str(name), type


def _accepts(annotation: Type, value: Type) -> bool:
    """Return whether a parameter with this annotation may accept a value of this type.

    Only classes are compared: `list[int]` counts as `list`.
    """
    annotation, value = get_proper_type(annotation), get_proper_type(value)
    if isinstance(value, UnionType):
        return all(_accepts(annotation, item) for item in value.items)
    if isinstance(annotation, UnionType):
        return any(_accepts(item, value) for item in annotation.items)
    if isinstance(annotation, Instance) and isinstance(value, Instance):
        given, wanted = value.type, annotation.type
        related = given.has_base(wanted.fullname) or wanted.has_base(given.fullname)  # a subclass is allowed
        numbers = given.fullname in NUMBERS and wanted.fullname in NUMBERS
        return related or numbers or wanted.is_protocol
    if isinstance(annotation, NoneType) or isinstance(value, NoneType):
        both = isinstance(annotation, NoneType) and isinstance(value, NoneType)
        return both or not isinstance(annotation, (NoneType, Instance)) or _is_object(annotation)
    return True


def _is_object(type: Type) -> bool:
    return isinstance(type, Instance) and type.type.fullname == "builtins.object"


def plugin(version: str) -> type[Plugin]:
    """Return the class of the plugin. mypy calls this function, and passes the version of mypy."""
    return HandlerPlugin

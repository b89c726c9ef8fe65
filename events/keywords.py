"""Errors for unknown keywords in calls: each error suggests the most similar known keyword."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from types import MethodType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from .argument_types import check_types, simple_types
from .errors import UnknownArgument, nearest

P = ParamSpec("P")
R = TypeVar("R")


def refuse_unknown(
    label: str,
    given: Iterable[str],
    known: Collection[str],
    ending: Callable[[str, Collection[str]], str] = nearest,
) -> None:
    """Refuse keywords that are not known.

    Args:
        label: the class or function that is called, as the error names it.
        given: the keywords of the call.
        known: the keywords that the class or function takes.
        ending: a function that returns the end of the sentence about an unknown keyword. The default suggests the
            nearest name.

    Raises:
        UnknownArgument: if a keyword is not known. The error lists all unknown keywords and all known keywords.
    """
    unknown = [name for name in given if name not in known]
    if unknown:
        refused = " ".join(f"{label} takes no {name!r}{ending(name, known)}" for name in unknown)
        shown = ", ".join(name for name in known if not name.startswith("_"))
        raise UnknownArgument(f"{refused} It takes{f': {shown}' if shown else ' no keywords'}.")


def keywords_of(function: Any, bound: bool = False) -> tuple[str, ...] | None:
    """Return the keywords that a call of a function may have.

    Return None if the function has `**kwargs`, or if its parameters are unknown. For a wrapper, the result has the
    keywords of the wrapper, not of the wrapped function.

    Args:
        function: the function.
        bound: whether the first parameter is the instance, so that no keyword can set it.
    """
    code = getattr(function, "__code__", None)
    if code is None or code.co_flags & inspect.CO_VARKEYWORDS:
        return None
    first = max(code.co_posonlyargcount, int(bound))
    names: tuple[str, ...] = code.co_varnames[first : code.co_argcount + code.co_kwonlyargcount]
    return names


def checked_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function or method, so that a call with an unknown keyword raises an error.

    The error suggests the most similar known keyword.

    The function must not have a parameter like `**kwargs`.
    """
    names = inspect.signature(function).parameters
    known = [name for position, name in enumerate(names) if position or name != "self"]
    label = f"{function.__name__}()"

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs:
            refuse_unknown(label, kwargs, known)
        return function(*args, **kwargs)

    return call


class _SignatureOfInit:
    """Descriptor that shows the parameters of an inherited `__init__` in `inspect.signature` of a class.

    Without this descriptor, `inspect.signature` would show the parameters of `CheckedKeywords.__new__`. The
    descriptor returns None where it is not needed: for instances, and for classes with their own `__init__` or another
    `__new__`.
    """

    def __get__(self, instance: object, owner: type[Any]) -> inspect.Signature | None:
        new: Any = owner.__new__
        init: Any = owner.__init__
        if instance is not None or "__init__" in vars(owner) or new is not CheckedKeywords.__new__:
            return None
        return inspect.Signature() if init is object.__init__ else inspect.signature(MethodType(init, owner))


class CheckedKeywords:
    """Base of classes whose constructor checks its arguments.

    For an unknown keyword, the error suggests the most similar known keyword. For a value of a wrong simple type, such
    as a text for a number, the error says how to fix the value.

    There is no check if `__init__` has `**kwargs`, or if another base class defines `__new__`, as `dict` does.
    """

    checks_types = True
    """Whether the constructor checks simple types. False for a class that checks them itself, with better errors."""

    if not TYPE_CHECKING:  # type checkers and editors read `__init__`
        __signature__ = _SignatureOfInit()

        def __new__(cls, /, *args: Any, **kwargs: Any) -> Any:
            make = super().__new__
            if make is not object.__new__:  # of another base class, such as `dict`
                return make(cls, *args, **kwargs)
            if cls.__init__ is object.__init__:
                refuse_unknown(cls.__name__, kwargs, ())
                if args:
                    raise TypeError(f"{cls.__name__}() takes no arguments")
            elif (args or kwargs) and (known := keywords_of(cls.__init__, bound=True)) is not None:
                refuse_unknown(cls.__name__, kwargs, known)
                if cls.checks_types:
                    check_types(cls.__name__, {**dict(zip(known, args)), **kwargs}, simple_types(cls))
            return make(cls)

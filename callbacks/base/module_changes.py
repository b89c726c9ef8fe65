"""Change a module during a session, so that copies and pickles of the module do not contain the change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

_HOOKS = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
_ABSENT: Any = object()


def replace_attribute(module: nn.Module, name: str, value: Any) -> Callable[[], None]:
    """Set an attribute of a module, and return a function that undoes this change.

    Copies and pickles of the module contain the former value. An attribute may be replaced several times, and the
    returned functions may be called in any order. After the last call, the attribute has its first value again.

    Args:
        module: the module.
        name: the attribute, as in `vars(module)`.
        value: the new value.
    """
    changes = _changes_of(module)
    change = changes.set(name, value)
    return lambda: changes.unset(name, change)


def has_own(module: nn.Module, name: str) -> bool:
    """Return whether the `__dict__` of a module has an attribute.

    An attribute that the module has only because of `replace_attribute` does not count.
    """
    changes = vars(module).get("__getstate__")
    former = changes.former if isinstance(changes, _Changes) else {}
    return former.get(name, vars(module).get(name, _ABSENT)) is not _ABSENT


def hook_forward(module: nn.Module, hook: Callable[..., Any], **options: Any) -> Callable[[], None]:
    """Register a forward hook, and return a function that removes the hook.

    Copies and pickles of the module do not contain the hook.

    Args:
        module: the module.
        hook: the hook.
        **options: options of `register_forward_hook`.
    """
    return _hidden(module, module.register_forward_hook(hook, **options).id)


def change_by(model: nn.Module, change: Callable[[], object], undo: Callable[[], object]) -> Callable[[], None]:
    """Call `change`, which changes modules of a model, and return a function that undoes the changes.

    Copies and pickles of the modules do not contain the attributes and forward hooks that `change` sets. The returned
    function calls `undo`. Then it restores these attributes and removes these hooks.
    """
    before = [(module, dict(vars(module)), {*module._forward_hooks}) for module in model.modules()]
    change()
    restore: list[Callable[[], None]] = []
    for module, former, hooks in before:
        for name, value in [*vars(module).items()]:
            if name != "__getstate__" and former.get(name, _ABSENT) is not value:
                _put(module, name, former.get(name, _ABSENT))
                restore.append(replace_attribute(module, name, value))
        restore += [_hidden(module, each) for each in [*module._forward_hooks] if each not in hooks]

    def back() -> None:
        undo()
        for step in restore:
            step()

    return back


def _hidden(module: nn.Module, hook: int) -> Callable[[], None]:
    """Keep the forward hook with the id `hook` out of copies and pickles of `module`.

    Return a function that removes the hook from `module`.
    """
    changes = _changes_of(module)
    changes.hooks.append(hook)

    def remove() -> None:
        for name in _HOOKS:
            vars(module)[name].pop(hook, None)
        if hook in changes.hooks:
            changes.hooks.remove(hook)
        changes.end()

    return remove


def _put(module: nn.Module, name: str, value: Any) -> None:
    """Set an attribute of a module; delete the attribute if `value` is `_ABSENT`."""
    if value is _ABSENT:
        vars(module).pop(name, None)
    else:
        vars(module)[name] = value


class _Changes:
    """The changes of one module that are not undone yet.

    The attribute `__getstate__` of the module is this object. `copy` and `pickle` call the object to get the state of
    the module without the changes. With the changes, a copy would have the changed forward, which computes with the
    weights of the original module.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.state: Callable[[], dict[str, Any]] = module.__getstate__
        self.former: dict[str, Any] = {}
        self.values: dict[str, list[list[Any]]] = {}
        self.hooks: list[int] = []

    def __call__(self) -> dict[str, Any]:
        """Return the state of the module without the changes that this object stores."""
        state = dict(self.state())
        for name, value in [*self.former.items(), ("__getstate__", _ABSENT)]:
            if value is _ABSENT:
                state.pop(name, None)
            else:
                state[name] = value
        for name in _HOOKS if self.hooks else ():
            hooks = state[name].copy()
            for each in self.hooks:
                hooks.pop(each, None)
            state[name] = hooks
        return state

    def set(self, name: str, value: Any) -> list[Any]:
        """Set an attribute of the module. Return a list, with which `unset` undoes this change."""
        if not self.values.get(name):
            self.former[name] = vars(self.module).get(name, _ABSENT)
        change = [value]
        self.values.setdefault(name, []).append(change)
        vars(self.module)[name] = value
        return change

    def unset(self, name: str, change: list[Any]) -> None:
        """Undo the call of `set` that returned `change`. Do nothing if this call is already undone.

        The attribute gets the value of the newest call of `set` that is not undone. If all calls are undone, the
        attribute gets its value before the first call.
        """
        changes = self.values.get(name, [])
        if not any(each is change for each in changes):
            return
        changes[:] = [each for each in changes if each is not change]
        if changes:
            vars(self.module)[name] = changes[-1][0]
            return
        _put(self.module, name, self.former.pop(name))
        self.end()

    def end(self) -> None:
        """Delete `__getstate__` of the module if all changes are undone. A `__getstate__` that other code set stays."""
        if not self.hooks and not self.former and vars(self.module).get("__getstate__") is self:
            del vars(self.module)["__getstate__"]


def _changes_of(module: nn.Module) -> _Changes:
    found = vars(module).get("__getstate__")
    if isinstance(found, _Changes) and found.module is module:
        return found
    made = vars(module)["__getstate__"] = _Changes(module)
    return made

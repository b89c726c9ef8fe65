"""Call a function when a module gets a parameter or a child, such as a head that a handler adds to the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)


@contextmanager
def on_registration(notice: Callable[[], None]) -> Iterator[None]:
    """In a `with` block, call `notice` each time any module of the process registers a parameter or a child."""

    def registered(*_: Any) -> None:
        notice()

    hooks = (
        register_module_parameter_registration_hook(registered),
        register_module_module_registration_hook(registered),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()

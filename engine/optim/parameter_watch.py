"""Notice that a module got a parameter or a child, such as a new head that a handler adds during a training."""

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
    """Inside a `with` block, call `notice` each time a module of this process registers a parameter or a child."""

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

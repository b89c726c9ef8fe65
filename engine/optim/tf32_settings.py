"""torch's settings of TF32, under the names that the program uses.

torch has two names for each setting: `allow_tf32`, and `fp32_precision` since torch 2.9. After a program has set
`fp32_precision`, torch raises an error when code reads `allow_tf32`. So the functions of this module use `allow_tf32`
unless torch refuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _settings() -> tuple[list[tuple[Any, str]], dict[bool, Any]]:
    """Return the settings that the process uses, as (object, name), and the values that allow and forbid TF32."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    legacy = [(matmul, "allow_tf32"), (cudnn, "allow_tf32")]
    try:
        for place, name in legacy:
            getattr(place, name)
    except RuntimeError:
        places = (matmul, cudnn.conv, cudnn.rnn)  # type: ignore[attr-defined] # since torch 2.9
        return [(place, "fp32_precision") for place in places], {True: "tf32", False: "ieee"}
    return legacy, {True: True, False: False}


def allow_tf32(enabled: bool) -> Callable[[], None]:
    """Allow or forbid TF32 in matrix products and in cuDNN. Return a function that restores the earlier settings."""
    settings, values = _settings()
    before = [getattr(place, name) for place, name in settings]
    for place, name in settings:
        setattr(place, name, values[enabled])

    def restore() -> None:
        for (place, name), value in zip(settings, before):
            setattr(place, name, value)

    return restore


def matmul_uses_tf32() -> bool:
    """Return whether float32 matrix products on a GPU use TF32."""
    [(place, name), *_], values = _settings()
    return bool(getattr(place, name) == values[True])

"""DeepSpeed: its engine makes the steps and shards optimizer states, gradients and weights.

The class `DeepSpeed` is imported at its first use. The modules `config` and `config_schema` work without the package
deepspeed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from ...lazy import lazy_exports

if TYPE_CHECKING:
    from .callback import DeepSpeed as DeepSpeed

if not torch.accelerator.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # otherwise DeepSpeed detects the same and warns

__getattr__, __dir__, __all__ = lazy_exports(__name__, {"callback": ("DeepSpeed",)})

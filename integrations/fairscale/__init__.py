"""Callbacks for fairscale: `ShardedDDP`, and `FairscaleFSDP` on CUDA. Each class is imported at its first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_exports

if TYPE_CHECKING:
    from .fsdp import FairscaleFSDP as FairscaleFSDP
    from .sharded_ddp import ShardedDDP as ShardedDDP

__getattr__, __dir__, __all__ = lazy_exports(__name__, {"fsdp": ("FairscaleFSDP",), "sharded_ddp": ("ShardedDDP",)})

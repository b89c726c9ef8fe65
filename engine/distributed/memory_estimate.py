"""The memory estimate of `trainbus plan`: the memory that each `Variant` of a strategy needs, and whether it fits.

1 GB is 1e9 bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from .memory_formulas import MemoryEstimate
from .strategies import Strategy, variants
from .workload import Variant, Workload

USABLE = 0.9
"""The share of a GPU's memory that an estimate may use. CUDA, its libraries and fragmentation take the rest."""


@dataclass(frozen=True)
class Candidate:
    """A `Variant` of a strategy with its memory estimate."""

    variant: Variant
    """The variant."""
    memory: MemoryEstimate
    """The memory that the variant needs."""
    fits: bool
    """Whether the GPUs and the host have enough memory for the variant."""


def estimate(variant: Variant, workload: Workload) -> MemoryEstimate:
    """Compute the memory that a `Variant` of a strategy needs, by the formula of the strategy."""
    return Strategy.named(variant.strategy).row.memory(variant, workload)


def candidates(workload: Workload) -> list[Candidate]:
    """Compute the memory of each `Variant` that a workload can use, and whether the `Variant` fits.

    The first `Variant` in the list needs the smallest change to a program.
    """
    estimates = [(variant, estimate(variant, workload)) for variant in variants(workload)]
    return [Candidate(variant, memory, _fits(memory, workload)) for variant, memory in estimates]


def host_gigabytes(memory: MemoryEstimate, workload: Workload) -> float:
    """Compute the host memory in GB that all ranks of one machine need together."""
    return memory.host * workload.params * workload.gpus_of_a_node / 1e9


def _fits(memory: MemoryEstimate, workload: Workload) -> bool:
    host_limit = math.inf if workload.node_memory is None else workload.node_memory
    return memory.gigabytes <= USABLE * workload.gpu_memory and host_gigabytes(memory, workload) <= USABLE * host_limit


def gpus_needed(workload: Workload) -> tuple[int, Variant] | None:
    """Find the smallest number of GPUs above `workload.gpus` on which a variant of a strategy fits without offloading.

    The function tries 1, 2, 4, ..., 16384 machines with `workload.gpus_per_node` GPUs each.

    Returns:
        The number of GPUs, and the first variant that fits; None if no variant fits on any of these numbers of GPUs.
    """
    for nodes in (2**power for power in range(15)):
        larger = replace(workload, gpus=workload.gpus_per_node * nodes)
        fitting = [each.variant for each in candidates(larger) if each.fits and not each.variant.offload]
        if fitting and larger.gpus > workload.gpus:
            return larger.gpus, fitting[0]
    return None

"""The input of the memory estimate: a `Workload`, and a `Variant`, which is one way to run a strategy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ...events.errors import ArgumentError, nearest
from ..optim.registry import OPTIMIZERS

PRECISIONS = ("bf16", "fp16", "fp32")
"""The dtypes of forward and backward."""

LEVELS = ("O1", "O2")
"""Values of `fp16_opt_level`. O1: autocast over float32 weights. O2: half-precision weights with float32 copies."""

STATES = {name: spec.state_bytes for name, spec in OPTIMIZERS.items() if spec.state_bytes is not None}
"""Optimizer -> bytes of optimizer state per parameter. Optimizers with an unknown number of bytes are left out."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The training whose memory is estimated: model, GPUs, precision and batch."""

    params: float
    """The number of parameters of the model. All parameters are trained."""
    gpus: int = 1
    """The number of GPUs on all machines. Each GPU has its own rank."""
    gpus_per_node: int = 8
    """The number of GPUs of one machine."""
    gpu_memory: float = 80.0
    """The memory of one GPU, in GB."""
    node_memory: float | None = None
    """The host memory of one machine, in GB, for offloading; None assumes that the host memory is enough."""
    precision: str = "bf16"
    """One of `PRECISIONS`."""
    level: str = "O1"
    """The mixed-precision level, one of `LEVELS`; unused for fp32."""
    optimizer: str = "adamw"
    """The name of the optimizer, as in the argument `optim`: a key of `STATES`."""
    accumulate: int = 1
    """Batches per step."""
    reduce_bucket: float = 5e8
    """DeepSpeed's `reduce_bucket_size`: the number of gradient values that it sends at once."""
    layers: int | None = None
    """The number of transformer layers; None assumes 32. If this field, `hidden` and `sequence` are set, the estimate
    includes activations."""
    hidden: int | None = None
    """Width of the hidden state."""
    sequence: int | None = None
    """Tokens of one sample."""
    batch: int = 1
    """Samples of a batch on one GPU."""
    heads: int | None = None
    """The number of attention heads; None for fused attention (SDPA), which stores no scores for backward."""
    vocabulary: int = 0
    """The size of the vocabulary, for the memory of the logits; 0 leaves the logits out."""
    recompute: bool = False
    """Whether backward recomputes the activations of each layer (gradient checkpointing)."""

    def __post_init__(self) -> None:
        for name, known in (("precision", PRECISIONS), ("level", LEVELS), ("optimizer", STATES)):
            value = getattr(self, name)
            if value not in known:
                raise ArgumentError(f"{name} is {value!r}{_nearest(value, known)} Known: {', '.join(sorted(known))}.")
        for name in ("params", "gpus", "gpus_per_node", "accumulate", "layers", "hidden", "sequence", "batch", "heads"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < math.inf:
                raise ArgumentError(f"{name} is {value:g}; set it to 1 or more.")
        for name in ("gpu_memory", "node_memory"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ArgumentError(f"{name} is {value:g}; set it to a size in GB, such as 80.")
        if self.gpus > self.gpus_per_node and self.gpus % self.gpus_per_node:
            raise ArgumentError(
                f"{self.gpus} GPUs are not a multiple of {self.gpus_per_node} GPUs per machine: change gpus or "
                "gpus_per_node."
            )
        given = [name for name in ("hidden", "sequence", "layers") if getattr(self, name)]
        if given not in ([], ["layers"]) and len(given) < 3:
            raise ArgumentError(
                f"Activations need layers, hidden and sequence, but only {', '.join(given)} is set. Set all three, "
                "or only layers."
            )

    @property
    def nodes(self) -> int:
        """The number of machines."""
        return max(1, self.gpus // self.gpus_per_node)

    @property
    def gpus_of_a_node(self) -> int:
        """The number of GPUs that the training uses on each machine."""
        return self.gpus // self.nodes

    @property
    def counts_activations(self) -> bool:
        """Whether `layers`, `hidden` and `sequence` are set. Only then does the estimate include activations."""
        return self.sequence is not None

    @property
    def halves_weights(self) -> bool:
        """Whether the weights of the model are half precision: mixed precision with `fp16_opt_level="O2"`."""
        return self.precision != "fp32" and self.level == "O2"


def _nearest(name: str, known: Iterable[str]) -> str:
    if name in OPTIMIZERS and OPTIMIZERS[name].projection is not None:
        return ", whose state depends on the rank of its projection. It is not estimated."
    return nearest(name, known)


@dataclass(frozen=True)
class Variant:
    """One configuration of a strategy, such as stage 3 with offloading: a line of `trainbus plan`."""

    name: str
    """The name of the variant in tables."""
    strategy: str
    """The name of the strategy, as in `StrategyRow.name`; empty for DDP or a single process."""
    arguments: str
    """The arguments of `TrainingArguments`, as text; empty if none are needed."""
    stage: int
    """The ZeRO stage: 0 nothing, 1 optimizer state, 2 also gradients, 3 also weights."""
    gathers_all: bool = False
    """Whether the weights, once gathered, stay gathered until the end of backward."""
    offload: bool = False
    """Whether the shards are in host memory."""
    half: bool = False
    """Whether weights are gathered in half precision. Otherwise weights are gathered in float32."""
    within_node: bool = False
    """Whether each machine has one copy of the model, sharded over its GPUs."""


def shards(variant: Variant, workload: Workload) -> int:
    """Return the number of GPUs over which a variant of a strategy shards; 1 if the variant does not shard."""
    return 1 if variant.stage == 0 else workload.gpus_of_a_node if variant.within_node else workload.gpus

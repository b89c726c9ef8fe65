"""The memory formulas: the memory of each strategy on one GPU. The formulas measure nothing and do not need torch.

Values are in bytes per parameter of the model. If a value has another unit, its description names the unit.

The formulas adapt the formulas of ZeRO to the strategies of trainbus: Rajbhandari et al. 2020, arXiv:1910.02054,
sections 3, 5 and 7. The formula for activations is from Korthikanti et al. 2022 (arXiv:2205.05198, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .workload import STATES, Variant, Workload, shards

HALF, FULL = 2.0, 4.0
DDP_BUCKETS = FULL
"""Bytes per parameter in the buffers that DDP sends. The buffers hold a second copy of the gradients. Half-precision
weights have half-precision gradients, with half of the bytes."""
ASSUMED_LAYERS = 32
"""The number of layers if the workload does not set it. Stage 3 holds the whole weights of two layers at a time."""
DEEPSPEED_LIVE = 1e9
"""DeepSpeed's default `stage3_max_live_parameters`: the number of parameters that are gathered at the same time."""


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """The memory of one `Variant` of a strategy.

    Fields are in bytes per parameter of the model, on each GPU. `params`, `sent` and `activations` have other units.
    """

    params: float
    """The number of parameters of the model."""
    weights: float
    """The weights, or this GPU's shard of them."""
    gradients: float
    """The gradients at the end of backward. The step frees the gradients before the next step begins."""
    states: float
    """The optimizer state."""
    masters: float
    """Float32 copies of half-precision weights, which the optimizer updates."""
    buckets: float = 0.0
    """Buffers in which gradients are sent."""
    work: float = 0.0
    """Temporary tensors when backward begins: weights that are gathered or cast to half precision. With FSDP, also two
    copies of the gradients of one layer."""
    accumulated: float = 0.0
    """Gradients that exist during forward, with gradient accumulation."""
    reduced: float = 0.0
    """Temporary tensors at the end of backward: whole gradients that wait to be reduced. With stage 3 of FSDP, also
    gathered weights. With stages 1 and 2 of DeepSpeed, copies of the gradient shard in the update, if they need more
    memory than the waiting gradients."""
    host: float = 0.0
    """Host memory per GPU, in bytes per parameter of the model. Offloading uses it."""
    sent: float = 0.0
    """Elements that each GPU sends in a step, such as gradients and weights, per parameter of the model."""
    activations: float = 0.0
    """The activations on each GPU, in bytes for the whole model."""

    @property
    def states_of_model(self) -> float:
        """The model states of the ZeRO paper, in bytes per parameter: weights, gradients, optimizer state, masters."""
        return self.weights + self.gradients + self.states + self.masters

    @property
    def between_steps(self) -> float:
        """The memory between two steps, in bytes per parameter: weights, optimizer state, masters, gradient buckets."""
        return self.weights + self.states + self.masters + self.buckets

    @property
    def peak(self) -> float:
        """The maximum memory within a step, in bytes per parameter.

        The maximum is the larger of the memory at the end of forward and the memory at the end of backward. While
        backward creates gradients, it frees the activations and the temporary weights (`work`). So the memory of
        forward and the memory of the gradients are not added.
        """
        forward = self.work + self.accumulated + self.activations / self.params
        return self.between_steps + max(forward, self.gradients + self.reduced)

    @property
    def gigabytes(self) -> float:
        """The peak memory of each GPU, in GB."""
        return self.peak * self.params / 1e9


def one_process(variant: Variant, workload: Workload) -> MemoryEstimate:
    """Return the memory of a single process, without sharding."""
    halved = workload.halves_weights
    several = workload.accumulate > 1
    return MemoryEstimate(
        params=workload.params,
        weights=HALF if halved else FULL,
        # Half-precision gradients are converted to float32 one by one at the end of backward.
        gradients=FULL,
        states=STATES[workload.optimizer],
        masters=FULL if halved else 0.0,
        # Autocast keeps its cast weights until backward has used them.
        work=0.0 if halved or workload.precision == "fp32" else HALF,
        accumulated=(HALF if halved else FULL) if several else 0.0,
        activations=activation_bytes(workload),
    )


def data_parallel(variant: Variant, workload: Workload) -> MemoryEstimate:
    """Return the memory per GPU with DDP. With one GPU, return the memory of a single process."""
    base = one_process(variant, workload)
    # An all-reduce sends each gradient twice: a reduce-scatter and an all-gather (ZeRO, section 7.1).
    buckets = HALF if workload.halves_weights else DDP_BUCKETS
    return base if workload.gpus == 1 else replace(base, buckets=buckets, sent=2.0)


def sharded_optimizer(variant: Variant, workload: Workload) -> MemoryEstimate:
    """Return the memory per GPU with DDP and ZeRO stage 1."""
    base = data_parallel(variant, workload)
    # DDP's gradients are views of its buffers here. After the update each rank sends its updated weights.
    return replace(base, gradients=0.0, states=base.states / workload.gpus, sent=3.0)


def fairscale_optimizer(variant: Variant, workload: Workload) -> MemoryEstimate:
    """Return the memory per GPU with fairscale's ZeRO stage 1: the classes `OSS` and `ShardedDataParallel`."""
    base = one_process(variant, workload)
    # At the end of backward each gradient is reduced to the rank that updates its weight. That rank broadcasts it.
    return replace(base, states=base.states / workload.gpus, sent=2.0)


def fully_sharded(variant: Variant, workload: Workload) -> MemoryEstimate:
    """Return the memory per GPU with FSDP2."""
    base = one_process(variant, workload)
    share = 1 / shards(variant, workload)
    held = 0.0 if variant.offload else share
    layer = 1 / (workload.layers or ASSUMED_LAYERS)
    # While one layer computes, the next one is gathered. If a layer is resharded, the copies of its weights that
    # autocast made stay.
    gathered = (HALF if variant.half else FULL) * (1.0 if variant.gathers_all else min(1.0, 2 * layer))
    casted = 0.0 if variant.half else base.work
    gathers = workload.accumulate * (1 if variant.gathers_all else 2)
    return replace(
        base,
        weights=FULL * held,
        gradients=FULL * held,
        reduced=FULL * layer + (0.0 if variant.gathers_all else gathered),
        states=STATES[workload.optimizer] * held,
        # Backward begins with the gradients of one layer: once as computed and once in the buffer that is reduced.
        work=gathered + casted + 2 * FULL * layer,
        host=(FULL + FULL + STATES[workload.optimizer]) * share if variant.offload else 0.0,
        # With one copy per machine, the copies average their shards of the gradients.
        sent=gathers + 1.0 + (2.0 * share if variant.within_node else 0.0),
    )


def deepspeed(variant: Variant, workload: Workload) -> MemoryEstimate:
    """Return the memory per GPU with DeepSpeed's ZeRO stage 1, 2 or 3."""
    base = one_process(variant, workload)
    element = FULL if workload.precision == "fp32" else HALF
    share = 1 / workload.gpus
    states = STATES[workload.optimizer] * share
    held = 0.0 if variant.offload else 1.0
    bucket = element * workload.reduce_bucket / workload.params
    weights = element * (share if variant.stage == 3 else 1.0)
    # Before the update, stages 1 and 2 copy the shard of the gradients to one tensor, and half precision then to
    # float32. With stage 1, the freed gradients of the other ranks make room for the copy in half precision.
    copied = (FULL + (element if workload.precision != "fp32" and variant.stage == 2 else 0.0)) * share * held
    moved = FULL * share + FULL * share + states + (weights if variant.stage == 3 else 0.0)
    return replace(
        base,
        weights=weights * (held if variant.stage == 3 else 1.0),
        gradients=element * (share * held if variant.stage >= 2 else 1.0),
        states=states * held,
        # DeepSpeed keeps masters even of float32 weights.
        masters=FULL * share * held,
        # Stage 3 has one buffer for its shard of the gradients and one from which they are sent.
        buckets=element * share * held + bucket if variant.stage == 3 else 0.0,
        work=element * min(1.0, DEEPSPEED_LIVE / workload.params) if variant.stage == 3 else 0.0,
        reduced=0.0 if variant.stage == 3 else max(bucket, copied),
        accumulated=element * (share * held if variant.stage >= 2 else 1.0) if workload.accumulate > 1 else 0.0,
        host=0.0 if held else moved,
        sent={1: 2.0, 2: 1.0 + workload.accumulate, 3: 3.0 * workload.accumulate}[variant.stage],
    )


def activation_bytes(workload: Workload) -> float:
    """Return the bytes of activations that one GPU stores for backward; 0 if the sizes of the layers are not set.

    Source: Korthikanti et al. 2022, sections 4.1 and 4.3, on one GPU. The formulas are for two bytes per activation.
    With fp32, activations have four bytes. The size of masks and logits does not change.

    `s` is the length of the sequence, `b` the batch, `h` the hidden size, `a` the number of heads and `v` the size of
    the vocabulary.

    - A layer stores `sbh (34 + 5 a s / h)` bytes. Of these, `2 sbh + a s^2 b` bytes are masks of one byte per element.
      The term `5 a s / h` is for the attention scores.
    - With gradient checkpointing, a layer stores only its input, `2 sbh`. Backward recomputes one layer at a time. This
      layer then has all of its activations.
    - The dropout of the embedding stores a mask, `sbh`.
    - The last normalisation and the output layer store their inputs, `4 sbh`.
    - The loss stores the logits in float32, `4 sbv`.
    """
    if workload.layers is None or workload.hidden is None or workload.sequence is None:
        return 0.0
    tokens = workload.sequence * workload.batch
    wide = 2.0 if workload.precision == "fp32" else 1.0
    width = tokens * workload.hidden
    scores = (workload.heads or 0) * workload.sequence * tokens
    layer = width * (32 * wide + 2) + scores * (4 * wide + 1)
    layers = workload.layers * width * 2 * wide + layer if workload.recompute else workload.layers * layer
    return layers + width * (1 + 4 * wide) + 4 * tokens * workload.vocabulary

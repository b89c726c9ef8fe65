"""How much memory a training takes on each of its GPUs, in every way to split it: formulas, no measuring, no torch.

All figures are bytes per parameter of the model, unless a name says otherwise; 1 GB is 1e9 bytes. The formulas are
those of ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054, sections 3, 5 and 7), with what each way does here put in,
and for activations those of Korthikanti et al. 2022 (arXiv:2205.05198, section 4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from .strategies import STATES, Training, Way, ways

HALF, FULL = 2.0, 4.0
DDP_BUCKETS = FULL
"""Gradients a second time, in the buffers that DDP sends."""
USABLE = 0.9
"""Share of a GPU's memory that may be planned with; CUDA, its libraries and fragments take the rest."""
ASSUMED_LAYERS = 32
"""Layers of a model of which they are not given: of those that are put together layer by layer, two are there."""
DEEPSPEED_LIVE = 1e9
"""DeepSpeed's default `stage3_max_live_parameters`: weights that are put together at a time."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a training takes in one way: bytes per parameter on each GPU, unless said otherwise."""

    params: float
    """Parameters of the model."""
    weights: float
    """The weights, or this GPU's share of them."""
    gradients: float
    """The gradients when backward is through; they are gone when the next step begins."""
    states: float
    """What the optimizer keeps."""
    masters: float
    """Float32 copies of half weights, which the optimizer updates."""
    buckets: float = 0.0
    """Buffers of the size of gradients, in which they are sent."""
    work: float = 0.0
    """Weights that are put together, or copied into half precision, when forward is through and backward begins."""
    accumulated: float = 0.0
    """Gradients that are there during forward, where a step has several batches."""
    reduced: float = 0.0
    """Gradients that wait, whole, to be sent to where they belong."""
    host: float = 0.0
    """What lies in the memory of the machine instead, for each of its GPUs."""
    sent: float = 0.0
    """Parameters that each GPU sends in a step, per parameter of the model."""
    activations: float = 0.0
    """Bytes of activations on each GPU, for the whole model."""

    @property
    def states_of_model(self) -> float:
        """What the ZeRO paper calls model states: weights, gradients, optimizer states and masters."""
        return self.weights + self.gradients + self.states + self.masters

    @property
    def between_steps(self) -> float:
        """What is there all the time."""
        return self.weights + self.states + self.masters + self.buckets

    @property
    def peak(self) -> float:
        """The most there is at once: when forward is through, or when backward is.

        Activations and copies go as the gradients come, so that they need not be added.
        """
        forward = self.work + self.accumulated + self.activations / self.params
        return self.between_steps + max(forward, self.gradients + self.reduced)

    @property
    def gigabytes(self) -> float:
        """The peak on each GPU, in GB."""
        return self.peak * self.params / 1e9


def need(way: Way, training: Training) -> Need:
    """Return what a training takes in one way."""
    formulas = {"ddp": _ddp, "zero1": _zero1, "fairscale": _fairscale, "fsdp2": _fsdp2, "deepspeed": _deepspeed}
    return formulas.get(way.by, _one_process)(way, training)


def shards(way: Way, training: Training) -> int:
    """Return the number of GPUs over which a way spreads what it splits."""
    return 1 if way.stage == 0 else training.gpus_of_a_node if way.within_node else training.gpus


def _one_process(way: Way, training: Training) -> Need:
    halved = training.halves_weights
    several = training.accumulate > 1
    return Need(
        params=training.params,
        weights=HALF if halved else FULL,
        # Half gradients become float32 ones, weight by weight, when backward is through.
        gradients=FULL,
        states=STATES[training.optimizer],
        masters=FULL if halved else 0.0,
        # Autocast keeps the copies of the weights that it made until backward has used them.
        work=0.0 if halved or training.precision == "fp32" else HALF,
        accumulated=(HALF if halved else FULL) if several else 0.0,
        activations=activation_bytes(training),
    )


def _ddp(way: Way, training: Training) -> Need:
    # An all-reduce sends each gradient twice: to be added up, and the sum back (ZeRO, section 7.1).
    return replace(_one_process(way, training), buckets=DDP_BUCKETS, sent=2.0)


def _zero1(way: Way, training: Training) -> Need:
    found = _ddp(way, training)
    # There DDP's gradients are views of its buffers. Then the updated weights are sent to the others.
    return replace(found, gradients=0.0, states=found.states / training.gpus, sent=3.0)


def _fairscale(way: Way, training: Training) -> Need:
    found = _one_process(way, training)
    # Gradients are reduced to the process that updates their weights, which sends those to the others. It is done when
    # all of them are there.
    return replace(found, states=found.states / training.gpus, sent=2.0)


def _fsdp2(way: Way, training: Training) -> Need:
    found = _one_process(way, training)
    share = 1 / shards(way, training)
    held = 0.0 if way.offload else share
    layer = 1 / (training.layers or ASSUMED_LAYERS)
    # The next layer is fetched while one computes. What autocast copied of a layer stays when the layer is let go.
    gathered = (HALF if way.half else FULL) * (1.0 if way.gathers_all else min(1.0, 2 * layer))
    copies = 0.0 if way.half else found.work
    gathers = training.accumulate * (1 if way.gathers_all else 2)
    return replace(
        found,
        weights=FULL * held,
        gradients=FULL * held,
        reduced=FULL * layer + (0.0 if way.gathers_all else gathered),
        states=STATES[training.optimizer] * held,
        # Backward begins with a layer's gradients, once as they come and once as they are sent.
        work=gathered + copies + 2 * FULL * layer,
        host=(FULL + FULL + STATES[training.optimizer]) * share if way.offload else 0.0,
        # The copies on the machines average their shares.
        sent=gathers + 1.0 + (2.0 * share if way.within_node else 0.0),
    )


def _deepspeed(way: Way, training: Training) -> Need:
    found = _one_process(way, training)
    element = FULL if training.precision == "fp32" else HALF
    share = 1 / training.gpus
    states = STATES[training.optimizer] * share
    held = 0.0 if way.offload else 1.0
    bucket = element * training.reduce_bucket / training.params
    weights = element * (share if way.stage == 3 else 1.0)
    moved = FULL * share + FULL * share + states + (weights if way.stage == 3 else 0.0)
    return replace(
        found,
        weights=weights * (held if way.stage == 3 else 1.0),
        gradients=element * (share * held if way.stage >= 2 else 1.0),
        states=states * held,
        # Also where the weights themselves are float32.
        masters=FULL * share * held,
        # Stage 3 keeps a buffer for its share of the gradients, and the one they are sent from.
        buckets=element * share * held + bucket if way.stage == 3 else 0.0,
        work=element * min(1.0, DEEPSPEED_LIVE / training.params) if way.stage == 3 else 0.0,
        reduced=0.0 if way.stage == 3 else bucket,
        accumulated=element * (share * held if way.stage >= 2 else 1.0) if training.accumulate > 1 else 0.0,
        host=0.0 if held else moved,
        sent={1: 2.0, 2: 1.0 + training.accumulate, 3: 3.0 * training.accumulate}[way.stage],
    )


def activation_bytes(training: Training) -> float:
    """Return the bytes of activations that one GPU keeps for backward; 0 if the sizes of the layers are not given.

    Korthikanti et al. 2022, sections 4.1 and 4.3, on one GPU. A layer keeps `sbh (34 + 5 a s / h)` bytes where an
    activation takes two, of which `2 sbh + a s^2 b` are masks of one byte; the part with the `a` heads is the attention
    scores. A layer that is recomputed keeps its input alone, `2 sbh`, and one at a time is there whole. The embedding's
    dropout keeps a mask, `sbh`; the last normalisation and the output layer keep their inputs, `4 sbh`, and the loss
    the logits in float32, `4 sbv`.
    """
    if training.layers is None or training.hidden is None or training.sequence is None:
        return 0.0
    tokens = training.sequence * training.batch
    wide = 2.0 if training.precision == "fp32" else 1.0
    width = tokens * training.hidden
    scores = (training.heads or 0) * training.sequence * tokens
    layer = width * (32 * wide + 2) + scores * (4 * wide + 1)
    layers = training.layers * width * 2 * wide + layer if training.recompute else training.layers * layer
    return layers + width * (1 + 4 * wide) + 4 * tokens * training.vocabulary


@dataclass(frozen=True)
class Planned:
    """A way, what it takes, and whether that is there."""

    way: Way
    need: Need
    fits: bool


def plan(training: Training) -> list[Planned]:
    """Return every way with what it takes, in the order of how much has to be changed for it."""
    return [Planned(way, found, _fits(found, training)) for way in ways(training) for found in [need(way, training)]]


def host_gigabytes(found: Need, training: Training) -> float:
    """Return the GB of a machine's own memory that its GPUs' parts of the training take."""
    return found.host * training.params * training.gpus_of_a_node / 1e9


def _fits(found: Need, training: Training) -> bool:
    there = math.inf if training.node_memory is None else training.node_memory
    return found.gigabytes <= USABLE * training.gpu_memory and host_gigabytes(found, training) <= USABLE * there


def gpus_needed(training: Training) -> tuple[int, Way] | None:
    """Return with how many GPUs, in whole machines, a way fits without offloading, and which; None if none does."""
    for nodes in (2**power for power in range(15)):
        more = replace(training, gpus=training.gpus_per_node * nodes)
        fitting = [found.way for found in plan(more) if found.fits and not found.way.offload]
        if fitting and more.gpus > training.gpus:
            return more.gpus, fitting[0]
    return None

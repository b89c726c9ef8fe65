"""The ways to split a training over GPUs: what they are called here, what to write for each, how to start them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ...events.errors import ArgumentError, nearest
from ..optim.registry import OPTIMIZERS

PRECISIONS = ("bf16", "fp16", "fp32")
"""What forward and backward compute in."""

LEVELS = ("O1", "O2")
"""`fp16_opt_level`: half precision by autocast over float32 weights, or half weights with float32 masters."""

STATES = {name: spec.state_bytes for name, spec in OPTIMIZERS.items() if spec.state_bytes is not None}
"""Optimizer -> bytes of its states, by the defaults of `optim`. Adafactor has a number per row and column."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training to plan: a model, and what it is to be trained on."""

    params: float
    """Parameters of the model, all trained."""
    gpus: int = 1
    """GPUs, each driven by a process of its own."""
    gpus_per_node: int = 8
    """GPUs of one machine."""
    gpu_memory: float = 80.0
    """GB of one GPU."""
    node_memory: float | None = None
    """GB of one machine's own memory, for what is moved there; None takes it to be enough."""
    precision: str = "bf16"
    """One of `PRECISIONS`."""
    level: str = "O1"
    """One of `LEVELS`; unused for fp32."""
    optimizer: str = "adamw"
    """A name of `STATES`, as `optim` takes it."""
    accumulate: int = 1
    """Batches whose gradients add up to one step."""
    reduce_bucket: float = 5e8
    """DeepSpeed's `reduce_bucket_size`: how many gradients it sends at once."""
    layers: int | None = None
    """Transformer layers; None takes 32. With `hidden` and `sequence`, activations are counted."""
    hidden: int | None = None
    """Width of the hidden state."""
    sequence: int | None = None
    """Tokens of one row."""
    batch: int = 1
    """Rows of a batch on one GPU."""
    heads: int | None = None
    """Attention heads, if attention keeps its scores for backward; fused attention (SDPA) does not."""
    vocabulary: int = 0
    """Tokens of the vocabulary, for the logits; 0 leaves them out."""
    recompute: bool = False
    """Whether backward computes each layer's activations again."""

    def __post_init__(self) -> None:
        for name, known in (("precision", PRECISIONS), ("level", LEVELS), ("optimizer", STATES)):
            value = getattr(self, name)
            if value not in known:
                raise ArgumentError(f"{name} is {value!r}{_nearest(value, known)} Known: {', '.join(sorted(known))}.")
        for name in ("params", "gpus", "gpus_per_node", "accumulate", "layers", "hidden", "sequence", "batch", "heads"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < math.inf:
                raise ArgumentError(f"{name} is {value:g}; give 1 or more.")
        for name in ("gpu_memory", "node_memory"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ArgumentError(f"{name} is {value:g}; give its GB, such as 80.")
        if self.gpus > self.gpus_per_node and self.gpus % self.gpus_per_node:
            raise ArgumentError(
                f"{self.gpus} GPUs cannot be {self.gpus_per_node} on each machine: give a multiple, or gpus_per_node."
            )
        given = [name for name in ("hidden", "sequence", "layers") if getattr(self, name)]
        if given not in ([], ["layers"]) and len(given) < 3:
            raise ArgumentError(f"activations take layers, hidden and sequence; of these you gave {', '.join(given)}.")

    @property
    def nodes(self) -> int:
        """Machines."""
        return max(1, self.gpus // self.gpus_per_node)

    @property
    def gpus_of_a_node(self) -> int:
        """GPUs that are used on each machine."""
        return self.gpus // self.nodes

    @property
    def counts_activations(self) -> bool:
        """Whether the sizes are known that activations are counted from."""
        return self.sequence is not None

    @property
    def halves_weights(self) -> bool:
        """Whether the weights themselves are in half precision."""
        return self.precision != "fp32" and self.level == "O2"


def _nearest(name: str, known: Iterable[str]) -> str:
    if name.startswith(("galore_", "apollo_")):
        return ", whose states depend on the rank, so that they are not planned."
    return nearest(name, known)


@dataclass(frozen=True)
class Way:
    """A way to split a training over processes."""

    name: str
    """What it is called in tables."""
    arguments: str
    """What to write into `TrainingArguments`; empty for nothing."""
    stage: int
    """What is split, as in ZeRO: 0 nothing, 1 optimizer states, 2 also gradients, 3 also weights."""
    by: str
    """Who does it: `torch`, `ddp`, `zero1`, `fairscale`, `fsdp2` or `deepspeed`."""
    needs: str = ""
    """What to install."""
    gathers_all: bool = False
    """Whether gathered weights stay until backward is through with them, all at once."""
    offload: bool = False
    """Whether what is split lies in the memory of the machine."""
    half: bool = False
    """Whether weights are gathered in half precision, rather than gathered and then copied into it by autocast."""
    within_node: bool = False
    """Whether the GPUs of one machine share a copy, so that there are as many copies as machines."""


_EXTRA = "trainbus[deepspeed]"


def ways(training: Training) -> list[Way]:
    """Return the ways there are for a number of GPUs, in the order of how much has to be changed for them."""
    if training.gpus == 1:
        return [Way("one process", "", 0, "torch")]
    ddp = Way("DDP", "", 0, "ddp")
    if training.halves_weights:  # whoever splits the weights or their optimizer makes copies of its own
        return [ddp]
    degree = f"sharding='stage3', sharding_degree={training.gpus_of_a_node}"
    half = f"fsdp_config={{'mixed_precision': {training.precision!r}}}"
    halves = training.precision != "fp32"
    offload = f"fsdp='full_shard offload', {half}" if halves else "sharding='stage3 offload'"
    return [
        ddp,
        Way("stage 1", "sharding='stage1'", 1, "zero1"),
        Way("stage 2", "sharding='stage2'", 2, "fsdp2", gathers_all=True),
        *([Way("hybrid", degree, 3, "fsdp2", within_node=True)] if training.nodes > 1 else []),
        Way("stage 3", "sharding='stage3'", 3, "fsdp2"),
        *([Way("stage 3 half", f"fsdp='full_shard', {half}", 3, "fsdp2", half=True)] if halves else []),
        Way("stage 3 offload", offload, 3, "fsdp2", offload=True, half=halves),
        *(
            [Way("fairscale", "sharded_ddp='simple'", 1, "fairscale", "trainbus[sharded]")]
            * (training.precision != "bf16")
        ),
        *(
            Way(
                f"DeepSpeed {stage}{' offload' * offloads}",
                _configuration(stage, offloads),
                stage,
                "deepspeed",
                _EXTRA,
                offload=offloads,
            )
            for stage, offloads in ((1, False), (2, False), (3, False), (2, True), (3, True))
        ),
    ]


def _configuration(stage: int, offload: bool) -> str:
    section: dict[str, object] = {"stage": stage}
    if offload:
        section["offload_optimizer"] = {"device": "cpu"}
    if offload and stage == 3:
        section["offload_param"] = {"device": "cpu"}
    configuration = {"zero_optimization": section}
    return f"deepspeed={configuration}"


def spelling(way: Way, training: Training) -> str:
    """Return what to write for a way: the call of `TrainingArguments`."""
    words = [] if training.precision == "fp32" else [f"{training.precision}=True"]
    words += ["fp16_opt_level='O2'"] * training.halves_weights
    words += [f"optim={training.optimizer!r}"] * (training.optimizer != "adamw")
    words += [f"per_device_train_batch_size={training.batch}"] * training.counts_activations
    words += [f"gradient_accumulation_steps={training.accumulate}"] * (training.accumulate > 1)
    words += ["gradient_checkpointing=True"] * training.recompute
    return f"TrainingArguments({', '.join(['...', *words, *([way.arguments] if way.arguments else [])])})"


def launch(training: Training) -> str:
    """Return the command that starts the processes, on each machine the same."""
    if training.gpus == 1:
        return "python train.py"
    each = f"--nproc_per_node={training.gpus_of_a_node}"
    if training.nodes == 1:
        return f"torchrun --standalone {each} train.py"
    meeting = "--rdzv_backend=c10d --rdzv_endpoint=$FIRST_MACHINE:29500 --rdzv_id=$RUN"
    return f"torchrun --nnodes={training.nodes} {each} {meeting} --max_restarts=3 train.py"

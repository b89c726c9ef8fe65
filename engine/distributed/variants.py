"""The lines of `trainbus plan`: ways to run each strategy on a workload, and the arguments that select each way."""

from __future__ import annotations

from .workload import Variant, Workload

TORCHRUN = "torchrun --standalone --nproc_per_node=N train.py"
"""The command that starts N ranks on one machine."""


def ddp_variants(workload: Workload) -> list[Variant]:
    """Return a list of one `Variant`: DDP, or a single process if the workload has one GPU."""
    return [Variant("one process" if workload.gpus == 1 else "DDP", "", "", 0)]


def optimizer_variants(workload: Workload) -> list[Variant]:
    """Return a list of one `Variant`: stage 1 of ZeRO, which shards the optimizer state."""
    return [Variant("stage 1", "optimizer", "sharding='stage1'", 1)]


def fsdp_variants(workload: Workload) -> list[Variant]:
    """Return one `Variant` per way to run stages 2 and 3 of ZeRO with FSDP2.

    The list has hybrid sharding only for several machines. For fp32, the list has no variant in half precision.
    """
    degree = f"sharding='stage3', sharding_degree={workload.gpus_of_a_node}"
    half = f"fsdp_config={{'mixed_precision': {workload.precision!r}}}"
    halves = workload.precision != "fp32"
    offload = f"fsdp='full_shard offload', {half}" if halves else "sharding='stage3 offload'"
    found = [Variant("stage 2", "fsdp", "sharding='stage2'", 2, gathers_all=True)]
    if workload.nodes > 1:
        found.append(Variant("hybrid", "fsdp", degree, 3, within_node=True))
    found.append(Variant("stage 3", "fsdp", "sharding='stage3'", 3))
    if halves:
        found.append(Variant("stage 3 half", "fsdp", f"fsdp='full_shard', {half}", 3, half=True))
    found.append(Variant("stage 3 offload", "fsdp", offload, 3, offload=True, half=halves))
    return found


def fairscale_variants(workload: Workload) -> list[Variant]:
    """Return a list of one `Variant`: stage 1 of ZeRO with fairscale. For bf16, return an empty list.

    fairscale does not support bf16.
    """
    return [] if workload.precision == "bf16" else [Variant("fairscale", "fairscale", "sharded_ddp='simple'", 1)]


def no_variants(workload: Workload) -> list[Variant]:
    """Return an empty list, for a strategy that `trainbus plan` does not list."""
    return []


def deepspeed_variants(workload: Workload) -> list[Variant]:
    """Return one `Variant` for each of DeepSpeed ZeRO 1, 2 and 3, and for stages 2 and 3 with offloading."""
    stages = ((1, False), (2, False), (3, False), (2, True), (3, True))
    return [
        Variant(
            f"DeepSpeed {stage}{' offload' * offload}",
            "deepspeed",
            _deepspeed_argument(stage, offload),
            stage,
            offload=offload,
        )
        for stage, offload in stages
    ]


def _deepspeed_argument(stage: int, offload: bool) -> str:
    section: dict[str, object] = {"stage": stage}
    if offload:
        section["offload_optimizer"] = {"device": "cpu"}
    if offload and stage == 3:
        section["offload_param"] = {"device": "cpu"}
    configuration = {"zero_optimization": section}
    return f"deepspeed={configuration}"


def arguments_call(variant: Variant, workload: Workload) -> str:
    """Return a call of `TrainingArguments` that selects a `Variant` of a strategy, as text."""
    words = [] if workload.precision == "fp32" else [f"{workload.precision}=True"]
    words += ["fp16_opt_level='O2'"] * workload.halves_weights
    words += [f"optim={workload.optimizer!r}"] * (workload.optimizer != "adamw")
    words += [f"per_device_train_batch_size={workload.batch}"] * workload.counts_activations
    words += [f"gradient_accumulation_steps={workload.accumulate}"] * (workload.accumulate > 1)
    words += ["gradient_checkpointing=True"] * workload.recompute
    return f"TrainingArguments({', '.join(['...', *words, *([variant.arguments] if variant.arguments else [])])})"


def launch_command(workload: Workload) -> str:
    """Return the command that starts the ranks. The command is the same on each machine."""
    if workload.gpus == 1:
        return "python train.py"
    if workload.nodes == 1:
        return TORCHRUN.replace("=N", f"={workload.gpus_of_a_node}")
    ranks = f"--nnodes={workload.nodes} --nproc_per_node={workload.gpus_of_a_node}"
    rendezvous = "--rdzv_backend=c10d --rdzv_endpoint=$FIRST_MACHINE:29500 --rdzv_id=$RUN"
    return f"torchrun {ranks} {rendezvous} --max_restarts=3 train.py"

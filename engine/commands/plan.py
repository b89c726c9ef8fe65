"""The command `trainbus plan`: print which ways to shard fit the GPUs, and the arguments for each."""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict, fields
from typing import Any

from ..distributed.memory_estimate import USABLE, Candidate, candidates, gpus_needed, host_gigabytes
from ..distributed.memory_formulas import ASSUMED_LAYERS
from ..distributed.strategies import Strategy
from ..distributed.variants import arguments_call, launch_command
from ..distributed.workload import STATES, Workload
from .json_output import print_json, versioned

_LEGEND = [
    "work: temporary tensors when backward begins. kept: between steps. peak: the maximum in a step.",
    "machine: host memory of one machine.",
    "sent: number of values that a GPU sends in each step, divided by the number of parameters of the model.",
]
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def add_to(commands: Any) -> None:
    """Add the command `plan` to the subcommands of `trainbus`."""
    parser = commands.add_parser(
        "plan",
        description="Estimate the memory that each way to shard needs, and print the training arguments of the ways "
        "that fit the GPUs. No model is built.",
        allow_abbrev=False,
    )
    parser.add_argument("--params", type=_amount, required=True, help="parameters of the model, such as 7e9 or 7b")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs in total (default: 1)")
    parser.add_argument("--gpus-per-node", type=int, default=8, help="GPUs of one machine (default: 8)")
    parser.add_argument(
        "--gpu-memory", type=_gigabytes, default=80.0, metavar="GB", help="memory of one GPU (default: 80)"
    )
    parser.add_argument(
        "--node-memory", type=_gigabytes, metavar="GB", help="host memory of one machine, to check offloading"
    )
    parser.add_argument("--precision", type=str.lower, default="bf16", help="bf16 (default), fp16 or fp32")
    parser.add_argument(
        "--opt-level",
        dest="level",
        type=str.upper,
        default="O1",
        help="O1 (default) or O2, as in the argument `fp16_opt_level`",
    )
    parser.add_argument(
        "--optimizer",
        type=str.lower,
        default="adamw",
        help="the optimizer, as in the argument `optim` (default: adamw)",
    )
    parser.add_argument("--accumulate", type=int, default=1, help="batches per step (default: 1)")
    sizes = parser.add_argument_group("sizes for the activations")
    sizes.add_argument("--layers", type=int, help="transformer layers")
    sizes.add_argument("--hidden", type=int, help="width of the hidden state")
    sizes.add_argument("--sequence", type=int, help="tokens of a sample")
    sizes.add_argument("--batch", type=int, default=1, help="samples of a batch on one GPU (default: 1)")
    sizes.add_argument(
        "--heads",
        type=int,
        help="attention heads, if attention keeps its scores for backward; fused attention (SDPA) keeps none",
    )
    sizes.add_argument("--vocabulary", type=int, default=0, help="tokens of the vocabulary, for the logits")
    sizes.add_argument("--recompute", action="store_true", help="count the activations with gradient checkpointing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(do=_run)


def _run(options: argparse.Namespace) -> int:
    workload = Workload(
        **{field.name: getattr(options, field.name) for field in fields(Workload) if hasattr(options, field.name)}
    )
    found = candidates(workload)
    if options.json:
        print_json(versioned(as_data(workload, found)))
    else:
        print(as_text(workload, found))
    return 0


def as_data(workload: Workload, found: list[Candidate]) -> dict[str, Any]:
    """Convert a memory estimate to a dict.

    The dict has the workload, the memory and the arguments of each way to shard, the launch command, and the names of
    the ways that fit the GPUs.

    Args:
        workload: the model, the GPUs and the settings of the training.
        found: the ways to shard, with their memory.
    """
    return {
        "training": asdict(workload),
        "ways": [
            {
                "name": each.variant.name,
                "fits": each.fits,
                "arguments": arguments_call(each.variant, workload),
                "needs": Strategy.named(each.variant.strategy).row.extra,
                "gb_between_steps": each.memory.between_steps * workload.params / 1e9,
                "gb_at_the_peak": each.memory.gigabytes,
                "gb_on_the_machine": host_gigabytes(each.memory, workload),
                "bytes_per_parameter": {
                    name: value
                    for name, value in asdict(each.memory).items()
                    if name not in ("params", "sent", "activations")
                },
                "parameters_sent": each.memory.sent,
                "gb_of_activations": each.memory.activations / 1e9,
            }
            for each in found
        ],
        "launch": launch_command(workload),
        "fitting": [each.variant.name for each in found if each.fits],
    }


def as_text(workload: Workload, found: list[Candidate]) -> str:
    """Convert a memory estimate to text: the workload, a table, and the training arguments to use.

    Args:
        workload: the model, the GPUs and the settings of the training.
        found: the ways to shard, with their memory.
    """
    lines = [_heading(workload), "", *_table(workload, found), ""]
    fitting = [each for each in found if each.fits]
    if fitting:
        lines += ["The smallest change that fits:", *_what_to_write(workload, fitting[0])]
        if len(fitting) > 1:
            lines.append(f"Also fitting: {', '.join(each.variant.name for each in fitting[1:])}.")
    else:
        lines += _alternatives(workload)
    if not workload.counts_activations:
        lines.append("Activations are not counted: set --layers, --hidden and --sequence.")
    if workload.layers is None:
        lines.append(f"The number of layers is assumed to be {ASSUMED_LAYERS}: set --layers.")
    lines += _LEGEND
    lines.append(f"A way fits if its peak is at most {USABLE:.0%} of a GPU. CUDA and fragmentation take the rest.")
    return "\n".join(lines)


def _heading(workload: Workload) -> str:
    many = f"{workload.params / 1e9:.4g} billion" if workload.params >= 1e9 else f"{workload.params / 1e6:.4g} million"
    precision = workload.precision if workload.precision == "fp32" else f"{workload.precision} ({workload.level})"
    where = f"{workload.gpus} GPU{'s' * (workload.gpus > 1)} of {workload.gpu_memory:g} GB"
    nodes = f" on {workload.nodes} machines" if workload.nodes > 1 else ""
    return f"{many} parameters, {workload.optimizer}, {precision}, {where}{nodes}"


def _table(workload: Workload, found: list[Candidate]) -> list[str]:
    parts = ("weights", "gradients", "states", "masters", "buckets", "work")
    heads = ("way", *parts, "kept", "peak", "machine", "sent", "fits")
    rows = []
    for each in found:
        memory = each.memory
        sizes = [f"{getattr(memory, name):.3g}" for name in parts]
        kept, peak = memory.between_steps * workload.params / 1e9, memory.gigabytes
        host = host_gigabytes(memory, workload)
        sums = [f"{kept:.1f}", f"{peak:.1f}", f"{host:.0f}" if host else "-", f"{memory.sent:.3g}"]
        rows.append((each.variant.name, *sizes, *sums, "yes" if each.fits else "no"))
    widths = [max(map(len, column)) for column in zip(heads, *rows)]
    left = " " * (widths[0] + 2)
    span = sum(widths[1 : 1 + len(parts)]) + 2 * (len(parts) - 1)
    lines = [f"{left}{'bytes per parameter, on a GPU'.ljust(span)}  GB"]
    for row in (heads, *rows):
        first, *others = row
        lines.append("  ".join([first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(others, widths[1:]))]).rstrip())
    return lines


def _what_to_write(workload: Workload, each: Candidate) -> list[str]:
    host = host_gigabytes(each.memory, workload)
    more = f", and {host:.0f} GB of host memory on each machine" if host else ""
    lines = [f"  {each.variant.name}: {each.memory.gigabytes:.1f} GB at the peak{more}"]
    lines.append(f"  {arguments_call(each.variant, workload)}")
    lines.append(f"  {launch_command(workload)}")
    if Strategy.named(each.variant.strategy).row.extra:
        lines.append(f"  pip install '{Strategy.named(each.variant.strategy).row.extra}'")
    return lines


def _alternatives(workload: Workload) -> list[str]:
    lines = ["Nothing fits."]
    larger = gpus_needed(workload)
    if larger is not None:
        gpus, variant = larger
        lines.append(f"  With {gpus} GPUs, {variant.name} would fit.")
    if workload.counts_activations and not workload.recompute:
        lines.append("  For fewer activations: --recompute (gradient_checkpointing=True), or a smaller --batch.")
    if STATES[workload.optimizer] > STATES["adafactor"]:
        lines.append("  For a smaller optimizer state: --optimizer adafactor.")
    return lines


def _amount(word: str) -> float:
    match = re.fullmatch(r"(-?[\d_.]+(?:e[+-]?\d+)?)\s*([kmbt]?)", word.strip().lower())
    try:
        amount = float(match[1]) * _UNITS[match[2]] if match else None
    except ValueError:
        amount = None
    if amount is None:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number; write it as 7e9, 7b or 350m")
    return amount


def _gigabytes(word: str) -> float:
    match = re.fullmatch(r"([\d.]+)\s*(gi?b?)?", word.strip().lower())
    try:
        size = float(match[1]) if match else 0.0
    except ValueError:
        size = 0.0
    if size <= 0:
        raise argparse.ArgumentTypeError(f"{word!r} is not a memory size; write its GB, such as 80")
    return size

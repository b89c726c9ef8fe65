"""The command `trainbus plan`: which way to split a training fits the GPUs there are, and what to write for it."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict, fields
from typing import Any

from ..distributed.memory_estimate import ASSUMED_LAYERS, USABLE, Planned, gpus_needed, host_gigabytes, plan
from ..distributed.strategies import STATES, Training, launch, spelling

_LEGEND = [
    "work: weights that are gathered, or copied in half precision. kept: between steps. peak: the most within one.",
    "machine: in a machine's own memory.",
    "sent: parameters that a GPU sends in each step, for each parameter of the model.",
]
_MANY = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def add_to(commands: Any) -> None:
    """Add the command to those of a parser."""
    parser = commands.add_parser("plan", help="how much memory each way to split a training takes", allow_abbrev=False)
    parser.add_argument("--params", type=_amount, required=True, help="parameters of the model, such as 7e9 or 7b")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs in all (default: 1)")
    parser.add_argument("--gpus-per-node", type=int, default=8, help="GPUs of one machine (default: 8)")
    parser.add_argument("--gpu-memory", type=_gigabytes, default=80.0, metavar="GB", help="of one GPU (default: 80)")
    parser.add_argument("--node-memory", type=_gigabytes, metavar="GB", help="of one machine, for what is offloaded")
    parser.add_argument("--precision", type=str.lower, default="bf16", help="bf16 (default), fp16 or fp32")
    parser.add_argument("--opt-level", dest="level", type=str.upper, default="O1", help="O1 (default) or O2")
    parser.add_argument("--optimizer", type=str.lower, default="adamw", help="as `optim` (default: adamw)")
    parser.add_argument("--accumulate", type=int, default=1, help="batches of a step (default: 1)")
    sizes = parser.add_argument_group("to count activations, too")
    sizes.add_argument("--layers", type=int, help="transformer layers")
    sizes.add_argument("--hidden", type=int, help="width of the hidden state")
    sizes.add_argument("--sequence", type=int, help="tokens of a row")
    sizes.add_argument("--batch", type=int, default=1, help="rows of a batch on one GPU (default: 1)")
    sizes.add_argument("--heads", type=int, help="attention heads, if attention is not fused (SDPA)")
    sizes.add_argument("--vocabulary", type=int, default=0, help="tokens of the vocabulary, for the logits")
    sizes.add_argument("--recompute", action="store_true", help="with gradient checkpointing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(do=_do)


def _do(asked: argparse.Namespace) -> int:
    training = Training(
        **{field.name: getattr(asked, field.name) for field in fields(Training) if hasattr(asked, field.name)}
    )
    found = plan(training)
    print(json.dumps(as_data(training, found), indent=2) if asked.json else as_text(training, found))
    return 0


def as_data(training: Training, found: list[Planned]) -> dict[str, Any]:
    """Return a plan as plain data: the question, every way with its figures, and the names of those that fit."""
    return {
        "training": asdict(training),
        "ways": [
            {
                "name": each.way.name,
                "fits": each.fits,
                "arguments": spelling(each.way, training),
                "needs": each.way.needs,
                "gb_between_steps": each.need.between_steps * training.params / 1e9,
                "gb_at_the_peak": each.need.gigabytes,
                "gb_on_the_machine": host_gigabytes(each.need, training),
                "bytes_per_parameter": {
                    name: value
                    for name, value in asdict(each.need).items()
                    if name not in ("params", "sent", "activations")
                },
                "parameters_sent": each.need.sent,
                "gb_of_activations": each.need.activations / 1e9,
            }
            for each in found
        ],
        "launch": launch(training),
        "fitting": [each.way.name for each in found if each.fits],
    }


def as_text(training: Training, found: list[Planned]) -> str:
    """Return a plan as text: what was asked, a table, and what to write."""
    lines = [_question(training), "", *_table(training, found), ""]
    fitting = [each for each in found if each.fits]
    if fitting:
        lines += ["The smallest change that fits:", *_what_to_write(training, fitting[0])]
        if len(fitting) > 1:
            lines.append(f"Also fitting: {', '.join(each.way.name for each in fitting[1:])}.")
    else:
        lines += _what_else(training)
    if not training.counts_activations:
        lines.append("Activations are not counted: give --layers, --hidden and --sequence.")
    if training.layers is None:
        lines.append(f"Where layers are gathered one by one, {ASSUMED_LAYERS} were assumed: give --layers.")
    lines += _LEGEND
    lines.append(f"A way fits if its peak is at most {USABLE:.0%} of a GPU: CUDA and fragments take the rest.")
    return "\n".join(lines)


def _question(training: Training) -> str:
    many = f"{training.params / 1e9:.4g} billion" if training.params >= 1e9 else f"{training.params / 1e6:.4g} million"
    precision = training.precision if training.precision == "fp32" else f"{training.precision} ({training.level})"
    where = f"{training.gpus} GPU{'s' * (training.gpus > 1)} of {training.gpu_memory:g} GB"
    nodes = f" on {training.nodes} machines" if training.nodes > 1 else ""
    return f"{many} parameters, {training.optimizer}, {precision}, {where}{nodes}"


def _table(training: Training, found: list[Planned]) -> list[str]:
    parts = ("weights", "gradients", "states", "masters", "buckets", "work")
    heads = ("way", *parts, "kept", "peak", "machine", "sent", "fits")
    rows = []
    for each in found:
        need = each.need
        sizes = [f"{getattr(need, name):.3g}" for name in parts]
        kept, peak = need.between_steps * training.params / 1e9, need.gigabytes
        host = host_gigabytes(need, training)
        sums = [f"{kept:.1f}", f"{peak:.1f}", f"{host:.0f}" if host else "-", f"{need.sent:.3g}"]
        rows.append((each.way.name, *sizes, *sums, "yes" if each.fits else "no"))
    widths = [max(map(len, column)) for column in zip(heads, *rows)]
    left = " " * (widths[0] + 2)
    span = sum(widths[1 : 1 + len(parts)]) + 2 * (len(parts) - 1)
    lines = [f"{left}{'bytes per parameter, on a GPU'.ljust(span)}  GB"]
    for row in (heads, *rows):
        first, *others = row
        lines.append("  ".join([first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(others, widths[1:]))]).rstrip())
    return lines


def _what_to_write(training: Training, each: Planned) -> list[str]:
    host = host_gigabytes(each.need, training)
    more = f", and {host:.0f} GB of each machine's own" if host else ""
    lines = [f"  {each.way.name}: {each.need.gigabytes:.1f} GB at the peak{more}"]
    lines.append(f"  {spelling(each.way, training)}")
    lines.append(f"  {launch(training)}")
    if each.way.needs:
        lines.append(f"  pip install '{each.way.needs}'")
    return lines


def _what_else(training: Training) -> list[str]:
    lines = ["Nothing fits."]
    more = gpus_needed(training)
    if more is not None:
        gpus, way = more
        lines.append(f"  With {gpus} GPUs, {way.name} would.")
    if training.counts_activations and not training.recompute:
        lines.append("  Fewer activations: --recompute (gradient_checkpointing=True), a smaller --batch.")
    if STATES[training.optimizer] > STATES["adafactor"]:
        lines.append("  Smaller optimizer states: --optimizer adafactor.")
    return lines


def _amount(word: str) -> float:
    match = re.fullmatch(r"(-?[\d_.]+(?:e[+-]?\d+)?)\s*([kmbt]?)", word.strip().lower())
    try:
        amount = float(match[1]) * _MANY[match[2]] if match else None
    except ValueError:
        amount = None
    if amount is None:
        raise argparse.ArgumentTypeError(f"{word!r} is no number; write it as 7e9, 7b or 350m")
    return amount


def _gigabytes(word: str) -> float:
    match = re.fullmatch(r"([\d.]+)\s*(gi?b?)?", word.strip().lower())
    try:
        size = float(match[1]) if match else 0.0
    except ValueError:
        size = 0.0
    if size <= 0:
        raise argparse.ArgumentTypeError(f"{word!r} is no size of a GPU's memory; write its GB, such as 80")
    return size

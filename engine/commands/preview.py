"""The command `trainbus preview`: run a program up to its first `train()`, and show what the training will do."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ...events.errors import ArgumentError
from ...events.recording.rows import difference
from ..api.preview.result import Preview
from .first_training import at_first_training
from .json_output import print_json, versioned
from .option_order import own_first
from .output_files import write_file
from .preview_batch import batch_of

_VALUES = ("--out", "--against", "--metric", "--set", "--stream-rows")
_FLAGS = ("--json", "--markdown", "--measure", "--batch")


def add_to(commands: Any) -> None:
    """Add the command `preview` to the subcommands of `trainbus`."""
    parser = commands.add_parser(
        "preview",
        description="Run a program up to its first `train()`, and show the preview of this training instead. The "
        "options of this command may also follow PROGRAM. Words after -- are always arguments of the program. Exit "
        "status: 0; 1 for an error; 2 if the preview differs from the preview of --against.",
        allow_abbrev=False,
    )
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, as in `python -m`")
    parser.add_argument("--transformers", action="store_true", help="the program is written for transformers")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="write the preview to a file, for --against and for the training argument `plan`",
    )
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="show only the differences from a preview that --out wrote"
    )
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME=V,V,...",
        help="the values of a metric, one for each evaluation",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="changes",
        metavar="NAME=VALUE",
        help="show the effect of another value of a training argument, such as save_steps=50",
    )
    parser.add_argument(
        "--stream-rows", type=int, metavar="N", help="the samples of one epoch, for a training stream without a length"
    )
    parser.add_argument("--measure", action="store_true", help="measure the time of a step and of an evaluation")
    parser.add_argument(
        "--batch", action="store_true", help="also run forward and backward of the largest batch, and show its findings"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("program", help="a Python file, or a module with -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the arguments of the program")
    parser.set_defaults(do=_preview, error_status=1)  # 2 is a difference, as in `terraform plan`


def expanded(words: list[str]) -> list[str]:
    """Return the words of a command line, with the options of this command moved in front of the program."""
    return own_first(words, _FLAGS, _VALUES)


@dataclass
class Previewed:
    """The preview of a program's first training."""

    preview: Preview
    """The preview with the arguments of the program."""
    changed: Preview | None = None
    """The preview with the changed arguments; None without changes."""
    hints: list[str] = field(default_factory=list)
    """A line for each changed interval without an effect, such as `eval_steps` with `eval_strategy='epoch'`."""
    batch: dict[str, Any] = field(default_factory=dict)
    """The dry batch of `--batch`: its `report` and its `error`."""


def _preview(options: argparse.Namespace) -> int:
    curves = dict(map(_curve, options.metric))
    kept = None if options.against is None else Preview.load(options.against)
    shown = previews_of(
        options.program,
        options.arguments,
        options.module,
        options.transformers,
        curves,
        options.measure,
        dict(map(_change, options.changes)),
        options.batch,
        options.stream_rows,
    )
    status = 1 if shown.batch.get("error") else 0
    found = shown.changed or shown.preview
    if options.out is not None:
        write_file(options.out, found.to_json() + "\n")
    if kept is not None:
        lines = kept.differences(found)
        if options.json:
            print_json({**versioned({"equal": not lines, "differences": lines}), **_batch_of(shown)})
        else:
            print("\n".join(lines) if lines else f"No difference from {options.against}.")
            _print_batch(shown)
        return status or (2 if lines else 0)
    if options.json:
        print_json({**found.to_dict(), **_batch_of(shown)})
        return status
    if shown.changed is not None and not options.markdown:
        print("\n".join(_comparison(shown, ", ".join(options.changes))))
    else:
        print(found.to_markdown() if options.markdown else found)
    _print_batch(shown)
    return status


def _print_batch(shown: Previewed) -> None:
    """Print the report or the error of the dry batch. Without `--batch`, do nothing."""
    if shown.batch:
        print("", shown.batch["report"] or f"Dry batch\n  error: {shown.batch['error']}", sep="\n")


def _batch_of(shown: Previewed) -> dict[str, Any]:
    """Return the entry `batch` for JSON: the error, and the values of the report. Without `--batch`, return {}."""
    batch = shown.batch
    if not batch:
        return {}
    return {"batch": {"error": batch["error"], **({} if batch["report"] is None else batch["report"].to_dict())}}


def _hints(args: Any, changes: Iterable[str]) -> list[str]:
    """Return a hint for each changed interval that has no effect, such as `eval_steps` with `eval_strategy='epoch'`.

    Args:
        args: the training arguments, after the change.
        changes: the names of the changed arguments. Names that set no interval are skipped.
    """
    found = []
    for name in changes:
        strategy = name.removesuffix("_steps") + "_strategy"
        value = getattr(args, strategy, "steps") if name.endswith("_steps") else "steps"
        if (value := getattr(value, "value", value)) != "steps":
            found.append(f"{name} has no effect with {strategy}={value!r}. Add --set {strategy}=steps.")
    return found


def _comparison(shown: Previewed, changes: str) -> list[str]:
    """Compare the previews without and with the changed arguments, and return the lines to print.

    The lines show the decisions that differ, both values of each number that differs, the lines in `shown.hints`, and
    new warnings.

    Args:
        shown: both previews.
        changes: the changed arguments, as text.
    """
    before, after = shown.preview, shown.changed or shown.preview
    lines = difference(before.rows, after.rows)
    new = [f"warning: {text}" for text in after.warnings if text not in before.warnings]
    old_figures, new_figures = before.figures(), after.figures()
    if old_figures == new_figures:  # only the learning rates of steps in between may differ
        lines = before.differences(after)
    if not lines and old_figures == new_figures:
        return [f"No decision changes with {changes}.", *shown.hints, *new]
    changed = [f"- {line}" for line in old_figures if line not in new_figures]
    changed += [f"+ {line}" for line in new_figures if line not in old_figures]
    return [*lines, "", *changed, *shown.hints, *new]


def preview_of(
    program: str,
    arguments: list[str],
    is_module: bool = False,
    of_transformers: bool = False,
    metrics: dict[str, list[float]] | None = None,
    measure: bool = False,
) -> Preview:
    """Run a program up to its first `train()` and return the preview of that training. See `previews_of`."""
    return previews_of(program, arguments, is_module, of_transformers, metrics, measure, {}).preview


def previews_of(
    program: str,
    arguments: list[str],
    is_module: bool,
    of_transformers: bool,
    metrics: dict[str, list[float]] | None,
    measure: bool,
    changes: dict[str, str],
    batch: bool = False,
    stream_rows: int | None = None,
) -> Previewed:
    """Run a program up to its first `train()` and return two previews: without and with the changed arguments.

    The output of the program goes to stderr.

    Args:
        program: a Python file, or the name of a module.
        arguments: the arguments of the program.
        is_module: whether the program is a module.
        of_transformers: whether the program imports its Trainer from transformers.
        metrics: the metrics that evaluations measure. Each key is the name of a metric, and its list has one value for
            each evaluation. None if the metrics are unknown.
        measure: whether to run the model, to measure the time of a step and of an evaluation.
        changes: the changed arguments: name -> value as text. If the dict is empty, there is no second preview.
        batch: whether to also run a dry batch: forward and backward of the largest batch.
        stream_rows: the number of samples of one epoch, for a stream without a length; None if the number is unknown.

    Raises:
        ArgumentError: if there is no such program, if the program ends without a call of `train()`, or if a name in
            `changes` is unknown.
    """

    def preview(trainer: Any, train: Any, resume_from_checkpoint: Any) -> Previewed:
        from ..search.hyperparameters import with_values  # it imports torch, which other commands do not need

        options = {"metrics": metrics, "measure": measure, "stream_rows": stream_rows}
        of = partial(trainer.preview, resume_from_checkpoint=resume_from_checkpoint, **options)
        shown = Previewed(of())
        if changes:
            trainer.args = with_values(trainer.args, changes)
            shown.changed, shown.hints = of(), _hints(trainer.args, changes)
        if batch:
            shown.batch = batch_of(trainer, train, resume_from_checkpoint)
        return shown

    return at_first_training(program, arguments, is_module, preview, of_transformers=of_transformers)


def _change(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise ArgumentError(f"--set {text!r} has no value. Write it as save_steps=50.")
    return name.strip().lstrip("-"), value


def _curve(text: str) -> tuple[str, list[float]]:
    name, _, values = text.partition("=")
    try:
        return name, [float(value) for value in values.split(",")]
    except ValueError as error:
        raise ArgumentError(f"--metric {text!r}: {error}. Write it as eval_loss=0.5,0.4,0.45.") from error

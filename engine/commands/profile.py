"""The command `trainbus profile`: measure which changes of the arguments make the training of a program faster."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...events.errors import ArgumentError, nearest
from .json_output import print_json, versioned
from .option_order import own_first

Measure = Callable[[dict[str, Any]], dict[str, Any]]
"""A function that runs the program in a new process with changed arguments. Returns a dict with `rows_per_second`, or
with `error` if the process fails."""

GAIN = 1.05
"""The smallest `Gain.gain` of a change that is advised. The change must also be faster in every round."""


@dataclass(frozen=True)
class Change:
    """A change of the training arguments."""

    name: str
    """The name of the change, for `--only`."""
    arguments: dict[str, Any]
    """The arguments to set."""
    note: str = ""
    """A further effect of the change, such as another order of the samples."""


@dataclass
class Gain:
    """The measured speed of a training with one change of its arguments."""

    change: Change
    rows_per_second: float = 0.0
    """Samples per second with the change, the median of the rounds. 0 if the change could not be measured."""
    gain: float | None = None
    """The median of the relative speeds of the rounds. The relative speed is the speed with the change, divided by the
    speed without a change in the same round. None if the change could not be measured."""
    lowest: float | None = None
    """The lowest relative speed of a round."""
    highest: float | None = None
    """The highest relative speed of a round."""
    error: str = ""
    """Why the change could not be measured; empty if it was measured."""

    @property
    def always_faster(self) -> bool:
        """Whether the change was faster in all rounds."""
        return self.lowest is not None and self.lowest > 1.0

    @property
    def advised(self) -> bool:
        """Whether the change was faster in all rounds, and the median of the relative speeds is at least `GAIN`."""
        return self.gain is not None and self.gain >= GAIN and self.always_faster

    def to_dict(self) -> dict[str, Any]:
        """Return all values as a dict."""
        return {**asdict(self), "advised": self.advised}


@dataclass
class Profile:
    """The gains of all measured changes of the training arguments."""

    base: float
    """Samples per second without a change, the median of the rounds."""
    gains: list[Gain] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return all values as a dict. The key `set` has a dict: argument -> value, for all advised changes."""
        return {
            "rows_per_second": self.base,
            "changes": [each.to_dict() for each in self.gains],
            "set": {
                name: value for each in self.gains if each.advised for name, value in each.change.arguments.items()
            },
        }

    def __str__(self) -> str:
        rows = [("change", "speed", "lowest to highest", "rows/s", "arguments")]
        rows.append(("none", "1.00", "", f"{self.base:,.1f}", ""))
        for each in sorted(self.gains, key=lambda gain: -(gain.gain or 0.0)):
            words = ", ".join(f"{name}={value!r}" for name, value in each.change.arguments.items())
            words += f" ({each.change.note})" if each.change.note else ""
            spread = "" if each.lowest is None else f"{each.lowest:.2f} to {each.highest:.2f}"
            speed = "failed" if each.gain is None else f"{each.gain:.2f}"
            rows.append((each.change.name, speed, spread, f"{each.rows_per_second:,.1f}", each.error or words))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        lines.append(self.advice)
        return "\n".join(lines)

    @property
    def advice(self) -> str:
        """A text with the arguments to set, such as `Set bf16=True.`, or with the reason to set no argument."""
        chosen = [f"{name}={value!r}" for name, value in self.to_dict()["set"].items()]
        if chosen:
            return f"Set {', '.join(chosen)}."
        if all(each.gain is None for each in self.gains):
            return "No change could be measured."
        small = [each.change.name for each in self.gains if each.always_faster]
        if small:
            least = 100 * (GAIN - 1)
            return (
                f"No change was at least {least:.0f} % faster in the median. Faster in all rounds: {', '.join(small)}."
            )
        return "No change was faster in all rounds."


def expanded(words: list[str]) -> list[str]:
    """Return the words of a command line, with `--json` moved in front of the program.

    Other options after the program belong to the program.
    """
    return own_first(words, ("--json",))


def add_to(commands: Any) -> None:
    """Add the command `profile` to the subcommands of `trainbus`."""
    parser = commands.add_parser(
        "profile",
        help="measure which changes make the training of a program faster",
        description="Run some steps of the first training of a program: without a change, and with each change of the "
        "arguments that may help. Each run is a new process, and evaluates, saves and reports nothing. In each round, "
        "every change runs once. `--json` may also follow the program. Words after -- are always arguments of the "
        "program.",
        allow_abbrev=False,
    )
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, as in `python -m`")
    parser.add_argument("--steps", type=int, default=30, help="measured steps per run (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=5, help="steps before the measured steps (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each change (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="NAME,NAME", help="the changes to measure (default: all)")
    parser.add_argument(
        "--timeout", type=float, default=600, help="the largest number of seconds of a run (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("program", help="a Python file, or a module with -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the arguments of the program")
    parser.set_defaults(do=_profile)


def _profile(options: argparse.Namespace) -> int:
    if not options.module and not Path(options.program).is_file():
        raise ArgumentError(f"There is no program {options.program!r}. Name a Python file, or a module after -m.")
    if options.steps < 1 or options.warmup < 1 or options.rounds < 1:
        raise ArgumentError("--steps, --warmup and --rounds are 1 or more.")
    with tempfile.TemporaryDirectory() as folder:
        base = _measure(options, Path(folder), {}, describe=True)
        if error := base.get("error"):
            raise ArgumentError(f"{options.program} cannot be measured: {error}")
        changes = chosen(changes_for(base), options.only)
        found = compare(changes, lambda arguments: _measure(options, Path(folder), arguments), options.rounds)
    if options.json:
        print_json(versioned(found.to_dict()))
    else:
        print(found)
    return 0


def changes_for(described: dict[str, Any]) -> list[Change]:
    """Return the changes of training arguments that may make a training faster.

    Args:
        described: arguments, device and data of the training, from `describe` in `measure_program.py`.
    """
    args, cuda = described["args"], described["cuda"]
    found = []
    if described["processors"] > 1:
        workers = min(4, described["processors"])
        if args["dataloader_num_workers"] != workers:
            found.append(Change("workers", {"dataloader_num_workers": workers}))
    if cuda and not args["dataloader_pin_memory"]:
        found.append(Change("pin", {"dataloader_pin_memory": True}))
    if args["train_sampling_strategy"] == "random" and described["has_lengths"]:
        found.append(Change("lengths", {"train_sampling_strategy": "group_by_length"}, "another order of the samples"))
    if described["bf16"] and not args["bf16"] and not args["fp16"]:
        found.append(Change("bf16", {"bf16": True}, "other rounding"))
    if not args["torch_compile"]:
        found.append(Change("compile", {"torch_compile": True}))
    if args["optim"] == "adamw_torch":
        found.append(Change("fused", {"optim": "adamw_torch_fused"}))
    batch, accumulate = args["per_device_train_batch_size"], args["gradient_accumulation_steps"]
    larger: dict[str, Any] = {"per_device_train_batch_size": 2 * batch}
    if accumulate % 2 == 0:
        found.append(Change("batch", {**larger, "gradient_accumulation_steps": accumulate // 2}))
    else:
        found.append(Change("batch", larger, "fewer and larger steps: another learning rate may fit"))
    return found


def chosen(changes: list[Change], only: str) -> list[Change]:
    """Return the changes that the value of `--only` names; all changes if the value is empty.

    Args:
        changes: the changes that may help the training.
        only: names of changes, separated by commas.

    Raises:
        ArgumentError: for an unknown name.
    """
    names = [name for name in only.split(",") if name]
    known = [change.name for change in changes]
    for name in names:
        if name not in known:
            raise ArgumentError(f"--only: no change {name!r} for this training{nearest(name, known)} Changes: {known}.")
    return [change for change in changes if not names or change.name in names]


def compare(changes: Iterable[Change], measure: Measure, rounds: int) -> Profile:
    """Measure the speed of a program without a change and with each change, once in each round.

    Args:
        changes: the changes.
        measure: a function that runs the program in a new process, with the arguments that the function receives. It
            returns a dict with `rows_per_second`, or with `error` if the process fails.
        rounds: the number of measurements of each change.

    Raises:
        ArgumentError: if the run without a change fails. If a run with a change fails, the `Gain` of the change has
            the error instead.
    """
    gains = [Gain(change) for change in changes]
    bases: list[float] = []
    speeds: dict[str, list[tuple[float, float]]] = {each.change.name: [] for each in gains}
    for _ in range(rounds):
        base = measure({})
        if "rows_per_second" not in base:
            raise ArgumentError(f"The run without a change failed: {base.get('error', 'no step was measured')}")
        bases.append(base["rows_per_second"])
        for each in gains:
            if each.error:
                continue
            found = measure(each.change.arguments)
            if "rows_per_second" in found:
                speeds[each.change.name].append((found["rows_per_second"], bases[-1]))
            else:
                each.error = found.get("error", "no step was measured")
    for each in gains:
        measured = speeds[each.change.name]
        if measured and not each.error:
            ratios = [speed / base for speed, base in measured]
            each.rows_per_second = statistics.median(speed for speed, _ in measured)
            each.gain, each.lowest, each.highest = statistics.median(ratios), min(ratios), max(ratios)
    return Profile(statistics.median(bases), gains)


def _measure(
    options: argparse.Namespace, folder: Path, changes: dict[str, Any], describe: bool = False
) -> dict[str, Any]:
    """Run `measure` of `measure_program.py` in a new process, and return its result.

    If the process fails, return a dict with the key `error`: the reason, such as the last line of its stderr.

    Args:
        options: the options of the command line.
        folder: a folder for the files of the process.
        changes: the training arguments to change: name -> value.
        describe: whether to return the result of the function `describe`, without a measurement.
    """
    spec, result = folder / "spec.json", folder / "result.json"
    steps = {"steps": options.steps, "warmup": options.warmup, "module": options.module, "describe": describe}
    spec.write_text(json.dumps({**steps, "changes": changes, "folder": str(folder / "out")}), encoding="utf-8")
    result.unlink(missing_ok=True)
    module = f"{__package__}.measure_program"
    command = [sys.executable, "-m", module, str(spec), str(result), options.program, *options.arguments]
    try:
        done = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=options.timeout, env=dict(os.environ)
        )
    except subprocess.TimeoutExpired:
        return {"error": f"it took more than {options.timeout:g} seconds"}
    if done.returncode == 0 and result.is_file():
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return found or {"error": "it ended without a training"}
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return {"error": lines[-1] if lines else f"it ended with status {done.returncode}"}

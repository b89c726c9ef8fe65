"""The command `trainbus checkpoints`: list, verify, prune and export checkpoints."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ...events.errors import CheckpointError, nearest
from ..checkpoint.format.files import TO_RESUME, readable_size, step_of
from ..checkpoint.read.listing import last_run, list_checkpoints, newest_first, newest_good, survey, unfinished
from ..checkpoint.read.saved import SavedCheckpoint
from ..checkpoint.write.commit import remove
from ..checkpoint.write.retention import Keep
from ..evaluation.metric_names import greater_is_better, measures_model
from .json_output import print_json, versioned

_UNHASHED = (
    "it has no hashes: its trainer state and the headers of its tensor files can be read, but changed values are not "
    "found"
)
"""What `verify` says about a good checkpoint of another library or of format 1."""

_ACTIONS = ("list", "verify", "prune", "export")


def add_to(commands: Any) -> None:
    """Add the command `checkpoints` to the subcommands of `trainbus`."""
    parser = commands.add_parser(
        "checkpoints",
        description="`trainbus checkpoints FOLDER` is short for `trainbus checkpoints list FOLDER`.",
    )
    actions = parser.add_subparsers(required=True)

    listing = actions.add_parser("list", help="list the checkpoints in a folder, after a quick check")
    listing.add_argument("folder", type=_folder, help="a folder of checkpoints, or one checkpoint")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(do=_list)

    verify = actions.add_parser("verify", help="read every file and compare it with its hash")
    verify.add_argument("folder", type=_folder, help="a folder of checkpoints, or one checkpoint")
    verify.set_defaults(do=_verify)

    prune = actions.add_parser(
        "prune",
        help="delete checkpoints of the last run",
        description="Delete the checkpoints of the last run in the folder, except for the checkpoints that --keep-last "
        "and --keep-best select. The newest checkpoint of the run, and the one that it marks as the best, always stay. "
        "Damaged checkpoints and checkpoints of other runs stay too.",
    )
    prune.add_argument("folder", type=_folder, help="a folder of checkpoints")
    prune.add_argument("--keep-last", type=int, required=True, metavar="N", help="keep the newest N checkpoints")
    prune.add_argument(
        "--keep-best", type=int, default=0, metavar="K", help="also keep the K best checkpoints by --metric"
    )
    prune.add_argument("--metric", metavar="M", help="the metric of --keep-best; default: eval_loss")
    prune.add_argument(
        "--mode",
        choices=("min", "max"),
        help="whether the smallest or the largest value is best; default: min for losses and errors, max for others",
    )
    prune.add_argument("--dry-run", action="store_true", help="print what would be deleted, and delete nothing")
    prune.add_argument("--yes", action="store_true", help="delete without asking (only a terminal asks)")
    prune.set_defaults(do=_prune)

    export = actions.add_parser("export", help="copy the model of a checkpoint, without the training state")
    export.add_argument("checkpoint", type=_folder, help="one checkpoint, or the folder of a run with --best")
    export.add_argument("--best", action="store_true", help="export the best checkpoint of the run in the folder")
    export.add_argument("out", type=Path, help="a folder that does not exist yet")
    export.set_defaults(do=_export)


def expanded(words: list[str]) -> list[str]:
    """Return the words of a command line. If the words name no action, insert the action `list`."""
    if words[:1] == ["checkpoints"] and len(words) > 1 and words[1] not in (*_ACTIONS, "-h", "--help"):
        return ["checkpoints", "list", *words[1:]]
    return words


def _folder(word: str) -> Path:
    path = Path(word)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {word!r}")
    return path


def _list(options: argparse.Namespace) -> int:
    folder: Path = options.folder
    found = survey(folder) if step_of(folder) is None else [SavedCheckpoint.open(folder)]
    problems = {checkpoint.path: checkpoint.problems(full=False) for checkpoint in found}
    pins = pins_of([checkpoint for checkpoint in found if not problems[checkpoint.path]], last_run(folder))
    if options.json:
        data = [_data(checkpoint, problems[checkpoint.path], pins) for checkpoint in found]
        names = [path.name for path in unfinished(folder)]
        print_json(versioned({"checkpoints": data, "unfinished": names}))
        return 0
    rows = [("step", "time", "size", "metrics", "pins", "state")]
    for checkpoint in found:
        size = readable_size(_bytes(checkpoint))
        pinned = ", ".join(pins.get(checkpoint.step, ())) or "-"
        if wrong := problems[checkpoint.path]:
            rows.append((str(checkpoint.step), "-", size, "-", pinned, f"damaged: {'; '.join(wrong)}"))
        else:
            metrics = _metrics(checkpoint) or "-"
            rows.append((str(checkpoint.step), _time(checkpoint.time), size, metrics, pinned, "good"))
    if found:
        widths = [max(map(len, column)) for column in zip(*rows)]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    else:
        print(f"There are no checkpoints in {folder}.")
    for path in unfinished(folder):
        print(f"{path.name} was not finished. Delete it if no run writes here.")
    return 0


def _data(checkpoint: SavedCheckpoint, problems: list[str], pins: dict[int, list[str]]) -> dict[str, Any]:
    """Return the JSON entry of one checkpoint. The entry of a damaged checkpoint has no metrics, and its time is None.

    Args:
        checkpoint: the checkpoint.
        problems: texts about the damage; empty if there is none.
        pins: the result of `pins_of`: step -> the reasons why `prune` never deletes the checkpoint.
    """
    return {
        "step": checkpoint.step,
        "path": str(checkpoint.path),
        "time": None if problems else checkpoint.time or None,
        "bytes": _bytes(checkpoint),
        "metrics": {} if problems else dict(checkpoint.metrics),
        "pins": pins.get(checkpoint.step, []),
        "problems": problems,
    }


def _bytes(checkpoint: SavedCheckpoint) -> int:
    return sum(path.stat().st_size for path in checkpoint.path.rglob("*") if path.is_file())


def _verify(options: argparse.Namespace) -> int:
    folder: Path = options.folder
    found = [*survey(folder), *map(SavedCheckpoint.open, unfinished(folder))] or [SavedCheckpoint.open(folder)]
    damaged = 0
    for checkpoint in found:
        problems = checkpoint.problems()
        damaged += bool(problems)
        state = "good" if checkpoint.is_listed else f"good ({_UNHASHED})"
        print(f"{checkpoint.path.name}: {'; '.join(problems) or state}")
    return 1 if damaged else 0


def _prune(options: argparse.Namespace) -> int:
    good = list_checkpoints(options.folder)
    newest, damaged = newest_good(
        [checkpoint for checkpoint in good if checkpoint.run_id], last=last_run(options.folder)
    )
    if newest is None:
        raise CheckpointError(
            f"No undamaged checkpoint in {options.folder} records its run, so none is deleted. Check the folder with "
            "`trainbus checkpoints verify`."
        )
    own = [found for found in good if found.run_id == newest.run_id and found not in damaged]
    pins = pins_of(own, newest.run_id)
    metric = _measured_metric(options.metric or "eval_loss", own) if options.keep_best or options.metric else ""
    greater = greater_is_better(metric, options.mode)
    keep = Keep(last=options.keep_last, best=options.keep_best)
    superfluous = keep.superfluous(own, pinned=set(pins), metric=metric, greater_is_better=greater)
    why = f"not among the newest {options.keep_last}"
    why += f" or the best {options.keep_best} by {metric}" if options.keep_best else ""
    for checkpoint in superfluous:
        value = f" ({metric}={_short(checkpoint.metrics.get(metric))})" if metric else ""
        print(f"{'would delete' if options.dry_run else 'to delete:'} {checkpoint.path.name}{value}: {why}")
    if not options.dry_run:
        if superfluous and not options.yes and _on_terminal() and not _agreed(len(superfluous)):
            print("nothing is deleted")
            return 0
        for checkpoint in superfluous:
            remove(checkpoint)
            print(f"deleted {checkpoint.path.name}")
    kept = ", ".join(checkpoint.path.name for checkpoint in own if checkpoint not in superfluous)
    print(f"{'would keep' if options.dry_run else 'kept'} {kept}")
    paths = {checkpoint.path for checkpoint in own}
    others = ", ".join(found.path.name for found in survey(options.folder) if found.path not in paths)
    if others:
        print(f"not touched, because damaged or of another run: {others}")
    return 0


def _measured_metric(name: str, checkpoints: Sequence[SavedCheckpoint]) -> str:
    """Find the name that a metric has in the checkpoints: `name` itself, or `name` with the prefix `eval_`.

    Raises:
        CheckpointError: if no checkpoint has a number for the metric.
    """
    known = {
        metric
        for checkpoint in checkpoints
        for metric, value in checkpoint.metrics.items()
        if isinstance(value, (int, float)) and measures_model(metric)
    }
    for candidate in (name, f"eval_{name}"):
        if candidate in known:
            return candidate
    listed = f"They have {', '.join(sorted(known))}" if known else "They have no metrics, so leave out --keep-best"
    raise CheckpointError(
        f"--metric {name}: no checkpoint of the run has this metric{nearest(name, sorted(known))} Nothing is deleted. "
        f"{listed}."
    )


def _on_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def _agreed(count: int) -> bool:
    """Ask on the terminal whether to delete `count` checkpoints. Return True only for the answers `y` and `yes`."""
    try:
        return input(f"Delete {count} checkpoint{'s' * (count > 1)}? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _export(options: argparse.Namespace) -> int:
    source, out = options.checkpoint, options.out
    source = _best(source) if options.best else source
    problems = SavedCheckpoint.open(source).problems()
    if problems and step_of(source) is None and (inside := survey(source)):
        raise CheckpointError(
            f"{source} is a folder of checkpoints. Add --best, or export one of them, such as {inside[-1].path}."
        )
    if problems:
        raise CheckpointError(f"{source} is not exported: {'; '.join(problems)}. Export a good checkpoint.")
    if out.exists():
        raise CheckpointError(f"{out} exists. Give a folder that does not exist.")
    staging = out.with_name(f".tmp-{out.name}")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        shutil.copytree(source, staging, ignore=_only_for_resuming)
        staging.rename(out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    which = f"{source.name} " if options.best else ""
    print(f"exported {which}to {out}: {', '.join(sorted(path.relative_to(out).as_posix() for path in out.rglob('*')))}")
    return 0


def _best(folder: Path) -> Path:
    """Return the folder of the best checkpoint of the newest run in `folder`.

    Raises:
        CheckpointError: if no checkpoint is marked as the best.
    """
    good = list_checkpoints(folder)
    pins = pins_of(good, last_run(folder))
    best = [found.path for found in good if "best" in pins.get(found.step, ())]
    if not best:
        raise CheckpointError(
            f"No good checkpoint in {folder} is marked as the best. A run marks it with `metric_for_best_model` or "
            "`KeepBest`. Name one checkpoint, without --best."
        )
    return best[0]


def _only_for_resuming(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if any(fnmatch(name, pattern) for pattern in TO_RESUME)}


def pins_of(good: list[SavedCheckpoint], last: str) -> dict[int, list[str]]:
    """Return the checkpoints that `prune` never deletes: step -> the reasons.

    The newest checkpoint has the reason `newest`. The trainer state of the newest checkpoint names the best checkpoint
    of the run, which has the reason `best`.

    Args:
        good: the checkpoints of a folder that are not damaged.
        last: the id of the most recent run, as in `newest_first`.
    """
    ordered = newest_first(good, last)
    pins: dict[int, list[str]] = {}
    if ordered:
        newest = ordered[0]
        best = newest.best_model_checkpoint
        for checkpoint in ordered:
            reasons = ["best"] * (checkpoint.path.name == best and checkpoint.run_id == newest.run_id)
            reasons += ["newest"] * (checkpoint is newest)
            if reasons:
                pins[checkpoint.step] = reasons
    return pins


def _metrics(checkpoint: SavedCheckpoint) -> str:
    measured = {name: value for name, value in checkpoint.metrics.items() if measures_model(name)}
    return ", ".join(f"{name}={_short(value)}" for name, value in measured.items())


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _time(seconds: float) -> str:
    with suppress(OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(seconds).isoformat(" ", "seconds") if seconds else "-"
    return "-"

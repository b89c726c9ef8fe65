"""The command `trainbus`: the checkpoints of a folder, listed, verified, pruned and exported; and plans of memory."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path

from ...events.errors import CheckpointError, TrainbusError
from ..checkpoint.format.files import MANIFEST, TO_RESUME, Checkpoint, step_of
from ..checkpoint.read.listing import (
    best_of,
    describe,
    list_checkpoints,
    newest_first,
    newest_good,
    survey,
    unfinished,
)
from ..checkpoint.read.verify import problems
from ..checkpoint.write.commit import remove
from ..checkpoint.write.retention import Keep
from . import plan as plan_command

_SPEEDS = ("_runtime", "_per_second", "epoch")
"""How metrics end that say nothing of the model."""

_ACTIONS = ("list", "verify", "prune", "export")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says.

    Args:
        arguments: the words after the program's name; by default those it was called with.

    Returns:
        The exit status: 0, 1 if `verify` found something damaged, or 2 for what cannot be done.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    # `trainbus checkpoints DIR` is the short form of `trainbus checkpoints list DIR`.
    if words[:1] == ["checkpoints"] and len(words) > 1 and words[1] not in (*_ACTIONS, "-h", "--help"):
        words.insert(1, "list")
    asked = _parser().parse_args(words)
    try:
        status: int = asked.do(asked)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads it has enough, as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (TrainbusError, OSError) as error:
        print(f"trainbus: {error}", file=sys.stderr)
        return 2
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("trainbus", description="Plan a run, and look after its checkpoints.")
    what = parser.add_subparsers(required=True, metavar="{checkpoints,plan}")
    plan_command.add_to(what)
    actions = what.add_parser("checkpoints", help="list, verify, prune or export").add_subparsers(required=True)

    listing = actions.add_parser("list", help="list the checkpoints in a folder, by a quick check")
    listing.add_argument("folder", type=_folder)
    listing.set_defaults(do=_list)

    verify = actions.add_parser("verify", help="read every file and compare it with what was written")
    verify.add_argument("folder", type=_folder, help="a folder of checkpoints, or one of them")
    verify.set_defaults(do=_verify)

    prune = actions.add_parser("prune", help="delete the checkpoints of the last run that need not be kept")
    prune.add_argument("folder", type=_folder)
    prune.add_argument("--keep-last", type=int, required=True, metavar="N", help="keep the newest N")
    prune.add_argument("--keep-best", type=int, default=0, metavar="K", help="keep the best K by --metric, too")
    prune.add_argument("--metric", default="eval_loss", metavar="M", help="by default eval_loss")
    prune.add_argument("--mode", choices=("min", "max"), help="what is best; by default min for losses, else max")
    prune.add_argument("--dry-run", action="store_true", help="say what would be deleted, and delete nothing")
    prune.set_defaults(do=_prune)

    export = actions.add_parser("export", help="copy the model of a checkpoint, without what only resuming needs")
    export.add_argument("checkpoint", type=_folder)
    export.add_argument("out", type=Path, help="a folder that does not exist yet")
    export.set_defaults(do=_export)
    return parser


def _folder(word: str) -> Path:
    path = Path(word)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {word!r}")
    return path


def _list(asked: argparse.Namespace) -> int:
    step = step_of(asked.folder)
    found = survey(asked.folder) if step is None else [describe(asked.folder, step)]
    pins = _pins(found)
    rows = [("step", "time", "size", "metrics", "pins", "state")]
    for checkpoint in found:
        measured = {name: value for name, value in checkpoint.metrics.items() if not name.endswith(_SPEEDS)}
        metrics = ", ".join(f"{name}={_short(value)}" for name, value in measured.items())
        state = f"damaged: {'; '.join(checkpoint.problems)}" if checkpoint.problems else "good"
        pinned = ", ".join(pins.get(checkpoint.step, ()))
        size = _size(sum(path.stat().st_size for path in checkpoint.path.rglob("*") if path.is_file()))
        rows.append((str(checkpoint.step), _time(checkpoint.time), size, metrics or "-", pinned or "-", state))
    if found:
        widths = [max(map(len, column)) for column in zip(*rows)]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    else:
        print(f"There are no checkpoints in {asked.folder}.")
    for path in unfinished(asked.folder):
        print(f"{path.name} was never finished. If no run writes here, it may be deleted.")
    return 0


def _verify(asked: argparse.Namespace) -> int:
    folder: Path = asked.folder
    paths = [*(checkpoint.path for checkpoint in survey(folder)), *unfinished(folder)] or [folder]
    damaged = 0
    for path in paths:
        found = problems(path, full=True)
        damaged += bool(found)
        unlisted = (
            "" if (path / MANIFEST).exists() else " (it has no list of its files: only their presence was checked)"
        )
        print(f"{path.name}: {'; '.join(found) if found else f'good{unlisted}'}")
    return 1 if damaged else 0


def _prune(asked: argparse.Namespace) -> int:
    everything = list_checkpoints(asked.folder)
    newest, damaged = newest_good([checkpoint for checkpoint in everything if checkpoint.run_id])
    if newest is None:
        raise CheckpointError(
            f"There is no good checkpoint in {asked.folder} that says which run wrote it: none is deleted."
        )
    unsound = {checkpoint.path for checkpoint in damaged}
    own = [found for found in everything if found.run_id == newest.run_id and found.path not in unsound]
    pins = _pins(own)
    greater = asked.mode == "max" if asked.mode else not asked.metric.endswith("loss")
    keep = Keep(last=asked.keep_last, best=asked.keep_best)
    gone = keep.superfluous(own, pinned=set(pins), metric=asked.metric, greater_is_better=greater)
    for checkpoint in gone:
        if not asked.dry_run:
            remove(checkpoint)
        print(f"{'would delete' if asked.dry_run else 'deleted'} {checkpoint.path.name}")
    kept = ", ".join(checkpoint.path.name for checkpoint in own if checkpoint not in gone)
    print(f"{'would keep' if asked.dry_run else 'kept'} {kept}")
    mine = {checkpoint.path for checkpoint in own}
    others = ", ".join(found.path.name for found in survey(asked.folder) if found.path not in mine)
    if others:
        print(f"left alone, as damaged or of another run: {others}")
    return 0


def _export(asked: argparse.Namespace) -> int:
    source, out = asked.checkpoint, asked.out
    found = problems(source, full=True)
    if found:
        raise CheckpointError(f"{source} is not exported: {'; '.join(found)}.")
    if out.exists():
        raise CheckpointError(f"{out} is there already: give a folder that does not exist.")
    staging = out.with_name(f".tmp-{out.name}")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        shutil.copytree(source, staging, ignore=_only_for_resuming)
        staging.rename(out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    print(f"exported to {out}: {', '.join(sorted(path.relative_to(out).as_posix() for path in out.rglob('*')))}")
    return 0


def _only_for_resuming(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if any(fnmatch(name, pattern) for pattern in TO_RESUME)}


def _pins(checkpoints: list[Checkpoint]) -> dict[int, list[str]]:
    """Return why checkpoints are never deleted, by step: the newest good one, and the best that it tells of."""
    good = newest_first([checkpoint for checkpoint in checkpoints if not checkpoint.problems])
    pins: dict[int, list[str]] = {}
    if good:
        best = best_of(good[0])
        for checkpoint in good:
            reasons = ["best"] * (checkpoint.path.name == best and checkpoint.run_id == good[0].run_id)
            reasons += ["newest"] * (checkpoint is good[0])
            if reasons:
                pins[checkpoint.step] = reasons
    return pins


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _time(seconds: float) -> str:
    with suppress(OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(seconds).isoformat(" ", "seconds") if seconds else "-"
    return "-"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


if __name__ == "__main__":
    sys.exit(main())

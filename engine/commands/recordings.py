"""The commands `trainbus trace`, `trainbus diff` and `trainbus replay`, which read the recordings of runs.

`trace` prints a recording. `diff` compares two recordings. `replay` calls a callback with the events of a recording.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from ...events.errors import ArgumentError, nearest
from ...events.recording.difference import Difference, first_difference, text_of
from ...events.recording.files import Recording, file_name, find, read
from ...events.recording.perfetto import chrome_trace
from ...events.recording.rows import rows_of
from ..checkpoint.read.listing import last_run
from .json_output import print_json, versioned
from .output_files import write_file

_REQUEST = ("step", "flag", "action", "event", "reason")
"""The fields of a ledger entry in the JSON of `replay`."""


def add_to(commands: Any) -> None:
    """Add the commands `trace`, `diff` and `replay` to the subcommands of `trainbus`."""
    trace = commands.add_parser(
        "trace",
        description="Print each event and each request of a recorded run. A training with `record=True` writes a "
        "recording.",
    )
    trace.add_argument("recording", type=Path, help="the output folder of a run, or its events.jsonl")
    trace.add_argument("--perfetto", type=Path, metavar="FILE", help="write a trace for ui.perfetto.dev")
    trace.add_argument(
        "--rows", action="store_true", help="print only logs, evaluations, saves, deletions and the stop"
    )
    trace.add_argument("--json", action="store_true", help="print JSON")
    trace.set_defaults(do=_trace)

    diff = commands.add_parser(
        "diff",
        description="Print the first event at which two recorded runs differ. Durations, times and paths are not "
        "compared. Exit status: 0 if the runs are equal, 1 if they differ, 2 for an error.",
    )
    diff.add_argument("one", type=Path, metavar="A", help="the output folder of a run, or a recording")
    diff.add_argument("other", type=Path, metavar="B", help="another run or recording")
    diff.add_argument("--json", action="store_true", help="print JSON")
    diff.set_defaults(do=_diff)

    again = commands.add_parser(
        "replay",
        description="Call the handlers of a callback with the values of a recorded run, and print the requests that "
        "the callback makes. No model is built.",
    )
    again.add_argument("recording", type=Path, help="the output folder of a run, or its events.jsonl")
    again.add_argument(
        "--callback", required=True, metavar="M:CALL", help="the callback, such as my_module:Watch(limit=3)"
    )
    again.add_argument("--json", action="store_true", help="print JSON")
    again.set_defaults(do=_replay)


def _note_earlier_run(path: Path, recording: Recording) -> None:
    """Print a line to stderr if the last run in a folder has no recording, and an earlier run has one."""
    run, last = recording.sessions[-1].get("run"), last_run(path)
    if run and last and run != last:
        print(f"{recording.path} is of an earlier run. The last run in the folder has no recording.", file=sys.stderr)


def _trace(options: argparse.Namespace) -> int:
    recording = read(options.recording)
    _note_earlier_run(options.recording, recording)
    if options.perfetto is not None:
        recordings = [read(path) for path in _of_all_ranks(options.recording)]
        trace = chrome_trace(recordings)
        write_file(options.perfetto, json.dumps(trace))
        print(f"{len(trace['traceEvents'])} events written to {options.perfetto}. Open it in https://ui.perfetto.dev.")
        return 0
    rows = rows_of(recording.records)
    if options.json:
        print_json(rows if options.rows else recording.records, indent=2 if options.rows else None)
    elif options.rows:
        for row in rows:
            print(f"step {row['step']}: {row['what']} by {row['by']}: {row['reason']}")
    else:
        print(text_of(recording.records), end="")
    return 0


def _diff(options: argparse.Namespace) -> int:
    found, rank = _first(options.one, options.other)
    if options.json:
        print_json(versioned({"equal": True} if found is None else {**found.to_dict(), "rank": rank}))
    elif found is not None:
        print(f"rank {rank}: {found}" if rank else found)
    return 0 if found is None else 1


def _first(one: Path, other: Path) -> tuple[Difference | None, int]:
    """Read the recordings of two runs, and return the first difference and the rank with this difference.

    If both paths are folders, compare all ranks. If only one path is a folder, compare the recording of rank 0 in this
    folder with the file. Without a difference, return None and 0.

    Raises:
        ArgumentError: if the folders have recordings of different numbers of ranks.
    """
    mine, others = _of_all_ranks(one), _of_all_ranks(other)
    if one.is_dir() and other.is_dir() and len(mine) != len(others):
        raise ArgumentError(
            f"{one} has recordings of {len(mine)} ranks and {other} of {len(others)}. Compare two of the files, such "
            f"as {mine[0]} and {others[0]}."
        )
    found = [(first_difference(read(left), read(right)), rank) for rank, (left, right) in enumerate(zip(mine, others))]
    return min(((each, rank) for each, rank in found if each is not None), key=_step_of, default=(None, 0))


def _step_of(found: tuple[Difference, int]) -> int:
    return found[0].step


def _of_all_ranks(path: Path) -> list[Path]:
    """Find the recordings of all ranks in a folder, and return their paths. For a file, return only its path."""
    first = find(path)
    if not path.is_dir():
        return [first]
    paths = [first]
    while (following := path / file_name(len(paths))).is_file():
        paths.append(following)
    return paths


def _replay(options: argparse.Namespace) -> int:
    from ..api.replay import replay  # it imports torch, which the other commands do not need

    callback = _callback(options.callback)
    played = replay(options.recording, callback)
    if options.json:
        requests = [{name: getattr(entry, name) for name in _REQUEST} for entry in played.requests]
        counts = {"calls": played.calls, "events": played.events}
        print_json(versioned({"callback": type(callback).__name__, **counts, "requests": requests}))
        return 0
    print(f"{played.calls} calls of {type(callback).__name__}, in {played.events} events.")
    for entry in played.requests:
        print(entry)
    return 0


def _callback(text: str) -> Any:
    """Build the callback that `module:Class` or `module:Class(option=value)` describes.

    Raises:
        ArgumentError: if the text has another form, or if the class cannot be imported or called.
    """
    module, colon, call = text.partition(":")
    if not colon or not call or not all(map(str.isidentifier, module.split("."))):
        raise ArgumentError(
            f"--callback {text!r} does not have the form module:Class. Write it as my_module:Watch(limit=3), with the "
            "name of a module that Python can import here, not a path."
        )
    try:
        tree = ast.parse(call, mode="eval").body
        function = tree.func if isinstance(tree, ast.Call) else tree
        if not isinstance(function, ast.Name):
            raise ValueError("it is not module:Class(option=value)")
        options = {each.arg: ast.literal_eval(each.value) for each in getattr(tree, "keywords", ())}
        values = [ast.literal_eval(each) for each in getattr(tree, "args", ())]
    except (SyntaxError, ValueError) as error:
        raise ArgumentError(f"--callback {text!r}: {error}. Write it as my_module:Watch(limit=3).") from error
    sys.path.insert(0, "")
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        raise ArgumentError(f"--callback {text!r}: {error}.") from error
    try:
        found = getattr(imported, function.id)
    except AttributeError as error:
        known = nearest(function.id, dir(imported))
        raise ArgumentError(f"--callback {text!r}: the module has no {function.id!r}{known}") from error
    if not callable(found):
        raise ArgumentError(f"--callback {text!r}: {found!r} is not a class. Name a class of callbacks.")
    try:
        return found(*values, **options)
    except (TypeError, ValueError) as error:
        problem = str(error).removesuffix(".")
        raise ArgumentError(f"--callback {text!r}: {problem}. Write it as my_module:Watch(limit=3).") from error

"""Golden traces: the events of a run in a text file, so that a change shows as a diff."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from ..events import Trace


def assert_golden_trace(trace: Trace, path: Path | str) -> None:
    """Compare a trace with a file. With `UPDATE_GOLDEN=1` in the environment, write the file instead.

    Args:
        trace: the trace, such as `tiny_run(MyCallback()).trace`.
        path: the file. Commit it.

    Raises:
        AssertionError: if the file is missing or its text is different. The error shows the difference.
    """
    path, text = Path(path), str(trace)
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    if not path.is_file():
        raise AssertionError(f"There is no golden trace {path}. Write it with UPDATE_GOLDEN=1, read it, and commit it.")
    known = path.read_text(encoding="utf-8")
    if known != text:
        lines = difflib.unified_diff(known.splitlines(), text.splitlines(), str(path), "this run", lineterm="")
        shown = "\n".join(lines)
        raise AssertionError(f"The run announces other events. If that is right, run with UPDATE_GOLDEN=1.\n{shown}")

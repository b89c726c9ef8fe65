"""Programs that tests start, and the order of the files of tests."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import pytest

from support.processes import run_program, server
from support.scheduling import SECONDS, LongestFirst

PROGRAM = """
import atexit, os, signal, sys
atexit.register(lambda: print("ended", file=sys.stderr))
if __name__ == "__main__":
    print(sys.argv[1:], os.getcwd(), os.environ.get("RANK"), sys.modules["__main__"].sys is sys, "torch" in sys.modules)
    if sys.argv[1] == "fails":
        raise ValueError("boom")
    if sys.argv[1] == "is killed":
        os.kill(os.getpid(), signal.SIGTERM)
    sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_a_forked_program_is_like_one_of_a_new_interpreter(program: Path, tmp_path: Path) -> None:
    done = run_program(program, "exits", "3", folder=tmp_path, timeout=60, code=3, RANK="1")
    assert done.stdout == f"['exits', '3'] {tmp_path} 1 True True\n"
    assert done.stderr == "ended\n"


@pytest.mark.parametrize(("how", "code"), [("fails", 1), ("is killed", -signal.SIGTERM)])
def test_the_end_of_a_forked_program_is_reported(program: Path, how: str, code: int) -> None:
    done = run_program(program, how, "0", timeout=60, code=code)
    assert ("ValueError: boom" in done.stderr) is (how == "fails")
    with pytest.raises(AssertionError):
        run_program(program, how, "0", timeout=60)


def test_a_forked_program_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(1000)\n")
    with pytest.raises(subprocess.TimeoutExpired):
        run_program(path, timeout=0.5, folder=tmp_path)
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists() or sys.platform != "linux"


def test_the_next_program_does_not_see_what_one_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("import os, torch\nprint(hasattr(torch, 'changed'), 'CHANGED' in os.environ)\n")
    before = tmp_path / "before.py"
    before.write_text("import os, torch\ntorch.changed = True\nos.environ['CHANGED'] = '1'\n")
    run_program(before, timeout=60)
    assert run_program(path, timeout=60).stdout == "False False\n"
    assert server() is server()


def test_the_files_that_take_long_exist(root: Path) -> None:
    assert [file for file in SECONDS if not (root / file).is_file()] == []


def test_the_longest_file_is_given_out_first(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = max(SECONDS, key=lambda file: SECONDS[file])
    given: list[str] = []
    scheduler = LongestFirst.__new__(LongestFirst)
    files = {"tests/few.py": 1, "tests/many.py": 300, longest: 1}
    scheduler.workqueue = OrderedDict({file: {str(test): False for test in range(n)} for file, n in files.items()})
    base = LongestFirst.__mro__[2]
    monkeypatch.setattr(
        base, "_assign_work_unit", lambda self, node: given.append(self.workqueue.popitem(last=False)[0])
    )
    while scheduler.workqueue:
        scheduler._assign_work_unit(None)
    assert given == [longest, "tests/many.py", "tests/few.py"]

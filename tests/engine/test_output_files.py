"""The files that commands write: an error keeps the earlier file, and a special file is never replaced."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from support.processes import environment
from support.trainers import regression_trainer
from trainbus.engine.commands.main import main
from trainbus.engine.commands.output_files import write_file
from trainbus.events.errors import ArgumentError

LIMITED = """
import signal, sys
from trainbus.engine.commands.output_files import write_file
from pathlib import Path
write_file(Path(sys.argv[1]), "new" * 10000)
"""


def test_a_write_that_fails_keeps_the_earlier_file_and_names_it(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_file(path, "earlier")
    limit = (1000, 1000)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)],
        env=environment(),
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    assert f"ArgumentError: {path} cannot be written: File too large." in done.stderr
    assert path.read_text() == "earlier"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_a_pipe_gets_the_text_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    write_file(pipe, "text")
    reader.join(10)
    assert got == ["text"]
    assert pipe.is_fifo()


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    link = tmp_path / "latest.html"
    link.symlink_to(tmp_path / "pages" / "one.html")
    write_file(link, "page")
    assert link.is_symlink()
    assert (tmp_path / "pages" / "one.html").read_text() == "page"


def test_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "private.html"
    path.write_text("old")
    path.chmod(0o600)
    write_file(path, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o600)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EBUSY])
def test_a_file_that_cannot_be_replaced_is_written(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", refuse)
    path = tmp_path / "mounted.html"
    path.write_text("old")
    write_file(path, "new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["mounted.html"]
    with pytest.raises(ArgumentError, match=os.strerror(number)):
        write_file(tmp_path / "new.html", "new")


def test_a_file_without_permission_to_write_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    path.chmod(0o444)
    # A read-only file fails for every user but root, who may run the tests.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    write = Path.write_bytes

    def write_bytes(to: Path, data: bytes) -> int:
        if to == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return write(to, data)

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    with pytest.raises(ArgumentError, match="Permission denied"):
        write_file(path, "new")
    assert path.read_text() == "old"


def test_names_and_texts_of_the_command_line_never_end_in_a_traceback(tmp_path: Path) -> None:
    longest = tmp_path / ("n" * 255)
    write_file(longest, "a \udcff")  # a byte of the command line that is not UTF-8
    assert longest.read_text() == "a ?"
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (loop, tmp_path / "null\0byte"):
        with pytest.raises(ArgumentError, match="cannot be written"):
            write_file(path, "text")


def test_the_error_of_a_folder_names_it(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=rf"{tmp_path} cannot be written: Is a directory\."):
        write_file(tmp_path, "text")


def test_a_command_names_a_file_that_it_cannot_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = regression_trainer(tmp_path / "run", args={"max_steps": 2, "record": True})
    trainer.train()
    (tmp_path / "file").touch()
    page = tmp_path / "file" / "page"
    for words in (["report", "RUN", "--out"], ["trace", "RUN", "--perfetto"]):
        assert main([*(str(tmp_path / "run") if word == "RUN" else word for word in words), str(page)]) == 2
        assert f"{page} cannot be written: a part of its path is a file, not a folder." in capsys.readouterr().err

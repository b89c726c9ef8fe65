"""Log messages: printed by default, without a change to the logging of a program."""

from __future__ import annotations

import logging

import pytest

from support.trainers import regression_trainer

LIBRARY = logging.getLogger("trainbus")


@pytest.fixture
def untouched():
    """Return a function that makes the library's logger one that nobody touched; it is put back afterwards."""
    level, handlers, propagates = LIBRARY.level, LIBRARY.handlers[:], LIBRARY.propagate

    def make():
        # pytest's own handlers, which it adds when a test begins, would do for a program's.
        LIBRARY.handlers[:], LIBRARY.propagate = [], False

    yield make
    LIBRARY.setLevel(level)
    LIBRARY.handlers[:], LIBRARY.propagate = handlers, propagates


def test_a_level_is_set_and_messages_reach_the_terminal(tmp_path, capsys, untouched):
    untouched()
    regression_trainer(tmp_path, args={"log_level": "info"})
    assert LIBRARY.level == logging.INFO
    logging.getLogger("trainbus.engine.anything").info("a word on the way")
    logging.getLogger("trainbus.engine.anything").debug("a whisper")
    assert capsys.readouterr().err.splitlines() == ["a word on the way"]


def test_a_second_trainer_adds_no_second_voice(tmp_path, capsys, untouched):
    untouched()
    for level in ("info", "error"):
        regression_trainer(tmp_path, args={"log_level": level})
    assert LIBRARY.level == logging.ERROR
    assert len(LIBRARY.handlers) == 1


def test_a_program_that_logs_keeps_its_handlers(tmp_path, untouched):
    untouched()
    own = logging.NullHandler()
    LIBRARY.addHandler(own)
    regression_trainer(tmp_path, args={"log_level": "info"})
    assert LIBRARY.handlers == [own]


def test_passive_mode_changes_no_file(tmp_path, untouched):
    untouched()
    LIBRARY.setLevel(logging.CRITICAL)
    regression_trainer(tmp_path)
    assert (LIBRARY.level, LIBRARY.handlers) == (logging.CRITICAL, [])


def test_other_processes_have_a_level_of_their_own(tmp_path, monkeypatch, untouched):
    untouched()
    monkeypatch.setenv("LOCAL_RANK", "1")  # as if a launcher had started it, of which there is but one
    regression_trainer(tmp_path, args={"log_level": "debug", "log_level_replica": "error"})
    assert LIBRARY.level == logging.ERROR

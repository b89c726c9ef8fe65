"""Trains and is killed, again and again: each session saves every step, and goes on from what the one before left.

Run as a program of its own, which forks the sessions, so that torch is imported once. It fails unless every checkpoint
is good at each moment, there always is one, and the last session ends with the weights of a run that nobody killed.

- `python kill_program.py FOLDER random KILLS SEED` kills at random moments. It prints how many were in a save.
- `python kill_program.py FOLDER each new|replaced [EVERY]` ends a session at each call to the system that a save makes:
  of a step that is saved for the first time, or of one that is there already. It prints how many calls there are. With
  EVERY it ends sessions at every third call, or every fourth.
"""

from __future__ import annotations

import builtins
import gc
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from support.checkpoints import chosen, names_in, saving
from support.outcomes import same_weights, weights
from trainbus.engine.checkpoint.format.files import parse_hidden
from trainbus.engine.checkpoint.read.listing import survey
from trainbus.engine.checkpoint.read.verify import problems
from trainbus.engine.checkpoint.write.commit import HashedFile

BETWEEN = 3
"""At most this many steps are done in a session before its last."""

FIRST_SEED = 0
"""Of the weights that a run begins with."""

CALLS: list[tuple[Any, str]] = [
    *((os, name) for name in ("mkdir", "open", "fsync", "rename", "unlink", "rmdir")),
    *((builtins, "open"), (HashedFile, "write"), (Path, "chmod")),
]
"""What a save does to the disk, or right before it does."""


def session(folder: Path, steps: int, hear: Callable[[Any], None] = lambda run: None, begin: str = "") -> Any:
    """Train to the end, and return the trainer.

    Args:
        folder: for the checkpoints; if there are any, the session goes on from the newest.
        steps: how many in all.
        hear: subscribes to the run.
        begin: the name of another checkpoint to go on from.
    """
    resumes = str(folder / begin) if begin else bool(survey(folder))
    seed = os.getpid() if resumes else FIRST_SEED  # all that a resumed run has, it has from its checkpoint
    limit = 1 if begin else 2
    run = saving(folder, steps, seed=seed, save_total_limit=limit, logging_steps=10**6, disable_tqdm=True)
    hear(run)
    run.train(resume_from_checkpoint=resumes)
    return run


def forked(work: Callable[[], Any]) -> int:
    """Do something in a process of its own, which says nothing; return its number."""
    child = os.fork()
    if child:
        return child
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    try:
        work()
    except BaseException:
        os._exit(1)
    os._exit(0)


def unbroken(folder: Path, steps: int) -> dict[str, Any]:
    """Return the weights of a run that nobody kills. It also has everything imported that a step needs."""
    run = saving(folder / "unbroken", steps, seed=FIRST_SEED, save_strategy="no", disable_tqdm=True)
    run.train()
    gc.freeze()  # what is there belongs to all sessions: no process looks through it
    return weights(run.model)


def check(folder: Path, newest: int) -> int:
    """Refuse a damaged checkpoint, or a newest one that is older than the newest was; return its step."""
    found = survey(folder)
    for checkpoint in found:
        assert problems(checkpoint.path, full=True) == [], checkpoint
    last = max((checkpoint.step for checkpoint in found), default=0)
    assert last >= newest, f"step {newest} was saved, and now {last} is the last"
    return last


# At random moments.


def tells(pipe: int, run: Any) -> None:
    """Write to a pipe when a step is done."""
    run.on("on_step_end", lambda: os.write(pipe, b"."))


def kill_at_random(folder: Path, kills: int, seed: int) -> None:
    """Kill sessions, then train to the end."""
    chance, killed = random.Random(seed), folder / "killed"
    steps = (BETWEEN + 2) * kills
    wanted = unbroken(folder, steps)
    killed.mkdir(parents=True)  # the first kill may come before the first save
    newest = in_a_save = 0
    for _ in range(kills):
        hears, says = os.pipe()
        child = forked(partial(session, killed, steps, partial(tells, says)))
        os.close(says)
        for _ in range(chance.randint(1, BETWEEN)):
            assert os.read(hears, 1), "the session ended by itself"
        time.sleep(chance.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "the session ended by itself"
        os.close(hears)
        newest = check(killed, newest)
        in_a_save += any(parse_hidden(path) is not None for path in killed.iterdir())
    run = session(killed, steps)
    assert check(killed, newest) == steps
    assert [checkpoint.step for checkpoint in survey(killed)] == [steps - 1, steps]
    assert same_weights(weights(run.model), wanted)
    print(f"{in_a_save} of {kills} kills came in the middle of saving")


# At each call.


def ends_at(at: int, run: Any) -> None:
    """End the process, with nothing said or closed, at a call that the save of step 2 makes."""
    count, saving_it, lock = [0], [False], threading.Lock()

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            with lock:
                count[0] += saving_it[0]
                if count[0] == at:
                    os._exit(137)
            return function(*args, **options)

        return call

    def watch() -> None:
        # It is written by a thread, which the next save waits for.
        saving_it[0] = run.state.global_step == 2
        if saving_it[0]:
            for home, name in CALLS:
                setattr(home, name, watched(getattr(home, name)))

    run.on("on_save_begin", watch)


def kill_at_each(folder: Path, replaced: bool, every: int) -> None:
    """End sessions at one call after the other, and go on from what is left."""
    wanted = unbroken(folder, 3)
    session(folder / "before", 2)
    at, status = 1 - every, 137
    while status == 137:
        at += every
        killed = Path(shutil.copytree(folder / "before", folder / f"killed {at}"))
        if not replaced:
            shutil.rmtree(killed / "checkpoint-2")
        child = forked(partial(session, killed, 3, partial(ends_at, at), "checkpoint-1"))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 137), f"the session failed at call {at}"
        check(killed, 0)
        found = chosen(killed, True)
        assert found is not None, f"nothing is left at call {at}"
        run = session(killed, 3, begin=found.name)
        assert same_weights(weights(run.model), wanted)
        assert names_in(killed)[-1] == "checkpoint-3"
        assert not any(parse_hidden(path) for path in killed.iterdir()), names_in(killed)
    print(f"ended at calls up to {at - every}, {every} apart")


if __name__ == "__main__":
    if sys.argv[2] == "random":
        kill_at_random(Path(sys.argv[1]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        kill_at_each(Path(sys.argv[1]), sys.argv[3] == "replaced", int((sys.argv[4:] or "1")[0]))

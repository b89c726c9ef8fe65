"""Trains and is told to stop, again and again, at random moments: each session goes on from what the one before saved.

Run as a program of its own, which forks the sessions, so that torch is imported once. It fails unless each session ends
with the code of its signal, right after the step that was under way, with a good checkpoint of that very step, and the
last one with the weights, the optimizer and the logs of a run that nobody stopped.

`python signal_program.py FOLDER SIGNAL TIMES SEED [WORKERS]` prints where the signals came. With workers, the signal
goes to them too, as a terminal and a scheduler send it.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch
from kill_program import forked

from support.data import points
from support.models import Regression
from support.outcomes import equal, history, same_weights, weights
from support.trainers import regression_trainer
from trainbus import Callback, default_data_collator
from trainbus.callbacks.stopping.stop_on_signal import Stopped
from trainbus.engine.checkpoint.format.files import parse_hidden
from trainbus.engine.checkpoint.read.listing import survey
from trainbus.engine.checkpoint.read.verify import problems

PER_SIGNAL = 25
"""So many steps there are for each signal; a session does fewer before it gets it."""

LONGEST = 60.0
"""Seconds after which a session that was told to end is taken to hang."""


class Slow(Callback):
    """Notes in which part of a step a session is, and takes its time in each, so that signals find it there."""

    def __init__(self, pipe: int, seconds: float) -> None:
        self.pipe, self.seconds = pipe, seconds

    def enter(self, place: str, step: int = 0) -> None:
        if self.pipe >= 0:
            os.write(self.pipe, f"{place} {step}\n".encode())
            time.sleep(self.seconds)

    def on_loss(self, run: Any, loss: Any) -> None:
        loss.register_hook(lambda gradient: self.enter("backward"))

    def on_gradients(self) -> None:
        self.enter("update")

    def on_step_end(self, state: Any) -> None:
        self.enter("step end", state.global_step)

    def on_prediction_step(self) -> None:
        self.enter("evaluation")

    def on_save_begin(self) -> None:
        self.enter("save")

    def on_log(self) -> None:
        self.enter("log")


class Line(Regression):
    """Says when it is called."""

    slow: Slow

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        if self.training:
            self.slow.enter("forward")
        return super().forward(x, labels)


def run_of(folder: Path, steps: int, pipe: int, workers: int, seed: int) -> Any:
    """A trainer of two batches in a step, that evaluates, logs and saves every few steps."""
    slow = Slow(pipe, 0.0005)
    model = Line(dropout=0.3, seed=seed)
    model.slow = slow

    def collate(features: list[Any]) -> Any:
        if not workers:
            slow.enter("collator")
        batch = default_data_collator(features)
        batch["x"] = batch["x"] + torch.rand(())
        return batch

    every = {"eval_strategy": "steps", "eval_steps": 9, "logging_strategy": "steps", "logging_steps": 3}
    saving = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}
    args = {"max_steps": steps, "gradient_accumulation_steps": 2, "learning_rate": 0.01, "disable_tqdm": True}
    args |= {"dataloader_num_workers": workers, **every, **saving}
    return regression_trainer(
        folder, model, args=args, eval_dataset=points(24, 1), data_collator=collate, callbacks=[slow]
    )


def session(folder: Path, steps: int, pipe: int, workers: int) -> None:
    """Train until somebody says stop, and end the process with the code that says so."""
    os.setsid()
    resumes = bool(survey(folder))
    run = run_of(folder, steps, pipe, workers, seed=os.getpid() if resumes else 0)
    try:
        run.train(resume_from_checkpoint=resumes)
    except Stopped as stopped:
        os._exit(int(stopped.code))


def told(hears: int) -> list[tuple[str, int]]:
    """Wait for something to be told; return all of it."""
    return [
        (line.rpartition(" ")[0], int(line.rpartition(" ")[2])) for line in os.read(hears, 65536).decode().splitlines()
    ]


def stop_once(folder: Path, steps: int, number: int, chance: random.Random, workers: int) -> tuple[str, int]:
    """Have one session begin, and tell it to stop; return where it was, and after which step it ended."""
    hears, says = os.pipe()
    began = max((found.step for found in survey(folder)), default=0)
    child = forked(partial(session, folder, steps, says, workers))
    os.close(says)
    heard: list[tuple[str, int]] = []
    while not any(place == "step end" for place, _ in heard):
        more = told(hears)
        assert more, "the session ended by itself"
        heard += more
    time.sleep(chance.uniform(0, 0.06))
    heard += told(hears)
    done, at = max(step for _, step in heard), heard[-1][0]
    (os.killpg if workers else os.kill)(child, number)
    sent = time.monotonic()
    while more := told(hears):
        heard += more
    os.close(hears)
    status = os.waitpid(child, 0)[1]
    assert time.monotonic() - sent < LONGEST
    where = f"began after {began}, {done} steps were done, then {heard[-12:]}"
    assert os.waitstatus_to_exitcode(status) == 128 + number, f"{os.waitstatus_to_exitcode(status)}: {where}"
    found = survey(folder)
    last = found[-1].step
    assert [problems(checkpoint.path, full=True) for checkpoint in found] == [[]] * len(found)
    assert not any(parse_hidden(path) for path in folder.iterdir())
    # What was told may have been told a step or two before the signal was sent; no step is begun after it was noted.
    assert last == max(step for _, step in heard), where
    assert done <= last <= done + 3, where
    return at, last


def main(folder: Path, name: str, times: int, seed: int, workers: int) -> None:
    """Stop sessions, then train to the end."""
    chance, number, steps = random.Random(seed), int(getattr(signal, name)), PER_SIGNAL * times
    unbroken = run_of(folder / "unbroken", steps, -1, workers, seed=0)
    unbroken.train()
    stopped, places = folder / "stopped", Counter[str]()
    for _ in range(times):
        place, last = stop_once(stopped, steps, number, chance, workers)
        places[place] += 1
        assert last < steps
    run = run_of(stopped, steps, -1, workers, seed=9)
    run.train(resume_from_checkpoint=True)
    assert same_weights(weights(run.model), weights(unbroken.model))
    assert equal(run.optimizer.state_dict(), unbroken.optimizer.state_dict())
    assert history(run)[:-1] == history(unbroken)[:-1]  # the last is the summary of the session
    print(f"stopped {times} times by {name}, in {dict(places)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int([*sys.argv, "0"][5]))

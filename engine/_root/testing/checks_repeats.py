"""Checks that a run gives the same results again.

Each check repeats the run in one way: in a second session, with another order of the callbacks, or from a checkpoint.
"""

from __future__ import annotations

import copy
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from .. import Checkpoint
from ..engine.checkpoint.format.codec import encode, load_values
from ..events import CheckpointError
from .faults import InjectedFault
from .lab import Lab, difference, handled, other_weights, values_of_classes
from .registry import RUNS, check, fail
from .runs import train
from .tiny import equal

REPEATS = (*RUNS, "repeats")


@check(
    needs=RUNS,
    remedy="Decide from values of the run only: not from the clock, `id()`, `hash()` or a generator without a seed. A "
    "callback that does so on purpose fails this check as expected.",
)
def repeats(lab: Lab) -> None:
    """Check that two runs, each with a new callback, have the same events, logs and weights."""
    again = train(lab.among(lab.new()))
    if found := difference(lab.usual, again):
        fail(f"two runs with the same seed differ: {found}")
    after = values_of_classes(lab.new())
    for name, before in lab.class_values.items():
        if after.get(name, before) != before:
            fail(
                f"its runs change the class attribute {name} from {before[:60]} to {after[name][:60]}, and the next "
                "run of the program begins with this value. Set it on the instance, in `on_setup`"
            )


@check(
    needs=REPEATS,
    remedy="Set `stage`, or `@order(...)` on a handler, by what it does: MEASURE to add metrics, DECIDE to raise "
    "flags, REPORT to read what all others wrote. Do not read flags that others raise in the same stage.",
)
def any_order(lab: Lab) -> None:
    """Check that the run is the same for every position of the callback in the list of callbacks."""
    generator = random.Random(0)
    callback = lab.new()
    listed = [callback, *lab.around(callback)]  # the usual run lists it last
    for _ in range(2):
        run = train(lab.trainer(*listed))
        if found := difference(lab.usual, run):
            fail(f"in the order {', '.join(type(each).__name__ for each in listed)} the run is another one: {found}")
        callback = lab.new()
        listed = [*lab.around(callback), callback]
        generator.shuffle(listed)


@check(
    needs=(*REPEATS, "keeps_arguments"),
    remedy="Reset everything that belongs to one run in `on_setup`, if `run.mode == 'train'`.",
)
def trains_twice(lab: Lab) -> None:
    """Check that one callback gives the same run again in a second `train()`, and in a second trainer."""
    callback = lab.new()
    first = lab.among(callback)
    train(first)
    for place, trainer in (("a second train()", first), ("a second trainer", lab.among(callback))):
        if found := difference(lab.usual, train(trainer)):
            fail(f"{place} differs from the first run of a new callback: {found}")


@check(
    needs=("constructs", "attaches", "trains_alone"),
    remedy="Return numbers, strings, tensors, lists and dicts from `state_dict`, and restore every entry in "
    "`load_state_dict`.",
)
def state_round_trip(lab: Lab) -> None:
    """Check that a new callback restores exactly the state that another instance saved in a checkpoint file."""
    callback = lab.new()
    if not hasattr(callback, "state_dict"):
        return  # a callback of transformers
    around = [other for other in lab.around(callback) if not isinstance(other, Checkpoint)]
    trainer, states = lab.trainer(*around, callback), []
    with handled(trainer, "on_step_end", lambda: states.append(copy.deepcopy(callback.state_dict()))):
        train(trainer)
    files = []
    for number, state in enumerate(states):
        path = lab.folder / f"state-{number}.safetensors"
        try:
            tensors, metadata = encode(state, "the state")
        except CheckpointError as error:
            fail(f"a checkpoint cannot hold its state: {error}")
        save_file(tensors, path, metadata)
        files.append((state, path))
    fresh = lab.new()

    def load() -> None:
        """Load each saved state into the new callback `fresh`, and compare the state of `fresh` with the saved state.

        This function skips empty states. It runs after the handlers of `on_setup` of all callbacks, as in a resume. At
        the end, it raises an error, so that the run ends before its first step.
        """
        for state, path in files:
            if state:
                _compare_loaded(fresh, state, path)
        raise InjectedFault

    resumed = lab.trainer(*around, fresh)
    with handled(resumed, "on_setup", load), suppress(InjectedFault):
        train(resumed)


def _compare_loaded(fresh: Any, state: dict[str, Any], path: Path) -> None:
    fresh.load_state_dict(load_values(path))
    restored = fresh.state_dict()
    if not equal(restored, state):
        wrong = [name for name in {**state, **restored} if not equal(state.get(name), restored.get(name))]
        pairs = ", ".join(f"{name} is {restored.get(name)!r} instead of {state.get(name)!r}" for name in wrong)
        fail(f"a new callback does not restore the state: {pairs[:300]}")


@check(
    needs=(*REPEATS, "trains_twice"),
    remedy="Return from `state_dict` everything that a later step reads, and load it in `load_state_dict`. It is "
    "loaded after `on_setup`, so do not reset it in `on_train_begin`.",
)
def resumes(lab: Lab) -> None:
    """Check that a run that resumes from any checkpoint has the weights and logs of the uninterrupted run."""
    trainer = lab.among(lab.new(), save_every=1)
    unbroken = train(trainer)
    saved = sorted(unbroken.folder.glob("checkpoint-*"), key=_step)
    for checkpoint in saved:
        step = _step(checkpoint)
        if step >= unbroken.steps:
            continue
        folder = lab.folder / f"resumed-{step}"
        shutil.copytree(checkpoint, folder / checkpoint.name)
        resumed = lab.among(lab.new(), save_every=1, folder=folder)
        run = train(resumed, resume_from_checkpoint=str(folder / checkpoint.name))
        found = other_weights(unbroken.weights, run.weights)
        if run.steps != unbroken.steps:
            found = f"it ends at step {run.steps} instead of {unbroken.steps}"
        elif not found and not equal(_steps(unbroken.logs), _steps(run.logs)):
            pairs = [pair for pair in zip(_steps(unbroken.logs), _steps(run.logs)) if not equal(*pair)]
            found = f"it logs {pairs[0][1]} instead of {pairs[0][0]}" if pairs else "it logs another number of rows"
        if found:
            fail(f"a run that resumes from step {step} differs from an unbroken one: {found}")
        shutil.rmtree(folder, ignore_errors=True)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _steps(logs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the logged rows without the summaries of trainings. A summary differs after a resume."""
    return [entry for entry in logs if "train_loss" not in entry]

"""The check with two processes: both ranks make the same requests and reach the same weights."""

from __future__ import annotations

import hashlib
from typing import Any

from .. import DDP, Callback, Stage, Trainer
from ..events import FLAGS
from ..events.composition import is_rank_local
from .lab import Lab
from .processes import Ended, in_processes
from .registry import RUNS, check, fail
from .runs import train


class RanksDisagree(Exception):
    """The ranks made different requests in the same step."""


@check(
    needs=RUNS,
    two_processes=True,
    remedy="Decide from values that all ranks have, or gather them: run.ranks.gather(tensor). If only one rank can "
    "know, such as from a clock or a file, set `local = True`. Only report under `if state.is_world_process_zero`.",
)
def agrees_on_two_processes(lab: Lab) -> None:
    """Check that the callback makes the same requests on two ranks, and that both ranks reach the same weights."""
    ended = in_processes(lambda rank: _rank(lab), timeout=90.0)
    for end in ended:
        if end.error.startswith("RanksDisagree"):
            fail(end.error.partition(": ")[2])
    for rank, end in enumerate(ended):
        if end.value is None:
            fail(f"rank {rank} ends with {_how(end)}")
    if ended[0].value != ended[1].value:
        name = next(name for name in ended[0].value if ended[0].value[name] != ended[1].value[name])
        fail(f"the ranks end with other {name}: {ended[0].value[name]} and {ended[1].value[name]}")


def _how(end: Ended) -> str:
    return end.error or (f"exit code {end.exit_code}" if end.exit_code is not None else "no answer for 90 seconds")


def _rank(lab: Lab) -> dict[str, Any]:
    callback = lab.new()
    is_ours = isinstance(callback, Callback)
    own = [] if is_ours and (isinstance(callback, DDP) or DDP in callback.instead_of) else [DDP()]
    trainer = lab.trainer(*lab.around(callback), callback, *own, folder=lab.folder / "two", ddp_timeout=60)
    _compare_requests(trainer, callback)
    run = train(trainer)
    trainer.end()
    text = b"".join(tensor.numpy().tobytes() for _, tensor in sorted(run.weights.items()))
    return {"weights": hashlib.sha256(text).hexdigest()[:12], "steps": run.steps}


def _compare_requests(trainer: Trainer, callback: Any) -> None:
    """Subscribe a function that compares the requests of the callback between the ranks in each step.

    The function runs before the ranks do what the callback requests. Without the function, ranks with different
    requests could wait for each other until the timeout.
    """
    if is_rank_local(callback):
        return  # the ranks may differ: the engine makes them agree on the requests of such a callback
    ids = [name for name, attached in trainer.callbacks.items() if attached is callback]
    seen = {"written": 0}

    def compare(run: Any) -> None:
        ledger = run.control.ledger
        new = [entry for entry in ledger.since(seen["written"]) if entry.author in ids]
        seen["written"] = ledger.written
        flags = sum(1 << number for number, flag in enumerate(FLAGS) if any(entry.flag == flag for entry in new))
        by_rank = [row[0] for row in run.ranks.gather_numbers(flags)]
        if len(set(by_rank)) > 1:
            told = " and ".join(f"{_words(made) or 'nothing'} on rank {rank}" for rank, made in enumerate(by_rank))
            raise RanksDisagree(f"at step {run.state.global_step} it requests {told}")

    for event in ("on_pre_optimizer_step", "on_step_end"):
        trainer.on(event, compare, stage=Stage.RELEASE)


def _words(made: int) -> str:
    return ", ".join(flag for number, flag in enumerate(FLAGS) if made >> number & 1)

"""Pairs of processes that train together, of which one is disturbed: killed, hung or made to raise, at a chosen place.

The pairs are forked, so that torch is imported once. Each process goes on as a program of its own, and so it ends.
As under torchrun, the store that they meet in is kept by a process that outlives them, also when they start again.

`python fault_program.py FOLDER RUN...` starts each RUN, `name=how:place:step:rank:timeout`, all at once, and writes
`<name>.json` for each: exit codes, what was printed, and how many seconds after the disturbance its processes ended.
`how` is `kill`, `orphan` (with the store), `hang`, `raise`, `memory` (runs out of it), `stop` (is sent SIGTERM);
`restart` or `signal` (a little later), then the pair is started again; or `whole`, which is not disturbed.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from support.ranks import NOTHING, Somewhere, boom, hang, send, trainer_of, weight_values, write_json
from trainbus import StatusFile
from trainbus.engine.checkpoint.write.commit import HashedFile

DEADLINE = 200.0
"""Seconds after which processes are taken to hang for good."""

RESTARTS = 3
"""How often a pair is started again that is to come to its end."""


def keep_store(says: int) -> None:
    """Keep a store, say on which port, and stay."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(says, f"{store.port}\n".encode())
    while True:
        time.sleep(1.0)


class Pair:
    """Two processes, with a store, of which one is disturbed."""

    def __init__(self, folder: Path, name: str, how: str, place: str, step: str, rank: str, timeout: str) -> None:
        self.folder, self.name, self.how, self.place = folder, name, how, place
        self.step, self.rank, self.timeout = int(step), int(rank), int(timeout)
        hears, says = os.pipe()
        self.store = os.fork()
        if self.store == 0:
            keep_store(says)
        self.port = os.read(hears, 100).decode().strip()
        os.close(hears)
        os.close(says)
        self.starts = 0
        self.all_codes: list[list[int]] = []
        self.pids: list[int] = []
        self.ended: dict[int, tuple[int, float]] = {}

    def start(self) -> bool:
        """Start both processes; say whether this is one of them."""
        self.pids, self.ended = [], {}
        for rank in range(2):
            child = os.fork()
            if child == 0:
                output = os.open(self.path(f"{rank}.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(output, 1)
                os.dup2(output, 2)
                os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
                os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=self.port, TORCHELASTIC_USE_AGENT_STORE="True")
                return True
            self.pids.append(child)
        self.starts += 1
        self.deadline = time.monotonic() + DEADLINE
        return False

    def path(self, what: str) -> Path:
        return self.folder / f"{self.name}-{what}"

    def over(self) -> bool:
        """Look for processes that ended; say whether both have."""
        for pid in set(self.pids) - set(self.ended):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self.ended[pid] = (os.waitstatus_to_exitcode(status), time.time())
        left = set(self.pids) - set(self.ended)
        # One that hangs is killed when the other has ended, as torchrun does.
        hangs = len(left) == 1 and self.path("hangs").exists()
        if left and (hangs or time.monotonic() > self.deadline):
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        return not left

    def continues(self) -> bool:
        """Note the exit codes, and say whether it is to be started again."""
        self.all_codes.append([self.ended[pid][0] for pid in self.pids])
        return self.how in ("restart", "signal") and self.all_codes[-1] != [0, 0] and self.starts <= RESTARTS

    def end(self) -> None:
        """Write down what became of it."""
        if self.how != "orphan":
            os.kill(self.store, signal.SIGKILL)
        os.waitpid(self.store, 0)
        disturbed = float(self.path("disturbed").read_text()) if self.how != "whole" else time.time()
        folder = self.folder / self.name
        status = json.loads((folder / "run_status.json").read_text())
        values = {
            "codes": self.all_codes,
            "seconds": [self.ended[pid][1] - disturbed for pid in self.pids],
            "told": status["time"] - disturbed,
            "said": [self.path(f"{rank}.txt").read_text() for rank in range(2)],
            "folder": sorted(path.name for path in folder.iterdir()),
            "status": status,
        }
        write_json(self.folder / f"{self.name}.json", values)


def session(pair: Pair) -> None:
    """Train, disturbed, as a program does: with nobody to catch its error."""

    def does() -> None:
        if pair.path("disturbed").exists():
            return  # it was, before it was started again
        pair.path("disturbed").write_text(repr(time.time()))
        if pair.how == "hang":
            pair.path("hangs").touch()
            hang()
        if pair.how == "raise":
            boom()
        if pair.how == "memory":
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        if pair.how == "orphan":
            os.kill(pair.store, signal.SIGKILL)
        if pair.how == "signal":
            threading.Timer(random.Random(pair.name).uniform(0, 0.05), send("SIGTERM")).start()
        else:
            send("SIGTERM" if pair.how == "stop" else "SIGKILL")()

    somewhere = Somewhere(pair.place, pair.step, does, pair.rank)
    # A kill during a write on a thread loses this checkpoint. Only the places `thread` and `committed` test that.
    on_thread = pair.place in ("thread", "committed")
    options = {"ddp_timeout": pair.timeout, "max_steps": 24, "save_steps": 2, "async_save": on_thread}
    options["auto_find_batch_size"] = pair.how == "memory"
    trainer = trainer_of(pair.folder / pair.name, somewhere, StatusFile(), **options)
    heard: list[str] = []
    for event in ("on_exception", "on_close"):
        trainer.on(event, lambda event=event: heard.append(event), id=event)
    atexit.register(lambda: print("heard", heard, flush=True))
    if pair.place in ("written", "thread"):
        write = HashedFile.write

        def dies(file: Any, data: Any) -> None:
            if f"checkpoint-{pair.step}-" in str(file._file.name) and os.environ["RANK"] == str(pair.rank):
                while on_thread and trainer.state.global_step == pair.step:
                    time.sleep(0.01)  # the training continues
                does()
            write(file, data)

        HashedFile.write = dies  # type: ignore[method-assign]
    if pair.place == "committed" and os.environ["RANK"] == str(pair.rank):

        def watch() -> None:
            while not (pair.folder / pair.name / f"checkpoint-{pair.step}").exists():
                time.sleep(0.0002)
            does()

        threading.Thread(target=watch, daemon=True).start()
    if pair.place == "before" and os.environ["RANK"] == str(pair.rank):
        does()
    trainer.on("on_setup", lambda: does() if (pair.place, os.environ["RANK"]) == ("setup", str(pair.rank)) else None)
    trainer.train(resume_from_checkpoint="auto")
    if trainer.is_world_process_zero():
        write_json(pair.path("weights.json"), weight_values(trainer.model))


def supervise() -> Pair | None:
    """Start all pairs, and wait for them; return the pair that this process is one of, or None in the first one."""
    folder, pairs = Path(sys.argv[1]), []
    trainer_of(folder / "alone", max_steps=1, often=NOTHING).train()  # whatever a training needs is imported
    gc.freeze()  # what is there belongs to all: no process looks through it when it ends
    for run in sys.argv[2:]:
        name, _, what = run.partition("=")
        pairs.append(Pair(folder, name, *what.split(":")))
    waiting = list(pairs)
    for pair in pairs:
        if pair.start():
            return pair
    while waiting:
        for pair in [pair for pair in waiting if pair.over()]:
            if pair.continues():
                if pair.start():
                    return pair
            else:
                pair.end()
                waiting.remove(pair)
        time.sleep(0.01)
    return None


if __name__ == "__main__":
    torch.manual_seed(0)
    if own := supervise():
        session(own)

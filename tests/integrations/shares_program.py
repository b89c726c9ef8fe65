"""Data, arguments and gradients on two ranks. Each rank writes its observations."""

import atexit
import faulthandler
import json
import logging
import os
import sys
import time
from pathlib import Path

import torch.distributed as dist
from datasets.distributed import split_dataset_by_node
from ddp_program import no_thread_of_gloo_is_left
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

import trainbus
from support.data import SizedStream, Stream
from support.streams import BASE, build, chained, end_of, rows_of, stream_of_datasets
from trainbus.events.errors import ArgumentError, CheckpointError
from trainbus.events.triggers import at

RANK = int(os.environ["RANK"])

# Streams.


def streams(folder):
    """Train on streams of every kind, and evaluate on them; then stop and resume."""
    workers = {"dataloader_num_workers": 2}
    own = {"accelerator_config": {"dispatch_batches": False}, "max_steps": 6}
    kinds = {
        "stream": (lambda: Stream(rows_of(33)), {}),
        "sized": (lambda: SizedStream(rows_of(33)), {"max_steps": -1, "num_train_epochs": 1}),
        "dropping": (lambda: Stream(rows_of(33)), {"dataloader_drop_last": True}),
        "workers": (lambda: Stream(rows_of(33)), workers),
        "datasets": (lambda: stream_of_datasets(33, 3), {}),
        "shuffled": (lambda: stream_of_datasets(33, 3).shuffle(seed=1, buffer_size=8), {}),
        "own shards": (lambda: stream_of_datasets(33, 5), own),
        "own shards, workers": (lambda: stream_of_datasets(33, 5), {**own, **workers}),
        "too few shards": (lambda: stream_of_datasets(33, 1), {**own, "max_steps": 5}),
        "split by node": (lambda: split_dataset_by_node(stream_of_datasets(33, 1), RANK, 2), {}),
    }
    found = {}
    for name, (make, args) in kinds.items():
        trainer, seen = build(folder / name, make(), evaluated=make(), **{"max_steps": 5, **args})
        trainer.train()
        found[name] = {"seen": seen, "evaluated": trainer.evaluate()["eval_rows"], **end_of(trainer)}
    for rows in (1, 2, 9):
        trainer, _ = build(
            folder, Stream(rows_of(rows)), evaluated=Stream(rows_of(rows)), max_steps=1, batch_eval_metrics=False
        )
        found[f"{rows} rows"] = {"evaluated": trainer.evaluate()["eval_rows"]}
    for name in ("stream", "datasets", "shuffled", "own shards", "workers"):
        make, args = kinds[name]
        args = {**args, "max_steps": 7, "save_strategy": "steps", "save_steps": 2}
        trainer, _ = build(folder / f"{name} resumed", make(), **args)
        trainer.on("on_step_end", lambda control: control.request("training_stop", "as planned"), once=4)
        trainer.train()
        trainer, seen = build(folder / f"{name} resumed", make(), **args)
        trainer.train(resume_from_checkpoint=True)
        whole, all_seen = build(folder / f"{name} whole", make(), **{**args, "save_strategy": "no"})
        whole.train()
        found[f"{name} resumed"] = {"seen": seen, "whole": all_seen, "same": end_of(trainer) == end_of(whole)}
    return found


# Gradients.


def gradients(folder):
    """Train with gradients that travel in other ways, and with weights that are frozen at first."""
    rows = rows_of(24)
    hooks = {
        "plain": {},
        "function": {"comm_hook": allreduce_hook},
        "fp16": {"comm_hook": "fp16"},
        "powersgd": {"comm_hook": "power_sgd", "comm_options": {"start_powerSGD_iter": 2, "min_compression_rate": 0.5}},
    }
    found = {}
    for name, options in hooks.items():
        trainer, _ = build(folder, rows, [trainbus.DDP(**options)], max_steps=6)
        trainer.train()
        found[name] = end_of(trainer)
    try:
        build(folder, rows, [trainbus.DDP(comm_hook="bf16")], max_steps=3)[0].train()
    except ArgumentError as error:
        found["bf16"] = str(error)
    for name, options in (("thawed", {}), ("thawed unseen", {"ddp_find_unused_parameters": False})):
        trainer, _ = build(folder, rows, [trainbus.Freeze("first", until=at(2))], max_steps=4, **options)
        first = []
        trainer.on("on_step_end", lambda run, first=first: first.append(run.model.first.weight.tolist()))
        trainer.train()
        found[name] = {"first": first, **end_of(trainer)}
    return found


# Which process does what.


def waits(folder):
    """Fill a cache on one process first. No trainer exists yet, so there is no process group."""
    assert not dist.is_initialized()
    args = trainbus.TrainingArguments(str(folder), **BASE)
    state = args.distributed_state
    ways = {
        "filled": lambda: args.main_process_first(desc="the cache"),
        "filled by rank 0": state.main_process_first,
        "filled by a local rank": state.local_main_process_first,
    }
    found = {}
    for name, wait in ways.items():
        with wait():
            if RANK == 0:
                time.sleep(0.3)
                (folder / name).write_text("filled")
            found[name] = (folder / name).is_file()
    state.wait_for_everyone()
    found["last"] = state.is_last_process
    return found


def roles(folder):
    """Ask who goes first, who prints and who saves, on one machine and as if on two."""
    found = {}
    os.environ["LOCAL_RANK"] = "0"
    for name, wanted in (("one", False), ("each", True)):
        own = folder / name / (str(RANK) if wanted else "")  # machines that share no disk, or one disk
        options = {"save_on_each_node": wanted, "log_on_each_node": wanted, "save_strategy": "steps", "save_steps": 2}
        trainer, _ = build(own, rows_of(16), max_steps=4, log_level="info", log_level_replica="error", **options)
        trainer.train()
        level = logging.getLogger("trainbus").getEffectiveLevel()
        found[name] = {"level": level, "saved": sorted(path.name for path in own.glob("checkpoint-2/*"))}
    found["resumed"] = {}
    for wanted in (True, str(own / "checkpoint-4")):  # it is damaged on the disk of one
        file = own / "checkpoint-4" / "optimizer.safetensors"
        if RANK == 1 and wanted is True:
            file.write_bytes(file.read_bytes()[:-1] + b"x")
        trainer, seen = build(own, rows_of(16), max_steps=4, **options)
        try:
            trainer.train(resume_from_checkpoint=wanted)
            found["resumed"]["newest"] = {"steps": len(seen), **end_of(trainer)}
            file.write_bytes(file.read_bytes()[:-1] + b"x") if RANK == 1 else None
        except CheckpointError as error:
            found["resumed"]["path"] = str(error)
    os.environ["LOCAL_RANK"] = str(RANK)
    return found


# Other numbers of processes.


def numbers(folder):
    """Go on with what a single process began, and stop for a single one to go on."""
    args = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 1, "logging_steps": 3}
    trainer, seen = build(folder / "1-2-1", rows_of(24), **args)
    trainer.on("on_step_end", lambda control: control.request("training_stop", "as planned"), once=4)
    trainer.train(resume_from_checkpoint=True)
    found = {"1-2-1": seen}
    trainer, seen = build(folder / "2-1", rows_of(24), **args)
    trainer.on("on_step_end", lambda control: control.request("training_stop", "as planned"), once=2)
    trainer.train()
    found["2-1"] = seen
    trainer, seen = build(folder / "stream", Stream(rows_of(24)), **{**args, "max_steps": 6})
    trainer.on("on_step_end", lambda control: control.request("training_stop", "as planned"), once=3)
    trainer.train(resume_from_checkpoint=True)
    return {**found, "stream": seen, "chains": chained(folder, 2, 0, 2)}


def main(folder):
    atexit.register(no_thread_of_gloo_is_left)  # The first to be registered is the last to run.
    found = {}
    for part in (waits, streams, gradients, roles, numbers):
        faulthandler.dump_traceback_later(45)  # what it waits for, before the other process gives up
        own = Path(folder) / part.__name__
        own.mkdir(exist_ok=True)
        found[part.__name__] = part(own)
    (Path(folder) / f"found-{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])

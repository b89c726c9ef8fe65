"""Train with wandb offline once for each line of the input, each time in a new process: `program FOLDER STEPS`.

The processes are forks of this one, so that each of many restarts does not import torch. It prints the id of each
process, the steps that it completes, and its exit status.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import torch
import wandb  # noqa: F401 - imported before the first fork
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Log, Trainer, TrainingArguments, Wandb, every


def train(folder, steps, mode="offline"):
    quiet = {"silent": True, "console": "off", "x_disable_stats": True, "x_save_requirements": False}
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    args = TrainingArguments(
        str(folder / "out"), max_steps=steps, save_steps=5, save_total_limit=2, use_cpu=True, disable_tqdm=True
    )
    options = {"dir": str(folder), "settings": {**quiet, "disable_git": True}}
    trainer = Trainer(
        nn.Linear(4, 2),
        args,
        train_dataset=TensorDataset(x, (x.sum(1) > 0).long()),
        criterion=nn.CrossEntropyLoss(),
        callbacks=[Log(every(1)), Wandb("demo", mode=mode, options=options)],
    )
    if mode == "offline":
        trainer.on("on_step_end", lambda state: print("done", state.global_step, flush=True))
        trainer.on("on_step_begin", lambda: time.sleep(0.005))
    trainer.train(resume_from_checkpoint="auto")
    trainer.end()


with tempfile.TemporaryDirectory() as unused:
    train(Path(unused), 5, "disabled")  # what a training imports is imported once
for _ in sys.stdin:
    child = os.fork()
    if child == 0:
        print("process", os.getpid(), flush=True)  # before its steps
        train(Path(sys.argv[1]), int(sys.argv[2]))
        break
    # A process that is killed while it prints leaves a line without an end.
    print("\nstatus", os.waitpid(child, 0)[1], flush=True)

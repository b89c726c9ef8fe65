"""Two ranks under a sweep, of which only rank 0 knows the parameters: `program FOLDER`. Each writes what it has."""

import json
import logging
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Evaluate, Log, Predictions, Trainer, TrainingArguments, Wandb, every
from trainbus.events.errors import ArgumentError

folder, rank = Path(sys.argv[1]), os.environ["RANK"]
if rank == "1":
    del os.environ["WANDB_SWEEP_PARAM_PATH"]  # the agent runs on the machine of rank 0
quiet = {"silent": True, "console": "off", "x_disable_stats": True, "x_save_requirements": False, "disable_git": True}
listed = []
handler = logging.Handler()
handler.emit = lambda record: listed.append(record.getMessage())
logging.getLogger("trainbus").addHandler(handler)
x = torch.randn(22, 4, generator=torch.Generator().manual_seed(0))
rows = TensorDataset(x, (x.sum(1) > 0).long())


def build():
    torch.manual_seed(0)
    callbacks = [Log(every(1)), Evaluate(every(2))]
    options = {"dir": str(folder), "settings": quiet}
    callbacks.append(Wandb("demo", mode="offline", options=options, tables=Predictions(rows=9), watch="all"))
    args = TrainingArguments(
        str(folder / "out"), max_steps=9, save_strategy="no", use_cpu=True, disable_tqdm=True,
        per_device_eval_batch_size=4,
    )  # fmt: skip
    return Trainer(
        nn.Linear(4, 2), args, train_dataset=rows, eval_dataset=rows, criterion=nn.CrossEntropyLoss(),
        callbacks=callbacks,
    )  # fmt: skip


trainer = build()
trainer.train()
seen = {"rate": trainer.args.learning_rate, "steps": trainer.state.global_step, "tracked": trainer.wandb is not None}
if rank == "0":
    Path(os.environ["WANDB_SWEEP_PARAM_PATH"]).write_text("wandb_version: 1\nmax_steps:\n  value: soon\n")
try:
    build()
except ArgumentError as error:
    seen["refused"] = str(error)
seen["listed"] = [line for line in listed if "overrides" in line]
(folder / f"rank-{rank}.json").write_text(json.dumps(seen))
trainer.callbacks["Wandb"].finish()  # `trainer.end()` would leave the process group

# The same two ranks as two machines, with a run that both write.
os.environ.pop("WANDB_SWEEP_PARAM_PATH", None)
os.environ["LOCAL_RANK"] = "0"
online = {"base_url": os.environ["STUB"], "x_file_stream_transmit_interval": 0.1, "x_disable_stats": False}
shared = Wandb(
    "p", shared=True, init_timeout=30.0, finish_timeout=10.0,
    options={"dir": str(folder / f"node-{rank}"), "settings": {**quiet, **online, "x_stats_sampling_interval": 0.1}},
)  # fmt: skip
Path(folder / f"node-{rank}").mkdir()
args = TrainingArguments(str(folder / "shared"), max_steps=4, save_strategy="no", use_cpu=True, disable_tqdm=True)
trainer = Trainer(
    nn.Linear(4, 2), args, train_dataset=rows, criterion=nn.CrossEntropyLoss(), callbacks=[Log(every(1)), shared]
)
trainer.on("on_step_end", lambda: time.sleep(0.1))
trainer.train()
trainer.end()

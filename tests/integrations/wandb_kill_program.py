"""Train with wandb offline until a random kill, and resume: `program FOLDER`. It prints its pid's progress."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Log, Trainer, TrainingArguments, Wandb, every

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
quiet = {"silent": True, "console": "off", "x_disable_stats": True, "x_save_requirements": False, "disable_git": True}
torch.manual_seed(0)
x = torch.randn(64, 4)
args = TrainingArguments(
    str(folder / "out"), max_steps=steps, save_steps=5, save_total_limit=2, use_cpu=True, disable_tqdm=True
)
trainer = Trainer(
    nn.Linear(4, 2),
    args,
    train_dataset=TensorDataset(x, (x.sum(1) > 0).long()),
    criterion=nn.CrossEntropyLoss(),
    callbacks=[Log(every(1)), Wandb("demo", mode="offline", options={"dir": str(folder), "settings": quiet})],
)
trainer.on("on_step_end", lambda state: print(state.global_step, flush=True))
trainer.on("on_step_begin", lambda: __import__("time").sleep(0.01))
trainer.train(resume_from_checkpoint="auto")
trainer.end()

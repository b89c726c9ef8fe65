"""A training under `wandb agent`, on each rank of torchrun: `program FOLDER`. Each rank writes its arguments."""

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Log, Trainer, TrainingArguments, Wandb, every

folder, rank = Path(sys.argv[1]), os.environ["RANK"]
x = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
args = TrainingArguments(str(folder / "out"), max_steps=9, save_strategy="no", use_cpu=True, disable_tqdm=True)
trainer = Trainer(
    nn.Linear(4, 2),
    args,
    train_dataset=TensorDataset(x, (x.sum(1) > 0).long()),
    criterion=nn.CrossEntropyLoss(),
    callbacks=[Log(every(1)), Wandb(options={"dir": str(folder)})],
)
trainer.train()
trainer.end()
seen = {"rate": trainer.args.learning_rate, "steps": trainer.state.global_step, "run": os.environ["WANDB_RUN_ID"]}
(folder / f"rank-{rank}.json").write_text(json.dumps(seen))

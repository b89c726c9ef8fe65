"""Train with rows in files until a kill, and resume: `program FOLDER STEPS`."""

import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Csv, JsonLines, Log, Trainer, TrainingArguments, every

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
x = torch.randn(64, 4)
trainer = Trainer(
    nn.Linear(4, 2),
    TrainingArguments(str(folder), max_steps=steps, save_steps=10, use_cpu=True, disable_tqdm=True),
    train_dataset=TensorDataset(x, (x.sum(1) > 0).long()),
    criterion=nn.CrossEntropyLoss(),
    callbacks=[Log(every(1)), JsonLines(), Csv()],
)
trainer.on("on_step_begin", lambda: time.sleep(0.005))
trainer.on("on_step_end", lambda state: print(state.global_step, flush=True))
trainer.train(resume_from_checkpoint="auto")
trainer.end()

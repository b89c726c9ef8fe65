"""Trainings on two ranks. torchrun starts them, and each saves its results."""

import atexit
import os
import sys
from pathlib import Path

import averaging_cases
import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Trainer, TrainingArguments


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.1), nn.LayerNorm(32), nn.Linear(32, 3))

    def forward(self, x):
        return self.body(x)


def train(output, mode, accumulate, stop_at, resume):
    """Train 8 steps, or up to `stop_at` of them, and save what came of it."""
    torch.manual_seed(0)
    x = torch.randn(101, 6)
    y = (x.sum(1) > 0).long() + (x[:, 0] > 1).long()
    model = Net()
    args = TrainingArguments(
        output,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=accumulate,
        max_steps=8,
        learning_rate=1e-2,
        max_grad_norm=0.5,
        weight_decay=0.01,
        save_steps=4,
        logging_steps=2,
        eval_strategy="steps",
        eval_steps=4,
        sharded_ddp=mode,
        ddp_timeout=60,
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model,
        args,
        train_dataset=TensorDataset(x, y),
        eval_dataset=TensorDataset(x[:33], y[:33]),
        criterion=nn.CrossEntropyLoss(),
        compute_metrics=lambda prediction: {"labels": prediction.label_ids.tolist()},
    )
    trainer.on("on_step_end", lambda control: control.request("training_stop", "as planned"), once=stop_at)
    trainer.train(resume_from_checkpoint=resume)
    if trainer.is_world_process_zero():
        history = trainer.state.log_history
        end = {
            "weights": model.state_dict(),
            "losses": [entry["loss"] for entry in history if "loss" in entry],
            "norms": [entry["grad_norm"] for entry in history if "loss" in entry],
            "labels": [entry["eval_labels"] for entry in history if "eval_labels" in entry][-1],
            "expected": y[:33].tolist(),
        }
        torch.save(end, f"{output}/end.pt")
    return trainer


def no_thread_of_gloo_is_left():
    """Fail the process if a group outlives it: the interpreter then ends under the group's threads, and may abort."""
    threads = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    if any("gloo" in name for name in threads):
        print(f"threads at exit: {threads}", file=sys.stderr, flush=True)
        os._exit(7)


def main():
    """Make the runs named on the command line, `folder:mode:accumulate:stop_at:resume`, one after the other.

    One without colons is a folder, in which the cases of averaging are tried.
    """
    atexit.register(no_thread_of_gloo_is_left)  # The first to be registered is the last to run.
    for run in sys.argv[1:]:
        if ":" not in run:
            averaging_cases.main(run)
            continue
        output, mode, accumulate, stop_at, resume = run.split(":")
        trainer = train(output, mode, int(accumulate), int(stop_at), bool(resume))
    if not resume:
        trainer.end()  # The resumed runs leave it to the exit.


if __name__ == "__main__":
    main()

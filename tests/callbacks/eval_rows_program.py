"""Evaluations on a slice on two ranks. Each rank prints what the metrics saw and what was logged."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from support.trainers import regression_trainer
from trainbus import Evaluate, every


def main(folder: str) -> None:
    import torch

    from support.data import points

    seen = []

    def metrics(prediction):
        seen.append(prediction.label_ids.tolist())
        return {}

    torch.manual_seed(0)
    trainer = regression_trainer(
        folder,
        eval_dataset=points(40, seed=1),
        compute_metrics=metrics,
        callbacks=[Evaluate(every(2), rows=13)],
        args={"max_steps": 4, "per_device_eval_batch_size": 2, "use_cpu": True, "ddp_timeout": 60},
    )
    trainer.train()
    logs = [log for log in trainer.state.log_history if "eval_loss" in log]
    losses = [{key: log[key] for key in log if key.startswith("eval_loss")} for log in logs]
    end = Path(folder) / f"end-{os.environ['RANK']}.json"
    end.write_text(json.dumps({"seen": seen, "losses": losses}))


main(sys.argv[1])

"""Evaluations on two ranks with results of different widths. Each rank prints the inputs of the metrics."""

import json
import os
import sys

import torch
from torch import nn

from support.metrics import measured
from trainbus import Trainer, TrainingArguments


class Widths(nn.Module):
    """Gives as many columns as the longest of its rows."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x, labels=None):
        width = int(labels.max())
        return {"loss": (x * self.scale).mean(), "logits": x[:, None].expand(-1, width) * self.scale}


class Named(Widths):
    """Gives an object that is not a tensor beside them."""

    def forward(self, x, labels=None):
        outputs = super().forward(x, labels)
        return {"loss": outputs["loss"], "logits": {"columns": outputs["logits"], "rows": [x]}}


def main(folder):
    rows = [{"x": torch.tensor(float(row)), "labels": torch.tensor(1 + row % 5)} for row in range(11)]
    ends = {}
    for name, model, as_objects in (("tensors", Widths, False), ("objects", Named, True)):
        seen = []

        def metrics(prediction, compute_result=True, seen=seen):
            columns, labels = prediction.predictions, prediction.label_ids
            columns = columns["columns"] if isinstance(columns, dict) else columns
            first = columns[:, 0].tolist()
            seen.append([first, labels.tolist(), list(columns.shape)])
            return {}

        for by_batch in (False, True):
            args = TrainingArguments(
                folder,
                use_cpu=True,
                per_device_eval_batch_size=2,
                eval_use_gather_object=as_objects,
                batch_eval_metrics=by_batch,
                ddp_timeout=60,
                disable_tqdm=True,
            )
            trainer = Trainer(model(), args, eval_dataset=rows, compute_metrics=metrics)
            loss = trainer.evaluate()["eval_loss"]
            ends[f"{name}-{by_batch}"] = {"seen": seen[:], "loss": loss}
            seen.clear()
    ends["metrics"] = measured(folder)
    with open(f"{folder}/end-{os.environ['RANK']}.json", "w", encoding="utf-8") as file:
        json.dump(ends, file)
    trainer.end()


if __name__ == "__main__":
    main(sys.argv[1])

"""Evaluations on two ranks with results of different widths. Each rank prints the inputs of the metrics."""

import json
import os
import sys
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Sampler

from support.metrics import measured
from trainbus import Trainer, TrainingArguments
from trainbus.engine.evaluation.results import BatchResult, Results


class Numbers(list, Sampler):
    """Yields some rows."""


class Widths(nn.Module):
    """Gives as many columns as the longest of its rows."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x, labels=None):
        width = int(labels.max())
        return {"loss": (x * self.scale).mean(), "logits": x[:, None].expand(-1, width) * self.scale}


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Named(Widths):
    """Gives an object that is not a tensor beside them."""

    def forward(self, x, labels=None):
        outputs = super().forward(x, labels)
        return {"loss": outputs["loss"], "logits": {"columns": outputs["logits"], "rows": [x]}}


def random_results(rank, batches):
    """Return the results of some batches of a rank: ragged, nested, and with another number of rows in each batch."""
    draw = torch.Generator().manual_seed(rank)
    found = []
    for _ in range(batches):
        rows, width = torch.randint(1, 5, (2,), generator=draw).tolist()
        nested = {"wide": torch.randn(rows, width, 2, generator=draw), "flat": [torch.randn(rows, generator=draw)]}
        nested["pair"] = Pair(torch.randn(rows, generator=draw), torch.randn(rows, 2, generator=draw))
        tokens = torch.randn(rows * 3, generator=draw)  # several entries per row
        found.append(BatchResult(rows, torch.rand((), generator=draw), (nested, tokens), torch.arange(rows), None))
    return found


def gathered(together, batches, ranks, to_host_every=None, labels_from=0):
    """Return all values that the results give, and the number of collectives."""
    calls = []
    original = dist.all_gather
    dist.all_gather = lambda *given, **options: calls.append(1) or original(*given, **options)
    try:
        results = Results(concat=True, dataset_size=None, include_losses=True, as_objects=False, together=together)
        for number, result in enumerate(random_results(ranks.rank, batches)):
            results.add(result._replace(labels=result.labels if number >= labels_from else None), ranks)
            if to_host_every and number % to_host_every == 0:
                results.finish(ranks)
                results.to_host()
        results.finish(ranks)
        losses = results.row_losses()
        prediction = results.prediction(None, losses)
    finally:
        dist.all_gather = original
    (nested, tokens), labels = prediction.predictions, prediction.label_ids
    arrays = [losses, nested["wide"], nested["flat"][0], *nested["pair"], tokens, labels, prediction.losses]
    return [array.tolist() for array in arrays], results.rows, len(calls)


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
    for name, sampler in (("complete", None), ("shared", DistributedSampler)):
        seen = []

        class OwnLoader(Trainer):
            def get_eval_dataloader(self, eval_dataset=None, sampler=sampler):
                return DataLoader(rows, 2, sampler=sampler and sampler(rows, shuffle=False))

        args = TrainingArguments(folder, use_cpu=True, ddp_timeout=60, disable_tqdm=True)
        given = {"compute_metrics": lambda found, seen=seen: seen.extend(found.label_ids.tolist()) or {}}
        loss = OwnLoader(Widths(), args, eval_dataset=rows, **given).evaluate()["eval_loss"]
        ends[name] = {"labels": sorted(seen), "loss": loss}
    for name, size in (("fewer", 5), ("more", 24)):
        seen = []

        class OwnSampler(Trainer):
            def _get_eval_sampler(self, eval_dataset, size=size):
                return Numbers([row % len(rows) for row in range(size)])

        args = TrainingArguments(folder, use_cpu=True, per_device_eval_batch_size=2, ddp_timeout=60, disable_tqdm=True)
        given = {"compute_metrics": lambda found, seen=seen: seen.extend(found.label_ids.tolist()) or {}}
        OwnSampler(Widths(), args, eval_dataset=rows, **given).evaluate()
        ends[name] = {"labels": seen}
    cases = {"one": {"batches": 1}, "many": {"batches": 21}, "to host": {"batches": 21, "to_host_every": 5}}
    cases["late labels"] = {"batches": 21, "labels_from": 3}
    ranks = trainer.run.ranks
    ends["together"] = {
        name: [gathered(way, ranks=ranks, **case) for way in (False, True)] for name, case in cases.items()
    }
    with open(f"{folder}/end-{os.environ['RANK']}.json", "w", encoding="utf-8") as file:
        json.dump(ends, file)
    trainer.end()


if __name__ == "__main__":
    main(sys.argv[1])

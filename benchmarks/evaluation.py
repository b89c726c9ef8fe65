"""Measure the time of an evaluation by a plain torch loop, by trainbus, and by other libraries that do the same work.

    python benchmarks/evaluation.py
    python benchmarks/evaluation.py --rounds 9 --limit 2

The models are a perceptron and a small BERT. All contenders evaluate the same rows with the same weights: load and
collate a batch, forward without gradients, and keep the loss of each row. With metrics, they also keep logits and
labels, and compute the accuracy. They must return the same loss. Lightning, ignite and Composer average in another
order, so the last bits of their loss may differ.

The contenders alternate. The time is the CPU time of the process per batch, so other processes change it little.
`--limit` fails if the median ratio of trainbus to the plain loop is above it.
"""

from __future__ import annotations

import gc
import importlib
import math
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from common import COMPOSER, HF, IGNITE, LIGHTNING, OURS, RAW, Benchmark, hushed, interleave, keep_freed_memory
from contenders import Perceptron, bert, composer_module, lightning_module, points, sentences
from places import Places
from torch import nn
from torch.utils.data import DataLoader

BATCH = 32
MODELS = {"a perceptron": (Perceptron, points, 400), "a small BERT": (bert, sentences, 30)}
"""Name -> the model, its data, and the number of batches."""

Evaluation = Callable[[], float]
"""Evaluates once and returns the loss."""


def accuracy(prediction: Any) -> dict[str, float]:
    """Return the share of rows whose greatest logit is at the label."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def raw(model: nn.Module, rows: Any, with_metrics: bool, folder: str) -> Evaluation:
    """Return a plain loop."""

    def evaluate() -> float:
        model.eval()
        losses, logits, labels = [], [], []
        with torch.no_grad():
            for batch in DataLoader(rows, BATCH):
                outputs = model(**batch)
                losses.append(outputs["loss"].repeat(len(batch["labels"])))
                if with_metrics:
                    logits.append(outputs["logits"])
                    labels.append(batch["labels"])
        if with_metrics:
            found, wanted = torch.cat(logits).numpy(), torch.cat(labels).numpy()
            float((found.argmax(-1) == wanted).mean())
        return float(torch.cat(losses).numpy().mean())

    return evaluate


def hf_style(name: str, model: nn.Module, rows: Any, with_metrics: bool, folder: str) -> Evaluation:
    """Return the `evaluate` of a Trainer. trainbus and transformers get the same arguments."""
    library: Any = importlib.import_module(name)
    args = library.TrainingArguments(
        folder, per_device_eval_batch_size=BATCH, use_cpu=True, disable_tqdm=True, report_to="none"
    )
    metrics = accuracy if with_metrics else None
    built = library.Trainer(model, args, eval_dataset=rows, compute_metrics=metrics)
    return lambda: float(built.evaluate()["eval_loss"])


def lightning(model: nn.Module, rows: Any, with_metrics: bool, folder: str) -> Evaluation:
    """Return `Trainer.validate`, with a metric of torchmetrics."""
    import lightning as package
    import torchmetrics

    class Evaluated(type(lightning_module(model))):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            if with_metrics:
                self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=2)

        def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
            outputs = self.model(**batch)
            self.log("loss", outputs["loss"], on_epoch=True, batch_size=len(batch["labels"]))
            if with_metrics:
                self.accuracy(outputs["logits"], batch["labels"])
                self.log("accuracy", self.accuracy, on_epoch=True)

    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = package.Trainer(accelerator="cpu", devices=1, default_root_dir=folder, **dict.fromkeys(off, False))
    module = Evaluated()
    return lambda: float(trainer.validate(module, DataLoader(rows, BATCH), verbose=False)[0]["loss"])


def ignite(model: nn.Module, rows: Any, with_metrics: bool, folder: str) -> Evaluation:
    """Return an Engine with metrics of ignite."""
    from ignite.engine import Engine
    from ignite.metrics import Accuracy, Average

    def step(engine: Any, batch: dict[str, torch.Tensor]) -> Any:
        with torch.no_grad():
            return model(**batch), batch["labels"]

    engine = Engine(step)
    Average(lambda output: output[0]["loss"]).attach(engine, "loss")  # all batches have the same size
    if with_metrics:
        Accuracy(lambda output: (output[0]["logits"], output[1])).attach(engine, "accuracy")

    def evaluate() -> float:
        model.eval()
        return float(engine.run(DataLoader(rows, BATCH)).metrics["loss"])

    return evaluate


def composer(model: nn.Module, rows: Any, with_metrics: bool, folder: str) -> Evaluation:
    """Return `Trainer.eval`, with metrics of torchmetrics."""
    from composer import Trainer

    module = composer_module(model, with_metrics)
    trainer = Trainer(
        model=module, eval_dataloader=DataLoader(rows, BATCH), device="cpu", progress_bar=False, log_to_console=False
    )

    def evaluate() -> float:
        trainer.eval()
        return float(trainer.state.eval_metrics["eval"]["loss"].compute())

    return evaluate


MAKERS: dict[str, Callable[[nn.Module, Any, bool, str], Evaluation]] = {
    RAW: raw,
    OURS: partial(hf_style, "trainbus"),
    HF: partial(hf_style, "transformers"),
    LIGHTNING: lightning,
    IGNITE: ignite,
    COMPOSER: composer,
}


@cache
def prepared(name: str, kind: str, batches: int, with_metrics: bool, folder: str) -> Evaluation:
    """Return the evaluation of a contender. All contenders load their weights from the same file."""
    keep_freed_memory()
    make, data, _ = MODELS[kind]
    model = make()
    model.load_state_dict(torch.load(Path(folder) / f"{kind}.pt", weights_only=True))
    with hushed():
        return MAKERS[name](model, data(BATCH * batches), with_metrics, folder)


def loss_of(name: str, *task: Any) -> float:
    """Evaluate once and return the loss. `task` has the other arguments of `prepared`."""
    evaluate = prepared(name, *task)
    with hushed():
        return evaluate()


def seconds_of(name: str, *task: Any) -> float:
    """Return the CPU time of one evaluation, divided by its batches. `task` has the other arguments of `prepared`."""
    evaluate = prepared(name, *task)
    gc.collect()
    with hushed():
        began = time.process_time()
        evaluate()
        return (time.process_time() - began) / task[1]


def main() -> int:
    """Measure each model, without and with metrics."""
    benchmark = Benchmark(__doc__, rounds=15)
    benchmark.option("--limit", type=float, help="the greatest median ratio of trainbus to the plain loop")
    options = benchmark.begin()
    with Places(benchmark) as places, tempfile.TemporaryDirectory() as folder:
        for kind, (make, _, batches) in MODELS.items():
            batches = batches // 5 if options.quick else batches
            torch.save(make().state_dict(), Path(folder) / f"{kind}.pt")
            for with_metrics in (False, True):
                task = (kind, batches, with_metrics, folder)
                losses = {name: places.bind(loss_of, name, *task)() for name in places.names}  # also warms up
                equal = {losses[name] for name in (RAW, OURS, HF) if name in losses}
                close = all(math.isclose(loss, losses[RAW], rel_tol=1e-5) for loss in losses.values())
                assert len(equal) == 1, f"the contenders differ: {losses}"
                assert close, f"the contenders differ: {losses}"
                title = f"evaluation of {kind}, {'metrics' if with_metrics else 'loss'}"
                timed = {name: places.bind(seconds_of, name, *task) for name in places.names}
                benchmark.add(title, "s", interleave(timed, options.rounds, warm_ups=0))
                benchmark.limit(benchmark.result.ratio(title, OURS), options.limit, f"{title}, times a plain loop")
    return benchmark.finish()


if __name__ == "__main__":
    sys.exit(main())

"""The same run in both trainers: equal weights, logs, losses and predictions, in every bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_toys import Fresh, bert, both, history, last_window, same_weights, sentences, timeless, weights
from torch import nn
from torch.utils.data import IterableDataset

BASE = {"num_train_epochs": 2, "logging_steps": 5, "learning_rate": 1e-3, "save_strategy": "no"}


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": (prediction.predictions.argmax(-1) == prediction.label_ids).mean()}


# Other models than BERT.


class Plain(nn.Module):
    """A classifier of plain torch: no config, no `save_pretrained`, dropout inside."""

    def __init__(self, returns: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.returns = returns
        self.embedding = nn.Embedding(50, 8)
        self.norm = nn.LayerNorm(8)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(8, 2)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        hidden = self.dropout(self.norm(self.embedding(input_ids))).mean(1)
        logits = self.head(hidden)
        if labels is None:
            return {"logits": logits} if self.returns == "dict" else (logits,)
        loss = nn.functional.cross_entropy(logits, labels)
        if self.returns == "three":
            return loss, logits, hidden
        return {"loss": loss, "logits": logits} if self.returns == "dict" else (loss, logits)


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0)
    )


def llama() -> nn.Module:
    """Unlike GPT-2 one that says of itself that its loss shifts the labels, so that the first one is not counted."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            **{"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1},
            **{"num_attention_heads": 2, "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 0},
        )
    )


def texts(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of different lengths, of the long ones the first labels being ignored."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(rows):
        length = int(torch.randint(3, 12, (1,), generator=generator))
        ids = torch.randint(1, 40, (length,), generator=generator).tolist()
        made.append({"input_ids": ids, "labels": [-100] * (length // 4) + ids[length // 4 :]})
    return made


def padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Collate rows of different lengths, padding the labels with -100."""
    width = max(len(row["input_ids"]) for row in rows)

    def fill(values: list[int], by: int) -> list[int]:
        return values + [by] * (width - len(values))

    return {
        "input_ids": torch.tensor([fill(row["input_ids"], 0) for row in rows]),
        "attention_mask": torch.tensor([fill([1] * len(row["input_ids"]), 0) for row in rows]),
        "labels": torch.tensor([fill(row["labels"], -100) for row in rows]),
    }


def masked(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Collate, and hide a fifth of the words, others each time."""
    batch = {key: torch.tensor([row[key] for row in rows]) for key in rows[0]}
    return {**batch, "input_ids": batch["input_ids"] * (torch.rand(batch["input_ids"].shape) > 0.2)}


GPT2 = {"model": gpt2, "train_dataset": texts(22), "eval_dataset": texts(9, 1), "data_collator": padded}


def summed_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    loss = nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum")
    return loss / (num_items_in_batch if num_items_in_batch is not None else len(labels))


def optimizer_of_ones_own(model: nn.Module) -> tuple[torch.optim.Optimizer, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)


class Stream(IterableDataset):
    """Rows that can only be read from the first to the last, and whose number nobody knows."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


class GivenOptimizers:
    """A model, and the optimizers of that very model: both trainers get a pair of their own."""

    def __init__(self) -> None:
        self.made: list[nn.Module] = []

    def model(self) -> nn.Module:
        return self.made[-1]

    def optimizers(self) -> Any:
        self.made.append(bert())
        return optimizer_of_ones_own(self.made[-1])


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "defaults": ({}, {}),
    "a rest to log": ({"logging_steps": 3}, {}),
    "dropout off": ({}, {"model": lambda: bert(0.0)}),
    "evaluating each epoch": ({"eval_strategy": "epoch"}, {"compute_metrics": accuracy}),
    "the best at the end": (
        {
            **{"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2},
            **{"load_best_model_at_end": True, "metric_for_best_model": "accuracy", "logging_steps": 2},
        },
        {"compute_metrics": accuracy},
    ),
    "accumulation with a ragged end": ({"gradient_accumulation_steps": 3, "logging_steps": 2}, {}),
    "weight decay, cosine and warm-up": (
        {
            **{"gradient_accumulation_steps": 4, "weight_decay": 0.1, "lr_scheduler_type": "cosine"},
            **{"warmup_steps": 3, "logging_steps": 1},
        },
        {},
    ),
    "sgd, clipped hard": ({"optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.01}, {}),
    "adafactor": ({"optim": "adafactor"}, {}),
    "bf16": ({"bf16": True, "eval_strategy": "epoch"}, {"compute_metrics": accuracy}),
    "steps instead of epochs": ({"max_steps": 7, "logging_steps": 1}, {}),
    "a fraction of an epoch, and seeds": ({"num_train_epochs": 1.5, "data_seed": 7, "seed": 3, "logging_steps": 4}, {}),
    "no clipping, last batch dropped": ({"max_grad_norm": 0.0, "dataloader_drop_last": True, "logging_steps": 4}, {}),
    "label smoothing": (
        {"label_smoothing_factor": 0.1, "gradient_accumulation_steps": 3, "eval_strategy": "epoch", "logging_steps": 2},
        {"compute_metrics": accuracy},
    ),
    "gradient checkpointing": ({"gradient_checkpointing": True}, {}),
    "two workers": ({"dataloader_num_workers": 2, "num_train_epochs": 1}, {}),
    "intervals as shares": (
        {"logging_steps": 0.1, "eval_strategy": "steps", "eval_steps": 0.25, "eval_on_start": True},
        {},
    ),
    "a plateau": ({"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"}, {}),
    "a plain model that returns a dict": ({"eval_strategy": "epoch"}, {"model": lambda: Plain("dict")}),
    "a plain model that returns a tuple": (
        {"eval_strategy": "epoch", "gradient_accumulation_steps": 2, "logging_steps": 3},
        {"model": lambda: Plain("tuple"), "compute_metrics": accuracy},
    ),
    "gpt2": ({"eval_strategy": "epoch", "logging_steps": 3}, GPT2),
    "gpt2, tokens counted over a step": (
        {"gradient_accumulation_steps": 3, "logging_steps": 1, "eval_strategy": "epoch"},
        GPT2,
    ),
    "gpt2, label smoothing and bf16": (
        {"gradient_accumulation_steps": 2, "logging_steps": 2, "label_smoothing_factor": 0.2, "bf16": True},
        GPT2,
    ),
    "llama, tokens counted over a step": (
        {"gradient_accumulation_steps": 3, "logging_steps": 1, "eval_strategy": "epoch"},
        {**GPT2, "model": llama},
    ),
    "a stream of rows, several times over": (
        {"max_steps": 7, "logging_steps": 7, "gradient_accumulation_steps": 2, "eval_strategy": "epoch"},
        {"train_dataset": Stream(sentences(32)), "eval_dataset": Stream(sentences(13, 1)), "compute_metrics": accuracy},
    ),
    "a collator that draws at random": ({}, {"data_collator": masked}),
    "a schedule that follows a metric closely": (
        {
            **{"lr_scheduler_type": "greedy", "lr_scheduler_kwargs": {"patience": 0}},
            **{"eval_strategy": "steps", "eval_steps": 2, "dataloader_drop_last": True, "logging_steps": 4},
        },
        {},
    ),
    "evaluated before it is trained": ({}, {"do": lambda trainer: [trainer.evaluate(), trainer.train()][-1]}),
    "a loss of one's own": (
        {"gradient_accumulation_steps": 3, "logging_steps": 2, "eval_strategy": "epoch"},
        {"compute_loss_func": summed_loss},
    ),
    "an optimizer class of one's own": ({}, {"optimizer_cls_and_kwargs": (torch.optim.RMSprop, {"lr": 1e-3})}),
    "a model_init": ({"seed": 5}, {"model_init": lambda: bert()}),
}


def assert_equal_runs(theirs: tuple[Any, Any], ours: tuple[Any, Any]) -> None:
    """Weights, training loss and logs are equal; our log may have one more entry, of the steps since the last one."""
    (their_trainer, their_output), (our_trainer, our_output) = theirs, ours
    assert same_weights(weights(their_trainer.model), weights(our_trainer.model))
    assert our_trainer.state.global_step == their_trainer.state.global_step > 0
    assert our_output.training_loss == their_output.training_loss
    # Their printer takes `total_flos` out of the result, where it prints; the number itself is in the log.
    assert {"total_flos": our_trainer.state.total_flos, **timeless(their_output.metrics)} == timeless(
        our_output.metrics
    )
    mine, other = history(our_trainer), history(their_trainer)
    rest = our_trainer.state.max_steps % our_trainer.state.logging_steps != 0
    if rest:
        extra = last_window(our_trainer)
        assert extra is not None
        mine.remove(extra)
    assert mine == other


@pytest.mark.parametrize(("args", "options"), CASES.values(), ids=CASES)
def test_a_training_is_equal_in_every_bit(args: dict[str, Any], options: dict[str, Any], tmp_path: Path):
    options = {"train_dataset": sentences(37), "eval_dataset": sentences(13, 1), **options}
    assert_equal_runs(*both(tmp_path, {**BASE, **args}, **options))


def test_an_optimizer_and_a_schedule_of_ones_own(tmp_path: Path):
    given = GivenOptimizers()
    theirs, ours = both(
        *(tmp_path, BASE),
        optimizers=Fresh(given.optimizers),
        model=given.model,
        train_dataset=sentences(37),
    )
    assert_equal_runs(theirs, ours)
    assert len({id(model) for model in given.made}) == 2


def test_the_rest_that_is_logged_is_the_mean_of_the_steps_since_the_last_log(tmp_path: Path):
    data = {"train_dataset": sentences(37)}
    _, (coarse, _) = both(tmp_path / "coarse", {**BASE, "logging_steps": 4}, **data)
    _, (fine, _) = both(tmp_path / "fine", {**BASE, "logging_steps": 1}, **data)
    steps = {entry["step"]: entry for entry in history(fine) if "loss" in entry}
    extra = last_window(coarse)
    assert extra is not None
    assert extra["loss"] == pytest.approx((steps[9]["loss"] + steps[10]["loss"]) / 2, rel=1e-6)
    assert {key: extra[key] for key in extra if key != "loss"} == {
        key: steps[10][key] for key in steps[10] if key != "loss"
    }


# Evaluating and predicting.


def test_evaluate_returns_equal_metrics(tmp_path: Path):
    for model, options in ((bert, {"eval_dataset": sentences(13, 1)}), (gpt2, GPT2)):
        (_, theirs), (_, ours) = both(
            *(tmp_path, {"per_device_eval_batch_size": 4}),
            do=lambda trainer: trainer.evaluate(),
            **{"compute_metrics": rank_of_labels, **options, "model": model},
        )
        assert timeless(ours) == timeless(theirs)
        assert ours.keys() == {"eval_loss", "eval_rank", "epoch", *(key for key in ours if key not in timeless(ours))}


def rank_of_labels(prediction: Any) -> dict[str, float]:
    """A metric that depends on every prediction and label, padding included."""
    return {"rank": float(prediction.predictions.sum()) + float(prediction.label_ids.sum())}


PREDICTIONS: dict[str, tuple[dict[str, Any], dict[str, Any], list[Any]]] = {
    "with labels": ({}, {"compute_metrics": accuracy}, sentences(13, 1)),
    "without labels": ({}, {}, [{key: row[key] for key in row if key != "labels"} for row in sentences(13, 1)]),
    "padded to different widths": ({}, GPT2, texts(13, 2)),
    "moved to the host on the way": ({"eval_accumulation_steps": 2}, {}, sentences(13, 1)),
    "batch by batch": ({"eval_do_concat_batches": False}, {}, sentences(13, 1)),
    "loss only": ({"prediction_loss_only": True}, {}, sentences(13, 1)),
    "preprocessed": ({}, {"preprocess_logits_for_metrics": lambda logits, labels: logits.argmax(-1)}, sentences(9, 1)),
    "in half precision": ({"bf16": True}, {}, sentences(13, 1)),
    "a tuple of logits": ({}, {"model": lambda: Plain("three")}, sentences(9, 1)),
    "a loss of one's own": ({}, {"compute_loss_func": summed_loss}, sentences(9, 1)),
    "label smoothing": ({"label_smoothing_factor": 0.1}, {}, sentences(9, 1)),
}


@pytest.mark.parametrize(("args", "options", "rows"), PREDICTIONS.values(), ids=PREDICTIONS)
def test_predict_returns_equal_arrays(args: dict[str, Any], options: dict[str, Any], rows: list[Any], tmp_path: Path):
    args = {"per_device_eval_batch_size": 4, **args}
    (_, theirs), (_, ours) = both(tmp_path, args, do=lambda trainer: trainer.predict(rows), **options)
    assert timeless(ours.metrics) == timeless(theirs.metrics)
    assert_equal_arrays(ours.predictions, theirs.predictions)
    assert_equal_arrays(ours.label_ids, theirs.label_ids)


def assert_equal_arrays(mine: Any, other: Any) -> None:
    assert type(mine) is type(other)
    if isinstance(mine, (list, tuple)):
        assert len(mine) == len(other)
        for left, right in zip(mine, other):
            assert_equal_arrays(left, right)
    elif mine is not None:
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine, other)


def test_metrics_are_given_inputs_and_losses_where_they_are_asked_for(tmp_path: Path):
    seen: list[Any] = []

    def look(prediction: Any) -> dict[str, float]:
        seen.append(prediction)
        return {}

    both(
        *(tmp_path, {"include_for_metrics": ["inputs", "loss"], "per_device_eval_batch_size": 4}),
        do=lambda trainer: trainer.evaluate(),
        **{"compute_metrics": look, "eval_dataset": sentences(13, 1)},
    )
    theirs, ours = seen
    assert_equal_arrays(ours.inputs, theirs.inputs)
    assert_equal_arrays(ours.losses, theirs.losses)
    assert len(ours.losses) == len(ours.inputs) == 13


@pytest.mark.parametrize("names", [None, "hard", "dict"])
def test_several_datasets_have_equal_metrics(names: str | None, tmp_path: Path):
    data = {"easy": sentences(9, 1), "hard": sentences(5, 2)}
    wanted: Any = {"other": sentences(3, 5)} if names == "dict" else names

    def evaluate(trainer: Any) -> Any:
        if names == "hard":  # there, a name has the metrics of a single dataset
            return trainer.evaluate(data["hard"], metric_key_prefix="eval_hard")
        return trainer.evaluate(wanted)

    (_, theirs), (_, ours) = both(tmp_path, {}, do=evaluate, eval_dataset=data, compute_metrics=accuracy)
    assert timeless(ours) == timeless(theirs)


def test_trained_then_evaluated_then_predicted(tmp_path: Path):
    def all_three(trainer: Any) -> Any:
        trainer.train()
        return timeless(trainer.evaluate()), timeless(trainer.predict(sentences(5, 4)).metrics)

    (_, theirs), (_, ours) = both(
        *(tmp_path, {**BASE, "num_train_epochs": 1}),
        do=all_three,
        **{"train_dataset": sentences(16), "eval_dataset": sentences(13, 1), "compute_metrics": accuracy},
    )
    assert ours == theirs


def test_training_twice_goes_on_from_the_weights_alike(tmp_path: Path):
    theirs, ours = both(
        *(tmp_path, {**BASE, "num_train_epochs": 1}),
        do=lambda trainer: [trainer.train(), trainer.train()][-1],
        train_dataset=sentences(37),
    )
    assert_equal_runs(theirs, ours)


def overriding(library: Any) -> type[Any]:
    class Doubling(library.Trainer):
        """A loss and a step overridden in a subclass, as scripts written for transformers do."""

        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
            return (2 * loss, outputs) if return_outputs else 2 * loss

        def create_optimizer(self, *args: Any) -> Any:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
            return self.optimizer

    return Doubling


def test_methods_overridden_in_a_subclass_are_called_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import transformers

    import trainbus

    for library in (transformers, trainbus):
        monkeypatch.setattr(library, "Trainer", overriding(library), raising=False)
    theirs, ours = both(
        *(tmp_path, {**BASE, "gradient_accumulation_steps": 2, "logging_steps": 3, "eval_strategy": "epoch"}),
        **{"train_dataset": sentences(37), "eval_dataset": sentences(13, 1)},
    )
    assert type(ours[0]).__name__ == type(theirs[0]).__name__ == "Doubling"
    assert_equal_runs(theirs, ours)

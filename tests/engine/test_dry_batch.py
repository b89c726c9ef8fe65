"""The dry batch: it finds planted faults before the first step, and a training is the same with and without it."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import re
import runpy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from support.data import sentences, token_samples
from support.models import Block, Net, Remembering, Words
from support.outcomes import history, same_weights, weights
from support.trainers import both, net_trainer
from trainbus import (
    EMA,
    SWA,
    Callback,
    DryBatch,
    EarlyStopping,
    Evaluate,
    GradientCheckpointing,
    NEFTune,
    RecurrentMemory,
    Stage,
    Trainer,
    TrainingArguments,
    WatchModules,
    WatchNumbers,
    every,
)
from trainbus.engine.api.dry_batch.checks import padding_finding
from trainbus.engine.api.dry_batch.kept_state import KeptState, Unrestorable
from trainbus.engine.api.dry_batch.rows import padding_share
from trainbus.engine.checkpoint.rng_state import random_states
from trainbus.engine.commands.main import main
from trainbus.events import ArgumentError, DataError, NonFiniteError
from trainbus.testing.tiny import net_samples

SECONDS = re.compile(rb'last_seconds\\*": [^,}]*')
"""The clock time that callbacks with a trigger keep in checkpoints."""

CALLS: list[str] = []
"""A global that the model, the dataset and the loss below write to."""


class Stateful(nn.Module):
    """A model that changes everything that a forward can change."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.second = nn.utils.spectral_norm(nn.Linear(8, 8))
        self.third = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 4))
        self.head, self.key = nn.Linear(4, 1), nn.Linear(4, 1)
        self.key.requires_grad_(False)
        self.dropout, self.calls, self.seen = nn.Dropout(0.3), 0, torch.zeros(1)
        self.log: dict[str, list[float]] = {"mean": []}
        self.rng, self.numpy_rng = random.Random(0), np.random.default_rng(0)
        self.frozen = nn.BatchNorm1d(8).eval()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        self.seen += x.mean()
        type(self).made += 1
        CALLS.append("forward")
        self.last = x
        hidden = self.dropout(self.norm(self.first(x)))
        self.log["mean"].append(float(hidden.detach().mean()))
        hidden = self.third(torch.relu(self.second(self.frozen(hidden))))
        with torch.no_grad():  # a moving average, as in MoCo
            for slow, fast in zip(self.key.parameters(), self.head.parameters()):
                slow.mul_(0.9).add_(0.1 * fast)
        noise = self.rng.random() + self.numpy_rng.random() + random.random() + np.random.rand()
        logits = (self.head(hidden) + self.key(hidden)).squeeze(-1) + 0.01 * noise
        return {"loss": nn.functional.mse_loss(logits, labels) + 0 * self.calls, "logits": logits}


class RandomRows(Dataset):
    """Rows that depend on all random generators and on the number of rows read."""

    def __init__(self) -> None:
        self.rows, self.reads, self.order = net_samples(16), 0, []
        self.generator = torch.Generator().manual_seed(3)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.reads += 1
        self.order.append(index)
        CALLS.append("row")
        noise = torch.randn(6, generator=self.generator) + random.random() + np.random.rand() + torch.rand(6)
        return {"x": self.rows[index]["x"] + 0.01 * noise + 0.001 * self.reads, "labels": self.rows[index]["labels"]}


class Counting(Trainer):
    """A trainer with state in its overrides."""

    steps = 0

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        self.steps += 1
        return super().training_step(model, inputs, num_items_in_batch)

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **options: Any) -> Any:
        vars(self).setdefault("losses", []).append(self.state.global_step)
        loss = super().compute_loss(model, inputs, return_outputs, **options)
        self.log({"own": len(self.losses)})
        self.state.total_flos += 1
        return loss


def outcome(folder: Path, dry: Any, **options: Any) -> dict[str, Any]:
    """Train and return everything that the training left behind."""
    CALLS.clear()
    Stateful.made = 0
    hooked: list[int] = []
    model, rows = Stateful(), RandomRows()
    model.second.register_forward_hook(lambda *_: hooked.append(1))
    args = TrainingArguments(
        str(folder),
        **{
            "per_device_train_batch_size": 4,
            "max_steps": 4,
            "save_steps": 4,
            "logging_steps": 1,
            "learning_rate": 0.01,
        },
        **{"use_cpu": True, "disable_tqdm": True, "dry_batch": dry, **options},
    )
    trainer = Counting(model, args, train_dataset=rows)
    trainer.train()
    report = dry is True and trainer.callbacks["DryBatch"].report
    if dry is True:
        assert "forward and backward" in report.checks, report.skipped
        assert report.loss is not None
    saved = {
        path.name: hashlib.sha256(SECONDS.sub(b"", path.read_bytes()[8:]).rstrip()).hexdigest()
        for path in sorted((folder / "checkpoint-4").iterdir())
        if path.suffix == ".safetensors" or "rng" in path.name or "optimizer" in path.name
    }
    assert len(saved) > 2
    state = {name: value for name, value in vars(model).items() if not name.startswith("_")}
    return {
        "weights": weights(model),
        "modes": [module.training for module in model.modules()],
        "model": repr({**state, "rng": model.rng.getstate(), "numpy_rng": model.numpy_rng.bit_generator.state}),
        "rows": (rows.reads, rows.order, rows.generator.get_state().tolist()),
        "trainer": (trainer.steps, trainer.losses, trainer.state.total_flos),
        "globals": (list(CALLS), Stateful.made, len(hooked)),
        "history": history(trainer),
        "random": repr(random_states()),
        "ledger": [str(entry) for entry in trainer.control.ledger],
        "saved": saved,
    }


@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_accumulation_steps": 2, "bf16": True}, {"dataloader_num_workers": 1, "max_grad_norm": 0.1}],
    ids=["plain", "accumulated", "workers"],
)
def test_a_training_is_bit_equal_with_and_without_a_dry_batch(tmp_path: Path, options: dict[str, Any]) -> None:
    without, with_it = outcome(tmp_path / "a", False, **options), outcome(tmp_path / "b", True, **options)
    assert same_weights(without.pop("weights"), with_it.pop("weights"))
    for name, value in without.items():
        assert value == with_it[name], name


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: EMA(0.5), {}),
        (lambda: SWA(0.0, every(1)), {}),
        (lambda: WatchModules(every(2)), {}),
        (lambda: WatchNumbers(), {"bf16": True}),
        (lambda: NEFTune(), {"model_init": Words, "train_dataset": token_samples()}),
        (lambda: RecurrentMemory(), {"model_init": Remembering}),
    ],
    ids=["ema", "swa", "modules", "numbers", "neftune", "memory"],
)
def test_callbacks_of_the_model_see_no_dry_batch(
    tmp_path: Path, make: Callable[[], Any], options: dict[str, Any]
) -> None:
    saving = {"save_strategy": "steps", "save_steps": 1, "eval_dataset": None, **options}
    net_trainer(tmp_path, make(), **saving, max_steps=2, dry_batch=False).train()  # ends in the middle of an epoch
    ends = []
    for dry in (False, True):
        trained = net_trainer(tmp_path / str(dry), make(), **saving, max_steps=4, dry_batch=dry)
        trained.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        ends.append((weights(trained.model), history(trained)))
    assert trained.callbacks["DryBatch"].report.loss is not None
    assert same_weights(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]


def test_a_resumed_training_is_bit_equal(tmp_path: Path) -> None:
    net_trainer(tmp_path / "b", save_steps=3, save_strategy="steps", max_steps=3, lr_scheduler_type="linear").train()
    resumed = net_trainer(tmp_path / "b", save_steps=3, save_strategy="steps", dry_batch=True)
    plain = net_trainer(tmp_path / "c", save_steps=3, save_strategy="steps", dry_batch=False)
    checkpoint = tmp_path / "b" / "checkpoint-3"
    resumed.train(resume_from_checkpoint=str(checkpoint))
    plain.train(resume_from_checkpoint=str(checkpoint))
    assert resumed.state.global_step == 6
    assert resumed.callbacks["DryBatch"].report.loss is not None
    assert same_weights(weights(resumed.model), weights(plain.model))


def test_weights_are_those_of_transformers_with_a_dry_batch(tmp_path: Path) -> None:
    args = {"max_steps": 4, "per_device_train_batch_size": 4, "logging_steps": 1, "save_strategy": "no"}
    rows = sentences(16)
    (theirs, _), (ours, _) = both(
        tmp_path,
        {**args, "gradient_accumulation_steps": 2},
        callbacks=lambda library: [] if library.__name__ == "transformers" else [DryBatch()],
        train_dataset=rows,
    )
    assert ours.callbacks["DryBatch"].report.grad_norm is not None
    assert same_weights(weights(ours.model), weights(theirs.model))
    losses = [[entry["loss"] for entry in each.state.log_history if "loss" in entry] for each in (theirs, ours)]
    assert losses[0] == losses[1]


def test_compiled_models_are_not_compiled_again(tmp_path: Path) -> None:
    # `counters["frames"]` also counts functions that torch does not compile, such as those of a garbage collection.
    from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics

    compiled = []
    for dry in (False, True):
        torch._dynamo.reset()
        clear_compilation_metrics()
        trained = net_trainer(tmp_path, dry_batch=dry, torch_compile_backend="eager", max_steps=2)
        trained.train()
        compiled.append([(each.co_name, each.graph_op_count) for each in get_compilation_metrics()])
        assert not dry or trained.callbacks["DryBatch"].report.loss is not None
    assert compiled[0] == compiled[1]
    assert [name for name, _ in compiled[0]] == ["Net"]


class Deep(Net):
    """A net whose blocks receive an input with a gradient, which a reentrant checkpoint needs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return super().forward(self.first(x), labels)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_models_get_gradients(tmp_path: Path, reentrant: bool) -> None:
    ends = []
    for dry in (True, False):
        recompute = GradientCheckpointing({"use_reentrant": reentrant}, blocks=(Block,))
        trained = net_trainer(tmp_path, recompute, model=Deep(), max_steps=2, dry_batch=dry)
        trained.train()
        ends.append(weights(trained.model))
        report = trained.callbacks["DryBatch"].report if dry else report  # noqa: F821
    assert report.grad_norm is not None
    assert report.findings == []
    assert same_weights(*ends)


# Planted faults.


def findings(trained: Any, caplog: pytest.LogCaptureFixture) -> str:
    with caplog.at_level(logging.WARNING):
        trained.train()
    found = "\n".join(trained.callbacks["DryBatch"].report.findings)
    assert all(line in caplog.text for line in found.splitlines())
    return found


class Masked(nn.Module):
    """A language model with a loss that is 0, or NaN, if all labels are masked."""

    def __init__(self, reduction: str = "sum") -> None:
        super().__init__()
        self.embed, self.head, self.reduction = nn.Embedding(20, 4), nn.Linear(4, 20), reduction

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, attention_mask: Any = None) -> Any:
        logits = self.head(self.embed(input_ids))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction=self.reduction)
        return {"loss": loss, "logits": logits}


def tokens(count: int = 16, length: int = 6, label: int = -100) -> list[dict[str, torch.Tensor]]:
    ids = torch.arange(count * length).reshape(count, length) % 20
    return [{"input_ids": row, "labels": torch.full_like(row, label)} for row in ids]


def test_labels_that_are_all_masked_are_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained = net_trainer(tmp_path, DryBatch(), model=Masked(), train_dataset=tokens(), max_steps=1)
    assert "All labels of the batch are -100" in findings(trained, caplog)
    assert trained.callbacks["DryBatch"].report.masked == 1.0
    trained = net_trainer(tmp_path, DryBatch(), model=Masked("mean"), train_dataset=tokens(), max_steps=1)
    with pytest.raises(NonFiniteError, match=r"The loss of the dry batch is nan.*All labels of the batch are -100"):
        trained.train()
    assert trained.state.global_step == 0


def test_a_loss_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    rows = net_samples()
    rows[2]["x"][0] = float("nan")
    trained = net_trainer(tmp_path, dry_batch=True, train_dataset=rows)
    with pytest.raises(NonFiniteError, match=r"samples 0, 1, 2, 3 of the training dataset. Look for NaN"):
        trained.train()


def test_labels_out_of_range_are_named_by_their_samples(tmp_path: Path) -> None:
    rows = tokens(label=3)
    rows[1]["labels"][2] = 20
    trained = net_trainer(tmp_path, dry_batch=True, model=Masked(), train_dataset=rows)
    with pytest.raises(DataError, match=r"labels 20 are out of range in the dry batch.*samples 1 of the training"):
        trained.train()


def test_a_batch_that_does_not_fit_in_memory_is_an_error(tmp_path: Path) -> None:
    class Large(nn.Linear):
        def forward(self, x: torch.Tensor, labels: Any = None) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")

    with pytest.raises(ArgumentError, match=r"The largest batch does not fit in memory: 4 samples.*Halve"):
        net_trainer(tmp_path, dry_batch=True, model=Large(6, 1)).train()


def test_a_search_for_the_batch_size_begins_with_the_largest_batch(tmp_path: Path) -> None:
    sizes = tmp_path / "sizes"  # a list would be restored

    class Large(Net):
        def forward(self, x: torch.Tensor, labels: Any = None) -> Any:
            with sizes.open("a") as file:
                file.write(f"{len(x)} ")
            if len(x) > 3:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
            return super().forward(x, labels)

    trained = net_trainer(tmp_path, dry_batch=True, model=Large(), auto_find_batch_size=True, max_steps=1)
    trained.train()
    assert sizes.read_text() == "4 3 3 "  # the dry batch that fails, the dry batch that fits, and the step
    assert trained.state.global_step == 1


def test_parameters_outside_of_the_optimizer_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = Stateful()
    optimizer = torch.optim.SGD(model.first.parameters(), lr=0.1)
    trained = net_trainer(tmp_path, model=model, optimizers=(optimizer, None), max_steps=1)
    found = findings(trained, caplog)
    assert "10 of 12 trainable parameters are not in the optimizer SGD" in found
    assert "norm.weight, norm.bias" in found
    other = torch.optim.SGD(Stateful().parameters(), lr=0.1)
    trained = net_trainer(tmp_path, model=Stateful(), optimizers=(other, None), max_steps=1)
    assert "holds no trainable parameter of Stateful" in findings(trained, caplog)


@pytest.mark.parametrize("options", [{}, {"optim": "sgd"}, {"optim": "adafactor"}, {"criterion": None}], ids=str)
def test_complete_optimizers_have_no_finding(tmp_path: Path, options: dict[str, Any]) -> None:
    if "criterion" in options:  # a loss module with parameters of its own
        rows = [(row["x"], torch.ones(4)) for row in net_samples()]
        loss = Weighted()
        options = {"criterion": loss, "model": nn.Linear(6, 4), "train_dataset": rows, "eval_dataset": None}
    trained = net_trainer(tmp_path, DryBatch(), max_steps=1, **options)
    trained.train()
    report = trained.callbacks["DryBatch"].report
    assert report.findings == []
    assert report.checks[0] == "trainable parameters are in the optimizer"


class Weighted(nn.Module):
    """A loss with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.calls = nn.Parameter(torch.ones(4)), 0

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return ((logits - labels) * self.weight).square().mean()


def test_an_output_that_the_loss_does_not_use_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = Stateful()
    model.unused = nn.Linear(3, 3)
    found = findings(net_trainer(tmp_path, DryBatch(), model=model, max_steps=1), caplog)
    assert "2 of 14 trainable parameters get no gradient from this batch: unused.weight, unused.bias" in found


def test_a_metric_that_no_evaluation_measures_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Rows(Dataset):  # a rehearsal does not read it, because reading it may have an effect
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            return net_samples(8)[index]

    options = {"eval_dataset": Rows(), "max_steps": 1}
    trained = net_trainer(tmp_path, Evaluate(every(5)), EarlyStopping("accuracy"), **options)
    with caplog.at_level(logging.WARNING):
        trained.train()
    assert "reads the metric 'eval_accuracy', but no evaluation measures it" in caplog.text
    assert "Pass `compute_metrics`" in caplog.text
    caplog.clear()
    options |= {"eval_dataset": {"a": Rows(), "b": Rows()}, "compute_metrics": lambda prediction: {"accuracy": 1.0}}
    trained = net_trainer(tmp_path, Evaluate(every(5)), EarlyStopping("accuracy"), **options)
    with caplog.at_level(logging.WARNING):
        trained.train()
    assert "start with eval_a_, eval_b_" in caplog.text
    assert "'eval_a_accuracy'" in caplog.text


def test_a_plugin_whose_name_begins_with_that_of_the_library_is_not_part_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Reads(Callback):
        metric = "accuracy"

        def on_step_end(self) -> None: ...

    Reads.__module__ = "trainbus_plugin.reads"  # trainbus does not know what it measures itself
    trained = net_trainer(tmp_path, Evaluate(every(5)), Reads(), DryBatch(), eval_dataset=net_samples(8), max_steps=1)
    assert "accuracy" not in findings(trained, caplog)


def test_padding_and_truncation_are_measured(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = Masked("mean")
    model.config = type("Config", (), {"max_position_embeddings": 8, "pad_token_id": 0})()
    lengths = [8, 8, 1, 1, 1, 1, 1, 1]
    rows = [{"input_ids": [1] * length, "labels": [1] * length} for length in lengths]

    def pad(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        width = max(len(each["input_ids"]) for each in samples)
        ids = torch.tensor([each["input_ids"] + [0] * (width - len(each["input_ids"])) for each in samples])
        return {"input_ids": ids, "attention_mask": ids.ne(0).long(), "labels": ids.masked_fill(ids.eq(0), -100)}

    trained = net_trainer(tmp_path, DryBatch(), model=model, train_dataset=rows, data_collator=pad, max_steps=1)
    found = findings(trained, caplog)
    report = trained.callbacks["DryBatch"].report
    assert report.rows == [0, 1, 2, 3]
    assert "by the length of 'input_ids'" in report.chosen
    assert report.padding == pytest.approx(14 / 32)
    assert report.masked == pytest.approx(14 / 32)
    assert (report.truncated, report.max_length) == (0.25, 8)
    assert report.padding_of_run is not None
    assert report.padding_of_run > 0.3
    assert "25% of the samples have 8 tokens or more" in found
    assert ("group_by_length" in found) is (report.padding_of_run >= 0.5)


@pytest.mark.parametrize(
    ("of_run", "grouped", "to_longest", "said"),
    [
        (None, False, None, "Pad in the data collator"),
        (None, False, 0.1, "it would have 10%. Pad in the data collator"),
        (0.2, False, 0.1, "it would have 10%. Pad in the data collator"),
        (None, False, 0.6, "because its samples have different lengths. Set `train_sampling_str"),
        (0.1, False, 0.6, "because its longest sample is much longer than the others"),
        (0.1, True, 0.6, "because its longest sample is much longer than the others"),
        (0.7, False, 0.6, "About 70% of the tokens of the run are padding. Set `train_sampling_strategy"),
    ],
)
def test_the_finding_about_padding_names_the_cause_if_it_is_known(
    of_run: float | None, grouped: bool, to_longest: float | None, said: str
) -> None:
    found = padding_finding(0.6, of_run, grouped, to_longest)
    assert found is not None
    assert said in found
    assert "similar length" not in found


def padded_findings(
    folder: Path, caplog: pytest.LogCaptureFixture, lengths: list[int], *, known: bool, width: int, masked: bool = True
) -> tuple[str, Any]:
    """Return the findings and the report of a dry batch, for samples that tokenization padded to `width`."""
    model = Masked("mean")
    model.config = type("Config", (), {"max_position_embeddings": 8, "pad_token_id": 0})()
    rows = [{"input_ids": [1] * each + [0] * (width - each), "labels": [1] * each} for each in lengths]

    class Rows(Dataset):
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: int) -> Any:
            return rows[index]

    def pad(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        longest = max(len(each["input_ids"]) for each in samples)
        ids = torch.tensor([each["input_ids"] + [0] * (longest - len(each["input_ids"])) for each in samples])
        mask = {"attention_mask": ids.ne(0).long()} if masked else {}
        return {"input_ids": ids, **mask, "labels": ids.masked_fill(ids.eq(0), -100)}

    data = rows if known else Rows()
    trained = net_trainer(folder, DryBatch(), model=model, train_dataset=data, data_collator=pad, max_steps=1)
    return findings(trained, caplog), trained.callbacks["DryBatch"].report


@pytest.mark.parametrize("known", [True, False])
def test_samples_that_tokenization_padded_are_not_called_truncated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, known: bool
) -> None:
    found, report = padded_findings(tmp_path, caplog, [3, 2, 3, 3], known=known, width=8)
    assert report.padding == pytest.approx(21 / 32)
    assert "Pad in the data collator" in found
    assert (report.truncated, report.padding_of_run) == (0.0, None)
    assert "truncated" not in found


def test_samples_of_different_lengths_in_the_first_batch_are_no_fault_of_the_collator(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found, report = padded_findings(tmp_path, caplog, [8, 1, 1, 1], known=False, width=0)
    assert (report.padding, report.truncated) == (pytest.approx(21 / 32), 0.25)
    assert "because its samples have different lengths" in found
    assert "25% of the samples of the batch have 8 tokens" in found


def test_a_batch_with_unknown_padding_is_not_called_truncated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found, report = padded_findings(tmp_path, caplog, [3, 2, 3, 3], known=False, width=8, masked=False)
    assert (report.padding, report.truncated) == (None, None)
    assert "truncated" not in found


def test_the_share_of_padding_is_that_of_real_batches() -> None:
    lengths = [7] * 10 + list(range(1, 91))
    order = np.random.default_rng(0).permutation(len(lengths))
    batches = [[lengths[row] for row in order[start : start + 8]] for start in range(0, len(order), 8)]
    room = sum(max(batch) * len(batch) for batch in batches)
    assert padding_share(lengths, 8, grouped=False) == pytest.approx(1 - sum(lengths) / room)
    assert padding_share(lengths, 8, grouped=True) < 0.15 < padding_share(lengths, 8, grouped=False)
    assert padding_share([5] * 10, 3, grouped=False) == 0.0


def test_the_longest_samples_of_a_table_are_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    lengths = [3, 9, 2, 9, 7, 1, 8, 4]
    rows = {"input_ids": [[1] * length for length in lengths], "labels": [[1] * length for length in lengths]}
    table = datasets.Dataset.from_dict({**rows, "length": lengths[::-1]})

    def pad(samples: list[Any]) -> Any:
        return {
            name: nn.utils.rnn.pad_sequence([torch.as_tensor(each[name]) for each in samples], True)
            for name in ("input_ids", "labels")
        }

    for dataset, expected in ((table.remove_columns("length"), [1, 3, 6, 4]), (table, [4, 6, 1, 3])):
        trained = net_trainer(
            tmp_path, DryBatch(), model=Masked(), train_dataset=dataset, data_collator=pad, max_steps=1
        )
        trained.train()
        assert trained.callbacks["DryBatch"].report.rows == expected


# What a dry batch does not do.


class Untouchable(Dataset):
    """A dataset that no check may read."""

    touched = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        type(self).touched += 1
        return net_samples(8)[index]


def test_the_default_reads_no_sample_and_calls_no_code_of_the_program(tmp_path: Path) -> None:
    seconds = []
    for _ in range(5):
        Untouchable.touched = 0
        model, calls = Stateful(), []
        trained = net_trainer(tmp_path, model=model, train_dataset=Untouchable())

        def stop(control: Any, model: Stateful = model, calls: list[Any] = calls) -> None:
            calls.append((Untouchable.touched, model.calls))
            control.request("training_stop", "seen")

        trained.on("on_train_begin", stop, stage=Stage.RELEASE)
        trained.train()
        assert calls == [(0, 0)]
        report = trained.callbacks["DryBatch"].report
        assert report.checks == ["trainable parameters are in the optimizer"]
        seconds.append(report.seconds)
    assert 0 < min(seconds) < 0.05, "the fastest, because the clock also runs while another process has the processor"


def test_the_default_takes_milliseconds_for_a_large_model(tmp_path: Path) -> None:
    trained = net_trainer(
        tmp_path, model=nn.Sequential(*[nn.Linear(6, 6) for _ in range(500)]), criterion=nn.MSELoss(), max_steps=1
    )
    seconds = []

    def measure(control: Any) -> None:
        for _ in range(5):
            began = time.thread_time()  # other processes do not count
            trained._dry_batch(False, [])
            seconds.append(time.thread_time() - began)
        control.request("training_stop", "seen")

    trained.on("on_train_begin", measure)
    trained.train()
    assert min(seconds) < 0.005, "1,000 parameters"


def skipped(trained: Any) -> str:
    trained.train()
    report = trained.callbacks["DryBatch"].report
    assert report.loss is None
    return "\n".join(report.skipped)


def test_streams_are_not_read(tmp_path: Path) -> None:
    class Rows(IterableDataset):
        begun = 0

        def __iter__(self) -> Any:
            type(self).begun += 1
            return iter(net_samples(32))

    assert "the dataset is a stream" in skipped(net_trainer(tmp_path, dry_batch=True, train_dataset=Rows()))
    assert Rows.begun == 1


def test_datasets_with_an_iterator_are_not_read(tmp_path: Path) -> None:
    class Rows(Untouchable):
        def __init__(self) -> None:
            self.source = (row for row in net_samples(100))

        def __getitem__(self, index: int) -> Any:
            return next(self.source)

    text = skipped(net_trainer(tmp_path, dry_batch=True, train_dataset=Rows(), max_steps=2))
    assert "the dataset.source is an iterator (generator)" in text


def test_steps_that_update_weights_themselves_are_not_called(tmp_path: Path) -> None:
    class Own(Trainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            loss = self.compute_loss(model, inputs)
            self.accelerator.backward(loss)
            self.optimizer.step()
            CALLS.append("own")
            return loss.detach()

    CALLS.clear()
    args = TrainingArguments(str(tmp_path), max_steps=2, use_cpu=True, disable_tqdm=True, dry_batch=True)
    model = net_trainer(tmp_path).model
    assert "`training_step` of Own uses optimizer, step" in skipped(Own(model, args, train_dataset=net_samples()))
    assert CALLS == ["own", "own"]


def test_loaders_of_the_user_are_read_where_their_batches_are_known(tmp_path: Path) -> None:
    class Own(Trainer):
        make: Callable[[Any], Any] = staticmethod(lambda rows: DataLoader(rows, batch_size=2))

        def get_train_dataloader(self) -> Any:
            return self.make(self.train_dataset)

    args = TrainingArguments(str(tmp_path), max_steps=2, use_cpu=True, disable_tqdm=True, dry_batch=True)
    trained = Own(net_trainer(tmp_path).model, args, train_dataset=net_samples())
    trained.train()
    assert trained.callbacks["DryBatch"].report.rows == [0, 1]
    trained = Own(net_trainer(tmp_path).model, args, train_dataset=net_samples())
    trained.make = lambda rows: DataLoader(rows, batch_sampler=[[0, 1, 2], [3]])
    assert "has a batch sampler of its own" in skipped(trained)


def test_false_attaches_no_callback(tmp_path: Path) -> None:
    assert "DryBatch" not in net_trainer(tmp_path, dry_batch=False).callbacks
    assert net_trainer(tmp_path).callbacks["DryBatch"] == DryBatch(forward=False)
    with pytest.raises(ArgumentError, match="`dry_batch` is 'yes'"):
        net_trainer(tmp_path, dry_batch="yes")


# Keeping state.


def test_kept_state_is_restored_in_place() -> None:
    class Slots:
        __slots__ = ("count",)

    inner, slots = {"list": [1], "set": {1}, "array": np.zeros(2)}, Slots()
    slots.count = 1
    holder = nn.Linear(2, 2)
    holder.inner, holder.slots = inner, slots
    before = {"inner": inner, "list": inner["list"], "weight": holder.weight.detach().clone()}
    count = 0

    def call() -> None:
        nonlocal count
        count += 1
        inner["list"].append(2)
        inner["set"].add(3)
        inner["array"] += 1
        inner["new"] = 1
        slots.count += 1
        holder.extra = 1
        holder.inner = None
        holder.eval()
        with torch.no_grad():
            holder.weight.zero_()
            holder.weight[0, 0] = -0.0
        holder.weight.grad = torch.ones(2, 2)

    kept = KeptState({"holder": holder, "call": call})
    call()
    kept.restore()
    assert (count, slots.count, holder.training, hasattr(holder, "extra")) == (0, 1, True, False)
    assert holder.inner is before["inner"]
    assert inner["list"] is before["list"]
    assert (inner["list"], inner["set"], inner["array"].tolist(), "new" in inner) == ([1], {1}, [0.0, 0.0], False)
    assert torch.equal(holder.weight.detach(), before["weight"])
    assert holder.weight.grad is None


def test_state_that_cannot_be_restored_is_refused() -> None:
    model = nn.Sequential()
    model.lazy = nn.LazyLinear(3)
    with pytest.raises(Unrestorable, match=r"model\.lazy\.weight has no values"):
        KeptState({"model": model})
    with pytest.raises(Unrestorable, match="is an iterator"):
        KeptState({"rows": [iter([1])]})


# The command.


def test_preview_shows_the_dry_batch_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program = """
import sys
import torch
from torch import nn
from trainbus import Trainer, TrainingArguments, Callback
from trainbus.testing.tiny import Net, net_samples

class Writes(Callback):
    def on_train_begin(self):
        open("written", "w").close()

rows = net_samples()
if sys.argv[1:] == ["broken"]:
    rows[0]["x"][0] = float("nan")
model = Net()
model.unused = nn.Linear(2, 2)
args = TrainingArguments("out", max_steps=4, use_cpu=True, record=True, eval_strategy="steps", eval_steps=2)
Trainer(model, args, train_dataset=rows, eval_dataset=rows, callbacks=[Writes()]).train()
open("trained", "w").close()
"""
    Path("train.py").write_text(program)
    assert main(["preview", "--batch", "train.py"]) == 0
    shown = capsys.readouterr().out
    assert "Dry batch\n" in shown
    assert "gradient norm" in shown
    assert "warning: 2 of 8 trainable parameters get no gradient from this batch: unused.weight" in shown
    assert "The callbacks of the program: Writes" in shown
    assert main(["preview", "--batch", "--json", "train.py", "broken"]) == 1
    batch = json.loads(capsys.readouterr().out)["batch"]
    assert batch["error"].startswith("NonFiniteError: The loss of the dry batch is nan")
    stored = Path("plan.json")
    assert main(["preview", "--out", str(stored), "train.py"]) == 0
    compare = ["preview", "--batch", "--against", str(stored)]
    capsys.readouterr()
    assert main([*compare, "train.py"]) == 0
    assert "gradient norm" in capsys.readouterr().out
    assert main([*compare, "train.py", "broken"]) == 1
    assert "error: NonFiniteError: The loss of the dry batch is nan" in capsys.readouterr().out
    assert main([*compare, "--json", "train.py", "broken"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["equal"]
    assert found["batch"]["error"] == batch["error"]
    stored.unlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


def test_the_dry_batch_of_a_resumed_run_does_not_miss_the_callbacks_that_it_detached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    program = """
from trainbus import EarlyStopping, Trainer, TrainingArguments
from trainbus.testing.tiny import Net, net_samples

args = TrainingArguments("out", max_steps=6, use_cpu=True, eval_strategy="steps", eval_steps=1, save_steps=1,
    learning_rate=0.0)
trainer = Trainer(Net(), args, train_dataset=net_samples(), eval_dataset=net_samples(),
    callbacks=[EarlyStopping(patience=2)])
trainer.train(resume_from_checkpoint="auto")
"""
    Path("train.py").write_text(program)
    runpy.run_path("train.py")
    caplog.clear()
    assert main(["preview", "--batch", "train.py"]) == 0
    assert "not attached" not in caplog.text
    assert caplog.text.count("EarlyStopping requested a stop before") == 1

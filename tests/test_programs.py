"""Programs written for other trainers run here with nothing but their imports changed.

What they download stands in: a small BERT from a config, rows made here, and a tokenizer that splits at spaces.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest
import torch
from torch import nn

import trainbus
from support.data import points
from support.models import Regression
from support.outcomes import same_weights, weights
from support.trainers import hushed
from trainbus import HfArgumentParser, PdArgumentParser, Trainer, TrainingArguments

datasets = pytest.importorskip("datasets")
transformers = pytest.importorskip("transformers")

GOOD, BAD = ("wonderful", "brilliant", "moving"), ("dreadful", "tedious", "clumsy")
VOCABULARY = ("[PAD]", "[UNK]", "a", "film", "and", *GOOD, *BAD)


# What stands in for what is downloaded.


def texts(rows: int, seed: int) -> dict[str, list[Any]]:
    """Short reviews as columns, text and label."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 2, rows).tolist()
    words = [[(BAD, GOOD)[label][choice] for choice in draw.integers(0, 3, 2)] for label in labels]
    return {"text": [f"a {first} and {second} film" for first, second in words], "label": labels}


class PaddleRows(list):
    """Rows as PaddleNLP has them: a list that maps."""

    label_list = ("0", "1")

    def map(self, function: Callable[[Any], Any]) -> PaddleRows:
        return PaddleRows([function(row) for row in self])


def load_dataset(name: str, splits: list[str] | None = None) -> Any:
    """Stands in for `load_dataset` of datasets, and with `splits` for that of PaddleNLP."""
    if splits is None:
        return datasets.DatasetDict(
            {split: datasets.Dataset.from_dict(texts(1000, i)) for i, split in enumerate(SPLITS)}
        )
    columns = texts(64, 0)
    return PaddleRows([{"text": text, "label": label} for text, label in zip(*columns.values(), strict=True)])


SPLITS = ("train", "test")


class Tokenizer(transformers.PreTrainedTokenizerFast):
    """Splits at spaces; also takes the keywords of PaddleNLP's."""

    def __call__(
        self, text: Any, max_seq_len: int | None = None, pad_to_max_seq_len: bool = False, **options: Any
    ) -> Any:
        if max_seq_len is not None:
            options |= {"max_length": min(max_seq_len, self.model_max_length), "truncation": True}
        if pad_to_max_seq_len:
            options["padding"] = "max_length"
        return dict(super().__call__(text, **options)) if max_seq_len else super().__call__(text, **options)


class AutoTokenizer:
    @staticmethod
    def from_pretrained(name: str) -> Tokenizer:
        from tokenizers import Tokenizer as Words
        from tokenizers.models import WordLevel
        from tokenizers.pre_tokenizers import Whitespace

        words = Words(WordLevel({word: index for index, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
        words.pre_tokenizer = Whitespace()
        return Tokenizer(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", model_max_length=8)


class AutoModelForSequenceClassification:
    @staticmethod
    def from_pretrained(name: str, num_labels: int = 2, num_classes: int | None = None) -> Any:
        torch.manual_seed(0)
        config = transformers.BertConfig(
            vocab_size=len(VOCABULARY),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=8,
            num_labels=num_classes or num_labels,
        )
        return transformers.BertForSequenceClassification(config)


class Accuracy:
    """Stands in for the metric that `evaluate.load` downloads."""

    def compute(self, predictions: Any, references: Any) -> dict[str, float]:
        return {"accuracy": float(np.mean(predictions == references))}


STAND_INS: dict[str, Any] = {
    "load_dataset": load_dataset,
    "AutoTokenizer": AutoTokenizer,
    "AutoModelForSequenceClassification": AutoModelForSequenceClassification,
    "evaluate": types.SimpleNamespace(load=lambda name: Accuracy()),
    "paddle": types.SimpleNamespace(nn=types.SimpleNamespace(loss=nn)),
    "mindspore": None,
    "mindnlp": None,
}
LIBRARIES = ("transformers", "mindnlp.engine", "mindnlp.engine.utils", "paddlenlp.trainer")
"""Where programs import from what is imported from trainbus here."""


class Imports(ast.NodeTransformer):
    """Takes the imports out of a program, and notes what they give it."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.given: dict[str, Any] = {}

    def visit_Import(self, node: ast.Import) -> ast.AST | None:
        stood_in = [each.name for each in node.names if each.name in STAND_INS]
        self.given |= {name: STAND_INS[name] for name in stood_in}
        return None if stood_in else node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        for name in (each.name for each in node.names):
            if name in STAND_INS:
                self.given[name] = STAND_INS[name]
            elif node.module in LIBRARIES:
                self.given[name] = getattr(self.library, name)
            else:
                return node
        return None


def run(program: str, library: Any = trainbus, **given: Any) -> dict[str, Any]:
    """Run a program with the names given and those that it imports; return all names it ends with."""
    imports = Imports(library)
    tree = imports.visit(ast.parse(program))
    space = {"__name__": __name__, "Trainer": library.Trainer, "TrainingArguments": library.TrainingArguments}
    space |= given | imports.given
    exec(compile(tree, "<program>", "exec", dont_inherit=True), space)
    return space


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs write where they are started."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")


def rows(count: int, padded: bool = True, seed: int = 0) -> Any:
    """Reviews as tokens, padded to one length or as long as they are."""
    tokenizer = AutoTokenizer.from_pretrained("")
    made = datasets.Dataset.from_dict(texts(count, seed))
    return made.map(lambda row: tokenizer(row["text"], padding="max_length" if padded else False))


def ingredients(**args: Any) -> dict[str, Any]:
    """The names that programs of a few lines take as given."""
    args = {"output_dir": "results", "num_train_epochs": 1, "save_strategy": "no", **args}
    return {
        "model": AutoModelForSequenceClassification.from_pretrained(""),
        "tokenizer": AutoTokenizer.from_pretrained(""),
        "training_args": TrainingArguments(**args),
        "train_dataset": rows(32),
        "eval_dataset": rows(16, seed=1),
        "compute_metrics": accuracy,
    }


def accuracy(prediction: Any) -> dict[str, float]:
    logits, labels = prediction
    return Accuracy().compute(np.argmax(logits, axis=-1), labels)


def logged(run: Any, key: str) -> list[tuple[int, float]]:
    """The steps at which a value was logged, and the value."""
    return [(entry["step"], entry[key]) for entry in run.state.log_history if key in entry]


# MindNLP.


def test_mindnlp_trains_with_its_arguments_and_metrics() -> None:
    with pytest.warns(FutureWarning, match="`evaluation_strategy` is now `eval_strategy`"):
        space = run(programs.MINDNLP_ARGUMENTS)
    space |= run(programs.MINDNLP_METRICS)
    data = {"dataset_train": rows(1000), "dataset_val": rows(100, seed=1)}
    space = run(
        programs.MINDNLP_TRAINER, model=AutoModelForSequenceClassification.from_pretrained(""), **data, **pick(space)
    )
    trainer = space["trainer"]
    trainer.train()
    assert trainer.state.global_step == 3 * 63
    assert [step for step, _ in logged(trainer, "eval_accuracy")] == [100, 189]  # and at the end
    assert [step for step, _ in logged(trainer, "loss")] == [50, 100, 150, 189]  # the last window is logged too
    assert {path.name for path in Path("../../output").glob("checkpoint-*")} == {
        "checkpoint-63",
        "checkpoint-126",
        "checkpoint-189",
    }


def pick(space: dict[str, Any]) -> dict[str, Any]:
    """What the first programs of a page leave for the next."""
    return {name: space[name] for name in ("training_args", "compute_metrics")}


@pytest.mark.parametrize("program", [programs.MINDNLP_PATCHED, programs.TRANSFORMERS], ids=["mindnlp", "transformers"])
def test_whole_programs_end_where_they_end_with_transformers(program: str) -> None:
    with hushed():
        theirs = run(program, transformers)["trainer"]
    ours = run(program)["trainer"]
    assert ours.state.global_step == theirs.state.global_step
    assert same_weights(weights(ours.model), weights(theirs.model))
    for key in ("eval_loss", "eval_accuracy"):
        assert logged(ours, key) == logged(theirs, key)
    assert len(logged(ours, "eval_loss")) >= 3


def test_the_saved_model_of_the_transformers_page_is_its_best() -> None:
    trainer = run(programs.TRANSFORMERS)["trainer"]
    assert trainer.state.best_model_checkpoint is not None
    loaded = transformers.BertForSequenceClassification.from_pretrained("final_model")
    best = transformers.BertForSequenceClassification.from_pretrained(trainer.state.best_model_checkpoint)
    assert same_weights(weights(loaded), weights(best))


def test_mindnlp_half_precision_trains_where_it_is_computed() -> None:
    made = ingredients()
    args = run(programs.MINDNLP_HALF_PRECISION)["training_args"]
    assert args.fp16
    trainer = Trainer(made["model"], args, train_dataset=made["train_dataset"])
    if not torch.cuda.is_available():
        with pytest.raises(trainbus.TrainbusError, match="fp16 needs a CUDA device"):
            trainer.train()
        trainer = Trainer(made["model"], TrainingArguments("./output", bf16=True), train_dataset=made["train_dataset"])
    before = weights(trainer.model)
    trainer.train()
    assert not same_weights(before, weights(trainer.model))


def test_mindnlp_resumes_from_the_checkpoint_it_names() -> None:
    def trainer() -> Trainer:
        args = TrainingArguments("./results", max_steps=502, per_device_train_batch_size=4, logging_strategy="no")
        return Trainer(Regression(), args, train_dataset=points(20))

    unbroken = trainer()
    unbroken.train()
    resumed = trainer()
    steps = []
    resumed.on("on_step_end", lambda state: steps.append(state.global_step))
    run(programs.MINDNLP_RESUME, trainer=resumed)
    assert steps == [501, 502]
    assert same_weights(weights(resumed.model), weights(unbroken.model))


# PaddleNLP.


def test_paddlenlp_trains_from_a_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "--output_dir out --dataset chnsenticorp --max_seq_length 64 --do_train --num_train_epochs 2"
    monkeypatch.setattr(sys, "argv", ["train.py", *line.split(), "--learning_rate", "1e-2"])
    space = run(programs.PADDLENLP, field=dataclasses.field)
    assert (space["data_args"].dataset, space["data_args"].max_seq_length) == ("chnsenticorp", 64)
    assert space["train_result"].training_loss < 0.69  # which guessing has
    assert "***** train metrics *****" in capsys.readouterr().out
    state = json.loads(Path("out/trainer_state.json").read_text(encoding="utf-8"))
    assert state["global_step"] == 16
    saved = transformers.BertForSequenceClassification.from_pretrained("out")
    assert same_weights(weights(saved), weights(space["model"]))
    assert Path("out/tokenizer.json").is_file()


def test_paddlenlp_scripts_train_only_with_do_train(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--output_dir", "out"])
    space = run(programs.PADDLENLP, field=dataclasses.field)
    assert space["trainer"].train_dataset is None
    assert "train_result" not in space


PADDLENLP_DEFAULTS: dict[str, Any] = {
    "overwrite_output_dir": False,
    "do_train": False,
    "do_eval": False,
    "do_predict": False,
    "do_export": False,
    "evaluation_strategy": "no",
    "prediction_loss_only": False,
    "per_device_train_batch_size": 8,
    "per_device_eval_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "learning_rate": 5e-5,
    "weight_decay": 0.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "max_grad_norm": 1.0,
    "num_train_epochs": 3.0,
    "max_steps": -1,
    "lr_scheduler_type": "linear",
    "warmup_ratio": 0.0,
    "warmup_steps": 0,
    "log_on_each_node": True,
    "logging_dir": None,
    "logging_strategy": "steps",
    "logging_first_step": False,
    "logging_steps": 500,
    "save_strategy": "steps",
    "save_steps": 500,
    "save_total_limit": None,
    "save_on_each_node": False,
    "no_cuda": False,
    "seed": 42,
    "bf16": False,
    "fp16": False,
    "fp16_opt_level": "O1",
    "scale_loss": 32768,
    "sharding": "",
    "sharding_degree": -1,
    "recompute": False,
    "minimum_eval_times": None,
    "local_rank": -1,
    "dataloader_drop_last": False,
    "eval_steps": None,
    "dataloader_num_workers": 0,
    "past_index": -1,
    "run_name": None,
    "device": "gpu",
    "disable_tqdm": None,
    "remove_unused_columns": True,
    "label_names": None,
    "load_best_model_at_end": False,
    "metric_for_best_model": None,
    "greater_is_better": None,
    "ignore_data_skip": False,
    "optim": "adamw",
    "report_to": None,
    "resume_from_checkpoint": None,
}
"""PaddleNLP's arguments with their defaults, in the order of its page."""

OTHER_VALUES: list[dict[str, Any]] = [
    {"evaluation_strategy": "steps"},
    {"evaluation_strategy": "epoch"},
    {"lr_scheduler_type": "cosine"},
    {"lr_scheduler_type": "constant"},
    {"lr_scheduler_type": "constant_with_warmup"},
    {"logging_strategy": "no"},
    {"logging_strategy": "epoch"},
    {"save_strategy": "no"},
    {"save_strategy": "epoch"},
    {"bf16": True},
    {"fp16": True, "scale_loss": 1024.0},
    {"fp16": True, "fp16_opt_level": "O0"},
    {"fp16": True, "fp16_opt_level": "O2"},
    {"sharding": "stage1"},
    {"sharding": "stage2"},
    {"sharding": "stage3"},
    {"sharding": "stage2 offload"},
    {"sharding": "stage3 offload", "sharding_degree": 8},
    {"minimum_eval_times": 3},
    {"device": "cpu"},
    {"optim": "sgd"},
    {"optim": "adamw_torch"},
    {"optim": "adamw_hf"},
    {"evaluation_strategy": "steps", "load_best_model_at_end": True, "metric_for_best_model": "accuracy"},
    {"label_names": ["labels"], "greater_is_better": True},
    {"save_total_limit": 3, "eval_steps": 10, "warmup_ratio": 0.1},
    {"eval_delay": 100},
    {"torch_compile": True, "torch_compile_backend": "cudagraphs"},
    {"push_to_hub": True, "hub_strategy": "end"},
    {"deepspeed": "ds_config.json", "gradient_accumulation_steps": 2},
    {"sharded_ddp": True},
]
"""Further values that the five pages name."""

RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "recompute": "gradient_checkpointing",
    "device": "use_cpu",
}


def accepted(**given: Any) -> tuple[TrainingArguments, list[str]]:
    """Return arguments and the warnings that making them gave."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        args = TrainingArguments("out", **given)
    return args, [str(warning.message) for warning in heard]


@pytest.mark.parametrize("name", PADDLENLP_DEFAULTS)
def test_every_paddlenlp_argument_is_accepted_and_its_new_name_logged_once(name: str) -> None:
    args, heard = accepted(**{name: PADDLENLP_DEFAULTS[name]})
    assert heard == ([f"`{name}` is now `{RENAMED[name]}`."] if name in RENAMED else [])
    differing = {"optim": "adamw_torch_fused", "scale_loss": None, "report_to": "none"}
    assert dataclasses.replace(args, **{name: differing[name]} if name in differing else {}) == TrainingArguments("out")


def test_all_arguments_of_paddlenlp_at_once_give_one_warning() -> None:
    given = {name: value for name, value in PADDLENLP_DEFAULTS.items() if name != "device"}
    _, heard = accepted(**given)
    assert len(heard) == 1
    assert all(heard[0].count(f"`{old}` is now `{new}`") == 1 for old, new in RENAMED.items() if old != "device")


@pytest.mark.parametrize(
    "given", OTHER_VALUES, ids=lambda given: " ".join(f"{key}={value}" for key, value in given.items())
)
def test_every_other_value_that_the_pages_name_is_taken(given: dict[str, Any]) -> None:
    Path("ds_config.json").write_text(programs.TRANSFORMERS_4_DEEPSPEED, encoding="utf-8")
    args, _ = accepted(**given)
    for name, value in given.items():
        if name not in RENAMED:
            assert getattr(args, name) == value


def test_the_command_line_takes_paddlenlps_arguments() -> None:
    words = []
    for name, value in PADDLENLP_DEFAULTS.items():
        if value is not None and value != "":
            words += [f"--{name}", str(value)]
    with pytest.warns(FutureWarning) as heard:
        (args,) = PdArgumentParser(TrainingArguments).parse_args_into_dataclasses(["--output_dir", "out", *words])
    assert len(heard) == 1
    assert dataclasses.replace(args, optim="adamw_torch_fused", scale_loss=None) == TrainingArguments("out")


# Transformers' training page.


def test_the_metrics_program_of_transformers_runs() -> None:
    made = ingredients()
    trainer = run(programs.TRANSFORMERS_METRICS, **made)["trainer"]
    assert 0 <= trainer.evaluate(made["eval_dataset"])["eval_accuracy"] <= 1


def test_transformers_loss_of_ones_own_trains_and_evaluates_with_it() -> None:
    made = ingredients(eval_strategy="epoch", per_device_eval_batch_size=16, gradient_accumulation_steps=2)
    space = run(programs.TRANSFORMERS_LOSS, torch=torch, class_weights=torch.tensor([0.0, 1.0]))
    args, model = made["training_args"], made["model"]
    trainer = space["CustomTrainer"](
        model, args, train_dataset=made["train_dataset"], eval_dataset=made["eval_dataset"]
    )
    trainer.train()
    predicted = trainer.predict(made["eval_dataset"])
    of_class_1 = predicted.label_ids == 1
    expected = nn.functional.cross_entropy(
        torch.from_numpy(predicted.predictions[of_class_1]), torch.from_numpy(predicted.label_ids[of_class_1])
    )
    assert predicted.metrics["test_loss"] == pytest.approx(float(expected), rel=1e-5)
    assert predicted.metrics["test_loss"] == logged(trainer, "eval_loss")[-1][1]


def test_transformers_collator_pads() -> None:
    made = ingredients() | {"train_dataset": rows(16, padded=False).remove_columns("text")}
    trainer = run(programs.TRANSFORMERS_COLLATOR, **made)["trainer"]
    assert trainer.train().global_step == 2


def test_transformers_callback_is_called_and_returns_the_control(capsys: pytest.CaptureFixture[str]) -> None:
    made = ingredients(num_train_epochs=2)
    trainer = run(programs.TRANSFORMERS_CALLBACK, **made)["trainer"]
    trainer.train_dataset = made["train_dataset"]
    trainer.train()
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if "completed" in line] == [
        "Epoch 1.0 completed!",
        "Epoch 2.0 completed!",
    ]


def test_transformers_gradient_checkpointing_trains_to_the_same_weights() -> None:
    ends = []
    for program in (programs.TRANSFORMERS_GRADIENT_CHECKPOINTING, "training_args = TrainingArguments('./results')"):
        args, made = run(program)["training_args"], ingredients()
        trainer = Trainer(made["model"], args, train_dataset=made["train_dataset"])
        trainer.train()
        ends.append(weights(trainer.model))
    assert same_weights(*ends)


@pytest.mark.parametrize("program", [programs.TRANSFORMERS_COMPILE, programs.TRANSFORMERS_HUB])
def test_transformers_arguments_are_taken(program: str) -> None:
    args = run(program)["training_args"]
    assert (args.torch_compile_backend, args.hub_strategy) in (("inductor", "every_save"), (None, "every_save"))


def test_the_search_program_of_transformers_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    made = ingredients() | {"AutoModelForSequenceClassification": AutoModelForSequenceClassification}
    del made["model"]
    best = run(programs.TRANSFORMERS_SEARCH, **made)["best_trial"]
    assert 0 <= best.objective <= 1
    assert set(best.hyperparameters) == {"learning_rate", "per_device_train_batch_size", "num_train_epochs"}


# Transformers 4.1.


def half_squares(predicted: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return ((predicted - labels) ** 2).mean() / 2


class FirstOutput(Regression):
    """A model whose first output is its prediction if it has no labels, as that of transformers 4."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        outputs = super().forward(x, labels)
        return (outputs["logits"],) if labels is None else (outputs["loss"], outputs["logits"])


def old_style(cls: type[Trainer], **args: Any) -> Trainer:
    said = {"num_train_epochs": 2, "learning_rate": 0.1, "eval_strategy": "epoch", "save_strategy": "no", **args}
    data = {"train_dataset": points(24), "eval_dataset": points(10, seed=1)}
    return cls(FirstOutput(), TrainingArguments("out", per_device_train_batch_size=4, **said), **data)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_compute_loss_of_transformers_4_trains_the_same_weights(accumulate: int) -> None:
    old = run(programs.TRANSFORMERS_4_LOSS, my_custom_loss=half_squares)["MyTrainer"]

    class Modern(Trainer):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            loss = half_squares(outputs[0], labels)
            return (loss, (loss, *outputs)) if return_outputs else loss

    ends = []
    for cls in (old, Modern):
        trainer = old_style(cls, gradient_accumulation_steps=accumulate)
        trainer.train()
        predicted = trainer.predict(points(10, seed=1))
        error = np.mean((predicted.predictions - predicted.label_ids) ** 2) / 2
        assert predicted.metrics["test_loss"] == pytest.approx(error, rel=1e-5)
        ends.append((weights(trainer.model), logged(trainer, "eval_loss"), predicted.predictions.tolist()))
    assert same_weights(ends[0][0], ends[1][0])
    assert ends[0][1:] == ends[1][1:]


def test_an_old_compute_loss_that_calls_super_changes_no_number() -> None:
    class Old(Trainer):
        def compute_loss(self, model: Any, inputs: Any) -> Any:
            return super().compute_loss(model, inputs)

    plain, old = old_style(Trainer), old_style(Old)
    plain.train()
    old.train()
    assert same_weights(weights(plain.model), weights(old.model))


def test_an_old_compute_loss_gets_no_item_count_and_is_averaged_over_batches() -> None:
    class Counting(Trainer):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            assert num_items_in_batch is not None
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    class Old(Counting):
        def compute_loss(self, model: Any, inputs: Any) -> Any:
            return model(**inputs).loss

    class NewAgain(Old):
        def compute_loss(self, model: Any, inputs: Any, **options: Any) -> Any:
            assert options["num_items_in_batch"] is not None
            return super().compute_loss(model, inputs)

    made = ingredients()
    losses = {}
    for cls in (Old, NewAgain):
        args = TrainingArguments("out", gradient_accumulation_steps=2, logging_steps=1, max_steps=1, save_strategy="no")
        trainer = cls(AutoModelForSequenceClassification.from_pretrained(""), args, train_dataset=made["train_dataset"])
        trainer.objective.takes_item_count = True
        trainer.train()
        losses[cls] = logged(trainer, "loss")[0][1]
    assert losses[Old] == pytest.approx(losses[NewAgain] / 2)


def test_an_old_loss_mixed_in_is_found_too() -> None:
    class Mixed:
        def compute_loss(self, model: Any, inputs: Any) -> Any:
            return model(**inputs)[0]

    class Old(Mixed, Trainer): ...

    old, plain = old_style(Old), old_style(Trainer)
    old.train()
    plain.train()
    assert same_weights(weights(plain.model), weights(old.model))


def test_an_old_compute_loss_without_a_model_call_gets_an_error_about_predictions() -> None:
    class Own(Trainer):
        def compute_loss(self, model: Any, inputs: Any) -> Any:
            return model.linear.weight.sum()

    trainer = old_style(Own, eval_strategy="no")
    with pytest.raises(trainbus.TrainbusError, match="Add the parameter `return_outputs`"):
        trainer.evaluate()


def test_every_method_of_the_page_can_be_overridden_with_its_old_signature() -> None:
    called: list[str] = []

    class Mine(Trainer):
        def get_train_dataloader(self) -> Any:
            called.append("get_train_dataloader")
            return self.batches(self.train_dataset)

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            called.append("get_eval_dataloader")
            return self.batches(self.eval_dataset if eval_dataset is None else eval_dataset)

        def get_test_dataloader(self, test_dataset: Any) -> Any:
            called.append("get_test_dataloader")
            return self.batches(test_dataset)

        def batches(self, rows: Any) -> Any:
            return torch.utils.data.DataLoader(rows, batch_size=6, collate_fn=self.data_collator)

        def log(self, logs: Any) -> None:
            called.append("log")
            super().log({**logs, "mine": 1})

        def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
            called.append(f"create_optimizer_and_scheduler({num_training_steps})")
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.5**step)

        def compute_loss(self, model: Any, inputs: Any) -> Any:
            called.append("compute_loss")
            return super().compute_loss(model, inputs)

        def training_step(self, model: Any, inputs: Any) -> Any:
            called.append("training_step")
            return super().training_step(model, inputs)

        def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: bool) -> Any:
            called.append("prediction_step")
            return super().prediction_step(model, inputs, prediction_loss_only)

        def evaluate(self, eval_dataset: Any = None) -> Any:
            called.append("evaluate")
            return super().evaluate(eval_dataset)

        def predict(self, test_dataset: Any) -> Any:
            called.append("predict")
            return super().predict(test_dataset)

    trainer = old_style(Mine, num_train_epochs=1, logging_strategy="no")
    trainer.train()
    inside = ["training_step", "compute_loss"] * 4
    evaluation = ["evaluate", "get_eval_dataloader", *["prediction_step", "compute_loss"] * 2, "log"]
    assert called == ["get_train_dataloader", "create_optimizer_and_scheduler(4)", *inside, *evaluation, "log"]
    assert isinstance(trainer.optimizer, torch.optim.SGD)
    assert trainer.lr_scheduler.get_last_lr() == [0.5 * 0.5**4]
    assert all(entry["mine"] == 1 for entry in trainer.state.log_history)
    called.clear()
    trainer.predict(points(6))
    assert called == ["predict", "get_test_dataloader", "prediction_step", "compute_loss"]


def test_a_training_step_of_transformers_4_trains_the_same_weights() -> None:
    class Mine(Trainer):
        def training_step(self, model: Any, inputs: Any) -> Any:
            model.train()
            inputs = self._prepare_inputs(inputs)
            loss = self.compute_loss(model, inputs)
            if self.args.gradient_accumulation_steps > 1:
                loss = loss / self.args.gradient_accumulation_steps
            loss.backward()
            return loss.detach()

    mine, plain = (old_style(cls, gradient_accumulation_steps=2) for cls in (Mine, Trainer))
    mine.train()
    plain.train()
    assert same_weights(weights(mine.model), weights(plain.model))


def test_a_schedule_that_a_callback_would_leave_behind_is_refused() -> None:
    class Replaced(trainbus.Callback):
        def on_setup(self, run: Any) -> None:
            run.seams.fill("Replaced", make_optimizer=lambda make: torch.optim.SGD(make().param_groups, lr=0.1))

    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    options = {"train_dataset": points(8), "optimizers": (optimizer, schedule), "callbacks": [Replaced()]}
    trainer = Trainer(model, TrainingArguments("out"), **options)
    with pytest.raises(trainbus.TrainbusError, match="LambdaLR belongs to an optimizer that Replaced replaced"):
        trainer.train()


def test_the_command_line_of_transformers_4_is_parsed() -> None:
    words = programs.TRANSFORMERS_4_COMMAND_LINE.split()
    with pytest.warns(FutureWarning, match="`fp16_backend` has no effect; remove it"):
        (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(["--output_dir", "out", *words])
    assert (args.learning_rate, args.warmup_steps, args.adam_beta1, args.weight_decay) == (3e-5, 500, 0.8, 3e-7)
    assert args.lr_scheduler_type == "constant_with_warmup"
    assert args.fp16


def test_a_script_of_transformers_4_keeps_its_own_options() -> None:
    words = programs.TRANSFORMERS_4_SHARDED.split()
    parser = HfArgumentParser(TrainingArguments)
    args, rest = parser.parse_args_into_dataclasses(words, return_remaining_strings=True)
    assert (args.output_dir, args.num_train_epochs, args.per_device_train_batch_size) == ("output_dir", 1.0, 1)
    assert all((args.overwrite_output_dir, args.do_train, args.fp16, args.sharded_ddp))
    own = ["--n_train", "500", "--freeze_embeds", "--src_lang", "en_XX", "--tgt_lang", "ro_RO", "--task", "translation"]
    assert rest == own


def test_a_criterion_in_the_place_of_paddlenlp_trains_as_by_name() -> None:
    rows, collate, criterion = points(8), trainbus.default_data_collator, nn.MSELoss()
    model = [nn.Linear(3, 1) for _ in range(4)]
    for other in model[1:]:
        other.load_state_dict(model[0].state_dict())
    samples = [(row["x"], row["labels"][None]) for row in rows]
    args = TrainingArguments("out", max_steps=3, learning_rate=0.1, save_strategy="no")
    trainers = [
        Trainer(model[0], args, train_dataset=samples, criterion=criterion),
        Trainer(model[1], criterion, args, train_dataset=samples),
        Trainer(model[2], criterion, args=args, train_dataset=samples),  # type: ignore[misc]
        Trainer(model[3], criterion, args, collate, samples, None, None, None, [trainbus.NaNGuard()]),
    ]
    for trainer in trainers:
        trainer.train()
        assert same_weights(weights(trainer.model), weights(trainers[0].model))
    assert "NaNGuard" in trainers[3].callbacks
    assert Trainer(Regression(), None, args, train_dataset=rows).criterion is None  # type: ignore[arg-type]


def test_positional_arguments_in_both_orders_are_refused() -> None:
    args = TrainingArguments("out")
    with pytest.raises(trainbus.TrainbusError, match=r"got 'criterion' by position and by name\. Pass it once"):
        Trainer(Regression(), nn.MSELoss(), args, criterion=nn.MSELoss())  # type: ignore[arg-type]
    with pytest.raises(trainbus.TrainbusError, match="takes 11: model, criterion, args, data_collator"):
        Trainer(Regression(), nn.MSELoss(), args, *[None] * 9)  # type: ignore[arg-type]


def test_a_subclass_passes_the_criterion_on_by_position() -> None:
    class PaddleStyle(Trainer):
        def __init__(self, model: Any, criterion: Any, args: Any, **options: Any) -> None:
            super().__init__(model, criterion, args, **options)

    loss = nn.MSELoss()
    assert PaddleStyle(Regression(), loss, TrainingArguments("out"), train_dataset=points(4)).criterion is loss


def test_the_import_paths_of_paddlenlp_and_mindnlp() -> None:
    from trainbus.engine import Trainer as MindNLPTrainer
    from trainbus.engine import TrainingArguments as MindNLPArguments
    from trainbus.engine.utils import EvalPrediction
    from trainbus.trainer import PdArgumentParser as Parser
    from trainbus.trainer import Trainer as PaddleNLPTrainer
    from trainbus.trainer import TrainingArguments as PaddleNLPArguments
    from trainbus.trainer import get_last_checkpoint, set_seed

    assert MindNLPTrainer is PaddleNLPTrainer is Trainer
    assert MindNLPArguments is PaddleNLPArguments is TrainingArguments
    assert (Parser, EvalPrediction) == (PdArgumentParser, trainbus.EvalPrediction)
    assert (get_last_checkpoint, set_seed) == (trainbus.get_last_checkpoint, trainbus.set_seed)


def test_the_linear_schedule_of_paddlenlp_is_the_default_schedule() -> None:
    ends = []
    for own in (False, True):
        made = Regression()
        optimizer = torch.optim.AdamW(made.parameters(), lr=0.1, weight_decay=0.0, fused=True)
        optimizers = (optimizer, trainbus.LinearDecayWithWarmup(optimizer, 6, 0.5)) if own else (None, None)
        args = TrainingArguments("out", max_steps=6, learning_rate=0.1, warmup_ratio=0.5, save_strategy="no")
        trainer = Trainer(made, args, train_dataset=points(24), optimizers=optimizers)
        trainer.train()
        ends.append(weights(trainer.model))
    assert same_weights(*ends)
    with pytest.raises(trainbus.TrainbusError, match=r"In PyTorch the optimizer has the learning rate"):
        trainbus.LinearDecayWithWarmup(5e-5, 6)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (
            "xpu",
            "`device` is 'xpu'; it takes 'cpu', 'gpu', 'cuda'. Not supported: only CUDA GPUs and CPUs are supported",
        ),
        (
            "gpu:0",
            "`device` is 'gpu:0'.*Use 'gpu'. To select GPU 0, start the program with CUDA_VISIBLE_DEVICES=0",
        ),
        ("cuda:13", "CUDA_VISIBLE_DEVICES=0"),
    ],
)
def test_a_device_that_is_not_selected_by_name_names_the_remedy(
    device: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = PdArgumentParser(TrainingArguments)
    with pytest.raises(SystemExit):
        parser.parse_args_into_dataclasses(["--output_dir", "out", "--device", device])
    assert re.search(said, capsys.readouterr().err)

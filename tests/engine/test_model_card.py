"""The model card, its tables compared with those of transformers."""

import re

import pytest
from torch import nn

from support.data import sentences
from support.trainers import both
from trainbus import TrainerState, TrainingArguments
from trainbus.engine.api.model_card import (
    Facts,
    base_of,
    card_text,
    dataset_of,
    final_results,
    frameworks,
    hyperparameters,
    library_of,
    table,
    task_of,
    title,
    training_results,
)


def state(*entries, **values):
    return TrainerState(log_history=list(entries), **values)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two trainers, theirs and ours, after the same training with evaluations in the middle and behind it."""
    pytest.importorskip("transformers")
    args = {"max_steps": 6, "eval_strategy": "steps", "eval_steps": 2, "logging_steps": 3, "save_strategy": "no"}
    args |= {"gradient_accumulation_steps": 2, "warmup_steps": 2, "label_smoothing_factor": 0.1, "seed": 7}

    def do(trainer):
        trainer.train()
        trainer.evaluate()

    (theirs, _), (ours, _) = both(
        tmp_path_factory.mktemp("card"), args, do, train_dataset=sentences(16), eval_dataset=sentences(8)
    )
    return theirs, ours


def test_hyperparameters_are_those_of_transformers(pair):
    from transformers.modelcard import extract_hyperparameters_from_trainer

    theirs, ours = extract_hyperparameters_from_trainer(pair[0]), hyperparameters(pair[1].args)
    assert "betas=(0.9, 0.999) and epsilon=1e-08" in ours.pop("optimizer")
    assert theirs.pop("optimizer")
    assert ours == theirs


def test_table_is_that_of_transformers(pair):
    from transformers.modelcard import make_markdown_table, parse_log_history

    theirs, ours = (trainer.state for trainer in pair)
    _, lines, results = parse_log_history(theirs.log_history)
    assert table(training_results(ours.log_history)) + "\n" == make_markdown_table(lines)
    assert {title(name): value for name, value in final_results(pair[1].args, ours).items()} == results


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"num_train_epochs": 2}, {"num_epochs": 2}),
        ({"max_steps": 9}, {"training_steps": 9}),
        ({"bf16": True}, {"mixed_precision_training": "bfloat16"}),
        ({"optim": "sgd", "optim_args": "momentum=0.9"}, {"optimizer": "sgd, momentum=0.9"}),
    ],
)
def test_settings_that_matter_are_shown(options, shown):
    assert shown.items() <= hyperparameters(TrainingArguments("out", use_cpu=True, **options)).items()


def test_several_processes_are_counted(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    values = hyperparameters(TrainingArguments("out", use_cpu=True, per_device_train_batch_size=2))
    assert (values["num_devices"], values["total_train_batch_size"], values["total_eval_batch_size"]) == (4, 8, 32)


def test_results_of_several_datasets_share_their_row():
    history = [
        {"loss": 1.5, "step": 2, "epoch": 0.5},
        {"eval_a_loss": 0.25, "eval_a_runtime": 1.0, "step": 2, "epoch": 0.5},
        {"eval_b_loss": 0.75, "eval_b_f1": 0.5, "step": 2, "epoch": 0.5},
        {"eval_a_loss": 0.125, "step": 4, "epoch": 1.0},
    ]
    rows = training_results(history)
    assert rows[0] == {"Training Loss": 1.5, "Epoch": 0.5, "Step": 2, "A Loss": 0.25, "B Loss": 0.75, "B F1": 0.5}
    assert table(rows).splitlines()[-1] == "| 1.5           | 1.0   | 4    | 0.125  |        |      |"


def test_metrics_before_training_give_no_row():
    assert training_results([{"eval_loss": 2.0, "step": 0}]) == []


def test_results_are_those_of_the_model_that_was_loaded_in_the_end():
    args = TrainingArguments(
        "out", use_cpu=True, load_best_model_at_end=True, eval_strategy="steps", eval_steps=2, save_steps=2
    )
    during = [{"eval_loss": 1.0, "step": 2}, {"eval_loss": 3.0, "step": 4}]
    assert final_results(args, state(*during, best_global_step=2)) == {"loss": 3.0}
    counted = [*during, {"loss": 2.0, "train_runtime": 1.0, "step": 5}]  # as `CountTokens` logs it
    assert final_results(args, state(*counted, best_global_step=2)) == {"loss": 3.0}
    ended = [*during, {"train_runtime": 1.0, "step": 4}]
    assert final_results(args, state(*ended, best_global_step=2)) == {"loss": 1.0}
    measured = [*ended, {"eval_loss": 1.0, "eval_f1": 0.5, "step": 4}]
    assert final_results(args, state(*measured, best_global_step=2)) == {"loss": 1.0, "f1": 0.5}
    assert final_results(args, state()) == {}


def test_detected_values_are_not_requested():
    transformers = pytest.importorskip("transformers")
    datasets = pytest.importorskip("datasets")
    config = transformers.BertConfig(
        vocab_size=8, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4
    )
    model = transformers.BertForQuestionAnswering(config)
    assert (task_of(model), library_of(model), base_of(model)) == ("question-answering", "transformers", None)
    model.config._name_or_path = "someone/a-model"
    assert base_of(model) == "someone/a-model"
    rows = datasets.Dataset.from_dict({"x": [1]})
    assert dataset_of(rows) == {}
    rows.info.builder_name, rows.info.config_name = "glue", "mrpc"
    rows._split = datasets.Split.TEST
    assert dataset_of(rows) == {"dataset_tags": ("glue",), "dataset_args": ("mrpc",), "dataset_split": "test"}
    plain = nn.Linear(1, 1)
    assert (task_of(plain), library_of(plain), base_of(plain), dataset_of([1])) == (None, None, None, {})


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({}, "This model was trained from scratch on an unknown dataset."),
        ({"datasets": ("A",)}, "This model was trained from scratch on the A dataset."),
        ({"dataset_tags": ("a", "b", "c")}, "trained from scratch on the a, the b and the c datasets."),
        (
            {"finetuned_from": "x/y"},
            "is a fine-tuned version of [x/y](https://huggingface.co/x/y) on an unknown",
        ),
    ],
)
def test_the_card_names_the_base_model(facts, sentence):
    assert sentence in card_text(Facts("mine", **facts), TrainingArguments("out", use_cpu=True), state())


def test_its_sections_are_there_and_in_order():
    text = card_text(
        Facts("mine"),
        TrainingArguments("out", use_cpu=True),
        state({"eval_loss": 0.123456, "step": 2, "epoch": 1.0}),
    )
    assert re.findall(r"^#+ (.*)", text, re.MULTILINE) == [
        *("mine", "Model description", "Intended uses & limitations", "Training and evaluation data"),
        *("Training procedure", "Training hyperparameters", "Training results", "Framework versions"),
    ]
    assert "\n- Loss: 0.1235\n" in text
    assert f"- Trainbus {frameworks()['Trainbus']}\n- PyTorch " in text

"""Training, evaluation and prediction with generated sequences, compared with transformers' Seq2SeqTrainer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import trainbus
from support.data import points
from support.models import Regression
from support.outcomes import same_weights, timeless, weights
from support.trainers import Fresh, hushed
from trainbus import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainingArguments
from trainbus.events.errors import ArgumentError, ModelError


class Tokenizer:
    """What padding needs of one."""

    padding_side = "right"
    pad_token_id: int | None = 0
    eos_token_id = 1
    model_input_names = ("input_ids", "attention_mask")

    def pad(self, rows: list[Any], **options: Any) -> dict[str, torch.Tensor]:
        width = max(len(row["input_ids"]) for row in rows)
        lengths = [len(row["input_ids"]) for row in rows]
        ids = [[*row["input_ids"]] + [0] * (width - len(row["input_ids"])) for row in rows]
        mask = [[1] * length + [0] * (width - length) for length in lengths]
        return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


class EndsOnly(Tokenizer):
    """One without a padding token."""

    pad_token_id = None


def t5(dropout: float = 0.1) -> Any:
    """A T5 with a few thousand weights."""
    torch.manual_seed(0)
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=40,
            d_model=16,
            d_kv=8,
            d_ff=16,
            num_layers=1,
            num_heads=2,
            dropout_rate=dropout,
            decoder_start_token_id=0,
            initializer_factor=3.0,
        )
    )


def bart() -> Any:
    """A BART as small."""
    torch.manual_seed(0)
    return transformers.BartForConditionalGeneration(
        transformers.BartConfig(
            vocab_size=40,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=16,
            decoder_ffn_dim=16,
            max_position_embeddings=32,
            init_std=0.5,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=1,
            decoder_start_token_id=1,
            forced_eos_token_id=1,
        )
    )


def pairs(rows: int, seed: int = 0, labels: bool = True) -> list[dict[str, Any]]:
    """Sequences of different lengths, and the beginning of each backwards."""
    random = np.random.default_rng(seed)
    made = []
    for size in random.integers(3, 10, rows):
        ids = random.integers(3, 40, size).tolist()
        made.append({"input_ids": ids, **({"labels": [*ids[::-1][:6], 1]} if labels else {})})
    return made


def without_labels(rows: list[Any]) -> dict[str, torch.Tensor]:
    """Collate rows that have none."""
    return Tokenizer().pad(rows)


def lengths(prediction: Any) -> dict[str, float]:
    """Metrics that change when any token does."""
    tokens, labels = prediction.predictions, prediction.label_ids
    hashes = (tokens.astype(np.int64) * np.arange(1, tokens.shape[1] + 1)).sum()
    return {"width": tokens.shape[1], "hash": int(hashes), "labels": int(labels.sum()), "label_width": labels.shape[1]}


def both(
    folder: Path,
    args: dict[str, Any],
    do: Callable[[Any], Any],
    model: Callable[[], Any] = t5,
    collator: Callable[[Any, Any], Any] = lambda library, model: library.DataCollatorForSeq2Seq(Tokenizer(), model),
    mixin: type = object,
    **options: Any,
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Do the same with transformers' Seq2SeqTrainer and with ours; return (trainer, result) of each, theirs first."""
    done = []
    for library in (transformers, trainbus):
        made = {name: value() if isinstance(value, Fresh) else value for name, value in args.items()}
        quiet = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "save_strategy": "no"}
        sizes = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "learning_rate": 0.01}
        with hushed():
            said = library.Seq2SeqTrainingArguments(str(folder), **{**quiet, **sizes, **made})
            built = model()
            given = {"train_dataset": pairs(24), "eval_dataset": pairs(8, 1), "compute_metrics": lengths, **options}
            kind = type("Mine", (mixin, library.Seq2SeqTrainer), {}) if mixin is not object else library.Seq2SeqTrainer
            run = kind(built, said, data_collator=collator(library, built), **given)
            done.append((run, do(run)))
    return done[0], done[1]


def same_output(ours: Any, theirs: Any) -> None:
    """Assert that two results of `predict` are equal, but for their times."""
    for our, their in ((ours.predictions, theirs.predictions), (ours.label_ids, theirs.label_ids)):
        if their is None:
            assert our is None
        else:
            assert our.dtype == their.dtype
            assert np.array_equal(our, their)
    assert timeless(ours.metrics) == timeless(theirs.metrics)


def trained(run: Any) -> tuple[Any, Any, Any]:
    """Train, evaluate and predict."""
    run.train()
    return (
        run.evaluate(),
        run.predict(pairs(12, 2)),
        [timeless(entry) for entry in run.state.log_history if "eval_loss" in entry],
    )


RUNS: dict[str, dict[str, Any]] = {
    "logits": {},
    "greedy": {"predict_with_generate": True, "generation_num_beams": 1},
    "greedy by default": {"predict_with_generate": True},
    "beams": {"predict_with_generate": True, "generation_num_beams": 2, "generation_max_length": 9},
    "longer than the model's own": {"predict_with_generate": True, "generation_max_length": 25},
    "config": {
        "predict_with_generate": True,
        "generation_config": Fresh(
            lambda: transformers.GenerationConfig(
                max_length=12, num_beams=2, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1
            )
        ),
    },
    "new tokens": {
        "predict_with_generate": True,
        "generation_config": Fresh(
            lambda: transformers.GenerationConfig(
                max_new_tokens=30, max_length=3, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1
            )
        ),
    },
    "smoothed": {"predict_with_generate": True, "label_smoothing_factor": 0.1},
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("model", [t5, bart])
def test_weights_metrics_and_predictions_match_transformers(tmp_path: Path, name: str, model: Any):
    if name == "logits":
        options: dict[str, Any] = {"compute_metrics": None}
    else:
        options = {}
    args = {"num_train_epochs": 1, "eval_strategy": "steps", "eval_steps": 4, **RUNS[name]}
    (theirs, expected), (ours, got) = both(tmp_path, args, trained, model, **options)
    assert same_weights(weights(ours.model), weights(theirs.model))
    assert timeless(got[0]) == timeless(expected[0])
    assert got[2] == expected[2]
    if name == "logits":
        assert all(np.array_equal(our, their) for our, their in zip(got[1].predictions, expected[1].predictions))
    else:
        same_output(got[1], expected[1])
        assert got[1].predictions.ndim == 2


@pytest.mark.parametrize(
    "options",
    [
        {"max_length": 7},
        {"max_new_tokens": 5},
        {"max_new_tokens": 28},
        {"num_beams": 2, "max_length": 30},
        {"max_length": None, "num_beams": None},
        {"num_beams": 3, "no_repeat_ngram_size": 2, "length_penalty": 0.5},
    ],
    ids=str,
)
def test_generation_options_of_a_call_override_the_arguments(tmp_path: Path, options: dict[str, Any]):
    def do(run: Any) -> Any:
        return run.evaluate(**options), run.predict(pairs(12, 2), **options), run.evaluate(metric_key_prefix="again")

    args = {"predict_with_generate": True, "generation_max_length": 11, "generation_num_beams": 2}
    (_, expected), (_, got) = both(tmp_path, args, do)
    assert timeless(got[0]) == timeless(expected[0])
    same_output(got[1], expected[1])
    assert timeless(got[2]) == timeless(expected[2])


class OwnEvaluation:
    """Evaluates as the example of transformers for question answering does, with its own options of `generate`."""

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval", **gen_kwargs):
        self._gen_kwargs = {"max_length": 6, "num_beams": 2, **gen_kwargs}
        loader = self.get_eval_dataloader(eval_dataset)
        output = self.evaluation_loop(loader, "Evaluation", ignore_keys=ignore_keys, metric_key_prefix="eval")
        self.log(output.metrics)
        return output.metrics


class OwnPadding:
    """Pads generated tokens with another token."""

    def _pad_tensors_to_max_len(self, tensor, max_length):
        padded = tensor.new_full((tensor.shape[0], max_length), 7)
        padded[:, : tensor.shape[-1]] = tensor
        return padded


class OwnStep:
    """Reads the options and pads by itself."""

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None, **gen_kwargs):
        given = {**self._gen_kwargs, "no_repeat_ngram_size": 2}
        loss, tokens, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys, **given)
        return loss, self._pad_tensors_to_max_len(tokens, 32), labels


@pytest.mark.parametrize("mixin", [OwnEvaluation, OwnPadding, OwnStep])
def test_subclasses_with_their_own_options_and_padding_match_transformers(tmp_path: Path, mixin: type):
    args = {"predict_with_generate": True, "generation_max_length": 11}
    (_, expected), (_, got) = both(tmp_path, args, lambda run: run.evaluate(), mixin=mixin)
    assert timeless(got) == timeless(expected)


def test_generation_options_of_a_call_apply_to_each_named_dataset(tmp_path: Path):
    class Own(Seq2SeqTrainer):
        def evaluate(self, *rest: Any, **options: Any) -> Any:
            return super().evaluate(*rest, **options)

    for cls in (Seq2SeqTrainer, Own):
        run = cls(
            t5(),
            Seq2SeqTrainingArguments(str(tmp_path), predict_with_generate=True, use_cpu=True),
            data_collator=DataCollatorForSeq2Seq(Tokenizer()),
            eval_dataset={"a": pairs(4), "b": pairs(3)},
            compute_metrics=lambda found: {"width": found.predictions.shape[1]},
        )
        for width in (30, 25):
            found = run.evaluate(max_length=width, min_length=width)
            assert (found["eval_a_width"], found["eval_b_width"]) == (width, width)


@pytest.mark.parametrize("beams", [1, 2])
def test_samples_without_labels_are_predicted(tmp_path: Path, beams: int):
    args = {"predict_with_generate": True, "generation_num_beams": beams}
    (_, expected), (_, got) = both(
        tmp_path,
        args,
        lambda run: run.predict(pairs(12, 2, labels=False)),
        collator=lambda library, model: without_labels,
    )
    same_output(got, expected)
    assert got.label_ids is None
    assert "test_loss" not in got.metrics


def test_labels_of_none_are_missing_labels(tmp_path: Path):
    run = Seq2SeqTrainer(
        t5(),
        Seq2SeqTrainingArguments(str(tmp_path), predict_with_generate=True, use_cpu=True),
        data_collator=DataCollatorForSeq2Seq(Tokenizer()),
    )
    bare, labelled = run.predict(pairs(12, 2, labels=False), max_length=9), run.predict(pairs(12, 2), max_length=9)
    assert bare.label_ids is None
    assert np.array_equal(bare.predictions, labelled.predictions)


def test_short_last_batch_is_weighted_by_its_samples(tmp_path: Path):
    # transformers' Seq2SeqTrainer counts it like a full one, its Trainer does not.
    run = Seq2SeqTrainer(
        t5(),
        Seq2SeqTrainingArguments(str(tmp_path), predict_with_generate=True, per_device_eval_batch_size=4, use_cpu=True),
        data_collator=DataCollatorForSeq2Seq(Tokenizer()),
        compute_metrics=lengths,
    )
    whole = run.evaluate(pairs(6), max_length=9)["eval_loss"]
    first, last = (run.evaluate(part, max_length=9)["eval_loss"] for part in (pairs(6)[:4], pairs(6)[4:]))
    assert whole == pytest.approx((4 * first + 2 * last) / 6)
    said = transformers.TrainingArguments(str(tmp_path), per_device_eval_batch_size=4, use_cpu=True, report_to="none")
    with hushed():
        theirs = transformers.Trainer(
            t5(), said, data_collator=transformers.DataCollatorForSeq2Seq(Tokenizer()), eval_dataset=pairs(6)
        )
        assert whole == theirs.evaluate()["eval_loss"]


@pytest.mark.parametrize("tokenizer", [Tokenizer, EndsOnly])
def test_padding_token_comes_from_the_processing_class(tmp_path: Path, tokenizer: Any):
    args = {"predict_with_generate": True}
    (_, expected), (_, got) = both(tmp_path, args, lambda run: run.predict(pairs(8)), processing_class=tokenizer())
    same_output(got, expected)


@pytest.mark.parametrize("ours_is", [Path, str, "file"])
def test_a_generation_config_is_loaded_from_a_path(tmp_path: Path, ours_is: Any):
    saved = transformers.GenerationConfig(max_length=8, num_beams=2, decoder_start_token_id=0, pad_token_id=0)
    saved.save_pretrained(tmp_path / "saved")
    path = tmp_path / "saved" / "generation_config.json" if ours_is == "file" else ours_is(tmp_path / "saved")
    args = {"predict_with_generate": True, "generation_config": path}
    (theirs, expected), (ours, got) = both(tmp_path, args, lambda run: run.predict(pairs(8)))
    same_output(got, expected)
    assert ours.model.generation_config.max_length == theirs.model.generation_config.max_length == 8
    json.loads(ours.args.to_json_string())


def test_each_new_model_gets_a_copy_of_the_generation_config(tmp_path: Path):
    config = transformers.GenerationConfig(max_length=5, pad_token_id=0, decoder_start_token_id=0)
    args = Seq2SeqTrainingArguments(
        str(tmp_path), generation_config=config, max_steps=1, use_cpu=True, save_strategy="no"
    )
    collator = DataCollatorForSeq2Seq(Tokenizer())
    run = Seq2SeqTrainer(None, args, model_init=t5, train_dataset=pairs(8), data_collator=collator)
    run.train()
    assert run.model.generation_config.max_length == 5
    assert run.model.generation_config is not config
    assert args.to_dict()["generation_config"] == config.to_dict()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("nowhere/at/all", "nowhere/at/all"),
        (3, "set it to a `GenerationConfig`"),
        (
            Fresh(lambda: transformers.GenerationConfig(num_beams=1, early_stopping=True)),
            "generation config is not valid",
        ),
    ],
)
def test_invalid_generation_config_raises(tmp_path: Path, config: Any, message: str):
    config = config() if isinstance(config, Fresh) else config
    with pytest.raises(ArgumentError, match=message):
        Seq2SeqTrainer(t5(), Seq2SeqTrainingArguments(str(tmp_path), generation_config=config))


def test_unsuitable_models_and_arguments_raise(tmp_path: Path):
    with pytest.raises(ArgumentError, match="Pass a `Seq2SeqTrainingArguments`"):
        Seq2SeqTrainer(t5(), TrainingArguments(str(tmp_path)))
    with pytest.raises(ArgumentError, match="`generation_config` is a path, but Regression"):
        Seq2SeqTrainer(Regression(), Seq2SeqTrainingArguments(str(tmp_path), generation_config="here"))
    run = Seq2SeqTrainer(Regression(), Seq2SeqTrainingArguments(str(tmp_path), predict_with_generate=True))
    with pytest.raises(ModelError, match="a method `generate`"):
        run.predict(points(4))


class Echo(Regression):
    """Generates the tokens it is given."""

    def generate(self, x: torch.Tensor) -> torch.Tensor:
        assert not torch.is_grad_enabled()
        return x.long()


def test_any_model_with_generate_works(tmp_path: Path):
    args = Seq2SeqTrainingArguments(str(tmp_path), predict_with_generate=True)
    with pytest.raises(ArgumentError, match="pad_token_id"):
        Seq2SeqTrainer(Echo(), args).predict([{"x": torch.ones(3)}])
    found = Seq2SeqTrainer(Echo(), args, processing_class=EndsOnly(), data_collator=trainbus.default_data_collator)
    tokens = found.predict([{"x": torch.full((3,), 7.0)}] * 2).predictions
    assert tokens.tolist() == [[7] * 3 + [1] * 17] * 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"generation_max_length": 0}, "generation_max_length"),
        ({"generation_num_beams": -1}, "generation_num_beams"),
        ({"predict_with_generate": "yes"}, "it takes bool"),
        ({"predict_with_generat": True}, "did you mean 'predict_with_generate'"),
        ({"sortish_sampler": True, "train_sampling_strategy": "sequential"}, "remove one of the two"),
    ],
)
def test_invalid_arguments_raise(tmp_path: Path, args: dict[str, Any], message: str):
    with pytest.raises(ArgumentError, match=message):
        Seq2SeqTrainingArguments(str(tmp_path), **args)
    with pytest.raises(ArgumentError, match=r"2 problems"):
        Seq2SeqTrainingArguments(str(tmp_path), generation_num_beams=0, learning_rate=-1.0)


def test_sortish_sampler_means_group_by_length(tmp_path: Path):
    sortish = Seq2SeqTrainingArguments(str(tmp_path), sortish_sampler=True)
    assert sortish.train_sampling_strategy == "group_by_length"
    assert sortish.given == {"output_dir", "sortish_sampler"}
    assert repr(sortish) == f"Seq2SeqTrainingArguments(output_dir={str(tmp_path)!r}, sortish_sampler=True)"
    assert Seq2SeqTrainingArguments(str(tmp_path)).train_sampling_strategy == "random"


def test_arguments_parse_from_a_command_line():
    words = [
        "--output_dir",
        "out",
        "--predict_with_generate",
        "--generation_num_beams",
        "4",
        "--generation_config",
        "x",
    ]
    (args,) = trainbus.HfArgumentParser(Seq2SeqTrainingArguments).parse_args_into_dataclasses(words)
    assert (args.predict_with_generate, args.generation_num_beams, args.generation_config) == (True, 4, "x")

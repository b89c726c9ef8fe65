"""The trainers of sentence-transformers train, evaluate, load the best model, save and resume as with transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")

from libraries.sides import Sides, compare
from libraries.toys import RUN, SAMPLES, saved_bert, saved_scoring_bert, texts, words

pytestmark = pytest.mark.filterwarnings("ignore")  # of the library, transformers and torch


@pytest.fixture(scope="module")
def sides() -> Sides:
    return Sides("sentence_transformers")


def encoder(folder: str) -> Any:
    import sentence_transformers
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    modules = [Transformer(saved_bert(Path(folder).parent / "model")), Pooling(16)]
    return sentence_transformers.SentenceTransformer(modules=modules, device="cpu")


def bi_encoder(folder: str) -> Any:
    import sentence_transformers
    from sentence_transformers.sentence_transformer import losses

    model, data = encoder(folder), texts(anchor=0, positive=1)
    return sentence_transformers.SentenceTransformerTrainer(
        model=model,
        args=sentence_transformers.SentenceTransformerTrainingArguments(folder, **RUN),
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        loss=losses.MultipleNegativesRankingLoss(model),
    )


def several_datasets(folder: str) -> Any:
    import sentence_transformers
    from sentence_transformers.sentence_transformer import losses
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    model, first = encoder(folder), texts(anchor=0, positive=1)
    second = texts(one=0, two=2).add_column("label", [row % 3 for row in range(SAMPLES)])
    rows = range(8)
    evaluator = EmbeddingSimilarityEvaluator(
        [words(row) for row in rows], [words(row * 3) for row in rows], [row / 8 for row in rows], name="dev"
    )
    options = {**RUN, "metric_for_best_model": "eval_dev_spearman_cosine"}
    return sentence_transformers.SentenceTransformerTrainer(
        model=model,
        args=sentence_transformers.SentenceTransformerTrainingArguments(folder, warmup_ratio=0.25, **options),
        train_dataset={"pairs": first, "classes": second},
        eval_dataset={"pairs": first.select(rows), "classes": second.select(rows)},
        loss={
            "pairs": losses.MultipleNegativesRankingLoss(model),
            "classes": losses.SoftmaxLoss(model, 16, num_labels=3),  # the optimizer updates its own weights too
        },
        evaluator=evaluator,
    )


def cross_encoder(folder: str) -> Any:
    from sentence_transformers.cross_encoder import (
        CrossEncoder,
        CrossEncoderTrainer,
        CrossEncoderTrainingArguments,
        losses,
    )

    model = CrossEncoder(saved_scoring_bert(Path(folder).parent / "model"), device="cpu")
    data = texts(query=0, answer=1).add_column("label", [float(row % 2) for row in range(SAMPLES)])
    return CrossEncoderTrainer(
        model=model,
        args=CrossEncoderTrainingArguments(folder, **RUN),
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        loss=losses.BinaryCrossEntropyLoss(model),
    )


def ranking_cross_encoder(folder: str) -> Any:
    from sentence_transformers.cross_encoder import (
        CrossEncoder,
        CrossEncoderTrainer,
        CrossEncoderTrainingArguments,
        losses,
    )

    model = CrossEncoder(saved_scoring_bert(Path(folder).parent / "model"), device="cpu")
    documents = [[words(row + place) for place in range(3)] for row in range(SAMPLES)]
    data = texts(query=0).add_column("docs", documents).add_column("labels", [[1, 0, 0]] * SAMPLES)
    return CrossEncoderTrainer(  # a batch has lists of samples, and no tensor with one row per sample
        model=model,
        args=CrossEncoderTrainingArguments(folder, **RUN),
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        loss=losses.LambdaLoss(model),
    )


def matryoshka(folder: str) -> Any:
    import sentence_transformers
    from sentence_transformers.sentence_transformer import losses

    model, data = encoder(folder), texts(anchor=0, positive=1)
    return sentence_transformers.SentenceTransformerTrainer(
        model=model,
        args=sentence_transformers.SentenceTransformerTrainingArguments(folder, **RUN),
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        loss=losses.MatryoshkaLoss(model, losses.MultipleNegativesRankingLoss(model), [16, 8, 4]),
    )


BUILDS = [bi_encoder, several_datasets, cross_encoder, ranking_cross_encoder, matryoshka]


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__)
def test_trainer_of_sentence_transformers_equals_transformers_and_resumes_exactly(
    build: Callable[[str], Any], sides, tmp_path
):
    compared = compare(sides, build, tmp_path)
    assert compared.ours.differences(compared.theirs) == []
    assert compared.ours.best == compared.theirs.best != ""
    assert compared.resumed.differences(compared.ours) == []
    with sides.of("ours"):
        compared.ours.trainer.save_model(tmp_path / "saved")
        loaded = type(compared.ours.trainer.model)(str(tmp_path / "saved"), device="cpu")
    state = loaded.state_dict()
    assert state.keys() == compared.ours.weights.keys()
    assert all((state[name] == value).all() for name, value in compared.ours.weights.items())

"""SetFit, which replaces `callback_handler.call_event`, trains, evaluates and saves as with transformers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("setfit", reason="setfit is not installed")

from libraries.sides import Outcome, Sides
from libraries.toys import RUN, saved_bert, words

pytestmark = pytest.mark.filterwarnings("ignore")  # of the library, transformers and torch

SAME_NAMES = ("logging_steps", "eval_strategy", "eval_steps", "save_strategy", "save_steps", "load_best_model_at_end")


@dataclass
class FewShot:
    """A few-shot training that is over."""

    body: Outcome
    """The training of the body."""
    head: Any
    """The coefficients of the classifier."""
    metrics: dict[str, float]
    """What `evaluate` returned."""
    received: list[Any]
    """What a callback of the user received in each step."""
    card: list[Any]
    """The rows of evaluations in the model card, which a callback of SetFit writes."""
    probabilities: Any
    """The predictions of the saved model, loaded again."""


def few_shot(folder: Path) -> FewShot:
    """Train a model on eight texts, evaluate it, save it and load it."""
    import datasets
    import sentence_transformers
    import setfit
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from sklearn.linear_model import LogisticRegression
    from transformers import TrainerCallback

    received = []

    class Receiver(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, st_model: Any, **kwargs: Any) -> None:
            received.append((state.global_step, *(type(each).__name__ for each in (args, kwargs["model"], st_model))))

        def on_log(self, args: Any, state: Any, control: Any, logs: Any, **kwargs: Any) -> None:
            if "eval_embedding_loss" in logs and state.global_step == 8:
                control.should_training_stop = True

    def accuracy(predicted: Any, labels: Any) -> dict[str, float]:
        return {"accuracy": float((torch.as_tensor(predicted) == torch.as_tensor(labels)).float().mean())}

    modules = [Transformer(saved_bert(folder / "model")), Pooling(16)]
    body = sentence_transformers.SentenceTransformer(modules=modules, device="cpu")
    model = setfit.SetFitModel(model_body=body, model_head=LogisticRegression())
    rows = {"text": [words(row) for row in range(8)], "label": [row % 2 for row in range(8)]}
    data = datasets.Dataset.from_dict(rows)
    trainer = setfit.Trainer(
        model=model,
        args=setfit.TrainingArguments(
            output_dir=str(folder / "run"),
            batch_size=4,
            body_learning_rate=1e-2,
            report_to="none",
            **{name: RUN[name] for name in SAME_NAMES},
        ),
        train_dataset=data,
        eval_dataset=data,
        metric=accuracy,
        callbacks=[Receiver()],
    )
    trainer.train()
    inner = trainer.st_trainer
    weights = {name: value.detach().clone() for name, value in body.state_dict().items()}
    outcome = Outcome(inner, weights, [dict(entry) for entry in inner.state.log_history], folder)
    metrics = trainer.evaluate()
    model.save_pretrained(folder / "saved")
    probabilities = setfit.SetFitModel.from_pretrained(str(folder / "saved")).predict_proba(rows["text"])
    head, card = model.model_head.coef_, model.model_card_data.eval_lines_list
    return FewShot(outcome, head, metrics, received, card, probabilities)


def test_few_shot_training_equals_transformers(tmp_path):
    sides = Sides("sentence_transformers", "setfit")
    with sides.of("theirs"):
        theirs = few_shot(tmp_path / "theirs")
    with sides.of("ours"):
        ours = few_shot(tmp_path / "ours")
    assert ours.body.differences(theirs.body) == []
    assert ours.body.best == theirs.body.best != ""
    assert ours.body.trainer.state.global_step == theirs.body.trainer.state.global_step == 8
    assert (ours.head == theirs.head).all()
    assert torch.equal(ours.probabilities, theirs.probabilities)
    assert ours.metrics == theirs.metrics
    assert ours.card == theirs.card != []
    kinds = ("TrainingArguments", "SetFitModel", "SentenceTransformer")
    assert ours.received == theirs.received == [(step, *kinds) for step in range(1, 9)]
    assert "Receiver" in ours.body.trainer.control.why("training_stop")

"""NEFTune: the draws of transformers in every bit, in training only; the hook is removed afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from support.data import sentences, token_samples
from support.models import Net, Words
from support.outcomes import history, same_weights, weights
from support.trainers import both, net_trainer
from trainbus import Evaluate, NEFTune, every
from trainbus.callbacks.model.neftune import noisy
from trainbus.events import ArgumentError, ModelError


def test_trains_as_transformers_does_to_the_bit(tmp_path):
    args = {
        **{"per_device_train_batch_size": 4, "max_steps": 6, "learning_rate": 1e-2, "save_strategy": "no"},
        **{"logging_steps": 2, "eval_strategy": "steps", "eval_steps": 3, "neftune_noise_alpha": 8.0},
    }
    (theirs, _), (ours, _) = both(tmp_path, args, train_dataset=sentences(16), eval_dataset=sentences(6, seed=1))
    assert same_weights(weights(ours.model), weights(theirs.model))
    logs = [[entry["loss"] for entry in history(run) if "loss" in entry] for run in (ours, theirs)]
    assert logs[0] == logs[1]
    evals = [[entry["eval_loss"] for entry in history(run) if "eval_loss" in entry] for run in (ours, theirs)]
    assert evals[0] == evals[1]


def test_the_noise_has_the_size_of_the_formula():
    embedded = torch.zeros(3, 4, 9)
    noise = noisy(embedded, 5.0)
    bound = 5.0 / (4 * 9) ** 0.5
    assert noise.abs().max() <= bound
    assert noise.abs().max() > 0.9 * bound
    assert torch.equal(noisy(embedded, 0.0), embedded)


def test_changes_the_training_and_not_the_evaluation(tmp_path):
    def run(alpha):
        callbacks = () if alpha is None else (NEFTune(alpha),)
        built = net_trainer(
            tmp_path, *callbacks, model=Words(), train_dataset=token_samples(), eval_dataset=token_samples(8)
        )
        before = built.evaluate()["eval_loss"]
        built.train()
        return before, weights(built.model)

    plain, none, noise = run(None), run(0.0), run(50.0)
    assert plain[0] == none[0] == noise[0]
    assert not same_weights(plain[1], noise[1])


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_given_back(tmp_path, fails):
    model = Words()
    built = net_trainer(
        tmp_path,
        NEFTune(),
        Evaluate(every(2)),
        model=model,
        train_dataset=token_samples(),
        eval_dataset=token_samples(8),
    )
    hooked = []

    def note(model):
        hooked.append(len(model.tokens._forward_hooks))
        if fails:
            raise ZeroDivisionError

    built.on("on_step_begin", note, once=1)
    if fails:
        with pytest.raises(ZeroDivisionError):
            built.train()
    else:
        built.train()
    assert hooked == [1]
    assert not any(module._forward_hooks for module in model.modules())


class Two(Words):
    """Has a second embedding, so that which is meant must be said."""

    def __init__(self):
        super().__init__()
        self.places = nn.Embedding(4, 6)


class Telling(Two):
    def get_input_embeddings(self):
        return self.tokens


def hooked(tmp_path, model, callback):
    """Return the names of the modules that are hooked in a step."""
    built = net_trainer(tmp_path, callback, model=model, train_dataset=token_samples(), max_steps=1)
    names = []
    built.on("on_step_begin", lambda model: names.extend(n for n, m in model.named_modules() if m._forward_hooks))
    built.train()
    return names


def test_finds_the_embedding(tmp_path):
    assert hooked(tmp_path, Words(), NEFTune()) == ["tokens"]
    assert hooked(tmp_path, Telling(), NEFTune()) == ["tokens"]
    assert hooked(tmp_path, Two(), NEFTune(embedding="tokens")) == ["tokens"]


@pytest.mark.parametrize(
    ("model", "callback", "said"),
    [
        (Net, NEFTune(), r"The input embedding of Net is not known.*nn.Embedding: none.*NEFTune\(embedding="),
        (Two, NEFTune(), r"nn.Embedding: tokens, places"),
        (Words, NEFTune(embedding="token"), r"no module 'token'; did you mean 'tokens'\?"),
    ],
)
def test_a_model_without_a_known_embedding_is_refused(tmp_path, model, callback, said):
    with pytest.raises(ModelError, match=said):
        net_trainer(tmp_path, callback, model=model(), train_dataset=token_samples()).train()


@pytest.mark.parametrize("alpha", [-1.0, float("nan"), float("inf")])
def test_an_invalid_noise_strength_is_refused(tmp_path, alpha):
    with pytest.raises(ArgumentError, match=r"NEFTune\(alpha="):
        NEFTune(alpha)
    with pytest.raises(ArgumentError, match="`neftune_noise_alpha` is"):
        net_trainer(tmp_path, neftune_noise_alpha=alpha)


def test_arguments_build_the_callback(tmp_path):
    assert net_trainer(tmp_path, neftune_noise_alpha=7.0).callbacks["NEFTune"] == NEFTune(7.0)
    assert "NEFTune" not in net_trainer(tmp_path).callbacks

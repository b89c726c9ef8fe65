"""Recurrent memory: passed to the next batch, cleared at epochs and evaluations, and saved."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from support.callbacks import Boom, stop_at
from support.data import net_samples
from support.models import Net, Remembering
from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus import CarryPast, Checkpoint, Evaluate, RecurrentMemory, every
from trainbus.events import ArgumentError, ModelError


class Noting(Remembering):
    """Notes whether it was given a memory, and returns its outputs as a tuple."""

    def __init__(self):
        super().__init__()
        self.given = []

    def forward(self, x, labels=None, mems=None):
        self.given.append(None if mems is None else mems.clone())
        assert mems is None or not mems.requires_grad
        outputs = super().forward(x, labels, mems)
        return tuple(outputs.values())


def remembered(model):
    return [memory is not None for memory in model.given]


def test_each_batch_gets_the_memory_of_the_previous_batch(tmp_path):
    model = Noting()
    built = net_trainer(tmp_path, RecurrentMemory(), model=model)
    made = []
    built.on("on_loss", lambda outputs: made.append(outputs[1].detach().clone()))
    built.train()
    # Four batches an epoch, and the memory is empty at the beginning of each.
    assert remembered(model) == [False, True, True, True, False, True]
    for index, memory in enumerate(model.given):
        assert memory is None or torch.equal(memory, made[index - 1])
    assert "forward" not in vars(model)


def test_an_evaluation_starts_and_ends_without_state(tmp_path):
    model = Noting()
    built = net_trainer(
        tmp_path, RecurrentMemory(), Evaluate(every(2)), model=model, per_device_eval_batch_size=4, max_steps=3
    )
    built.train()
    # Two batches of training, two of the evaluation, and one of training again.
    assert remembered(model) == [False, True, False, True, False]
    model.given.clear()
    built.evaluate()
    built.predict(net_samples(8))
    assert remembered(model) == [False, True, False, True]


@pytest.mark.parametrize("labels", [True, False])
def test_finds_its_output_with_and_without_labels(tmp_path, labels):
    model = Noting()
    data = net_samples(8) if labels else [{"x": row["x"]} for row in net_samples(8)]
    net_trainer(tmp_path, RecurrentMemory(), model=model, per_device_eval_batch_size=4).predict(data)
    assert remembered(model) == [False, True]
    assert model.given[1].shape == (4, 6)


def test_batches_may_be_tuples(tmp_path):
    model = Noting()
    data = [(row["x"], row["labels"]) for row in net_samples()]
    net_trainer(tmp_path, RecurrentMemory(), model=model, train_dataset=data, max_steps=2).train()
    assert [memory is None or memory.shape == (4, 6) for memory in model.given] == [True, True]
    assert remembered(model) == [False, True]


def test_resumes_in_the_middle_of_an_epoch(tmp_path):
    def build(folder):
        return net_trainer(tmp_path / folder, RecurrentMemory(), Checkpoint(every(3)), model=Remembering())

    unbroken = build("unbroken")
    unbroken.train()
    broken = build("broken")
    broken.on("on_step_end", stop_at(3))
    broken.train()
    resumed = build("broken")
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(weights(resumed.model), weights(unbroken.model))
    without = net_trainer(tmp_path / "without", model=Remembering())
    without.train()
    assert not same_weights(weights(without.model), weights(unbroken.model))


def test_a_memory_of_batches_of_another_size_is_empty(tmp_path):
    broken = net_trainer(tmp_path, RecurrentMemory(), Checkpoint(every(2)), model=Remembering())
    broken.on("on_step_end", stop_at(2))
    broken.train()
    model = Noting()
    net_trainer(tmp_path, RecurrentMemory(), model=model, per_device_train_batch_size=3).train(
        resume_from_checkpoint=True
    )
    assert remembered(model)[:2] == [False, True]


def test_a_second_run_starts_without_the_state_of_a_failed_run(tmp_path):
    model = Noting()
    built = net_trainer(tmp_path, RecurrentMemory(), model=model)

    def fail():
        raise Boom

    failing = built.on("on_step_end", fail, once=2)
    with pytest.raises(Boom):
        built.train()
    failing()
    assert "forward" not in vars(model)
    model.given.clear()
    built.train()
    assert remembered(model)[0] is False


def test_works_with_mixed_precision(tmp_path):
    model = Noting()
    net_trainer(tmp_path, RecurrentMemory(), model=model, max_steps=2, bf16=True).train()
    assert remembered(model) == [False, True]
    assert model.given[1].dtype == torch.float32


class Elsewhere(Net):
    def forward(self, x, labels=None, memory=None):
        return super().forward(x, labels)


class Short(nn.Module):
    """Returns a loss and nothing else."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 1)

    def forward(self, x, labels=None, mems=None):
        return {"loss": nn.functional.mse_loss(self.head(x).squeeze(-1), labels)}


@pytest.mark.parametrize(
    ("model", "callback", "said"),
    [
        (Elsewhere, RecurrentMemory(), r"Elsewhere.forward takes no 'mems'.*RecurrentMemory\(name="),
        (Remembering, RecurrentMemory(name="mem"), r"takes no 'mem'; did you mean 'mems'\?"),
        (Remembering, RecurrentMemory(3), r"RecurrentMemory\(index=3\).*the model returned 3"),
        (Short, RecurrentMemory(), r"RecurrentMemory\(index=1\).*the model returned 1"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(tmp_path, model, callback, said):
    with pytest.raises(ModelError, match=said):
        net_trainer(tmp_path, callback, model=model()).train()


@pytest.mark.parametrize("index", [0, -2])
def test_an_output_that_cannot_be_is_refused(tmp_path, index):
    with pytest.raises(ArgumentError, match=rf"RecurrentMemory\(index={index}\)"):
        RecurrentMemory(index)
    with pytest.raises(ArgumentError, match=f"`past_index` is {index}"):
        net_trainer(tmp_path, past_index=index)


def test_arguments_build_the_callback(tmp_path):
    assert net_trainer(tmp_path, past_index=2).callbacks["CarryPast"] == RecurrentMemory(2)
    assert "CarryPast" not in net_trainer(tmp_path, past_index=-1).callbacks


class MyMemory(RecurrentMemory):
    """A subclass, whose id is its own name."""


def test_checkpoints_name_it_by_its_former_name(tmp_path):
    """Checkpoints hold the state under the id `CarryPast`, so those of earlier versions load."""
    assert CarryPast is RecurrentMemory
    built = net_trainer(tmp_path, RecurrentMemory(), RecurrentMemory(2), MyMemory())
    assert {"CarryPast", "CarryPast-2", "MyMemory"} <= set(built.callbacks)

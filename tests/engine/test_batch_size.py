"""Finding the batch size that memory holds: the size transformers finds, and the run of that size to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import trainbus
from support.data import points
from support.models import Regression
from support.outcomes import history, same_weights, weights
from support.trainers import both, regression_trainer
from trainbus.engine.distributed.memory_errors import is_out_of_memory
from trainbus.events import ArgumentError

CUDA = "CUDA out of memory. Tried to allocate 20.00 MiB."


class Hungry(Regression):
    """Runs out of memory above a number of rows; at the first batch, or only after some."""

    def __init__(self, holds, after=0, dropout=0.0, message=CUDA):
        super().__init__(dropout)
        self.holds, self.after, self.message = holds, after, message
        self.sizes = []

    def forward(self, x, labels=None):
        self.sizes.append(len(x))
        if self.training and len(x) > self.holds and len(self.sizes) > self.after:
            raise RuntimeError(self.message)
        return super().forward(x, labels)


@pytest.mark.parametrize(("size", "holds"), [(10, 10), (10, 8), (3, 1)])
def test_ends_with_the_size_of_transformers(tmp_path, size, holds):
    args = {
        **{"per_device_train_batch_size": size, "max_steps": 3, "learning_rate": 0.05, "save_strategy": "no"},
        **{"logging_steps": 1, "auto_find_batch_size": True},
    }
    models = iter([Hungry(holds), Hungry(holds)])
    (theirs, _), (ours, end) = both(tmp_path, args, model=lambda: next(models), train_dataset=points(40))
    assert ours.state.train_batch_size == theirs.state.train_batch_size <= holds
    assert sorted(set(ours.model.sizes), reverse=True) == sorted(set(theirs.model.sizes), reverse=True)
    assert end.global_step == 3


@pytest.mark.parametrize("after", [0, 3], ids=["at once", "after three batches"])
@pytest.mark.parametrize("made", ["model", "model_init"])
def test_the_run_is_that_of_its_size_to_the_bit(tmp_path, after, made):
    def build(folder, make, **args):
        given = {"model_init": make} if made == "model_init" else {"model": make()}
        args = {"logging_strategy": "steps", "logging_steps": 1, **args}
        return regression_trainer(tmp_path / folder, **given, train_dataset=points(40), args=args)

    found = build(
        "found",
        lambda: Hungry(4, after, dropout=0.3),
        per_device_train_batch_size=7,
        auto_find_batch_size=True,
    )
    found.train()
    assert found.state.train_batch_size == 4
    fresh = build("fresh", lambda: Regression(0.3), per_device_train_batch_size=4)
    fresh.train()
    assert same_weights(weights(found.model), weights(fresh.model))
    assert history(found) == history(fresh)
    assert found.state.global_step == fresh.state.global_step == 20


def test_logs_its_actions(tmp_path, caplog):
    built = regression_trainer(
        tmp_path, Hungry(5), args={"per_device_train_batch_size": 7, "auto_find_batch_size": True}
    )
    built.train()
    said = [record.message for record in caplog.records if "memory" in record.message]
    assert said == [
        "A batch of 7 samples does not fit in memory. Starting over with 6.",
        "A batch of 6 samples does not fit in memory. Starting over with 5.",
    ]


def test_a_second_training_begins_with_the_size_of_the_arguments(tmp_path):
    built = regression_trainer(
        tmp_path, Hungry(5), args={"per_device_train_batch_size": 7, "auto_find_batch_size": True}
    )
    built.train()
    built.model.holds = 100
    built.train()
    assert built.state.train_batch_size == 7


def test_a_resumed_run_begins_with_the_size_that_was_found(tmp_path):
    def build(folder, model, size=7, **args):
        args = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6, **args}
        return regression_trainer(
            tmp_path / folder, model, train_dataset=points(40), args={"per_device_train_batch_size": size, **args}
        )

    finding = {"auto_find_batch_size": True}
    found = build("found", Hungry(5, dropout=0.3), **finding)
    found.train()
    resumed = build("found", Hungry(5, dropout=0.3), **finding)
    resumed.train(resume_from_checkpoint=str(tmp_path / "found" / "checkpoint-3"))
    assert set(resumed.model.sizes) == {5}, "it does not begin with one that did not fit"
    assert same_weights(weights(resumed.model), weights(found.model))


def test_an_error_says_that_no_batch_size_fits(tmp_path):
    built = regression_trainer(
        tmp_path, Hungry(0), args={"per_device_train_batch_size": 3, "auto_find_batch_size": True}
    )
    with pytest.raises(ArgumentError, match="A training batch of one sample does not fit in memory"):
        built.train()
    assert built.model.sizes == [3, 2, 1]


def test_other_errors_are_raised_as_they_are(tmp_path):
    built = regression_trainer(tmp_path, Hungry(2, message="shapes differ"), args={"auto_find_batch_size": True})
    with pytest.raises(RuntimeError, match="shapes differ"):
        built.train()
    assert built.model.sizes == [4]


def test_without_it_the_error_is_raised(tmp_path):
    built = regression_trainer(tmp_path, Hungry(2))
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        built.train()


class FullInEvaluation(Regression):
    def forward(self, x, labels=None):
        if not self.training:
            raise RuntimeError(CUDA)
        return super().forward(x, labels)


def test_memory_for_an_evaluation_is_another_matter(tmp_path):
    args = {"auto_find_batch_size": True, "eval_strategy": "epoch", "per_device_eval_batch_size": 6}
    built = regression_trainer(tmp_path, FullInEvaluation(), eval_dataset=points(8), args=args)
    with pytest.raises(ArgumentError, match=r"An evaluation batch of 6 samples.*`per_device_eval_batch_size`"):
        built.train()
    assert built.state.train_batch_size == 4


class Lost(Hungry):
    """Holds something beside tensors in its state."""

    def get_extra_state(self):
        return {"kind": "lost", "numbers": torch.tensor([1.0])}

    def set_extra_state(self, state):
        assert state["kind"] == "lost"


def test_states_that_are_no_tensors_are_kept(tmp_path):
    built = regression_trainer(tmp_path, Lost(3), args={"auto_find_batch_size": True, "max_steps": 1})
    built.on("on_save_begin", lambda control: control.veto("save", "no tensor"))
    built.train()
    assert built.state.train_batch_size == 3


@pytest.mark.parametrize("which", [0, 1])
def test_optimizers_for_one_attempt_are_refused(tmp_path, which):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = (optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer))
    given = tuple(part if index == which else None for index, part in enumerate(made))
    with pytest.raises(
        ArgumentError, match=r"`auto_find_batch_size` builds several optimizers.*Pass `optimizer_cls_and_kwargs`"
    ):
        regression_trainer(tmp_path, model, optimizers=given, args={"auto_find_batch_size": True})


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError(CUDA), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED."), True),
        (RuntimeError("shapes differ"), False),
        (ValueError(CUDA), False),
    ],
    ids=str,
)
def test_memory_errors_are_recognized_by_their_message(error, expected):
    assert is_out_of_memory(error) is expected
    if expected and isinstance(error, RuntimeError) and "CUDA error" not in str(error):
        from accelerate.utils.memory import should_reduce_batch_size

        assert should_reduce_batch_size(error), "accelerate knows it too"


def test_the_public_name_of_the_argument_is_that_of_transformers():
    assert trainbus.TrainingArguments().auto_find_batch_size is False

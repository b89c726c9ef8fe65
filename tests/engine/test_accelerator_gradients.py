"""The methods of `trainer.accelerator` for gradients: loss scale, clipping and averaging."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import trainbus
from support.data import sentences
from support.models import bert
from support.outcomes import same_weights, weights
from support.trainers import hushed
from trainbus import Callback, OptimizerInBackward, SkipBatches, Stage
from trainbus.engine.distributed.ranks import Ranks
from trainbus.engine.seams import clip_gradients
from trainbus.events.capabilities import Capability
from trainbus.events.errors import ArgumentError

ARGS: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "max_steps": 4,
    "save_strategy": "no",
    "learning_rate": 0.01,
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
}


class ScalesLoss(Callback):
    """Scales the loss on CPU, as `fp16` does on CUDA. The scale is a power of two, which changes no bits."""

    stage = Stage.PREPARE

    def on_setup(self, run: Any) -> None:
        run.seams.fill("ScalesLoss", scaler=torch.amp.GradScaler("cpu", init_scale=65536.0))


class ClipsNorm:
    def training_step(self, *args: Any, **options: Any) -> torch.Tensor:
        loss = super().training_step(*args, **options)  # type: ignore[misc]
        if self.last():
            self.norms = [*getattr(self, "norms", []), self.clip()]
        return loss

    def last(self) -> bool:
        # Theirs is always True, because the Trainer of transformers counts the batches itself.
        return getattr(self, "calls", 0) % 2 == 1

    def clip(self) -> Any:
        return self.accelerator.clip_grad_norm_(self.model.parameters(), 0.05).item()


class ClipsValue(ClipsNorm):
    def clip(self) -> Any:
        return self.accelerator.clip_grad_value_(self.model.parameters(), 0.001)


class ClipsTwice(ClipsNorm):
    def clip(self) -> Any:
        self.accelerator.unscale_gradients()
        self.accelerator.unscale_gradients(self.optimizer)
        return super().clip()


def trained(library: Any, folder: Path, mixin: type, *callbacks: Any, **args: Any) -> Any:
    class Counts(library.Trainer):
        calls = -1

        def training_step(self, *args: Any, **options: Any) -> torch.Tensor:
            self.calls += 1
            return super().training_step(*args, **options)

    made = type("Mine", (mixin, Counts), {})(
        model=bert(),
        args=library.TrainingArguments(str(folder), **{**ARGS, **args}),
        train_dataset=sentences(22),
        callbacks=list(callbacks),
    )
    with hushed():
        made.train()
    return made


@pytest.mark.parametrize("mixin", [ClipsNorm, ClipsValue, ClipsTwice])
@pytest.mark.parametrize("max_grad_norm", [0.0, 0.01])
@pytest.mark.parametrize("scales", [False, True], ids=["no scale", "scaled loss"])
def test_clipping_in_a_training_step_is_that_of_accelerate(tmp_path, mixin, max_grad_norm, scales) -> None:
    theirs = trained(transformers, tmp_path, mixin, max_grad_norm=max_grad_norm)
    ours = trained(trainbus, tmp_path, mixin, *([ScalesLoss()] if scales else []), max_grad_norm=max_grad_norm)
    assert theirs.norms == ours.norms
    assert len(ours.norms) == 4
    assert same_weights(weights(theirs.model), weights(ours.model))


class ClipsEveryBatch(ClipsNorm):
    def last(self) -> bool:
        return True


def test_batches_before_the_last_are_clipped_without_a_scale_and_refused_with_it(tmp_path: Path) -> None:
    theirs, ours = (trained(library, tmp_path, ClipsEveryBatch) for library in (transformers, trainbus))
    assert theirs.norms == ours.norms
    assert same_weights(weights(theirs.model), weights(ours.model))
    with pytest.raises(ArgumentError, match=r"`accelerator\.unscale_gradients` .* if `accelerator\.sync_gradients`"):
        trained(trainbus, tmp_path, ClipsEveryBatch, ScalesLoss())


class ClipsBeforeBackward:
    def training_step(self, *args: Any, **options: Any) -> torch.Tensor:
        if self.accelerator.sync_gradients:
            self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
        return super().training_step(*args, **options)  # type: ignore[misc]


def test_backward_after_the_scale_was_removed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="Backward adds scaled gradients"):
        trained(trainbus, tmp_path, ClipsBeforeBackward, ScalesLoss())


class ClipsInHandlers(Callback):
    """Clips in the events after the training step, where the scale is already removed."""

    def __init__(self) -> None:
        self.trainer: Any = None

    def on_gradients(self) -> None:
        self.trainer.accelerator.clip_grad_norm_(self.trainer.model.parameters(), 0.05)

    def on_pre_optimizer_step(self) -> None:
        self.trainer.accelerator.clip_grad_norm_(self.trainer.model.parameters(), 0.02)


def test_handlers_clip_gradients_without_the_scale(tmp_path: Path) -> None:
    results = []
    for scales in ([], [ScalesLoss()]):
        clips = ClipsInHandlers()
        given = trainbus.TrainingArguments(str(tmp_path), **ARGS)
        made = trainbus.Trainer(bert(), given, train_dataset=sentences(22), callbacks=[clips, *scales])
        clips.trainer = made
        with hushed():
            made.train()
        results.append(weights(made.model))
    assert same_weights(*results)


class Plain:
    pass


class SkipsSecond(Callback):
    def on_pre_optimizer_step(self, control: Any, state: Any) -> None:
        if state.global_step == 1:
            control.request("skip_update", "a test")


def skips_first_step() -> SkipBatches:
    batches = count()
    return SkipBatches(when=lambda batch: next(batches) < 2)


@pytest.mark.parametrize(
    "skips",
    [SkipsSecond, skips_first_step],
    ids=["an update", "all batches of the first step"],
)
def test_step_without_an_update_keeps_the_scale(tmp_path: Path, skips: Any) -> None:
    plain = trained(trainbus, tmp_path, Plain, skips())
    scaled = trained(trainbus, tmp_path, Plain, skips(), ScalesLoss())
    assert plain.state.steps_skipped == scaled.state.steps_skipped == 1
    assert scaled.run.seams.scaler.get_scale() == 65536.0
    assert same_weights(weights(plain.model), weights(scaled.model))


# Seams that clip.


class FillsClip(Callback):
    stage = Stage.PREPARE

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_setup(self, run: Any) -> None:
        run.seams.fill("FillsClip", clip=self.clip)

    def clip(self, optimizer: Any, parameters: Any, max_norm: float) -> Any:
        self.calls.append((len(parameters), max_norm))
        return clip_gradients(optimizer, parameters, max_norm)


class ClipsHead(ClipsNorm):
    def clip(self) -> Any:
        return self.accelerator.clip_grad_norm_([*self.model.parameters()][-1], 0.05).item()


class ClipsOtherNorm(ClipsNorm):
    def clip(self) -> Any:
        return self.accelerator.clip_grad_norm_(self.model.parameters(), 0.05, float("inf"))


def test_callback_that_clips_is_called(tmp_path: Path) -> None:
    plain, fills = trained(trainbus, tmp_path, ClipsHead), FillsClip()
    filled = trained(trainbus, tmp_path, ClipsHead, fills)
    assert fills.calls[:2] == [(1, 0.05), (len([*plain.model.parameters()]), 1.0)]
    assert plain.norms == filled.norms
    assert same_weights(weights(plain.model), weights(filled.model))


@pytest.mark.parametrize(
    ("mixin", "match"),
    [
        (ClipsOtherNorm, "Leave `norm_type` out"),
        (ClipsEveryBatch, r"if `accelerator\.sync_gradients` is True"),
        (ClipsValue, r"Use `accelerator\.clip_grad_norm_`"),
    ],
)
def test_clipping_that_the_callback_cannot_do_is_refused(tmp_path: Path, mixin: type, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        trained(trainbus, tmp_path, mixin, FillsClip())


def test_master_weights_are_clipped(tmp_path: Path) -> None:
    options = {"bf16": True, "fp16_opt_level": "O2", "max_grad_norm": 0.0}
    unclipped = trained(trainbus, tmp_path, Plain, **options)
    by_argument = trained(trainbus, tmp_path, Plain, **{**options, "max_grad_norm": 0.05})
    clipped = trained(trainbus, tmp_path, ClipsNorm, **options)
    assert all(norm > 0.05 for norm in clipped.norms)
    assert same_weights(weights(by_argument.model), weights(clipped.model))
    assert not same_weights(weights(unclipped.model), weights(clipped.model))


def test_weights_that_are_already_updated_are_not_clipped(tmp_path: Path) -> None:
    options = {"gradient_accumulation_steps": 1, "max_grad_norm": 0.0}
    with pytest.raises(ArgumentError, match=r"OptimizerInBackward cannot clip to 0\.05"):
        trained(trainbus, tmp_path, ClipsEveryBatch, OptimizerInBackward(), **options)


class LikeDeepSpeed(FillsClip):
    capabilities = frozenset({Capability.DEEPSPEED})


def test_other_norm_than_that_of_deepspeed_is_refused(tmp_path: Path) -> None:
    trained(trainbus, tmp_path, ClipsNorm, LikeDeepSpeed(), max_grad_norm=0.05)
    with pytest.raises(ArgumentError, match=r"Set `max_grad_norm=0\.05`"):
        trained(trainbus, tmp_path, ClipsNorm, LikeDeepSpeed())


def idle(folder: Path) -> Any:
    return trainbus.Trainer(bert(), trainbus.TrainingArguments(str(folder), use_cpu=True)).accelerator


def test_outside_of_a_training_gradients_have_no_scale(tmp_path: Path) -> None:
    accelerator, weight = idle(tmp_path), nn.Parameter(torch.ones(4))
    weight.grad = torch.full((4,), 3.0)
    accelerator.unscale_gradients()
    accelerator.clip_grad_value_(weight, 1.0)
    assert weight.grad.tolist() == [1.0] * 4


# Averaging over the ranks.


class LikeFSDP(nn.Linear):
    """Has the method of a model that `fully_shard` sharded."""

    def set_requires_gradient_sync(self, syncs: bool) -> None:
        self.calls = [*getattr(self, "calls", []), syncs]


def test_backward_of_fsdp_does_not_average_in_no_sync(tmp_path: Path) -> None:
    accelerator, model = idle(tmp_path), LikeFSDP(2, 2)
    with accelerator.no_sync(model):
        assert model.calls == [False]
    assert model.calls == [False, True]


class LikeZeRO(nn.Linear):
    """Has the methods of an engine of DeepSpeed with stage 2, which refuses `no_sync`."""

    def zero_optimization_partition_gradients(self) -> bool:
        return True

    def no_sync(self) -> Any:
        raise AssertionError


def test_stage_of_deepspeed_that_refuses_no_sync_is_left_alone(tmp_path: Path) -> None:
    with idle(tmp_path).no_sync(LikeZeRO(2, 2)):
        pass


@pytest.mark.parametrize("reduction", ["sum", "mean", "max", "none"])
def test_whole_numbers_stay_exact_in_reduce(tmp_path: Path, reduction: str) -> None:
    number = torch.tensor([2**24 + 1])
    theirs = transformers.Trainer(
        bert(), transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    ).accelerator.reduce(number, reduction)
    ours = idle(tmp_path).reduce(number, reduction)
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours, theirs)
    ours += 1
    assert number.item() == 2**24 + 1  # the result is a copy


def test_reductions_over_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = idle(tmp_path)
    monkeypatch.setattr(Ranks, "sum", lambda self, tensor: tensor + 3)
    monkeypatch.setattr(Ranks, "gather", lambda self, tensor: torch.cat((tensor, tensor + 3)))
    monkeypatch.setattr(accelerator.run, "ranks", Ranks(0, 3))
    given = torch.tensor([7])
    assert {name: accelerator.reduce(given, name).tolist() for name in ("sum", "none", "max")} == {
        **{"sum": [10], "none": [10]},
        "max": [10],
    }
    assert accelerator.reduce(torch.tensor(7.0), "mean") == torch.tensor(10.0) / 3
    with pytest.raises(ArgumentError, match=r"no reduction 'maximum'.* There are: mean, sum, max, none"):
        accelerator.reduce(given, "maximum")

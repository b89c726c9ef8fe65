"""Trainings with DeepSpeed, run by `test_deepspeed.py`: uninterrupted, resumed, with callbacks, and repeated."""

import atexit
import json
import sys
from pathlib import Path

import deepspeed  # noqa: F401 - before a trainer creates the process group, which its functions would reference
import torch
from ddp_program import Net, no_thread_of_gloo_is_left
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import EMA, Trainer, TrainingArguments

ADAM = {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto", "torch_adam": True}
WARMUP = {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": 3, "total_num_steps": "auto"}
OPTIMIZER = {"optimizer": {"type": "AdamW", "params": ADAM}}
SCHEDULER = {"scheduler": {"type": "WarmupDecayLR", "params": WARMUP}}
NADAM = {"optimizer": {"type": "NAdam", "params": {"lr": "auto"}}, "zero_allow_untested_optimizer": True}
OFFLOAD = {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}


LIMIT = 0.25
"""The largest absolute value of a weight in the runs that clamp the weights."""


class Tied(Net):
    """A model with a weight that has two names."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, x):
        return super().forward(x + self.second(self.first(x)))


class Normed(Net):
    """A model with running statistics, which differ between ranks."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        return super().forward(self.norm(x))


def zero(stage, *sections, **options):
    """Return a configuration of a stage. Stage 3 shards small weights too."""
    if stage == 3:
        options["stage3_param_persistence_threshold"] = 0
    config = {"zero_optimization": {"stage": stage, **options}}
    for section in sections:
        config.update(section)
    return config


CONFIGS = {
    "ddp": None,
    **{f"z{stage}": zero(stage) for stage in (0, 1, 2, 3)},
    "z2-optimizer": zero(2, OPTIMIZER),
    "z2-scheduler": zero(2, SCHEDULER),
    **{f"z{stage}-both": zero(stage, OPTIMIZER, SCHEDULER) for stage in (1, 2)},
    "z1-nadam": zero(1, NADAM),
    "z2-round": zero(2, round_robin_gradients=True),
    "z2-offload": zero(2, offload_optimizer={"device": "cpu"}),
    "z1-bf16": zero(1, {"bf16": {"enabled": True}}),
    "z3-bf16": zero(3, {"bf16": {"enabled": True}}, **OFFLOAD),
}


def build(output, config, make_model=None, callbacks=None, **options):
    """Return a trainer of 8 steps. Every seventh step has one batch instead of two."""
    torch.manual_seed(0)
    x = torch.randn(101, 6)
    y = (x.sum(1) > 0).long() + (x[:, 0] > 1).long()
    steered = "eval_steps" in options
    args = TrainingArguments(
        output,
        **{
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "max_steps": 8,
            "learning_rate": 1e-2,
            "max_grad_norm": 0.5,
            "weight_decay": 0.01,
            "save_steps": 4,
            "logging_steps": 1,
            "deepspeed": config,
            "ddp_timeout": 60,
            "disable_tqdm": True,
            "use_cpu": True,
            **options,
        },
    )
    return Trainer(
        make_model() if make_model is not None else Tied() if steered else Net(),
        args,
        callbacks=callbacks,
        train_dataset=TensorDataset(x, y),
        eval_dataset=TensorDataset(x[:33], -y[:33] % 3 if steered else y[:33]),  # wrong labels: an early model is best
        criterion=nn.CrossEntropyLoss(),
        compute_metrics=lambda prediction: {"labels": prediction.label_ids.tolist()},
    )


def save_facts(trainer, **facts):
    """Save facts about a finished run, on rank 0."""
    state = sum(t.numel() for own in trainer.optimizer.state.values() for t in own.values() if torch.is_tensor(t))
    facts["state"] = state
    facts["weights"] = sum(weight.numel() for weight in trainer.model.parameters())
    facts["skipped"] = trainer.state.steps_skipped
    facts["joined"] = torch.distributed.is_initialized()
    facts["schedule"] = type(trainer.lr_scheduler).__name__
    if trainer.is_world_process_zero():
        Path(trainer.args.output_dir, "facts.json").write_text(json.dumps(facts))


def whole(folder, name, decay="0.01"):
    """Train with a configuration."""
    trainer = build(f"{folder}/{name}", CONFIGS[name], weight_decay=float(decay))
    trainer.train()
    save_facts(trainer)


def resumed(folder, source, name, decay="0.01"):
    """Resume from the middle of another run with a configuration."""
    trainer = build(f"{folder}/{source}-{name}", CONFIGS[name], weight_decay=float(decay))
    trainer.train(resume_from_checkpoint=f"{folder}/{source}/checkpoint-4")
    save_facts(trainer)


def steered(folder, name):
    """Skip two steps, load the best weights at the end, then evaluate, predict and save."""
    options = {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2, "load_best_model_at_end": True}
    trainer = build(f"{folder}/steered-{name}", CONFIGS[name], **options)

    def skip_two_steps(control, state):
        if state.global_step in (3, 5):
            control.request("skip_update", "as planned")

    trainer.on("on_pre_optimizer_step", skip_two_steps)
    trainer.train()
    loss = trainer.evaluate()
    predicted = trainer.predict(trainer.eval_dataset)
    trainer.save_model(f"{trainer.args.output_dir}/saved")
    best = trainer.state.best_model_checkpoint
    save_facts(trainer, best=best, eval_loss=loss["eval_loss"], labels=predicted.label_ids.tolist())


def twice(folder, name):
    """Train twice with the same trainer and its optimizer."""
    trainer = build(f"{folder}/twice-{name}", CONFIGS[name])
    trainer.train()
    trainer.train()
    save_facts(trainer)


def again(folder, name):
    """Train, then resume from the middle of the run with the same trainer."""
    trainer = build(f"{folder}/again-{name}", CONFIGS[name])
    trainer.train()
    trainer.train(resume_from_checkpoint=f"{trainer.args.output_dir}/checkpoint-4")
    save_facts(trainer)


def written(folder, name, resume=None):
    """Write to the weights after each step, average them, and use buffers that differ between ranks."""
    output = f"{folder}/written-{name}{'-resumed' if resume else ''}"
    options = {"eval_strategy": "steps", "eval_steps": 4, "callbacks": [EMA(0.5)]}
    model = Net if "bf16" in name else Normed  # torch has no half-precision BatchNorm on CPUs
    trainer = build(output, CONFIGS[name], make_model=model, **options)

    @torch.no_grad()
    def clamp(model):
        for weight in model.parameters():
            weight.clamp_(-LIMIT, LIMIT)

    trainer.on("on_optimizer_step", clamp)
    trainer.train(resume_from_checkpoint=f"{folder}/written-{name}/checkpoint-4" if resume else None)
    copies = max(weight.abs().max().item() for group in trainer.optimizer.param_groups for weight in group["params"])
    save_facts(trainer, eval_loss=trainer.evaluate()["eval_loss"], copies=copies)


def main():
    """Make the runs named on the command line, `kind:folder:names...`, in this order."""
    atexit.register(no_thread_of_gloo_is_left)  # registered first, so it runs last
    kinds = {"whole": whole, "resumed": resumed, "steered": steered, "twice": twice, "again": again}
    kinds["written"] = written
    for run in sys.argv[1:]:
        kind, *rest = run.split(":")
        kinds[kind](*rest)


if __name__ == "__main__":
    main()

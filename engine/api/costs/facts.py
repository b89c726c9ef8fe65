"""Short lines that describe a training: its model, batch, device and so on. The log and notebooks show them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ...data.build import length_of
from ...optim.set_rate import initial_rates
from ...optim.sizes import count_elements

Fact = tuple[str, str]
"""The name and the text of one line."""


def facts_of(run: Any) -> Iterator[Fact]:
    """Yield the lines that describe a run, each as name and text.

    Before the first training, the lines `data` and `steps` are missing.
    """
    args, plan = run.args, run.plan
    yield "model", _model(run.model)
    rows = length_of(getattr(run.train_dataloader, "dataset", None))
    if run.train_dataloader is not None:
        yield "data", f"{rows:,} rows" if rows is not None else "a stream of unknown length"
    batch, accumulate = run.train_batch_size or args.train_batch_size, args.gradient_accumulation_steps
    world = run.ranks.world_size
    ranks = f"{world} ranks" if world > 1 else "1 rank"
    yield "batch", f"{batch} x {accumulate} accumulated x {ranks} = {batch * accumulate * world} rows a step"
    if plan is not None:
        yield "steps", f"{plan.max_steps:,}, {plan.steps_per_epoch:,} an epoch"
    yield "optimizer", _optimizer(run)
    yield "device", _device(run.device)
    yield "precision", _precision(run)
    yield "output", str(args.output_path)
    if plugins := run.services.plugins():
        yield "plugins", "; ".join(plugins)


def block(title: str, facts: list[Fact]) -> str:
    """Return names and texts as aligned lines under a title. For an empty title, return only the aligned lines."""
    width = max((len(name) for name, _ in facts), default=0)
    return "\n".join([*([title] if title else []), *(f"  {name.ljust(width)}  {text}" for name, text in facts)])


def count(number: float) -> str:
    """Return a number as short text, such as `109.5 M`. Numbers below 10,000 are exact."""
    if number < 10_000:
        return f"{number:,.10g}"
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.4g} {unit}"
    return f"{number:g}"


def _model(model: Any) -> str:
    weights = list(model.parameters())
    whole, trained = count_elements(weights), count_elements(each for each in weights if each.requires_grad)
    lazy = sum(map(is_lazy, weights))
    text = f"{type(model).__name__}, {count(whole)} parameters, "
    text += "all trainable" if whole == trained else f"{count(trained)} trainable ({trained / max(1, whole):.1%})"
    return text + (f", and {lazy} without a shape before the first batch" if lazy else "")


def _optimizer(run: Any) -> str:
    args = run.args
    name = str(getattr(args.optim, "value", args.optim))
    if run.optimizer is not None:
        own = run.optimizer
        name = f"{type(getattr(own, 'optimizer', own)).__name__}"
    schedule = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    if run.lr_scheduler is not None and type(run.lr_scheduler).__name__ != "LambdaLR":
        schedule = type(run.lr_scheduler).__name__
    text = f"{name}, learning rate {_learning_rate(run):g}, schedule {schedule}"
    if run.optimizer is not None and run.state.global_step:
        now = run.current_learning_rate()
        text += f" (now {now:.4g})" if now != _learning_rate(run) else ""
    return text


def _learning_rate(run: Any) -> float:
    """Return the initial learning rate of the optimizer, which may differ from `args.learning_rate`.

    It differs if a checkpoint restored the optimizer, or if the program built the optimizer.
    """
    wanted: float = run.args.learning_rate
    if not getattr(run.optimizer, "param_groups", None):
        return wanted
    rates = initial_rates(run.optimizer, run.lr_scheduler)
    return wanted if wanted in rates else max(rates)


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device}, {torch.cuda.get_device_name(device)}"
    if device.type != "cpu":
        return str(device)
    threads = torch.get_num_threads()
    return f"{device}, {threads} thread{'' if threads == 1 else 's'}"


def _precision(run: Any) -> str:
    kinds = sorted({str(each.dtype).removeprefix("torch.") for each in run.model.parameters()})
    weights = f"weights {' and '.join(kinds) or 'none'}"
    if run.args.bf16 or run.args.fp16:
        return f"{'bfloat16' if run.args.bf16 else 'float16'} autocast, {weights}"
    return f"{weights}, no autocast"

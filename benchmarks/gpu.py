"""Measure training on a GPU: tokens a second, the overhead of a step, and hidden synchronizations.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --device cpu --steps 2 --tiny

The model is GPT-2 with 124 million weights, built from its config, in bf16, with and without `torch.compile`. All
contenders train on the same random tokens with fused AdamW, clipping and a linear schedule, and log at no measured
step. The measured time begins when a batch is requested and ends when a later batch is requested. The benchmark
synchronizes the device at both moments.

A synchronization makes the host wait for the device. After it, the device is idle until the host has queued more work.
On a GPU, `torch.cuda.set_sync_debug_mode` reports each synchronization. On a CPU there are none. There the benchmark
counts the calls of tensor methods that would synchronize on a GPU, such as `item`, only to check the benchmark itself.

Without a GPU, the benchmark says so and measures nothing, unless `--device cpu` is given.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from common import HF, OURS, RAW, Benchmark, hushed, interleave
from torch import nn
from torch.utils.data import DataLoader, Dataset

WARM_UP = 3
"""The steps before the measured steps. Compilation is in the first of them."""
READS = ("item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__", "__array__")
"""The methods of a tensor that wait for the device."""
LEARNING_RATE = 1e-4


class Meter:
    """Measures time and synchronizations between the requests of two batches."""

    def __init__(self, device: str, first: int, last: int) -> None:
        self.device, self.first, self.last = device, first, last
        self.requests, self.seconds, self.synchronizations = 0, 0.0, 0
        self._stack = contextlib.ExitStack()

    def request(self) -> None:
        """Record the request of the next batch."""
        self.requests += 1
        if self.requests == self.first:
            self.wait()
            self._count = self._stack.enter_context(synchronizations(self.device))
            self._began = time.perf_counter()
        elif self.requests == self.last:
            self.synchronizations = len(self._count)  # before the benchmark itself waits
            self._stack.close()
            self.wait()
            self.seconds = time.perf_counter() - self._began

    def wait(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()


@contextlib.contextmanager
def synchronizations(device: str) -> Iterator[list[Any]]:
    """Yield a list that gets one entry for each synchronization."""
    if device == "cuda":
        with warnings.catch_warnings(record=True) as seen:
            warnings.filterwarnings("ignore")
            warnings.filterwarnings("always", message=".*synchronizing CUDA operation.*")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield seen
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return
    found: list[Any] = []
    real = {name: getattr(torch.Tensor, name) for name in READS}
    inherited = {name for name in READS if name not in vars(torch.Tensor)}

    def counting(name: str) -> Any:
        @functools.wraps(real[name])
        def call(*args: Any, **options: Any) -> Any:
            found.append(name)
            return real[name](*args, **options)

        return call

    for name in READS:
        setattr(torch.Tensor, name, counting(name))
    try:
        yield found
    finally:
        for name in READS:
            delattr(torch.Tensor, name) if name in inherited else setattr(torch.Tensor, name, real[name])


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Random tokens, which are also the labels."""

    def __init__(self, count: int, length: int, words: int, meter: Meter) -> None:
        self.tokens = torch.randint(0, words, (count, length), generator=torch.Generator().manual_seed(0))
        self.meter = meter

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}

    def __getitems__(self, indices: list[int]) -> list[dict[str, torch.Tensor]]:
        """Return the samples of a batch, and record the request on the meter."""
        self.meter.request()
        return [self[index] for index in indices]


def gpt2(tiny: bool, length: int) -> nn.Module:
    """Return GPT-2 with random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    small = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 128} if tiny else {}
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_positions=length, use_cache=False, **small))


def train_raw(data: Tokens, options: argparse.Namespace, compiled: bool, steps: int) -> None:
    """Train with a plain loop."""
    device = options.device
    model = gpt2(options.tiny, options.length).to(device).train()
    called = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
    losses = torch.zeros((), device=device)
    for batch in DataLoader(data, options.batch, shuffle=True, pin_memory=device == "cuda"):
        moved = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
        with torch.autocast(device, torch.bfloat16):
            loss = called(**moved).loss
        loss.backward()
        losses += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def train_library(name: str, data: Tokens, options: argparse.Namespace, compiled: bool, steps: int) -> None:
    """Train with the Trainer of trainbus or transformers."""
    library: Any = importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        args = library.TrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=options.batch,
            learning_rate=LEARNING_RATE,
            bf16=True,
            torch_compile=compiled,
            save_strategy="no",
            logging_steps=10 * steps,
            report_to="none",
            disable_tqdm=True,
            use_cpu=options.device == "cpu",
        )
        library.Trainer(gpt2(options.tiny, options.length), args, train_dataset=data).train()


def measured(name: str, options: argparse.Namespace, compiled: bool) -> Meter:
    """Train once. Return the meter, with the time and the synchronizations of the measured steps."""
    if options.device == "cuda":
        torch.cuda.empty_cache()
    if compiled:
        torch.compiler.reset()
    first, last = WARM_UP + 1, WARM_UP + 1 + options.steps
    steps = last + 1  # the trainers request the batch of a step during the step before
    meter = Meter(options.device, first, last)
    data = Tokens(options.batch * steps, options.length, 128 if options.tiny else 50257, meter)
    with hushed():
        if name == RAW:
            train_raw(data, options, compiled, steps)
        else:
            train_library(name, data, options, compiled, steps)
    assert meter.seconds > 0, f"{name} requested {meter.requests} batches, and {last} are needed"
    return meter


def main() -> int:
    """Measure, print, and return 1 if a limit is exceeded."""
    benchmark = Benchmark(__doc__, rounds=3)
    benchmark.option("--device", choices=("cuda", "cpu"), default="cuda", help="cpu only checks the benchmark")
    benchmark.option("--steps", type=int, default=30, help="measured steps of a run")
    benchmark.option("--batch", type=int, help="samples of a batch (default: 8)")
    benchmark.option("--length", type=int, help="tokens of a sample (default: 1024)")
    benchmark.option("--tiny", action="store_true", help="a model of two small layers, and short samples")
    benchmark.option("--no-compile", action="store_true", help="do not measure torch.compile")
    benchmark.option("--sync-limit", type=float, help="the most synchronizations of a step of trainbus")
    options = benchmark.begin()
    options.batch = options.batch or (2 if options.tiny else 8)
    options.length = options.length or (16 if options.tiny else 1024)
    if options.device == "cuda" and not torch.cuda.is_available():
        benchmark.leave_out("gpu", "torch finds no CUDA device, so the GPU benchmark is skipped")
        return benchmark.finish()
    device = torch.cuda.get_device_name() if options.device == "cuda" else "CPU: only a check of the benchmark"
    print(f"{device}; {options.batch} x {options.length} tokens a step, bf16")
    tokens = options.batch * options.length
    for compiled in (False,) if options.no_compile else (False, True):
        kind = f"GPT-2 on {options.device}, {'compiled' if compiled else 'not compiled'}"
        runs = {name: partial(measured, name, options, compiled) for name in (RAW, OURS, HF)}
        found = interleave(runs, options.rounds, warm_ups=0)
        seconds = {name: [each.seconds / options.steps for each in meters] for name, meters in found.items()}
        benchmark.add(f"{kind}: step", "s", seconds)
        rates = {name: [tokens / each for each in values] for name, values in seconds.items()}
        benchmark.add(f"{kind}: tokens a second", "tokens/s", rates)
        later = [(ours - plain) * 1e6 for ours, plain in zip(seconds[OURS], seconds[RAW])]
        print(f"a step of trainbus takes {statistics.median(later):.0f} microseconds more than the plain loop")
        waits = {name: [each.synchronizations / options.steps for each in meters] for name, meters in found.items()}
        benchmark.add(f"{kind}: synchronizations of a step", "", waits)
        benchmark.limit(statistics.median(waits[OURS]), options.sync_limit, f"{kind}, synchronizations of a step")
    return benchmark.finish()


if __name__ == "__main__":
    sys.exit(main())

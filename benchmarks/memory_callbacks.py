"""Measure how much memory or time certain callbacks save, on the CPU. Each is compared with a run without it.

    python benchmarks/memory_callbacks.py compile
    python benchmarks/memory_callbacks.py garbage
    python benchmarks/memory_callbacks.py backward
    python benchmarks/memory_callbacks.py offload
    python benchmarks/memory_callbacks.py loss
    python benchmarks/memory_callbacks.py rounding
    python benchmarks/memory_callbacks.py float8

- `compile`: a transformer of 12 layers, compiled as a whole or layer by layer. The values are the seconds of the first
  step, with an empty cache of the compiler, and the median of later steps.
- `garbage`: the step times of a program with 2 million Python objects, which keeps about 300 more in each step.
- `backward`: the peak of the bytes of all live tensors in a step.
- `offload`: the bytes that the layers save for backward: moved to host memory, and left in place.
- `loss`: the peak of the bytes of all live tensors in a step of a Llama with 32,000 tokens in its vocabulary, and the
  median of the step times without the measurement of memory.
- `rounding`: the bytes of weights, gradients and optimizer state per parameter, at the update of a step. Also the mean
  loss of the last 20 of 300 steps with a small learning rate.
- `float8`: the mean loss of the last 20 of 300 steps. Float8 is emulated, so its speed is not measured.

Every measurement runs in a process of its own. The two variants of a subject take turns. The printed values are from
the best turn of each.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from sharded_memory import MemoryWatch, Stack
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from trainbus import (
    Callback,
    ChunkedCrossEntropy,
    CollectGarbage,
    Compile,
    HalfWeights,
    OffloadActivations,
    OptimizerInBackward,
    Trainer,
    TrainingArguments,
    every,
)

LAYERS, WIDTH, LENGTH = 12, 64, 32


class Layer(nn.Module):
    """A layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.body = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output, of the shape of `x`: (samples, length, width)."""
        query, key, value = (
            part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.mix(self.norms[0](x)).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.body(self.norms[1](x))


class Transformer(nn.Module):
    """A transformer of 12 layers. Returns logits of 100 tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(100, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 100)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits, of shape (samples, 100, length), for a batch of shape (samples, length)."""
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x).transpose(1, 2)


class Timing(Callback):
    """Records the seconds of each step, including the time for its batch and for the handlers of other callbacks."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last = 0.0

    def on_epoch_begin(self) -> None:
        self._last = time.perf_counter()

    def on_step_end(self) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now


def train(
    model: nn.Module, data: Any, *callbacks: Any, criterion: Any = nn.functional.cross_entropy, **options: Any
) -> Trainer:
    """Train and return the trainer."""
    arguments = {"per_device_train_batch_size": 4, "max_grad_norm": 0, "save_strategy": "no", "logging_strategy": "no"}
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(folder, use_cpu=True, disable_tqdm=True, capsule=False, **arguments | options)
        trainer = Trainer(model, args, train_dataset=data, criterion=criterion, callbacks=list(callbacks))
        trainer.train()
    return trainer


def sentences(samples: int = 64) -> TensorDataset:
    """Return samples of random tokens."""
    tokens = torch.randint(100, (samples, LENGTH))
    return TensorDataset(tokens, tokens.roll(-1, 1))


def measure_compile(variant: str) -> dict[str, float]:
    """Compile the transformer as a whole or by layer."""
    made = {"whole": Compile(), "regions": Compile(regions="blocks"), "none": None}[variant]
    timing = Timing()
    train(Transformer(), sentences(), *filter(None, [made]), timing, max_steps=16)
    return {"first step s": timing.seconds[0], "later steps ms": 1e3 * statistics.median(timing.seconds[4:])}


class Caching(Dataset[Any]):
    """A dataset that keeps the tokens of each sample as Python objects. It also holds many other objects, as a large
    program does."""

    def __init__(self, objects: int) -> None:
        self.others = [{"row": index, "tags": [index]} for index in range(objects // 2)]
        self.cache: list[Any] = []

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Any:
        tokens = [index % 2] * 8
        self.cache.append([{"token": token, "row": (index, token, [token])} for token in tokens * 3])
        return torch.tensor([float(token) for token in tokens]), index % 2


def measure_garbage(variant: str) -> dict[str, float]:
    """Train a small model in a process with many Python objects."""
    timing = Timing()
    made = {
        "automatic": None,
        "CollectGarbage": CollectGarbage(every(500)),
        "without freeze": CollectGarbage(every(500), freeze=False),
    }[variant]
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
    train(model, Caching(2_000_000), *filter(None, [made]), timing, max_steps=4000)
    seconds = [1e3 * each for each in timing.seconds[1:]]
    ordered = sorted(seconds)
    return {
        "median ms": statistics.median(seconds),
        "p99 ms": ordered[len(ordered) * 99 // 100],
        "p99.9 ms": ordered[len(ordered) * 999 // 1000],
        "slowest ms": ordered[-1],
        "total s": sum(seconds) / 1e3,
    }


def measure_backward(variant: str) -> dict[str, float]:
    """Train a stack of layers with AdamW. Sum the bytes of live tensors per parameter."""
    made = {"ordinary": None, "OptimizerInBackward": OptimizerInBackward()}[variant]
    watch = MemoryWatch()
    with watch:
        torch.manual_seed(0)
        model = Stack()
        data = TensorDataset(torch.randn(8, 256), torch.zeros(8, dtype=torch.long))

        class Look(Callback):
            def on_step_begin(self, state: Any) -> None:
                watch.looking = state.global_step == 2

        train(model, data, *filter(None, [made]), Look(), max_steps=3, per_device_train_batch_size=1)
    weights = sum(weight.numel() for weight in model.parameters())
    return {"peak bytes per parameter": watch.peak / weights}


def measure_offload(variant: str) -> dict[str, float]:
    """Train the transformer. Count the bytes that the layers save for backward."""
    made = {"1 MiB": 2**20, "64 KiB": 2**16, "all": 0}[variant]
    offload = OffloadActivations(blocks=(Layer,), min_bytes=made)
    train(Transformer(), sentences(), offload, max_steps=2, per_device_train_batch_size=32)
    return {"MB in host memory": offload.offloaded_bytes / 1e6, "MB left": offload.kept_bytes / 1e6}


def measure_loss(variant: str) -> dict[str, float]:
    """Train a small causal language model with a large vocabulary."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def run(*callbacks: Any) -> None:
        torch.manual_seed(0)
        sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=32_000, **sizes))
        tokens = torch.randint(32_000, (32, 256))
        data = [{"input_ids": row, "labels": row} for row in tokens]
        made = {"ordinary": None, "ChunkedCrossEntropy": ChunkedCrossEntropy(), "chunk=None": ChunkedCrossEntropy(None)}
        train(model, data, *filter(None, [made[variant]]), *callbacks, criterion=None, max_steps=6)

    timing, watch = Timing(), MemoryWatch()
    run(timing)

    class Look(Callback):
        def on_step_begin(self, state: Any) -> None:
            watch.looking = state.global_step == 2

    with watch:
        run(Look())
    return {"peak MB": watch.peak / 1e6, "step ms": 1e3 * statistics.median(timing.seconds[1:])}


def bytes_in(value: Any) -> int:
    """Return the bytes of all tensors in nested values. A tensor of torchao consists of other tensors."""
    if hasattr(value, "__tensor_flatten__"):
        return sum(bytes_in(getattr(value, name)) for name in value.__tensor_flatten__()[0])
    if isinstance(value, torch.Tensor):
        return value.nbytes
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return sum(map(bytes_in, values))


class LastLosses(Callback):
    """Keeps the loss of each step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_loss(self, loss: torch.Tensor) -> None:
        self.losses.append(float(loss.detach()))

    @property
    def mean(self) -> float:
        """The mean of the last 20 losses."""
        return statistics.mean(self.losses[-20:])


class Held(Callback):
    """Measures the bytes of weights, gradients and optimizer state in the second step."""

    bytes = 0

    def on_pre_optimizer_step(self, run: Any, state: Any) -> None:
        if state.global_step == 1:
            updated = [weight for group in run.optimizer.param_groups for weight in group["params"]]
            weights = {id(weight): weight for weight in (*run.model.parameters(), *updated)}.values()
            gradients = [weight.grad for weight in weights if weight.grad is not None]
            self.bytes = bytes_in([*weights]) + bytes_in(gradients) + bytes_in(dict(run.optimizer.state))


class InHalf(nn.Module):
    """A model with bfloat16 weights and inputs, and float32 outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs of the model."""
        return self.model(x.bfloat16() if x.is_floating_point() else x).float()


def measure_rounding(variant: str) -> dict[str, float]:
    """Train with bfloat16 weights and other optimizers: a stack of layers for the bytes, a transformer for the loss."""
    optim, rounds, half = {
        "float32": ("adamw_torch", False, False),
        "HalfWeights": ("adamw_torch", False, False),
        "bfloat16": ("adamw_torch", False, True),
        "8 bits, nearest": ("adamw_torch_8bit", False, True),
        "8 bits, stochastic": ("adamw_torch_8bit", True, True),
        "4 bits, stochastic": ("adamw_torch_4bit", True, True),
    }[variant]
    options = {"optim": optim, "optim_args": "bf16_stochastic_round=True" if rounds else None}
    beside = [HalfWeights("bf16")] if variant == "HalfWeights" else []
    torch.manual_seed(0)
    held, stack, losses = Held(), Stack(), LastLosses()
    data = TensorDataset(torch.randn(8, 256), torch.zeros(8, dtype=torch.long))
    torch.compiler.set_stance("force_eager")  # torchao compiles its update
    train(InHalf(stack) if half else stack, data, *beside, held, max_steps=2, per_device_train_batch_size=1, **options)
    model = InHalf(Transformer()) if half else Transformer()
    train(model, sentences(), *beside, losses, max_steps=300, learning_rate=1e-4, **options)
    return {
        "bytes per parameter": held.bytes / sum(weight.numel() for weight in stack.parameters()),
        "loss": losses.mean,
    }


def measure_float8(variant: str) -> dict[str, float]:
    """Train the transformer with emulated float8."""
    from trainbus import Float8  # imports torchao

    losses = LastLosses()
    made = [] if variant == "float32" else [Float8(variant, emulate=True)]  # type: ignore[arg-type]
    train(Transformer(), sentences(), *made, losses, max_steps=300, learning_rate=1e-3)
    return {"loss": losses.mean}


SUBJECTS: dict[str, tuple[Callable[[str], dict[str, float]], tuple[str, ...]]] = {
    "compile": (measure_compile, ("whole", "regions", "none")),
    "garbage": (measure_garbage, ("automatic", "CollectGarbage", "without freeze")),
    "backward": (measure_backward, ("ordinary", "OptimizerInBackward")),
    "loss": (measure_loss, ("ordinary", "ChunkedCrossEntropy", "chunk=None")),
    "rounding": (
        measure_rounding,
        ("float32", "HalfWeights", "bfloat16", "8 bits, nearest", "8 bits, stochastic", "4 bits, stochastic"),
    ),
    "float8": (measure_float8, ("float32", "tensorwise", "rowwise", "rowwise_with_gw_hp")),
    "offload": (measure_offload, ("1 MiB", "64 KiB", "all")),
}
"""The measurements: a function, and the variants that it compares."""


def in_process(subject: str, variant: str) -> dict[str, float]:
    """Measure a variant in a new process, with an empty cache of the compiler."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, __file__, subject, "--variant", variant],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
            capture_output=True,
            text=True,
            timeout=550,
        )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Print one line for each variant of a subject."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("subject", choices=SUBJECTS)
    parser.add_argument("--turns", type=int, default=2, help="how often each variant is measured")
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    options = parser.parse_args()
    measure, variants = SUBJECTS[options.subject]
    logging.disable(logging.WARNING)
    if options.variant:
        print(json.dumps(measure(options.variant)))
        return
    turns = [[in_process(options.subject, variant) for variant in variants] for _ in range(options.turns)]
    for variant, results in zip(variants, zip(*turns)):
        best = {name: min(result[name] for result in results) for name in results[0]}
        print(f"{variant:20s}", "  ".join(f"{name} {value:.4g}" for name, value in best.items()))


if __name__ == "__main__":
    main()

"""Measure the memory per rank of each way to shard, and compare it with the estimate of `trainbus plan`.

    python benchmarks/sharded_memory.py
    python benchmarks/sharded_memory.py --ways DDP "stage 3" --limit 0.9

Every way trains the same model with AdamW on two gloo ranks on the CPU. The benchmark watches every torch operation and
sums the bytes of all live tensors: between two steps, and the maximum after any operation within a step. It also shows
the bytes of the weights, of the gradients after backward, and of the optimizer states. The figures are from the rank
that uses more memory. On the CPU, offloaded tensors are in the same memory as all others, so they count too.
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
from common import Benchmark
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import TensorDataset

from trainbus.engine.distributed.memory_estimate import estimate
from trainbus.engine.distributed.strategies import variants
from trainbus.engine.distributed.workload import Variant, Workload

PROCESSES = 2
LAYERS, WIDTH = 16, 256
PARAMS = LAYERS * 8 * WIDTH**2 + 2 * WIDTH
BUCKET = PARAMS // LAYERS
MEASURED = 3
"""The number of the measured step. Earlier steps allocate the buffers that are created at their first use."""


class Layer(nn.Module):
    """The feed-forward part of a transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the layer, of shape (samples, WIDTH) as `x`."""
        return x + self.body(x)


class Stack(nn.Module):
    """Layers of equal size and a small head, like a large model."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class MemoryWatch(TorchDispatchMode):
    """Tracks the storage of every tensor that an operation creates, while it is alive."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, weakref.ref[Any]] = {}
        self.looking = False
        self.peak = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            local = getattr(tensor, "_local_tensor", tensor)  # the local shard of a DTensor
            if isinstance(local, torch.Tensor):
                storage = local.untyped_storage()
                self.storages[storage._cdata] = weakref.ref(storage)
        if self.looking:
            self.peak = max(self.peak, self.alive())
        return made

    def alive(self) -> int:
        """Return the bytes of the memory of all live storages.

        A storage may have been resized since its creation. Several storages may share memory. DeepSpeed's weights do
        so. Shared memory counts once.
        """
        held = [storage for found in self.storages.values() if (storage := found()) is not None]
        return sum({_address(storage): storage.nbytes() for storage in held}.values())


def _address(storage: Any) -> int:
    """Return the address of the memory of a storage. Torch refuses the address of some storages: use their number."""
    try:
        return int(storage.data_ptr())
    except RuntimeError:
        return -int(storage._cdata)


def size_of(tensors: Iterable[Any]) -> int:
    """Return the bytes of the storages of tensors, each counted once. A DTensor counts its local shard."""
    storages = {}
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)
        if isinstance(local, torch.Tensor):
            storage = local.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def states_of(optimizer: Any) -> Iterable[Any]:
    """Return the tensors of an optimizer's states, also of an optimizer inside of wrappers."""
    while inner := getattr(optimizer, "optim", None) or getattr(optimizer, "optimizer", None):
        optimizer = inner
    return (value for state in optimizer.state.values() for value in state.values())


def train(arguments: dict[str, Any], out: Path) -> None:
    """Train on this rank and write the measured bytes."""
    from trainbus import Trainer, TrainingArguments

    found: dict[str, int] = {}
    watch = MemoryWatch()
    with watch:
        torch.manual_seed(0)
        model = Stack()
        dataset = TensorDataset(torch.randn(8 * PROCESSES, WIDTH), torch.zeros(8 * PROCESSES, dtype=torch.long))
        args = TrainingArguments(
            str(out / "run"),
            max_steps=MEASURED + 1,
            per_device_train_batch_size=1,
            save_strategy="no",
            logging_strategy="no",
            ddp_timeout=120,
            disable_tqdm=True,
            use_cpu=True,
            **arguments,
        )
        trainer = Trainer(model, args, train_dataset=dataset, criterion=nn.CrossEntropyLoss())

        @trainer.on("on_step_begin")
        def begin(state: Any) -> None:
            if state.global_step == MEASURED - 1:
                gc.collect()
                found["weights"] = size_of(model.parameters())
                found["states"] = size_of(states_of(trainer.optimizer))
                found["kept"] = watch.alive()
                watch.looking = True

        @trainer.on("on_gradients")
        def gradients(state: Any) -> None:
            if state.global_step == MEASURED - 1:
                found["gradients"] = size_of(parameter.grad for parameter in model.parameters())

        @trainer.on("on_step_end")
        def end(state: Any) -> None:
            if state.global_step == MEASURED:
                watch.looking = False

        trainer.train()
    found["peak"] = watch.peak
    (out / f"{os.environ['RANK']}.json").write_text(json.dumps(found))
    trainer.end()


def measured(way: Variant, precision: str) -> dict[str, int]:
    """Train on two ranks with one way to shard. Return the figures of the rank that uses more memory."""
    arguments = ", ".join(filter(None, [f"{precision}=True" * (precision != "fp32"), way.arguments]))
    with tempfile.TemporaryDirectory(prefix="sharded-") as folder:
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={PROCESSES}"]
        done = subprocess.run(
            [*words, __file__, "--child", arguments, folder], capture_output=True, text=True, timeout=300
        )
        if done.returncode:
            raise SystemExit(f"{way.name} did not run:\n{done.stderr[-4000:]}")
        each = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(PROCESSES)]
    return max(each, key=lambda found: found["peak"])


def read(arguments: str) -> dict[str, Any]:
    """Parse the arguments that a way needs, such as `fsdp=True`."""
    call = ast.parse(f"dict({arguments})", mode="eval").body
    found = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    if "deepspeed" in found:
        # DeepSpeed's default is many times the size of the model.
        found["deepspeed"]["zero_optimization"]["reduce_bucket_size"] = BUCKET
    return found


def main() -> int:
    """Measure, print, and return 1 if a way other than DeepSpeed exceeds the limit relative to DDP's memory."""
    benchmark = Benchmark(__doc__, rounds=1)
    benchmark.option("--ways", nargs="+", help="names of ways (default: all)")
    benchmark.option("--precision", default="fp32", choices=("fp32", "bf16"))
    benchmark.option("--limit", type=float, help="fail if a way exceeds this ratio to DDP's peak, DeepSpeed excluded")
    benchmark.option("--child", nargs=2, help=argparse.SUPPRESS)
    options = benchmark.begin()
    if options.child:
        train(read(options.child[0]), Path(options.child[1]))
        return 0
    wanted = options.ways or (["stage 3"] if options.quick else None)
    training = Workload(params=PARAMS, gpus=PROCESSES, precision=options.precision, layers=LAYERS, reduce_bucket=BUCKET)
    print(f"{PARAMS / 1e6:.1f} million weights, AdamW, {options.precision}, {PROCESSES} ranks; bytes per weight")
    heads = ("weights", "gradients", "states", "between steps", "formula", "peak", "formula")
    print("".join([f"{'way':20}", *(f"{head:>14}" for head in heads)]))
    kept: dict[str, list[float]] = {}
    peaks: dict[str, list[float]] = {}
    limited = []
    for way in variants(training):
        if wanted and way.name not in (*wanted, "DDP"):
            continue
        if way.strategy == "deepspeed" and find_spec("deepspeed") is None:
            benchmark.leave_out(way.name, "deepspeed is not installed")
            continue
        found, said = measured(way, options.precision), estimate(replace(way, offload=False), training)
        sizes = [found[key] / PARAMS for key in ("weights", "gradients", "states", "kept")]
        figures = [*sizes, said.between_steps, found["peak"] / PARAMS, said.peak]
        print(f"{way.name:20}" + "".join(f"{figure:14.2f}" for figure in figures), flush=True)
        kept[way.name], peaks[way.name] = [found["kept"] / PARAMS], [found["peak"] / PARAMS]
        if way.strategy not in ("", "deepspeed"):
            limited.append(way.name)
    between, peak = "memory between steps", "peak memory of a step"
    benchmark.add(between, "bytes per weight", kept, base="DDP")
    benchmark.add(peak, "bytes per weight", peaks, base="DDP")
    for name in limited:
        benchmark.limit(benchmark.result.ratio(peak, name), options.limit, f"{peak}, {name}, relative to DDP")
    return benchmark.finish()


if __name__ == "__main__":
    sys.exit(main())

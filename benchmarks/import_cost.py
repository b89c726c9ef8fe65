"""Measure imports, and the time from the start of a program to the end of its first step.

    python benchmarks/import_cost.py
    python benchmarks/import_cost.py --limit 1.2 --start-limit 0.2

Each import and each program runs in a new process. They alternate, and the ratios are computed within a round. The
program trains a tiny perceptron with AdamW, whose construction imports torch's compiler in every library. The
wall-clock time counts from the start of the process, so it contains the start of Python and all imports.

`--limit` is for the time to import the Trainer, as a multiple of the time to import torch. `--start-limit` is for the
seconds by which the first step of trainbus ends later than the first step of the plain loop.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import COMPOSER, HF, IGNITE, LIGHTNING, OURS, RAW, Benchmark, interleave

PACKAGE = "trainbus, the package"
IMPORTS = {
    RAW: "import torch",
    PACKAGE: "import trainbus",
    OURS: "from trainbus import Trainer, TrainingArguments",
    HF: "from transformers import Trainer, TrainingArguments",
    LIGHTNING: "import lightning",
    IGNITE: "import ignite.engine, ignite.metrics, ignite.handlers",
    COMPOSER: "import composer",
}
HERE = Path(__file__).resolve().parent

PROGRAM_START = """
import sys, time
class Stop(BaseException): pass
def reached():
    print("FIRST STEP", time.monotonic(), flush=True)
    raise Stop
"""
PROGRAM_MODEL = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))
    def forward(self, points, labels):
        logits = self.net(points)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}
points = torch.randn(320, 32)
rows = [{"points": x, "labels": y} for x, y in zip(points, (points.sum(1) > 0).long())]
torch.set_num_threads(1)
"""
HF_STYLE = """
from LIBRARY import Trainer, TrainerCallback, TrainingArguments
class First(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        reached()
args = TrainingArguments(
    "out", per_device_train_batch_size=32, report_to="none", disable_tqdm=True, use_cpu=True, save_strategy="no"
)
Trainer(Model(), args, train_dataset=rows, callbacks=[First()]).train()
"""
PROGRAMS = {
    RAW: """
from torch.utils.data import DataLoader
model = Model().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 10)
for batch in DataLoader(rows, 32, shuffle=True):
    model(**batch)["loss"].backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    model.zero_grad()
    reached()
""",
    OURS: HF_STYLE.replace("LIBRARY", "trainbus"),
    HF: HF_STYLE.replace("LIBRARY", "transformers"),
    LIGHTNING: """
import lightning
from torch.utils.data import DataLoader
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Model()
    def training_step(self, batch, index):
        return self.model(**batch)["loss"]
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
class First(lightning.Callback):
    def on_train_batch_end(self, *args):
        reached()
off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
lightning.Trainer(
    max_epochs=1, accelerator="cpu", devices=1, gradient_clip_val=1.0, callbacks=[First()], **dict.fromkeys(off, False)
).fit(Module(), DataLoader(rows, 32, shuffle=True))
""",
    IGNITE: """
from ignite.engine import Engine, Events
from torch.utils.data import DataLoader
model = Model().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 10)
def step(engine, batch):
    model(**batch)["loss"].backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    model.zero_grad()
engine = Engine(step)
engine.add_event_handler(Events.ITERATION_COMPLETED, reached)
engine.run(DataLoader(rows, 32, shuffle=True), max_epochs=1)
""",
    COMPOSER: """
from composer import Callback, Trainer
from composer.algorithms import GradientClipping
from composer.models import ComposerModel
from torch.utils.data import DataLoader
class Module(ComposerModel):
    def __init__(self):
        super().__init__()
        self.model = Model()
    def forward(self, batch):
        return self.model(**batch)
    def loss(self, outputs, batch):
        return outputs["loss"]
class First(Callback):
    def batch_end(self, state, logger):
        reached()
model = Module()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
Trainer(
    model=model, train_dataloader=DataLoader(rows, 32, shuffle=True), max_duration="1ep", optimizers=optimizer,
    schedulers=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 10),
    step_schedulers_every_batch=True, algorithms=[GradientClipping("norm", 1.0)], callbacks=[First()], device="cpu",
    progress_bar=False, log_to_console=False,
).fit()
""",
}


def environment() -> dict[str, str]:
    """Return the environment of a process that writes and reads bytecode, as installed packages have it."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def seconds_of_import(name: str, folder: str) -> float:
    """Return the seconds of a process that runs the import statement of a contender."""
    statement = IMPORTS[name]
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", statement], check=True, cwd=folder, capture_output=True, env=environment())
    return time.monotonic() - began


def seconds_to_first_step(name: str, folder: str) -> float:
    """Return the seconds from the start of a program to the end of its first step."""
    path = Path(folder) / f"train_{name.replace(' ', '_')}.py"
    path.write_text(PROGRAM_START + PROGRAM_MODEL + PROGRAMS[name])
    began = time.monotonic()
    done = subprocess.run([sys.executable, path.name], cwd=folder, capture_output=True, text=True, env=environment())
    lines = [line for line in done.stdout.splitlines() if line.startswith("FIRST STEP")]
    if not lines:
        raise SystemExit(f"{name} did not reach its first step:\n{done.stderr[-3000:]}")
    return float(lines[0].split()[-1]) - began  # all processes of a machine have the same monotonic clock


def main() -> int:
    """Measure, print, and return 1 if a limit is exceeded."""
    from places import Places

    benchmark = Benchmark(__doc__, rounds=5, quick_rounds=1)
    benchmark.option("--limit", type=float, help="fail if the import of the Trainer exceeds this multiple of torch")
    benchmark.option("--start-limit", type=float, help="fail if the first step is later by more than these seconds")
    options = benchmark.begin()
    with Places(benchmark) as places, tempfile.TemporaryDirectory() as folder:
        # A start contains the import.
        wanted = [RAW, OURS] if options.quick else [*places.names, PACKAGE]
        # The warm-up writes bytecode and fills the file cache.
        imports = {name: places.bind(seconds_of_import, name, folder) for name in wanted}
        warm_ups = int(not options.quick)
        benchmark.add("import", "s", interleave(imports, options.rounds, warm_ups))
        starts = {name: places.bind(seconds_to_first_step, name, folder) for name in places.names}
        benchmark.add("start to first step", "s", interleave(starts, options.rounds, warm_ups))
    found = {row.contender: row.samples for row in benchmark.result.rows if row.task == "start to first step"}
    later = statistics.median(ours - plain for ours, plain in zip(found[OURS], found[RAW]))
    print(f"the first step of trainbus is {later:.2f} s later than the first step of the plain loop")
    benchmark.limit(benchmark.result.ratio("import", OURS), options.limit, "import of the Trainer, times torch")
    benchmark.limit(later, options.start_limit, "seconds by which the first step is later")
    return benchmark.finish()


if __name__ == "__main__":
    sys.exit(main())

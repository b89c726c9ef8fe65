"""Write the batches, weights and random states of a bad step, so that the step can be made again."""

from __future__ import annotations

import logging
import math
import os
import shutil
import sys
import traceback
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ...engine.arguments import TrainingArguments
from ...engine.checkpoint.rng_state import QuickStates
from ...engine.checkpoint.write.capsule_files import FOLDER, write_capsule
from ...engine.loss.index_errors import dataset_indices
from ...engine.run import Run
from ...events.activity import BACKWARD, FORWARD, activity_of
from ...events.callback import Callback
from ...events.capabilities import Capability, Conflict
from ...events.errors import ArgumentError, CheckpointError, RankFailure
from ...events.stages import Stage, order

logger = logging.getLogger(__name__)

USUAL = 50
"""The number of the last steps that a spike is compared with."""
FEWEST = 10
"""The number of steps from which a spike is recognized."""
_SHARDED = "its weights are spread over the ranks. Train with DDP, or on one process, to capture a step."


@dataclass
class Capsule(Callback):
    """Writes a capsule of a step that fails: its batches, and the weights and random states from before it.

    A step fails if its loss or its gradient norm is not finite, if one of them spikes, or if its forward or backward
    raises an error. `trainbus rerun CAPSULE` makes exactly this step again and names the first module or
    gradient that is not finite. Set `debug="capsule"`, or add `Capsule()` to the callbacks.

    The capsule is written before the weights are updated, so the training continues as without it. Each rank writes its
    own. The callback reads the loss of each step, which takes about 40 microseconds on the CPU and waits for a GPU.

    Raises:
        ArgumentError: if a number is not positive.
    """

    arguments = ("debug",)
    on_error = "warn"
    conflicts_with = (Conflict(Capability.SHARDS_MODEL, _SHARDED), Conflict(Capability.DEEPSPEED, _SHARDED))

    spike: float = 10.0
    """A step fails if its loss or its gradient norm exceeds the median of the last 50 steps by this factor."""
    limit: int = 2
    """The number of capsules of a run, for each rank. Of steps that fail one after the other, the first is captured."""
    max_gigabytes: float = 8.0
    """The size of the weights and batches above which no capsule is written, in units of 10^9 bytes."""
    id: str | None = None
    """Its name in the ledger and in checkpoints."""
    _noted: list[tuple[Any, tuple[Any, ...]]] = field(default_factory=list, init=False, repr=False, compare=False)
    """The batches of the step so far, each with the random states before it."""
    _losses: list[torch.Tensor] = field(default_factory=list, init=False, repr=False, compare=False)
    _buffers: dict[str, torch.Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)
    _usual: list[tuple[float, float]] = field(default_factory=list, init=False, repr=False, compare=False)
    """The loss and the gradient norm of the last steps that did not fail."""
    _medians: list[float] = field(default_factory=list, init=False, repr=False, compare=False)
    _states: Any = field(default=None, init=False, repr=False, compare=False)
    _failing: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether the last step failed."""
    _written: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("spike", "limit", "max_gigabytes"):
            if not getattr(self, name) > 0:
                raise ArgumentError(f"Capsule({name}={getattr(self, name)}): set a number above 0.")

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Capsule | None:
        return cls() if "capsule" in args.observed else None

    def on_setup(self) -> None:
        self._usual, self._medians = [], []
        self._states, self._written, self._failing = QuickStates(), 0, False
        self._forget()

    @order(Stage.RELEASE)
    def on_batch(self, run: Run, batch: Any) -> None:
        if run.step.batch_index == 0:
            self._forget()
            # The forward changes buffers, such as the running means of BatchNorm.
            self._buffers = {name: buffer.detach().clone() for name, buffer in run.unwrapped_model.named_buffers()}
        self._noted.append((batch, self._states.read()))

    @order(Stage.PREPARE)
    def on_loss(self, loss: torch.Tensor) -> None:
        self._losses.append(loss.detach())

    @order(Stage.PREPARE)
    def on_pre_optimizer_step(self, run: Run, grad_norm: Any) -> None:
        losses, norm = _numbers(self._losses), float(grad_norm) if grad_norm is not None else 0.0
        loss = sum(losses) / len(losses) if losses else 0.0
        reason = self._problem(loss, norm, scaled=run.seams.scaler is not None)
        if reason and not self._failing:  # NaN weights make all later steps fail too
            self._write(run, reason, {"losses": losses, "grad_norm": norm})
        self._failing = bool(reason)
        if not reason:
            self._note_usual(loss, norm)
        self._forget()

    @order(Stage.PREPARE)
    def on_exception(self, run: Run, exception: BaseException) -> None:
        place = activity_of(exception) or run.activity.name
        if (
            self._noted
            and place in (FORWARD, BACKWARD)
            and isinstance(exception, Exception)
            and not isinstance(exception, RankFailure)
        ):
            lines = traceback.format_exception_only(exception)
            error = {"type": type(exception).__name__, "message": "".join(lines).strip()}
            self._write(run, f"{error['type']} in {place}", {"error": error})
        self._forget()

    def on_close(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._noted, self._losses, self._buffers = [], [], {}

    def _problem(self, loss: float, norm: float, scaled: bool) -> str:
        """Return why a step failed; empty if it did not. A gradient scaler deals with infinite gradients itself."""
        if not math.isfinite(loss):
            return "the loss is not finite"
        if not (scaled or math.isfinite(norm)):
            return "the gradient norm is not finite"
        for name, number, usual in zip(("loss", "gradient norm"), (loss, norm), self._medians):
            if 0 < self.spike * usual < number < math.inf:
                return f"the {name} is {number:.3g}, usually {usual:.3g}"
        return ""

    def _note_usual(self, loss: float, norm: float) -> None:
        """Keep the numbers of a step that did not fail. The medians are computed in every tenth step."""
        self._usual.append((loss, norm))
        if len(self._usual) % FEWEST == 0:
            self._usual = self._usual[-USUAL:]
            self._medians = [median(numbers) for numbers in zip(*self._usual)]

    def _write(self, run: Run, reason: str, found: dict[str, Any]) -> None:
        """Write a capsule. A problem with it is a warning, so that it does not hide the failure of the step."""
        step = run.state.global_step + 1
        ranks = run.ranks
        name = f"step-{step}" + ("" if ranks.single_process else f"-rank-{ranks.rank}")
        folder = run.args.output_path / FOLDER / name
        if self._written >= self.limit or folder.exists():
            return
        self._written += 1
        hidden = folder.with_name(f".{name}.{os.getpid()}")
        try:
            write_capsule(
                hidden,
                {**run.unwrapped_model.state_dict(), **self._buffers},
                [batch for batch, _ in self._noted],
                [QuickStates.named(states) for _, states in self._noted],
                {"step": step, "reason": reason, **found, **self._described(run)},
                self.max_gigabytes * 1e9,
            )
            hidden.rename(folder)
        except (OSError, CheckpointError, RuntimeError) as error:
            shutil.rmtree(hidden, ignore_errors=True)
            logger.warning("Step %d fails (%s), and no capsule of it can be written: %s", step, reason, error)
            return
        logger.warning("Step %d fails: %s. To make it again: trainbus rerun %s", step, reason, folder)

    def _described(self, run: Run) -> dict[str, Any]:
        """Return the values of the description that do not depend on the failure."""
        ranks = {"rank": run.ranks.rank, "world_size": run.ranks.world_size}
        return {"samples": _samples(run, len(self._noted)), **ranks, **command_line()}


def command_line() -> dict[str, Any]:
    """Return the program of this process, its arguments, whether it is a module, and the working folder."""
    main = import_module("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    program = spec.name if spec is not None else file and str(Path(file).resolve())
    return {"program": program, "arguments": sys.argv[1:], "module": spec is not None, "folder": str(Path.cwd())}


def _samples(run: Run, batches: int) -> list[list[int]] | None:
    """Return the indices in the dataset of the samples of each batch of the step; None if they are unknown."""
    found = [dataset_indices(run, number) for number in range(batches)]
    known = [indices for indices in found if indices is not None]
    return known if len(known) == len(found) else None


def _numbers(losses: list[torch.Tensor]) -> list[float]:
    """Return the losses of a step as numbers. It waits for the device once."""
    if not losses:
        return []
    single = len(losses) == 1 and losses[0].dim() == 0
    return [float(losses[0])] if single else torch.stack([loss.float().mean() for loss in losses]).tolist()

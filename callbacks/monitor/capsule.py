"""Write the batches, weights and RNG states of a step that fails, so that the step can be repeated."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import traceback
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from ...engine.arguments import TrainingArguments
from ...engine.checkpoint.write.capsule_files import FOLDER, write_capsule
from ...engine.loss.index_errors import dataset_indices
from ...engine.run import Run
from ...events.activity import BACKWARD, FORWARD, activity_of
from ...events.bus import Handle
from ...events.callback import Callback
from ...events.capabilities import Capability, Conflict
from ...events.composition import provides
from ...events.errors import ArgumentError, CheckpointError, RankFailure
from ...events.stages import Stage, order
from ..base.step_capture import StepCapture

logger = logging.getLogger(__name__)

_SHARDED = "its weights are spread over the ranks. Train with DDP, or on one process, to capture a step."


@dataclass
class Capsule(Callback):
    """Writes a capsule if a step fails: the batches of the step, and the weights and RNG states from before the step.

    A step fails if its loss or its gradient norm is not finite, or is much larger than usual. A step also fails if its
    forward or backward raises an error. `trainbus rerun CAPSULE` repeats exactly the failed step, and names the first
    module or gradient that is not finite.

    On a CPU, every trainer has an automatic `Capsule`. The argument `capsule=False` removes this callback. The argument
    `capsule=True`, or `Capsule()` in the list of callbacks, adds a `Capsule` that works on every device. The callback
    reads the loss of each step. On a CPU, this takes about 40 microseconds per step. On a GPU, each step waits for the
    device, because the callback reads the loss.

    The callback does not change the training. It writes the capsule before the optimizer updates the weights. Each rank
    writes its own capsule.

    Raises:
        ArgumentError: if `spike`, `limit` or `max_gigabytes` is not positive.
    """

    arguments = ("capsule",)
    on_error = "warn"
    conflicts_with = (
        Conflict(Capability.SHARDS_MODEL, _SHARDED),
        Conflict(Capability.DEEPSPEED, _SHARDED),
        Conflict(
            Capability.UPDATES_IN_BACKWARD,
            "the weights from before the step do not exist after backward. Leave one of them out.",
        ),
    )

    spike: float = 10.0
    """A step fails if its loss or gradient norm is more than this many times the median of the 50 previous steps."""
    limit: int = 2
    """The largest number of capsules of each rank in the output folder. A session writes at most this many. A write
    that fails does not count. If capsules of earlier sessions fill the limit, a new capsule replaces the oldest of
    them. If consecutive steps fail, the callback writes a capsule only for the first of these steps."""
    max_gigabytes: float = 8.0
    """The largest size of the weights and batches of a capsule, in units of 10^9 bytes. The callback does not write a
    larger capsule. In the automatic callback of a trainer, the value is 1."""
    automatic: bool = False
    """Whether the callback works only where it costs little. True: the callback works on a CPU only. It does nothing
    with sharded weights, DeepSpeed, `OptimizerInBackward`, `auto_find_batch_size` or a hyperparameter search. It turns
    itself off if it takes more than 1 % of the time of the first 20 steps. A step with a large but
    finite loss or gradient norm fails only if the value is also above its median in the first 10 steps. False: these
    limits do not apply."""
    id: str | None = None
    """The name of the callback in the ledger and in checkpoints. None: the name of the class."""
    _capture: StepCapture | None = field(default=None, init=False, repr=False, compare=False)
    _handle: Handle | None = field(default=None, init=False, repr=False, compare=False)
    _tried: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    _written: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("spike", "limit", "max_gigabytes"):
            if not getattr(self, name) > 0:
                raise ArgumentError(f"Capsule({name}={getattr(self, name)}): set a number above 0.")

    def conflict_with(self, other: Callback) -> str:
        return "" if self.automatic else super().conflict_with(other)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Capsule | None:
        if args.capsule == "auto":
            return cls(max_gigabytes=1.0, automatic=True)
        return cls() if args.capsule else None

    def on_setup(self, run: Run) -> None:
        self.on_close()
        if run.mode == "train" and not (self.automatic and not _is_free(run)):
            self._tried, self._written = [], []
            self._capture = StepCapture(self.spike, self.automatic, self._write, self.on_close)
            self._handle = run.bus.attach(self._capture)

    @order(Stage.PREPARE)
    def on_exception(self, run: Run, exception: BaseException) -> None:
        place = activity_of(exception) or run.activity.name
        fails = isinstance(exception, Exception) and not isinstance(exception, RankFailure)
        if fails and place in (FORWARD, BACKWARD) and self._capture is not None and self._capture.noted:
            lines = traceback.format_exception_only(exception)
            error = {"type": type(exception).__name__, "message": "".join(lines).strip()}
            self._write(run, f"{error['type']} in {place}", {"error": error})

    def on_close(self) -> None:
        handle, self._handle, self._capture = self._handle, None, None
        if handle is not None:
            handle()

    def _write(self, run: Run, reason: str, found: dict[str, Any]) -> None:
        """Write a capsule, if this session has written fewer than `limit` capsules and has not tried this step before.

        If the write fails, the method logs a warning and raises no error, so that the error of the step stays visible.
        After `limit` such warnings, it logs later ones as INFO.

        Args:
            run: the run.
            reason: why the step failed.
            found: more values for the description of the capsule. If forward or backward raised an error, this error;
                otherwise the losses and the gradient norm.
        """
        step = run.state.global_step + 1
        ranks = run.ranks
        name = f"step-{step}" + ("" if ranks.single_process else f"-rank-{ranks.rank}")
        folder = run.args.output_path / FOLDER / name
        capture = self._capture
        if capture is None or len(self._written) >= self.limit or name in self._tried:
            return
        level = logging.WARNING if len(self._tried) - len(self._written) < self.limit else logging.INFO
        self._tried.append(name)
        hidden = folder.with_name(f".{name}.{os.getpid()}")
        try:
            write_capsule(
                hidden,
                {**run.unwrapped_model.state_dict(), **capture.buffers},
                [batch for batch, _ in capture.noted],
                capture.states(),
                {"step": step, "reason": reason, **found, **_described(run, len(capture.noted))},
                self.max_gigabytes * 1e9,
            )
            self._make_room(folder, ranks.rank)
            hidden.rename(folder)
        except (OSError, CheckpointError, RuntimeError) as error:
            shutil.rmtree(hidden, ignore_errors=True)
            logger.log(level, "Step %d fails (%s), and no capsule of it can be written: %s", step, reason, error)
            return
        self._written.append(name)
        logger.warning("Step %d fails: %s. To repeat the step: trainbus rerun %s", step, reason, folder)

    def _make_room(self, folder: Path, rank: int) -> None:
        """Make room for a new capsule, so that this rank then has at most `limit` capsules.

        Delete the oldest capsules of this rank from earlier sessions. Also delete `folder`, the final folder of the new
        capsule, if it exists.
        """
        own = [path for path in folder.parent.glob("step-*") if _rank_of(path.name) == rank]
        earlier = sorted(
            (path for path in own if path != folder and path.name not in self._written),
            key=lambda path: path.stat().st_mtime,
        )
        kept = self.limit - len(self._written) - 1
        for path in (*earlier[: max(0, len(earlier) - kept)], folder):
            shutil.rmtree(path, ignore_errors=True)


def _described(run: Run, batches: int) -> dict[str, Any]:
    """Return the values of a capsule's description that do not depend on the failure: samples, ranks, command line.

    `batches` is the number of batches of the step so far.
    """
    ranks = {"rank": run.ranks.rank, "world_size": run.ranks.world_size}
    return {"samples": dataset_indices(run, range(batches)), **ranks, **command_line()}


def command_line() -> dict[str, Any]:
    """Return how this process was started: program, arguments, working folder, and whether the program is a module.

    In an interactive session, the program is None.
    """
    main = import_module("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    program = spec.name if spec is not None else file and str(Path(file).resolve())
    return {"program": program, "arguments": sys.argv[1:], "module": spec is not None, "folder": str(Path.cwd())}


def _is_free(run: Run) -> bool:
    """Return whether a run may have an automatic `Capsule`.

    The run must compute on a CPU. It must not shard weights, use DeepSpeed, or update weights in backward. It must not
    be a trial of a hyperparameter search, and must not use `auto_find_batch_size`.
    """
    callbacks = run.bus.subscribers.values()
    excluded = any(
        provides(callbacks, each.other) for each in Capsule.conflicts_with if isinstance(each.other, Capability)
    )
    repeated = run.state.trial_params is not None or run.args.auto_find_batch_size
    return run.device.type == "cpu" and not excluded and not repeated


def _rank_of(name: str) -> int:
    """Return the rank in the name of a capsule: 1 for `step-3-rank-1`, and 0 for `step-3`."""
    return int(name.partition("-rank-")[2] or 0)

"""Write a checkpoint of the last complete step when an error ends the training."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import torch

from ...engine.checkpoint.format.files import folder_name
from ...engine.run import Run
from ...events.callback import Callback
from ...events.capabilities import Capability, Conflict
from ...events.stages import Stage, order

logger = logging.getLogger(__name__)


@dataclass
class SaveOnException(Callback):
    """Writes a checkpoint of the last complete step if an error or Ctrl-C ends the training.

    A run that resumes from this checkpoint equals an uninterrupted run. After each step, the callback stores the RNG
    states, the data position and the buffers, so a failed step has no effect on the checkpoint.

    The callback writes nothing in each of these cases:

    - The error happens during an update of the weights.
    - The error happens after the best model was loaded.
    - No step of the session is complete.
    - The last complete step already has a checkpoint.
    - The run has several ranks, because the other ranks may have ended.

    If `SaveOnException` is attached, callbacks such as `StopOnSignal` save a checkpoint when they stop the run after a
    complete step. They do so with several ranks too.
    """

    capabilities = frozenset({Capability.WRITES_CHECKPOINTS})

    conflicts_with = (
        Conflict(Capability.DEEPSPEED, "DeepSpeed's engine may be released after an error. Save at shorter intervals."),
    )

    id: str | None = None
    """The name of the callback in the ledger and in checkpoints. None: the name of the class."""
    _noted: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The RNG states, data position and buffers after the last complete step. Empty before the first step, and during
    an update of the weights."""

    def on_setup(self) -> None:
        self._noted = {}

    @order(Stage.PREPARE)
    def on_step_end(self, run: Run) -> None:
        loader = run.train_dataloader
        self._noted = {
            "step": run.state.global_step,
            "rng": run.rng_states(),
            "place": loader.resume_state() if hasattr(loader, "resume_state") else None,
            "losses": run.losses.state_dict(),
            "buffers": [(buffer, buffer.detach().clone()) for buffer in run.model.buffers()],
        }

    @order(Stage.RELEASE)
    def on_pre_optimizer_step(self) -> None:
        self._noted = {}  # the weights are about to change

    def on_best_loaded(self) -> None:
        self._noted = {}  # the model has the weights of another step

    @order(Stage.RELEASE)
    def on_exception(self, run: Run, exception: BaseException) -> None:
        noted, self._noted = self._noted, {}
        if run.mode != "train" or noted.get("step") != run.state.global_step:
            return
        if not run.ranks.single_process:
            logger.warning("SaveOnException writes no checkpoint on several ranks: a checkpoint needs all ranks.")
            return
        path = run.args.output_path / folder_name(noted["step"])
        if path.exists():
            return
        with torch.no_grad():
            for buffer, value in noted["buffers"]:
                buffer.copy_(value)
        run.restore_rng(noted["rng"])
        run.losses.load_state_dict(noted["losses"])
        loader = run.train_dataloader
        if run.position is not None:
            run.position.fetched = 0  # the noted position of the loader is the position after the last complete step
        if noted["place"] is not None:
            loader.resume_state = lambda: noted["place"]  # the loader has fetched batches of the failed step
        try:
            run.announce("on_save_due", requested_by=frozenset({self.id or type(self).__name__}))
        finally:
            if noted["place"] is not None:
                del loader.resume_state
        step, reason = noted["step"], type(exception).__name__
        if run.checkpoint is not None and run.checkpoint.step == step and run.checkpoint.path.is_dir():
            logger.warning("Saved a checkpoint of step %d, because of %s.", step, reason)
        else:  # vetoed, failed with `on_save_error="warn"`, or saved elsewhere by an override of `_save_checkpoint`
            logger.warning(
                "Requested a checkpoint of step %d, because of %s, but %s does not exist.", step, reason, path
            )

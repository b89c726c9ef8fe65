"""The loop of a trainer that overrides `_maybe_log_save_evaluate`."""

from __future__ import annotations

from typing import Any

from ...events.flags import SERVED
from ..loop import Loop, Phase


class OverriddenService(Loop):
    """A loop that calls an override of `_maybe_log_save_evaluate` to log, evaluate and save as the flags request.

    After the call, the loop clears these flags, even if the override did not log, evaluate or save.
    """

    trainer: Any
    """The trainer that overrides the method."""

    def _serve(self) -> None:
        if self.phase is Phase.END:
            super()._serve()
            return
        trainer, control, run = self.trainer, self.control, self.trainer.run
        self.agree(control)
        epoch = self.position.epoch - (self.phase is Phase.EPOCH_END and not self.position.cut)
        asked = [flag for flag in SERVED if control.raised(flag)]
        served = []

        def serve() -> None:
            served.append(True)
            super(OverriddenService, self)._serve()

        trainer._at(
            "_maybe_log_save_evaluate",
            serve,
            run.losses.main.pending,
            run.grad_norm,
            run.model_wrapped,
            None,
            epoch,
            trainer._ignore_keys,
            run.session.began[0],
            learning_rate=run.learning_rate,
        )
        if not served:
            for flag in asked:
                control.take(flag)
            control.settle()


def loop_of(trainer: Any, *parts: Any, **options: Any) -> Loop:
    """Build the loop of a training.

    If the trainer overrides `_maybe_log_save_evaluate`, the loop is an `OverriddenService`. Otherwise it is a `Loop`.

    Args:
        trainer: the trainer.
        *parts: the positional arguments of `Loop` after `bus`.
        **options: the keyword arguments of `Loop`.
    """
    if not trainer.overrides("_maybe_log_save_evaluate"):
        return Loop(trainer.bus, *parts, **options)
    loop = OverriddenService(trainer.bus, *parts, **options)
    loop.trainer = trainer
    return loop

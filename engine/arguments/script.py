"""Arguments for training scripts. They do not change what the trainer does."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ._base import Group, arg

logger = logging.getLogger(__name__)


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class ScriptArguments(Group):
    """Arguments that training scripts read. They do not change what the trainer does."""

    do_train: bool = arg(False, "Whether the script should train.")
    do_eval: bool = arg(False, "Whether the script should evaluate. Always True if `eval_strategy` is not 'no'.")
    do_predict: bool = arg(False, "Whether the script should predict on the test set.")
    overwrite_output_dir: bool = arg(
        False,
        "Whether the script may write into an `output_dir` that contains files. The trainer itself always writes "
        "into `output_dir`.",
        none=True,
    )
    resume_from_checkpoint: str | bool | None = arg(
        None,
        "Checkpoint folder that the script should pass to `train()`. True: the newest checkpoint in `output_dir`. "
        "'auto' means the newest checkpoint, or a new run if `output_dir` has no checkpoint.",
        path=True,
    )

    def check_resumes(self, wanted: str | Path | bool | None) -> None:
        """Warn if the argument `resume_from_checkpoint` is set, but the call of `train` did not receive it.

        Args:
            wanted: the parameter `resume_from_checkpoint` of `train`; None if the call did not set it.
        """
        if wanted is None and self.resume_from_checkpoint:
            _warn_that_nothing_resumes(self.resume_from_checkpoint)


@cache
def _warn_that_nothing_resumes(named: str | bool) -> None:
    """Warn once per process and value that the run ignores `named`, the value of `resume_from_checkpoint`.

    As in transformers, the argument `resume_from_checkpoint` is only for the script. The script must pass the value to
    `train`.
    """
    logger.warning(
        "This training does not resume: the arguments have resume_from_checkpoint=%r, but `train` got no checkpoint. "
        "Call `trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)`. To start a new run without this "
        "warning, call `trainer.train(resume_from_checkpoint=False)`.",
        named,
    )

"""Arguments for training scripts. The trainer does not read them."""

from __future__ import annotations

from dataclasses import dataclass

from ._base import Group, arg


@dataclass(kw_only=True)
class ScriptArguments(Group):
    """Arguments that training scripts read. The trainer itself ignores them."""

    do_train: bool = arg(False, "Whether the script should train.")
    do_eval: bool = arg(False, "Whether the script should evaluate. Always True if `eval_strategy` is not 'no'.")
    do_predict: bool = arg(False, "Whether the script should predict on the test set.")
    overwrite_output_dir: bool = arg(
        False,
        "Whether the script may write into an `output_dir` with files. The trainer itself always does.",
        none=True,
    )
    resume_from_checkpoint: str | bool | None = arg(
        None,
        "Checkpoint folder that the script should pass to `train()`. True: the newest checkpoint in `output_dir`. "
        "'auto': the same, if there is any.",
        path=True,
    )

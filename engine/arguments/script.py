"""What a training script should do; scripts read these, the trainer does not."""

from __future__ import annotations

from dataclasses import dataclass

from ._base import Group, arg


@dataclass(kw_only=True)
class ScriptArguments(Group):
    """What a training script should do. Methods of the trainer do their work whatever is said here."""

    do_train: bool = arg(False, "Whether the script trains.")
    do_eval: bool = arg(False, "Whether the script evaluates; true whenever `eval_strategy` is not 'no'.")
    do_predict: bool = arg(False, "Whether the script predicts on the test set.")
    do_export: bool = arg(False, "Whether the script exports the model for inference.")
    overwrite_output_dir: bool = arg(
        False, "Whether the script writes into an `output_dir` that has files; the trainer itself always does."
    )
    resume_from_checkpoint: str | bool | None = arg(
        None,
        "Checkpoint folder for the script to hand to `train()`; true means the newest one in `output_dir`, 'auto' the "
        "same if there is one.",
        path=True,
    )

"""The output folder."""

from __future__ import annotations

from dataclasses import dataclass

from ._base import Group, arg


@dataclass
class OutputArguments(Group):
    """The output folder. The field is not keyword-only, so `TrainingArguments("out")` works."""

    output_dir: str = arg(
        "trainer_output",
        "Folder for checkpoints, the final model and the logs of the run. It is created if missing; `~` is expanded.",
        path=True,
    )

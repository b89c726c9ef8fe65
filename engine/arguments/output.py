"""Where the run writes."""

from __future__ import annotations

from dataclasses import dataclass

from ._base import Group, arg


@dataclass
class OutputArguments(Group):
    """Where the run writes. Its one field is not keyword-only, so that `TrainingArguments("out")` works."""

    output_dir: str = arg(
        "trainer_output",
        "Folder for checkpoints, the final model and the run's records; made when it is missing, and `~` is expanded.",
        path=True,
    )

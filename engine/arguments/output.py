"""The argument for the output folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ._base import Group, arg, must


@dataclass(init=False, repr=False, eq=False)
class OutputArguments(Group):
    """The output folder. It may be the first positional argument: `TrainingArguments("out")`."""

    output_dir: str = arg(
        "trainer_output",
        "Folder for checkpoints, the final model and the logs of the run. A missing folder is created. A leading `~` "
        "is the home folder.",
        path=True,
    )

    def problems(self) -> Iterator[str]:
        # An empty text is often a shell variable that is not set. As a path, it would be the working folder.
        yield from must(
            self, lambda folder: folder != "", "set it to the path of a folder, such as '.' or 'outputs'", "output_dir"
        )

    @property
    def output_path(self) -> Path:
        """The output folder as an absolute path.

        A relative path starts at the folder that was the working folder when the arguments were created. Even if the
        program changes its working folder later, all files of a run go into one folder.
        """
        return self.resolved(self.output_dir)

    def resolved(self, path: str | os.PathLike[str]) -> Path:
        """Return `path` as an absolute path.

        A relative path starts at the folder that was the working folder when the arguments were created.
        """
        return Path(vars(self).get("_working_folder", ""), path)

    def resolve_like(self, other: OutputArguments) -> None:
        """Let relative paths start at the folder that was the working folder when `other` was created."""
        vars(self)["_working_folder"] = vars(other)["_working_folder"]

    def _remember_working_folder(self) -> None:
        vars(self).setdefault("_working_folder", working_folder())


def working_folder() -> str:
    """Return the working folder; an empty string if the folder was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""

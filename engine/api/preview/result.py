"""The result of a preview: rows, warnings and numbers, as table, Markdown, HTML and JSON."""

from __future__ import annotations

import html
import json
import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ....events.errors import ArgumentError
from ....events.recording.files import written
from ....events.recording.rows import WORK, Row, difference
from ...checkpoint.format.files import readable_size

VERSION = 1
"""The version of the JSON."""

_COLUMNS = ("step", "what", "by", "reason")


@dataclass
class Preview:
    """The logs, evaluations, saves, deletions and stops that a run will make, with warnings and numbers."""

    rows: list[Row]
    """Each log, evaluation, save, deletion, load of the best model and stop, in order. A row has the keys `step`,
    `what` (the kind, such as `save`), `by` (the ids of the callbacks that requested it) and `reason`."""
    kept: list[int]
    """The steps of the checkpoints that exist at the end of the run."""
    warnings: list[str]
    """Warnings about settings without the expected effect, about callbacks that the preview does not run, and about
    triggers that depend on times that the preview does not know."""
    steps: int
    """The step at which the run ends."""
    max_steps: int
    """The planned number of steps."""
    epochs: float
    """The number of epochs that are done when the run ends. It may be a fraction."""
    learning_rates: dict[str, float] = field(default_factory=dict)
    """The `first`, the `highest` and the `last` learning rate; empty if the run makes no step."""
    disk: dict[str, int] = field(default_factory=dict)
    """Estimated bytes on the disk. `checkpoint`: one checkpoint. `peak`: the largest sum of checkpoints at any time.
    `left`: all checkpoints at the end. Empty if the run does not save."""
    time: dict[str, float] = field(default_factory=dict)
    """The seconds of one `step` and of one `evaluation`. `evaluation_share`: the share of evaluations in the time of
    the run. Empty without `measure=True`."""

    @property
    def counts(self) -> dict[str, int]:
        """The number of `rows` of each kind: `log`, `evaluate`, `save`, `delete`, `load_best` and `stop`."""
        found = Counter(row["what"] for row in self.rows)
        return {what: found[what] for what in WORK}

    def to_dict(self) -> dict[str, Any]:
        """Return the preview as plain values."""
        return {"preview": VERSION, **asdict(self), "counts": self.counts}

    def to_json(self) -> str:
        """Return the preview as JSON text. `Preview.load` reads a file with this text."""
        return json.dumps(written(self.to_dict()), indent=2, allow_nan=False)

    @classmethod
    def load(cls, path: Path | str) -> Preview:
        """Read a preview from a file with the text that `to_json` returned.

        Raises:
            ArgumentError: if the file cannot be read, or if it does not contain a preview.
        """
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls(**{name: values[name] for name in cls.__dataclass_fields__})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArgumentError(
                f"{path} is not a preview: {type(error).__name__}: {error}. Write one with "
                "`trainbus preview PROGRAM --out FILE`."
            ) from error

    def differences(self, other: Preview) -> list[str]:
        """Return the differences between this preview and another preview, as lines of text.

        A line that starts with `- ` is only in this preview. A line that starts with `+ ` is only in the other preview.
        The lines compare rows, steps, checkpoints and learning rates. Disk space and times are not compared, because
        they depend on the machine.
        """
        lines = difference(self.rows, other.rows)
        mine, others = self._decided(), other._decided()
        lines += [f"- {line}" for line in mine if line not in others]
        lines += [f"+ {line}" for line in others if line not in mine]
        if not any("learning rate:" in line for line in lines):  # then only steps in between may differ
            lines += self._other_rate(other)
        return lines

    def _other_rate(self, other: Preview) -> list[str]:
        """Return two lines for the first step with different logged learning rates; [] if there is no such step."""
        rates = {row["step"]: row["learning_rate"] for row in self.rows if "learning_rate" in row}
        for row in other.rows:
            mine, found = rates.get(row["step"]), row.get("learning_rate")
            if mine is not None and found is not None and not math.isclose(mine, found, rel_tol=1e-6):
                at = f"learning rate at step {row['step']}:"
                return [f"- {at} {mine:.6g}", f"+ {at} {found:.6g}"]
        return []

    def _decided(self) -> list[str]:
        """Return the lines of `figures()` that do not depend on the machine: all except disk space and time."""
        return [line for line in self.figures() if not line.startswith(("disk:", "time:"))]

    def figures(self) -> list[str]:
        """Return the numbers of the run as lines of text: steps, learning rates, disk space and time."""
        counts, rates = self.counts, self.learning_rates
        parts = [f"{counts[what]} {what}" for what in WORK if counts[what]]
        lines = [f"{self.steps} of {self.max_steps} steps, {self.epochs:g} epochs: {', '.join(parts)}"]
        if rates:
            lines.append(
                f"learning rate: {rates['first']:.4g} at first, {rates['highest']:.4g} at most, {rates['last']:.4g} at "
                "last"
            )
        if counts["save"]:
            lines.append(f"checkpoints left: {', '.join(map(str, self.kept)) or 'none'}")
        if self.disk:
            sizes = ", ".join(f"{name} {readable_size(value)}" for name, value in self.disk.items())
            lines.append(f"disk: about {sizes}")
        if self.time:
            share = self.time["evaluation_share"]
            lines.append(
                f"time: {self.time['step']:.4g} s a step, {self.time['evaluation']:.4g} s an evaluation; evaluations "
                f"take {share:.0%} of the run"
            )
        return lines

    def __str__(self) -> str:
        cells = [list(_COLUMNS), *([_cell(row, name) for name in _COLUMNS] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells]
        return "\n".join([*lines, "", *self.figures(), *(f"warning: {text}" for text in self.warnings)])

    def to_markdown(self) -> str:
        """Return the preview as Markdown: the table, the lines of `figures()`, and the warnings."""
        lines = [f"| {' | '.join(_COLUMNS)} |", f"|{' --- |' * len(_COLUMNS)}"]
        for row in self.rows:
            cells = (_cell(row, name).replace("|", "\\|") for name in _COLUMNS)
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", *(f"- {line}" for line in self.figures())]
        return "\n".join([*lines, *(f"- **warning:** {text}" for text in self.warnings)]) + "\n"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(_cell(row, name))}</td>' for name in _COLUMNS)}</tr>" for row in self.rows
        )
        notes = "".join(f"<li>{html.escape(line)}</li>" for line in self.figures())
        notes += "".join(f"<li><b>warning:</b> {html.escape(text)}</li>" for text in self.warnings)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><ul>{notes}</ul>"


def _cell(row: Row, name: str) -> str:
    if name == "what" and "checkpoint" in row:
        return f"{row['what']} {row['checkpoint']}"
    return str(row[name])

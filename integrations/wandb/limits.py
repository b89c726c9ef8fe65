"""Apply the limits of the service to a row, before the client receives the row."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import wandb

from ...engine.evaluation.outputs import plain

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """The limits that wandb documents for a run."""

    keys: int = 10_000
    """The largest number of different columns in a run."""
    value_bytes: int = 1_000_000
    """The largest size of one value, in bytes."""
    row_bytes: int = 25_000_000
    """The largest size of one row, in bytes."""


@dataclass
class Guard:
    """Makes rows fit the limits of wandb.

    - A text above `limits.value_bytes` is cut.
    - Any other value above `limits.value_bytes` is left out of its row. `leave_out` receives the value.
    - A new column is left out if the run already has `limits.keys` columns.
    - A column is left out if the row would have more than `limits.row_bytes` bytes with this column.

    The first text that is cut causes a warning with the name of its column. So does the first column above
    `limits.keys`, and the first column above `limits.row_bytes`.
    """

    limits: Limits = field(default_factory=Limits)
    """The limits to apply."""
    leave_out: Callable[[str, Any, str], None] | None = None
    """A function that receives the name of a column without a value, the value, and the reason: the value cannot be
    converted, or it is too large."""
    _keys: set[str] = field(default_factory=set)
    _warned: set[str] = field(default_factory=set)

    def apply(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row that the service accepts: plain values, without columns that exceed a limit.

        A text that is too long is cut, and its column stays. A value that cannot be converted is left out.
        """
        kept, size = {}, 0
        for name, value in row.items():
            if name not in self._keys and len(self._keys) >= self.limits.keys:
                self._warn("keys", f"the run has {self.limits.keys} names, so {name!r} is not recorded")
                continue
            try:
                plain = plain_value(value)
            except Exception as error:  # such as a tensor of a layout that has no numbers to read
                self._skip(name, value, str(error))
                continue
            length = _length(plain)
            if length > self.limits.value_bytes:
                if not isinstance(plain, str):
                    self._skip(name, value, f"it has {length} bytes, and {self.limits.value_bytes} are allowed")
                    continue
                plain = plain[: self.limits.value_bytes // 4]  # a character has at most 4 bytes
                length = _length(plain)
                self._warn("value", f"{name!r} is longer than {self.limits.value_bytes} bytes, and is cut")
            if size + length > self.limits.row_bytes:
                self._warn("row", f"the row has more than {self.limits.row_bytes} bytes, so {name!r} is not recorded")
                continue
            self._keys.add(name)
            kept[name], size = plain, size + length
        return kept

    def _skip(self, name: str, value: Any, reason: str) -> None:
        if self.leave_out is not None:
            self.leave_out(name, value, reason)

    def _warn(self, kind: str, what: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("A row has a value that wandb does not take: %s. Further cases are not reported.", what)


def plain_value(value: Any) -> Any:
    """Convert a value to a value that wandb can write.

    For example, a tensor of one element becomes a number, a PIL image becomes a `wandb.Image`, and a `Path` becomes a
    text.
    """
    if isinstance(value, torch.Tensor):
        return plain_value(value.item() if value.numel() == 1 else value.detach().to_dense().cpu().tolist())
    if getattr(getattr(value, "dtype", None), "kind", "") == "O" and hasattr(value, "tolist"):
        return plain_value(value.tolist())  # an array of objects
    if isinstance(value, Mapping):
        return {str(name): plain_value(item) for name, item in value.items()}
    if (
        value is None
        or isinstance(value, (bool, int, float, str))
        or type(value).__module__.startswith(("wandb", "numpy"))
    ):
        return value
    if isinstance(value, (list, tuple)):
        return [plain_value(item) for item in value]
    if hasattr(value, "getbands"):  # an image of PIL
        return wandb.Image(value)
    if type(value).__module__.split(".")[0] in ("matplotlib", "plotly", "pandas"):
        return value if not hasattr(value, "to_list") else plain_value(value.to_list())  # a column of a table
    return str(value)


def loss_not_finite(logs: Mapping[str, Any]) -> str:
    """Return the name and value of the first logged loss that is NaN or infinite; an empty text if all are finite."""
    values = ((name, value) for name, value in plain(dict(logs)).items() if "loss" in str(name))
    return next((f"{name} is {value}" for name, value in values if isinstance(value, float) and value - value), "")


def is_plain(value: Any) -> bool:
    """Return whether a value is a number, a text or None, or a list, tuple or dict of such values."""
    if isinstance(value, Mapping):
        return all(map(is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _length(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode(errors="replace"))
    if isinstance(value, (bool, int, float)) or value is None:
        return 8
    if isinstance(value, (dict, list)):
        try:
            return len(json.dumps(value, default=str))
        except (TypeError, ValueError):
            return 0
    return 0  # media are files of their own

"""Numbers outside of their range are refused when a callback is constructed."""

from __future__ import annotations

from typing import Any

import pytest

from trainbus import DataParallel, MixedPrecision, NaNGuard
from trainbus.events.errors import ArgumentError

REFUSED: list[tuple[Any, str, float]] = [
    *((NaNGuard, "limit", value) for value in (-1, float("nan"))),
    *((MixedPrecision, "initial_scale", value) for value in (0.0, -1.0, float("nan"))),
    *((DataParallel, "devices", value) for value in (0, -1)),
]


@pytest.mark.parametrize(("kind", "field", "value"), REFUSED)
def test_a_number_outside_of_its_range_is_refused(kind: Any, field: str, value: float) -> None:
    with pytest.raises(ArgumentError, match=rf"{field}={value}"):
        kind(**{field: value})

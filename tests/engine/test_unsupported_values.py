"""Values in a checkpoint: each value is restored bit for bit, or refused with its path and a remedy."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainbus.engine.checkpoint.format.codec import encode, load_values
from trainbus.engine.checkpoint.format.tensor_file import write_tensors
from trainbus.events import CheckpointError

STORED: dict[str, Any] = {
    "big-endian floats": np.array([1.5, math.inf], ">f4"),
    "big-endian integers": np.array([1, 2**32 - 1], ">u4"),
    "unsigned integers": np.array([0, 2**64 - 1], np.uint64),
    "transposed": np.arange(6.0).reshape(2, 3).T,
    "no elements": np.zeros((0, 3)),
    "complex": np.array([1j], np.complex64),
    "a number of numpy": np.float16(2),
    "text of numpy": np.str_("x"),
}


def cyclic() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["me"] = value
    return value


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that it will drop these types
        return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


REFUSED: dict[str, tuple[Any, str]] = {
    "a cycle": (cyclic(), "the state is nested too deeply for a checkpoint, or contains itself"),
    "texts": (np.array(["a"]), "the state.v is an array of <U1"),
    "objects": (np.array([None]), "the state.v is an array of object"),
    "a date": (np.datetime64("2020"), "the state.v is a datetime64"),
    "dates": (np.array([1], "M8[s]"), "the state.v is an array of datetime64"),
    "a long double": (np.longdouble(1), "the state.v is a longdouble"),
    "long doubles": (np.ones(1, np.longdouble), "the state.v is an array of float128"),
    "records": (np.zeros(1, [("a", "i4")]), "the state.v is an array of"),
    "bytes": (b"x", "the state.v is a bytes"),
    "a complex number": (1j, "the state.v is a complex"),
    "quantized": (quantized(), "the state.v is a quantized tensor"),
}


@pytest.mark.parametrize("value", STORED.values(), ids=STORED)
def test_a_supported_value_is_restored(value: Any, tmp_path: Path) -> None:
    with (tmp_path / "values").open("wb") as file:
        write_tensors(file, *encode({"v": value}, "the state"))
    restored = load_values(tmp_path / "values")["v"]
    assert np.array_equal(restored, value)
    if isinstance(value, np.ndarray):
        assert restored.dtype == value.dtype
        assert restored.tobytes() == value.tobytes()


@pytest.mark.parametrize(("value", "text"), REFUSED.values(), ids=REFUSED)
def test_any_other_value_is_refused_with_its_path(value: Any, text: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        encode({"v": value}, "the state")
    assert text in str(caught.value)

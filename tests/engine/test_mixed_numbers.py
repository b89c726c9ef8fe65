"""The default collator keeps the value of every number of a batch, in any order of samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from trainbus import default_data_collator

WHOLE = {"python": 1, "numpy": np.int64(1), "tensor": torch.tensor(1), "bool": True}
FRACTION = {"python": 0.5, "numpy": np.float32(0.5), "tensor": torch.tensor(0.5)}


@pytest.mark.parametrize("whole", WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("fraction", FRACTION.values(), ids=FRACTION)
@pytest.mark.parametrize("first", ["whole", "fraction"])
@pytest.mark.parametrize("key", ["label", "label_ids", "labels", "score"])
def test_a_float_is_never_truncated(key: str, first: str, whole: Any, fraction: Any):
    values = [whole, fraction] if first == "whole" else [fraction, whole]
    if key == "label_ids":
        wraps = (torch.Tensor, np.generic)
        values = [value.reshape(1) if isinstance(value, wraps) else [value] for value in values]
    batch = default_data_collator([{key: value} for value in values])
    (got,) = batch.values()
    assert got.flatten().tolist() == ([1.0, 0.5] if first == "whole" else [0.5, 1.0])


@pytest.mark.parametrize("row", [[1, 0.5], [0, 1]])
def test_labels_of_one_row_may_mix_numbers(row: list[float]):
    got = default_data_collator([{"label_ids": row}, {"label_ids": [0, 1]}])["labels"]
    assert got.tolist() == [row, [0, 1]]


def test_columns_of_arrays_are_promoted():
    got = default_data_collator([{"x": np.array([1])}, {"x": np.array([0.5])}])["x"]
    assert got.tolist() == [[1.0], [0.5]]


def test_whole_labels_stay_int64_and_fractions_float32():
    assert default_data_collator([{"label": 1}, {"label": 2}])["labels"].dtype is torch.int64
    assert default_data_collator([{"label": 1}, {"label": 0.5}])["labels"].dtype is torch.float32

"""The default collator keeps the value of every number of a batch, in any order of samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from trainbus import default_data_collator
from trainbus.events import DataError

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


ROWS_OF_LISTS: dict[str, tuple[list[Any], list[Any]]] = {
    "token ids and a label": ([([1, 2, 3], 0), ([4, 5, 6], 1)], [[[1, 2, 3], [4, 5, 6]], [0, 1]]),
    "token ids and token labels": ([([1, 2], [0, 1]), ((3, 4), [1, 1])], [[[1, 2], [3, 4]], [[0, 1], [1, 1]]]),
    "integers and floats": ([([1, 2], 1), ([0.5, 2], 0.5)], [[[1, 2], [0.5, 2]], [1, 0.5]]),
    "nested": ([([[1, 2], [3, 4]], 0), ([[5, 6], [7, 8]], 1)], [[[[1, 2], [3, 4]], [[5, 6], [7, 8]]], [0, 1]]),
    "plain numbers": ([(1, 2, 0), (3, 4, 1)], [[1, 3], [2, 4], [0, 1]]),
}


@pytest.mark.parametrize("name", ROWS_OF_LISTS)
def test_a_list_of_numbers_in_a_tuple_is_one_value_as_in_a_dict(name):
    rows, expected = ROWS_OF_LISTS[name]
    batch = default_data_collator(rows)
    assert [column.tolist() for column in batch] == expected
    named = default_data_collator([{str(place): value for place, value in enumerate(row)} for row in rows])
    assert [column.dtype for column in batch] == [column.dtype for column in named.values()]


def test_a_dict_in_a_tuple_and_tensors_in_a_list_keep_their_structure():
    inputs, labels = default_data_collator([({"ids": [1, 2]}, 0), ({"ids": [3, 4]}, 1)])
    assert inputs["ids"].tolist() == [[1, 2], [3, 4]]
    (first, second), _ = default_data_collator([([torch.ones(2), torch.zeros(3)], 1)] * 2)
    assert (first.shape, second.shape, labels.tolist()) == ((2, 2), (2, 3), [0, 1])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([([1, 2], 0), ([3], 1)], r"position 0 of the samples cannot be stacked .* lengths \[1, 2\]"),
        ([(1, 2), (1, 2, 3)], r"tuples or lists of lengths \[2, 3\]"),
        ([({"ids": [1, 2]}, 0), ({"ids": [3]}, 1)], "'ids' in position 0 of the samples cannot be stacked"),
    ],
)
def test_tuples_that_do_not_stack_are_named(rows, message):
    with pytest.raises(DataError, match=message):
        default_data_collator(rows)


class Sample:
    """A sample with attributes."""

    def __init__(self, **values):
        vars(self).update(values)


ONES = torch.ones(2)
ODD = {
    "a column that one lacks": ([{"a": 1}, {"b": 1}], "Sample 1 of a batch has no column 'a'"),
    "a label that one lacks": ([{"label": 1}, {"x": 1}], "Sample 1 of a batch has no column 'label'"),
    "label ids that one lacks": ([{"label_ids": [1]}, {}], "Sample 1 of a batch has no column 'label_ids'"),
    "an attribute that one lacks": ([Sample(a=1), Sample(b=1)], "Sample 1 of a batch has no column 'a'"),
    "a key of a dict in a tuple": ([({"a": 1},), ({"b": 1},)], "at position 0 of the samples has no column 'a'"),
    "a tuple among dicts": ([{"a": 1}, (1, 2)], "Sample 1 of a batch is of type tuple, but the first is a dict"),
    "a number among tuples": ([(1, 2), 3], "Sample 1 of a batch is of type int, but the first is of type tuple"),
    "a number among objects": ([Sample(a=1), 3], "Sample 1 of a batch is of type int, but the first is of type Sample"),
    "label ids of other lengths": ([{"label_ids": [1]}, {"label_ids": [1, 2]}], r"'label_ids' .* lengths \[1, 2\]"),
    "label ids of other shapes": (
        [{"label_ids": ONES}, {"label_ids": ONES[:1]}],
        r"'label_ids' cannot be stacked .* lengths \[1, 2\]: pass",
    ),
    "label ids that one has not": ([{"label_ids": [1]}, {"label_ids": None}], "'label_ids' has no value in sample 1"),
    "tensors of other lengths": ([(ONES, 1), (ONES[:1], 1)], r"position 0 of the samples .* lengths \[1, 2\]: pass"),
    "tensors of other shapes": (
        [(ONES[None], 1), (ONES[None, :1], 1)],
        r"position 0 of the samples .* shapes \[\(1, 1\), \(1, 2\)\]: give all one shape",
    ),
    "tensors in a dict of other shapes": (
        [{"x": ONES[None]}, {"x": ONES[None, :1]}],
        r"column 'x' .* shapes \[\(1, 1\), \(1, 2\)\]: give all one shape",
    ),
    "samples of other shapes": ([ONES, ONES[:1]], r"samples cannot be stacked .* lengths \[1, 2\]: pass"),
    "a value that one has not": ([(ONES, 1), (None, 1)], "position 0 of the samples has no value in sample 1"),
    "values of no known type": ([(object(),), (object(),)], "position 0 of the samples cannot be stacked"),
}


@pytest.mark.parametrize("name", ODD)
def test_samples_that_differ_from_the_first_are_named_with_a_remedy(name):
    rows, message = ODD[name]
    with pytest.raises(DataError, match=message) as caught:
        default_data_collator(rows)
    assert any(remedy in str(caught.value) for remedy in ("`data_collator`", "`dataset.map`"))


def test_an_error_of_the_samples_themselves_stays():
    class Failing(dict):
        def __getitem__(self, key):
            raise KeyError("of the program")

    with pytest.raises(KeyError, match="of the program"):
        default_data_collator([{"a": 1}, Failing(a=1)])

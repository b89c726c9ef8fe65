"""Collators that pad and mask, compared with those of transformers."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.utils.data import DataLoader

import trainbus
from trainbus import (
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
)
from trainbus.events.errors import ArgumentError, DataError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(45))]


def tokenizer(side: str = "right", **options: Any) -> Any:
    """A tokenizer of 50 words, made here."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="[UNK]", padding_side=side, model_max_length=24, **{**names, **options}
    )


class Plain:
    """What a collator asks of a tokenizer, and nothing else."""

    padding_side = "right"
    pad_token_id = 0
    mask_token_id = 4

    def __len__(self) -> int:
        return 50

    def pad(
        self, rows: list[Any], padding: Any = True, pad_to_multiple_of: int | None = None, return_tensors: str = "pt"
    ) -> dict[str, torch.Tensor]:
        width = max(len(row["input_ids"]) for row in rows)
        width = -(-width // (pad_to_multiple_of or 1)) * (pad_to_multiple_of or 1)
        ids = [[*row["input_ids"]] + [0] * (width - len(row["input_ids"])) for row in rows]
        return {"input_ids": torch.tensor(ids)}

    def get_special_tokens_mask(self, ids: list[int], already_has_special_tokens: bool = False) -> list[int]:
        return [int(token < 5) for token in ids]


def texts(rows: int = 6, seed: int = 0, longest: int = 8) -> list[str]:
    """Texts of different lengths, with punctuation, so that some words have several tokens."""
    random = np.random.default_rng(seed)
    return [
        " ".join(f"w{number}" + random.choice(["", ",w3", "!"]) for number in random.integers(0, 45, size))
        for size in random.integers(2, longest, rows)
    ]


def encoded(side: str = "right", **options: Any) -> list[dict[str, Any]]:
    """Rows as the tokenizer makes them."""
    made = tokenizer(side)
    return [dict(made(text, **options)) for text in texts()]


def same(ours: Any, theirs: Any) -> None:
    """Assert that two batches have the same keys in the same order, and the same tensors under them."""
    assert isinstance(ours, Mapping)
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        if value is None:
            assert ours[name] is None
        else:
            assert ours[name].dtype == value.dtype
            assert torch.equal(ours[name], value), name


def compare(name: str, side: str, rows: list[Any], **options: Any) -> None:
    """Assert that the two libraries' collators of a name make the same batch of the rows, without changing them."""
    before = [dict(row) for row in rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' makes tensors of lists of arrays
        theirs = getattr(transformers, name)(tokenizer(side), **options)([dict(row) for row in rows])
    ours = getattr(trainbus, name)(tokenizer(side), **options)(rows)
    same(ours, theirs)
    assert [list(row) for row in rows] == [list(row) for row in before]


PADDINGS = [{}, {"pad_to_multiple_of": 8}, {"padding": "max_length", "max_length": 23}, {"padding": "longest"}]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("options", PADDINGS, ids=str)
@pytest.mark.parametrize("label", [None, "label", "label_ids"])
def test_padding_collator_matches_transformers(side: str, options: dict[str, Any], label: str | None):
    rows = encoded(side)
    for number, row in enumerate(rows):
        row.update({} if label is None else {label: number if label == "label" else [number, number]})
    compare("DataCollatorWithPadding", side, rows, **options)


def test_samples_of_one_length_need_no_padding():
    rows = [{"input_ids": [2, 7, 3]}, {"input_ids": [2, 8, 3]}]
    compare("DataCollatorWithPadding", "right", rows, padding=False)


def test_padding_suppresses_the_fast_tokenizer_warning():
    quick = tokenizer()
    DataCollatorWithPadding(quick)([{"input_ids": [1]}, {"input_ids": [1, 2]}])
    assert not quick.deprecation_warnings.get("Asking-to-pad-a-fast-tokenizer", False)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("options", [*PADDINGS, {"label_pad_token_id": 7}], ids=str)
@pytest.mark.parametrize("kind", [None, list, np.array, torch.tensor])
@pytest.mark.parametrize("name", ["labels", "label"])
def test_token_labels_are_padded_with_their_tokens(side: str, options: dict[str, Any], kind: Any, name: str):
    rows = encoded(side)
    if kind is not None:
        rows = [{**row, name: kind([token % 3 for token in row["input_ids"]])} for row in rows]
    compare("DataCollatorForTokenClassification", side, rows, **options)


def test_more_labels_than_tokens_raise():
    rows = [{"input_ids": [2, 3], "labels": [0, 1, 0]}]
    with pytest.raises(DataError, match="3 labels, but the batch is 2 tokens wide"):
        DataCollatorForTokenClassification(tokenizer())(rows)


def t5() -> Any:
    torch.manual_seed(0)
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=50, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0
        )
    )


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("options", [*PADDINGS, {"label_pad_token_id": 7}], ids=str)
@pytest.mark.parametrize("kind", [None, list, np.array, "none"])
@pytest.mark.parametrize("model", [False, True])
def test_seq2seq_labels_are_padded_separately(side: str, options: dict[str, Any], kind: Any, model: bool):
    rows = encoded(side)
    for size, row in enumerate(rows):
        if kind is not None:
            row["labels"] = None if kind == "none" else kind([9] * (size + 1))
    compare("DataCollatorForSeq2Seq", side, rows, model=t5() if model else None, **options)


def test_unpadded_labels_of_different_lengths_raise():
    rows = [{"input_ids": [2, 7, 3], "label": [4, 5]}, {"input_ids": [2, 8, 3], "label": [6, 7]}]
    compare("DataCollatorForSeq2Seq", "right", rows, padding=False)
    with pytest.raises(DataError, match=r"lengths \[1, 2\].*padding=True"):
        DataCollatorForSeq2Seq(tokenizer(), padding="do_not_pad")([rows[0], {**rows[1], "label": [1]}])


# Language models.


def masked(library: Any, rows: list[Any], calls: int = 3, **options: Any) -> list[Any]:
    """What a library's collator makes of the rows in several calls, and the state that it leaves torch's draws in."""
    torch.manual_seed(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collator = library.DataCollatorForLanguageModeling(tokenizer(options.pop("side", "right")), **options)
    copied = [dict(row) if isinstance(row, Mapping) else row for row in rows]
    return [*(collator(copied) for _ in range(calls)), {"state": torch.get_rng_state()}]


MASKINGS = [
    {},
    {"mlm": False},
    {"mlm": False, "pad_to_multiple_of": 8},
    {"mlm_probability": 0.5, "pad_to_multiple_of": 8},
    {"mlm_probability": 0},
    {"mlm_probability": 1, "mask_replace_prob": 1, "random_replace_prob": 0},
    {"mask_replace_prob": 0.0, "random_replace_prob": 1.0, "mlm_probability": 0.4},
    {"mask_replace_prob": 0.5, "random_replace_prob": 0.4, "mlm_probability": 0.4},
    {"mask_replace_prob": 0.5, "random_replace_prob": 0, "mlm_probability": 0.4},
    {"seed": 11},
    {"side": "left", "mlm_probability": 0.3},
]


@pytest.mark.parametrize("options", MASKINGS, ids=str)
@pytest.mark.parametrize("special", [False, True])
def test_masking_matches_the_draws_of_transformers(options: dict[str, Any], special: bool):
    rows = encoded(return_special_tokens_mask=special)
    theirs = masked(transformers, rows, **options)
    ours = masked(trainbus, rows, **options)
    for our, their in zip(ours, theirs, strict=True):
        same(our, their)
    if options.get("mlm", True) and options.get("mlm_probability", 1):
        assert any((batch["labels"] != -100).any() for batch in ours[:-1])


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
@pytest.mark.parametrize("options", [{"side": "left"}, {"mlm": False}, {"pad_to_multiple_of": 5, "seed": 3}], ids=str)
def test_samples_may_be_plain_token_ids(kind: Any, options: dict[str, Any]):
    rows = [kind(row["input_ids"]) for row in encoded()]
    for our, their in zip(masked(trainbus, rows, **options), masked(transformers, rows, **options), strict=True):
        same(our, their)
    one_length = [kind([2, 9, 9, 9, 3])] * 3
    same(masked(trainbus, one_length, **options)[0], masked(transformers, one_length, **options)[0])


def test_whole_words_are_masked():
    made = tokenizer()
    options = {"return_special_tokens_mask": True, "return_offsets_mapping": True, "padding": "max_length"}
    rows = [dict(made(text, max_length=24, truncation=True, **options)) for text in texts(8)]
    asked = {"whole_word_mask": True, "mlm_probability": 0.4}
    ours, theirs = masked(trainbus, rows, **asked), masked(transformers, rows, **asked)
    for our, their in zip(ours, theirs, strict=True):
        same(our, their)
    assert (ours[0]["input_ids"][ours[0]["labels"] != -100] == made.mask_token_id).all()
    with pytest.raises(DataError, match="offset_mapping"):
        masked(trainbus, encoded(), **asked)
    with pytest.warns(UserWarning, match="mask_replace_prob"):
        DataCollatorForLanguageModeling(made, whole_word_mask=True)


def test_each_worker_draws_from_its_own_generator():
    def batches(library: Any) -> list[Any]:
        collator = library.DataCollatorForLanguageModeling(tokenizer(), seed=3, mlm_probability=0.5)
        return list(DataLoader(rows, batch_size=2, num_workers=2, collate_fn=collator))

    rows = encoded()
    for our, their in zip(batches(trainbus), batches(transformers), strict=True):
        same(our, their)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mlm_probability": 1.5}, "mlm_probability"),
        ({"mlm_probability": None}, "mlm_probability"),
        ({"mask_replace_prob": -0.1}, "mask_replace_prob"),
        ({"random_replace_prob": float("nan")}, "random_replace_prob"),
        ({"mask_replace_prob": 0.8, "random_replace_prob": 0.3}, "more than 1 together"),
        ({"mlm": False, "whole_word_mask": True}, "whole_word_mask"),
        ({"return_tensors": "tf"}, "Set it to 'pt'"),
    ],
)
def test_invalid_probabilities_raise(options: dict[str, Any], message: str):
    with pytest.raises(ArgumentError, match=message):
        DataCollatorForLanguageModeling(tokenizer(), **options)


def test_tokenizer_without_required_tokens_raises():
    with pytest.raises(ArgumentError, match=r"no mask token.*mlm=False"):
        DataCollatorForLanguageModeling(tokenizer(mask_token=None))
    lists = [[1, 2], [1, 2, 3]]
    with pytest.raises(DataError, match="no padding token"):
        DataCollatorForLanguageModeling(tokenizer(pad_token=None), mlm=False)(lists)


# Without transformers.


@pytest.mark.parametrize("rows", [[[5, 6], [7]], [{"input_ids": [5, 6]}, {"input_ids": [7]}]], ids=["lists", "dicts"])
def test_samples_that_need_padding_without_a_padding_token_raise_one_error_with_the_remedy(rows: list[Any]):
    without = tokenizer(pad_token=None)
    collators: list[Any] = [DataCollatorForLanguageModeling(without, mlm=False)]
    if isinstance(rows[0], dict):
        collators += [DataCollatorWithPadding(without), DataCollatorForTokenClassification(without)]
        collators += [DataCollatorForSeq2Seq(without)]
    for collator in collators:
        with pytest.raises(DataError, match=r"no padding token. Set it, such as `tokenizer.pad_token = "):
            collator(rows)


def test_an_error_of_the_tokenizer_that_needs_no_padding_token_stays():
    with pytest.raises(ValueError, match="Unable to create tensor"):
        DataCollatorWithPadding(tokenizer(pad_token=None), padding=False)([{"input_ids": [5, 6]}, {"input_ids": [7]}])


def test_default_collator_accepts_return_tensors():
    rows = [{"x": [1.0, 2.0], "label": 1}] * 2
    same(trainbus.default_data_collator(rows, "pt"), transformers.default_data_collator(rows, "pt"))
    with pytest.raises(ArgumentError, match="'tf'"):
        trainbus.default_data_collator(rows, return_tensors="tf")


@pytest.mark.parametrize("collator", [DataCollatorForSeq2Seq, DataCollatorForTokenClassification])
def test_any_object_that_pads_is_a_tokenizer(collator: Any):
    rows = [{"input_ids": [2, 9, 3], "labels": [1, 2, 1]}, {"input_ids": [2, 3], "labels": [1, 2]}]
    batch = collator(Plain())(rows)
    assert batch["input_ids"].tolist() == [[2, 9, 3], [2, 3, 0]]
    assert batch["labels"].tolist() == [[1, 2, 1], [1, 2, -100]]
    with pytest.raises(ArgumentError, match="'tf'"):
        collator(Plain())(rows, return_tensors="tf")


def test_any_object_that_pads_can_have_its_tokens_masked():
    rows = [{"input_ids": [2, 9, 8, 3]}, {"input_ids": [2, 3]}]
    certain = {"mlm_probability": 1.0, "mask_replace_prob": 1.0, "random_replace_prob": 0.0}
    batch = DataCollatorForLanguageModeling(Plain(), **certain)(rows)
    assert batch["input_ids"].tolist() == [[2, 4, 4, 3], [2, 3, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 9, 8, -100], [-100] * 4]


def test_collators_import_from_the_package_without_transformers():
    names = [name for name in dir(trainbus) if "ollator" in name]
    assert len(names) == 6
    program = (
        "import sys; sys.modules['transformers'] = None\n"
        "import trainbus, trainbus.engine\n"
        f"assert all(getattr(trainbus, name) is getattr(trainbus.engine, name) for name in {names})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


KINDS = {
    "default": lambda library, side: library.DefaultDataCollator(return_tensors="np"),
    "padding": lambda library, side: library.DataCollatorWithPadding(tokenizer(side), return_tensors="np"),
    "tokens": lambda library, side: library.DataCollatorForTokenClassification(tokenizer(side), return_tensors="np"),
    "seq2seq": lambda library, side: library.DataCollatorForSeq2Seq(tokenizer(side), return_tensors="np"),
    "causal": lambda library, side: library.DataCollatorForLanguageModeling(
        tokenizer(side), mlm=False, return_tensors="np"
    ),
    "masked": lambda library, side: library.DataCollatorForLanguageModeling(tokenizer(side), return_tensors="np"),
}


def rows_for(kind: str, side: str) -> list[Any]:
    if kind == "default":
        return [{"label": at, "x": [float(at), 2.0], "ids": [at, 1]} for at in range(4)]
    rows = [{name: list(value) for name, value in row.items()} for row in encoded(side)]
    if kind in ("tokens", "seq2seq"):
        rows = [{**row, "labels": [at] * len(row["input_ids"])} for at, row in enumerate(rows)]
    return rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_collators_return_numpy_arrays_on_request(kind: str, side: str) -> None:
    rows = rows_for(kind, side)
    ours, theirs = (KINDS[kind](library, side)(copy.deepcopy(rows)) for library in (trainbus, transformers))
    assert set(ours) == set(theirs)
    for name, values in ours.items():
        assert type(values) is type(theirs[name])
        if isinstance(values, np.ndarray):
            assert values.shape == theirs[name].shape
            drawn = kind == "masked" and name in ("input_ids", "labels")  # our draws are those of torch
            assert drawn or (values == theirs[name]).all()


@pytest.mark.parametrize("tensors", ["pt", "np"])
@pytest.mark.parametrize("kind", KINDS)
def test_collators_do_not_change_their_rows(kind: str, tensors: str) -> None:
    def made(convert: Any) -> list[Any]:
        return [
            {name: convert(value) if isinstance(value, list) else value for name, value in row.items()}
            for row in rows_for(kind, "right")
        ]

    for convert in (list, np.array, torch.tensor):
        if kind == "padding" and convert is not list:
            continue
        rows, before = made(convert), made(convert)
        collator = KINDS[kind](trainbus, "right")
        collator.return_tensors = tensors
        collator(rows)
        assert [list(row) for row in rows] == [list(row) for row in before]
        for row, expected in zip(rows, before):
            for name, value in expected.items():
                assert type(row[name]) is type(value)
                assert np.array_equal(np.asarray(row[name]), np.asarray(value))


def test_unknown_type_of_tensors_is_refused() -> None:
    with pytest.raises(ArgumentError, match="`return_tensors` is 'tf', which is not supported"):
        trainbus.default_data_collator([{"x": 1}], return_tensors="tf")


INCOMPLETE = {
    "first label": (
        [{"x": 1.0, "label": None}, {"x": 1.0, "label": 1}],
        "'label' has no value in sample 0 .* sample 1",
    ),
    "later label": ([{"x": 1.0, "label": 1}, {"x": 1.0, "label": None}], "'label' has no value in sample 1"),
    "first value": ([{"x": None, "label": 1}, {"x": 1.0, "label": 1}], "'x' has no value in sample 0"),
    "later value": ([{"x": 1.0, "label": 1}, {"x": None, "label": 1}], "'x' has no value in sample 1"),
    "text": ([{"x": 1.0, "label": "cat"}] * 2, r"'cat' is a text: number the classes, as `dataset.class_encode_column"),
}


@pytest.mark.parametrize(("rows", "text"), INCOMPLETE.values(), ids=INCOMPLETE)
def test_a_missing_value_and_a_text_as_label_are_named(rows, text):
    with pytest.raises(DataError, match=text):
        trainbus.default_data_collator(rows)
    assert trainbus.default_data_collator([{"x": 1.0, "label": None}] * 2).keys() == {"x"}


@pytest.mark.parametrize("name", ["city", "labels", "input_ids"])
@pytest.mark.parametrize("texts", [[None, "Rome"], ["Rome", None], [None, None], [None, ""]])
def test_a_column_of_texts_with_gaps_is_left_out_as_by_transformers(name: str, texts: list[str | None]) -> None:
    rows = [{name: text, "x": [1.0, 2.0], "label": 1} for text in texts]
    batch = trainbus.default_data_collator(rows)
    expected = transformers.default_data_collator(rows)
    assert batch.keys() == expected.keys() == {"x", "labels"}
    assert all(torch.equal(batch[key], expected[key]) for key in expected)

"""The sharding strategies: every row is complete, and the arguments, callbacks and docs agree with it."""

from __future__ import annotations

import ast
import importlib
import re
from typing import Any

import pytest

from support.pages import text_of
from trainbus import TrainingArguments
from trainbus.engine.arguments import _sharding
from trainbus.engine.distributed.memory_estimate import estimate
from trainbus.engine.distributed.strategies import Strategy, variants
from trainbus.engine.distributed.workload import Workload
from trainbus.events.errors import ArgumentError
from trainbus.integrations import TABLE, found_callbacks, way_to_shard

PAGE = text_of("scaling.md", "scaling/strategies.md")

USAGES = [
    (strategy, text) for strategy in Strategy for usage in strategy.row.usages for text in usage.arguments or ("",)
]
"""Every documented spelling."""

every_strategy = pytest.mark.parametrize("strategy", Strategy, ids=lambda strategy: strategy.name)
every_spelling = pytest.mark.parametrize(("strategy", "text"), USAGES, ids=str)


def arguments(text: str, **more: Any) -> TrainingArguments:
    call = ast.parse(f"dict({text})", mode="eval").body
    assert isinstance(call, ast.Call)
    given = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    return TrainingArguments(use_cpu=True, **{**given, **more})


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment of rank 0 of 16."""
    for name, value in {"WORLD_SIZE": "16", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)


# The rows.


def test_names_are_unique() -> None:
    names = [strategy.row.name for strategy in Strategy]
    assert sorted(set(names)) == sorted(names)
    assert all(Strategy.named(strategy.row.name) is strategy for strategy in Strategy)


@every_strategy
def test_row_names_an_integration_with_its_class_and_extra(strategy: Strategy) -> None:
    row = strategy.row
    assert bool(row.integration) == row.callback.startswith("integrations.")
    if row.integration:
        target, _, extra = TABLE[row.integration]
        assert row.callback == f"integrations.{target.replace(':', '.')}"
        assert row.extra == f"trainbus[{extra}]"


@every_strategy
def test_variants_belong_to_their_strategy_and_have_an_estimate(strategy: Strategy) -> None:
    workload = Workload(params=1e9, gpus=16, precision="fp32")
    for variant in strategy.row.variants(workload):
        assert variant.strategy == strategy.row.name
        assert estimate(variant, workload) == strategy.row.memory(variant, workload)
        assert Strategy.selected_by(arguments(variant.arguments)) is strategy


def test_every_word_of_the_arguments_is_known_to_the_parser() -> None:
    assert {*_sharding.STAGES} == {"stage1", "stage2", "stage3"}
    assert {*_sharding.SHARDED_DDP_WORDS} == {"simple", "zero_dp_2", "zero_dp_3", "fairscale", "offload", "auto_wrap"}


# The arguments.


@every_spelling
def test_documented_arguments_select_their_strategy(strategy: Strategy, text: str) -> None:
    args = arguments(text)
    assert args.sharding_strategy is strategy
    assert args.way_to_shard == strategy.row.name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("sharded_ddp=True", "FAIRSCALE"),
        ("sharded_ddp=['zero_dp_3', 'auto_wrap']", "FSDP"),
        ("sharding='Stage1'", "OPTIMIZER"),
        ("fsdp=True", "FSDP"),
        ("fsdp=''", "DDP"),
        ("fsdp=[]", "DDP"),
        ("deepspeed={}", "DEEPSPEED"),
        ("deepspeed=''", "DDP"),
        ("sharding='stage1', sharding_degree=1", "DDP"),
        ("fsdp=True, sharding_degree=1", "DDP"),
        ("sharding_degree=-1", "DDP"),
    ],
)
def test_other_values_of_the_arguments_select_a_strategy(text: str, name: str) -> None:
    assert arguments(text).sharding_strategy is Strategy[name]


@pytest.mark.usefixtures("several")
@every_spelling
def test_documented_arguments_build_the_callback_of_the_row(strategy: Strategy, text: str) -> None:
    row = strategy.row
    module, _, name = row.callback.rpartition(".")
    if row.integration:
        pytest.importorskip(TABLE[row.integration][1])
    kind = getattr(importlib.import_module(f"trainbus.{module}"), name)
    if strategy is Strategy.FAIRSCALE_FSDP:  # refused on the CPU, with the callback's name
        with pytest.raises(ArgumentError, match="CUDA only"):
            kind.from_arguments(arguments(text))
        return
    assert isinstance(kind.from_arguments(arguments(text)), kind)
    built = {type(callback) for callback in found_callbacks(arguments(text, report_to="none"))}
    assert (kind in built) == bool(row.integration)


@every_spelling
def test_single_process_is_refused_unless_the_row_allows_it(strategy: Strategy, text: str) -> None:
    row = strategy.row
    if row.single_process:
        assert way_to_shard(arguments(text)) == row.integration
        return
    with pytest.raises(ArgumentError, match="is a single process: start N of 2 or more ranks with") as raised:
        way_to_shard(arguments(text))
    assert row.launch in str(raised.value)


# The documentation.


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def table(heading: str) -> list[list[str]]:
    """Return the rows of the first table below a heading of the page, without its head."""
    below = PAGE.partition(f"## {heading}\n")[2]
    lines = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert lines is not None
    return [cells(line) for line in lines.group().splitlines()[2:]]


def test_page_lists_every_usage() -> None:
    expected = [
        [usage.title, " or ".join(f"`{text}`" for text in usage.arguments) or "nothing", usage.when]
        for strategy in Strategy
        for usage in strategy.row.usages
    ]
    assert table("Choose a strategy") == expected, "\n".join(f"| {' | '.join(row)} |" for row in expected)


def test_page_lists_every_limit() -> None:
    expected = [
        [
            " / ".join(usage.title for usage in strategy.row.usages),
            f"`{strategy.row.callback.rpartition('.')[2]}`",
            f"`{strategy.row.extra}`" if strategy.row.extra else "",
            strategy.row.limits,
        ]
        for strategy in Strategy
    ]
    assert table("Callbacks and limits") == expected, "\n".join(f"| {' | '.join(row)} |" for row in expected)


def test_page_gives_the_formulas_of_the_estimate() -> None:
    """The columns "Between steps", "More at the peak" and "Sent" are the formulas, for float32 weights and AdamW."""
    sizes = {"N": 8, "L": 40}
    workload = Workload(params=1e12, gpus=8, precision="fp32", layers=40)  # DeepSpeed's bucket is small beside it
    hybrid = Workload(params=1e12, gpus=16, precision="fp32", layers=40)
    found = {variant.name: estimate(variant, workload) for variant in variants(workload)}
    found["hybrid"] = next(estimate(variant, hybrid) for variant in variants(hybrid) if variant.name == "hybrid")
    rows = table("Memory and communication of each strategy")
    assert len(rows) == 9
    for title, kept, _, peak, _, _, sent in rows:
        name = title.partition(",")[0]
        memory = found[name if name.startswith("DeepSpeed") or name == "DDP" else name.lower()]
        assert memory.between_steps == pytest.approx(eval(kept, sizes), abs=2e-3), title
        assert memory.sent == pytest.approx(eval(sent, sizes)), title
        if title != "DeepSpeed 3":  # its gathered weights are a constant number, not a share
            assert memory.peak - memory.between_steps == pytest.approx(eval(peak, sizes), abs=2e-3), title

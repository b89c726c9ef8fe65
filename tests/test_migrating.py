"""The tables of docs/plugins/migrating.md name hooks that exist: in Composer, in ignite, and here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainbus.events import CATALOG

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "plugins" / "migrating.md").read_text(encoding="utf-8")

COMPOSER = {
    *("init", "before_load", "after_load", "fit_start", "fit_end", "close", "post_close"),
    *("iteration_start", "iteration_end", "iteration_checkpoint", "epoch_start", "epoch_end", "epoch_checkpoint"),
    *("before_dataloader", "after_dataloader", "batch_start", "batch_end", "batch_checkpoint"),
    *("before_train_batch", "after_train_batch", "before_forward", "after_forward"),
    *("before_loss", "after_loss", "before_backward", "after_backward"),
    *("eval_before_all", "eval_after_all", "eval_start", "eval_end", "eval_standalone_start", "eval_standalone_end"),
    *("eval_batch_start", "eval_batch_end", "eval_before_forward", "eval_after_forward"),
    *("predict_start", "predict_end", "predict_batch_start", "predict_batch_end"),
    *("predict_before_forward", "predict_after_forward"),
}
"""The hooks of `composer.core.Callback` in mosaicml 0.32.1. That package needs many others, so no test installs it."""

IGNITE = {
    *("EPOCH_STARTED", "EPOCH_COMPLETED", "STARTED", "COMPLETED", "ITERATION_STARTED", "ITERATION_COMPLETED"),
    *("EXCEPTION_RAISED", "GET_BATCH_STARTED", "GET_BATCH_COMPLETED", "DATALOADER_STOP_ITERATION"),
    *("TERMINATE", "TERMINATE_SINGLE_EPOCH", "INTERRUPT"),
}
"""The names of `ignite.engine.Events` in pytorch-ignite 0.5.5."""


def table(title: str) -> list[tuple[str, str]]:
    """Return the rows of the first table of a section: its first two cells."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = [re.split(r"(?<!\\)\|", line.strip("|"))[:2] for line in section.splitlines() if line.startswith("| ")]
    return [(row[0].strip(), row[1].strip()) for row in rows[2:]]


def words(cell: str) -> list[str]:
    """Return the texts in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def test_hooks_of_composer_exist() -> None:
    hooks = [word for cell, _ in table("From Composer") for word in words(cell) if word.isidentifier()]
    assert len(hooks) >= 15
    assert {hook for hook in hooks if hook != "Algorithm"} <= COMPOSER


def test_events_of_ignite_exist() -> None:
    names = re.findall(r"Events\.(\w+)", "".join(cell for cell, _ in table("From ignite")))
    assert len(names) >= 9
    assert set(names) <= IGNITE


@pytest.mark.parametrize("title", ["From Composer", "From ignite", "From Lightning"])
def test_events_of_trainbus_exist(title: str) -> None:
    events = [event for _, cell in table(title) for event in re.findall(r"\bon_\w+", cell)]
    assert len(events) >= 7
    assert set(events) <= CATALOG.keys()


def test_ignite_itself_has_the_events_and_the_methods() -> None:
    engine = pytest.importorskip("ignite.engine")
    assert set(engine.Events.__members__) == IGNITE
    for call in re.findall(r"Events\.\w+\([^)]*\)", "".join(cell for cell, _ in table("From ignite"))):
        eval(call, {"Events": engine.Events})  # the text of our own page
    for method in re.findall(r"engine\.(\w+)\(\)", "".join(cell for cell, _ in table("From ignite"))):
        assert callable(getattr(engine.Engine, method))


def test_composer_itself_has_the_hooks() -> None:
    core = pytest.importorskip("composer.core")
    assert {event.value for event in core.Event} | {"close", "post_close"} == COMPOSER

"""Every callback of trainbus passes the checks that authors of callbacks use."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from test_every_callback import FOUND, SEARCHES, setting

from support.models import Block, Net
from trainbus.testing import CHECKS, Subject, parametrize_with_checks

QUICK = (
    *("constructs", "attaches", "describes", "copies", "trains_alone", "evaluates_alone", "state_round_trip"),
    *("prints_nothing", "draws_no_random_numbers", "keeps_weights", "keeps_arguments"),
)
"""The checks of `make test`. `tests/test_every_callback.py` covers the others there, and `make torture` runs them."""

SERVICES = (
    *("ClearML", "Comet", "DeepSpeed", "MLflow", "Neptune", "PushToHub", "SwanLab", "TensorBoard", "Trackio", "Wandb"),
    *("Compile", "ExportModel"),
)
"""Callbacks that take long to start or to compile. All their checks run in `make torture`."""

PRINTS = {"Evaluate", "Log", "PrinterCallback", "Progress"}
"""Callbacks that print on purpose, or log through one that does."""

DIFFERENT = {
    "DefaultFlowCallback": {"describes": "a plain class, as in transformers"},
    "PrinterCallback": {"describes": "a plain class, as in transformers"},
}


def subject(cls: type) -> Subject:
    """Return a callback with the settings that make it do something in six steps."""
    chosen = setting(cls)
    return Subject(
        lambda folder: cls(**chosen.options(folder)),
        cls.__name__,
        {"model_init": Net, **chosen.arguments},
        budget=20_000,
        prints=cls.__name__ in PRINTS,
        expected_failed=DIFFERENT.get(cls.__name__, {}),
    )


RUNNABLE = [cls for cls in FOUND if not setting(cls).alone and cls.__name__ not in SEARCHES]
LIGHT = [cls for cls in RUNNABLE if cls.__name__ not in SERVICES]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WANDB_SILENT", "true")
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@parametrize_with_checks(map(subject, LIGHT), only=QUICK)
def test_conforms(check):
    check()


@pytest.mark.slow
@parametrize_with_checks(map(subject, LIGHT), only=[name for name in CHECKS if name not in QUICK])
def test_conforms_in_long_runs(check):
    check()


@pytest.mark.slow
@parametrize_with_checks([subject(cls) for cls in RUNNABLE if cls.__name__ in SERVICES], two_processes=False)
def test_services_conform(check):
    check()


def test_all_callbacks_are_checked():
    assert len(RUNNABLE) >= 50
    assert Block in {type(module) for module in Net().modules()}

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

PRINTS = {"Evaluate", "Log", "PrinterCallback", "Progress", "WatchModules"}
"""Callbacks that print on purpose, or log through one that does."""

DIFFERENT = {
    "DefaultFlowCallback": {"describes": "a plain class, as in transformers"},
    "PrinterCallback": {"describes": "a plain class, as in transformers"},
    "Checkpoint": {
        "any_order": "on_delete is announced before or after the last on_log, as the list of callbacks says"
    },
    "DataParallel": {"agrees_on_two_processes": "it works in one process, and refuses DDP, which the check adds"},
    "MemoryMetrics": {"repeats": "it logs measured memory"},
}
"""Callback -> the checks that it may fail, and why. All other callbacks pass all checks."""

ALONE = ("constructs", "attaches", "describes", "copies", "trains_alone")
"""The checks of callbacks that refuse to train in one process. `tests/integrations/test_sharding.py` has the others."""


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


DISTRIBUTED = [cls for cls in FOUND if setting(cls).alone]
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
@parametrize_with_checks([subject(cls) for cls in RUNNABLE if cls.__name__ in SERVICES], two_processes=True)
def test_services_conform(check):
    check()


@parametrize_with_checks(map(subject, DISTRIBUTED), only=ALONE)
def test_callbacks_that_need_several_processes_conform_in_one(check):
    check()


def test_all_callbacks_are_checked():
    assert len(RUNNABLE) >= 50
    assert Block in {type(module) for module in Net().modules()}

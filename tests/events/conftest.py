"""A bus without subscribers, and a list for notes."""

from __future__ import annotations

import pytest

from support.fakes import FakeRun
from trainbus.events import EventBus, TrainerControl


@pytest.fixture
def run() -> FakeRun:
    return FakeRun()


@pytest.fixture
def bus(run: FakeRun) -> EventBus:
    return run.bus


@pytest.fixture
def control(run: FakeRun) -> TrainerControl:
    return run.control


@pytest.fixture
def heard() -> list:
    return []

"""Which callbacks a measured or repeated training leaves out: those that only report, not those that change it."""

from __future__ import annotations

from typing import Any

import pytest

import trainbus
from trainbus import Callback, StatusFile, WatchNumbers
from trainbus.callbacks.base.service_tracker import ServiceTracker
from trainbus.callbacks.base.tracker import Tracker
from trainbus.engine.commands.first_training import only_observes, only_reports
from trainbus.events.errors import MissingExtra
from trainbus.integrations import INTEGRATIONS, Kind, load

ACTING = (Kind.STRATEGY, Kind.OTHER)
STORES = ("hub", "remote")


def rows(*kinds: Kind) -> list[str]:
    return [name for name, row in INTEGRATIONS.items() if row.kind in kinds]


def class_of(name: str) -> Any:
    try:
        return load(name)
    except MissingExtra as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", [name for name in rows(*ACTING) if name not in STORES])
def test_an_integration_that_changes_the_training_stays(name: str) -> None:
    assert not only_reports(class_of(name))
    assert not only_observes(class_of(name))


@pytest.mark.parametrize("name", [*rows(Kind.TRACKER), *STORES])
def test_trackers_and_stores_are_left_out(name: str) -> None:
    assert only_reports(class_of(name))
    assert only_observes(class_of(name))


class OwnTracker(Tracker):
    """A tracker with a client in the training thread."""


class OwnService(ServiceTracker):
    """A tracker of a plugin."""


class OwnLines(trainbus.JsonLines):
    """A subclass of a tracker of the registry."""


@pytest.mark.parametrize("kind", [OwnTracker, OwnService, OwnLines])
def test_trackers_of_other_packages_are_left_out(kind: type) -> None:
    assert only_reports(kind)
    assert only_reports(kind.__new__(kind))


def test_trackers_of_transformers_are_left_out() -> None:
    integrations = pytest.importorskip("transformers.integrations.integration_utils")
    assert only_reports(integrations.TensorBoardCallback)
    assert not only_reports(pytest.importorskip("transformers").EarlyStoppingCallback)


def test_monitors_of_trainbus_only_observe_and_the_folder_of_other_packages_does_not_matter() -> None:
    own = type("Own", (Callback,), {"__module__": "project.callbacks.monitor.integrations.own"})
    assert only_observes(StatusFile)
    assert only_observes(WatchNumbers())
    assert not only_reports(StatusFile)
    assert not only_observes(own)

"""The contract of plugins: its version, what a callback requires of it, and what is deprecated."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from trainbus import Callback, Event
from trainbus.events import CATALOG, CONTRACT, EventBus, Param, SubscriptionError, TrainerControl
from trainbus.events.contract import fits_contract


class Record:
    """A run for a bus alone."""

    args = state = model = None


def bus() -> EventBus:
    return EventBus(Record(), TrainerControl())


@pytest.mark.parametrize(
    ("specifier", "version", "fits"),
    [
        ("", "1.0", True),
        (">=1,<2", "1.0", True),
        (">=1,<2", "1.9.3", True),
        (">=1,<2", "2", False),
        (">=1.2", "1.10", True),
        ("==1", "1.0.0", True),
        ("!=1.0", "1", False),
        (" > 0.9 , <= 1.0 ", "1.0", True),
        ("<1", "1.0", False),
    ],
)
def test_a_version_fits_its_specifiers(specifier: str, version: str, fits: bool) -> None:
    assert fits_contract(specifier, version) is fits


def test_specifiers_agree_with_packaging() -> None:
    packaging = pytest.importorskip("packaging.specifiers")
    versions = ["0.9", "1", "1.0", "1.0.1", "1.1", "1.10", "2", "2.0.0", "10"]
    for sign in (">=", "<=", ">", "<", "==", "!="):
        for wanted in versions:
            theirs = packaging.SpecifierSet(f"{sign}{wanted}")
            for version in versions:
                assert fits_contract(f"{sign}{wanted}", version) is (version in theirs), (sign, wanted, version)


def test_the_contract_fits_itself() -> None:
    assert fits_contract(f"=={CONTRACT}")
    assert fits_contract(">=1,<2")


class Requiring(Callback):
    """A callback that names the contract."""

    requires = ">=1,<2"

    def on_step_end(self) -> None:
        """Do nothing."""


def test_a_callback_of_another_contract_is_not_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    bus().attach(Requiring())
    monkeypatch.setattr(Requiring, "requires", ">=2")
    with pytest.raises(SubscriptionError, match=r"Requiring requires the plugin contract >=2, but this .* has 1\.0"):
        bus().attach(Requiring())
    for wrong in ("1.0", ">=one", "~=1", 1):
        monkeypatch.setattr(Requiring, "requires", wrong)
        with pytest.raises(SubscriptionError, match=r"Requiring\.requires is"):
            bus().attach(Requiring())


class Sleeping(Callback):
    """A callback with an event that is deprecated, and with one that is not."""

    events = (
        Event("on_doze", "Sleep comes.", ("depth",), deprecated="Use on_sleep."),
        Event("on_sleep", "Sleep comes.", ("depth", Param("level", deprecated="Use depth."))),
    )


class Old(Sleeping):
    def on_doze(self, depth: Any) -> None:
        """Do nothing."""


class OldParameter(Sleeping):
    def on_sleep(self, level: Any) -> None:
        """Do nothing."""


class New(Sleeping):
    def on_sleep(self, depth: Any) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("callback", "says"),
    [
        (Old(), "Old.on_doze uses the event 'on_doze', which is deprecated. Use on_sleep."),
        (OldParameter(), "OldParameter.on_sleep uses 'level', which is deprecated. Use depth."),
    ],
)
def test_attaching_to_something_deprecated_warns_with_its_replacement(callback: Callback, says: str) -> None:
    with pytest.warns(FutureWarning) as caught:
        bus().attach(callback)
    assert [str(each.message) for each in caught] == [says]


def test_subscribing_a_function_to_something_deprecated_warns() -> None:
    listening = bus()
    listening.attach(New())

    def nap(level: Any) -> None: ...

    with pytest.warns(FutureWarning, match="nap uses 'level', which is deprecated. Use depth"):
        listening.on("on_sleep", nap)
    with pytest.warns(FutureWarning, match="nap-2 uses the event 'on_doze'"):
        listening.on("on_doze", lambda: None, id="nap-2")


def test_a_new_callback_and_one_that_takes_everything_do_not_warn() -> None:
    listening = bus()
    listening.attach(New())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        listening.on("on_sleep", lambda **options: None)


def test_a_deprecated_event_of_the_catalogue_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = Event("on_step_end", "A step ends.", CATALOG["on_step_end"].params, deprecated="Use on_step_done.")
    monkeypatch.setitem(CATALOG, "on_step_end", planted)
    with pytest.warns(FutureWarning, match="Requiring.on_step_end uses the event 'on_step_end'.* Use on_step_done"):
        bus().attach(Requiring())


def test_everything_deprecated_names_a_replacement() -> None:
    """A sentence that says what to use: an event or parameter of the catalogue, or another way."""
    for event in CATALOG.values():
        for each in (event, *event.all_params.values()):
            assert not each.deprecated or each.deprecated.endswith("."), each.name

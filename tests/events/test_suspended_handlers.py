"""Async and generator handlers are refused when they are attached."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from trainbus import Callback
from trainbus.events import SubscriptionError


async def asynchronous(state: Any) -> None:
    """Do nothing."""


def generator(state: Any) -> Any:
    yield state


async def both(state: Any) -> Any:
    yield state


class Called:
    async def __call__(self, state: Any) -> None:
        """Do nothing."""


@functools.wraps(asynchronous)
def decorated(*args: Any, **kwargs: Any) -> Any:
    return asynchronous(*args, **kwargs)


HANDLERS = {
    "async function": asynchronous,
    "generator": generator,
    "async generator": both,
    "partial": functools.partial(asynchronous),
    "partial of a generator": functools.partial(generator, state=1),
    "object": Called(),
}


@pytest.mark.parametrize("name", HANDLERS)
def test_a_wrapper_function_that_skips_the_call_is_refused(name: str, bus: Any) -> None:
    with pytest.raises(SubscriptionError, match=r"is an? (async|generator).*Write a plain function"):
        bus.on("on_step_end", HANDLERS[name])


@pytest.mark.parametrize("name", ["async function", "generator", "async generator"])
def test_an_adapted_method_that_skips_the_call_is_refused(name: str, bus: Any) -> None:
    function = HANDLERS[name]
    owned = type("Owned", (Callback,), {"on_step_end": lambda self, state: None})()
    owned.on_step_end = function
    with pytest.raises(SubscriptionError, match=r"Owned\.on_step_end is"):
        bus.attach(owned)


def test_a_foreign_callback_is_refused_too(bus: Any) -> None:
    transformers = pytest.importorskip("transformers")

    class Theirs(transformers.TrainerCallback):
        async def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Do nothing."""

    with pytest.raises(SubscriptionError, match=r"Theirs\.on_log is an async function"):
        bus.attach(Theirs())


def returns_a_generator(state: Any) -> Any:
    return generator(state)


@pytest.mark.parametrize("function", [decorated, returns_a_generator])
def test_a_wrapper_that_skips_the_call_fails_at_its_call(function: Any, bus: Any) -> None:
    bus.on("on_step_end", function, id="Wrapper")
    with pytest.raises(SubscriptionError, match=r"Wrapper.on_step_end returned a (coroutine|generator)"):
        bus.announce("on_step_end")


def test_a_wrapper_that_runs_it_is_attached(bus: Any, heard: list[Any]) -> None:
    @functools.wraps(generator)
    def runs(state: Any) -> None:
        heard.extend(generator(state))

    bus.on("on_step_end", runs)
    bus.announce("on_step_end")
    assert len(heard) == 1

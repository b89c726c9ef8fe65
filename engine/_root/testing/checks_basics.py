"""Checks of a callback by itself: construction, attachment, text form, copies, and training and evaluation without
other callbacks.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

from ..events import SubscriptionError, TrainbusError
from .lab import Lab, subscriptions
from .registry import check, fail
from .runs import train
from .tiny import one_thread


@check(
    needs=(),
    remedy="Give each setting a default, and build a new object in each call. For a callback with required settings "
    "pass a factory: check_callback(lambda: MyCallback(1)).",
)
def constructs(lab: Lab) -> None:
    """Check that the class or factory under test builds a new callback in each call."""
    try:
        one, other = lab.new(), lab.new()
    except Exception as error:
        fail(f"it cannot be constructed: {type(error).__name__}: {error}")
    if one is other:
        fail("two calls of the factory return the same object")
    shared = [
        name
        for name, value in _attributes(one).items()
        if isinstance(value, (list, dict, set)) and _attributes(other).get(name) is value
    ]
    if shared:
        fail(f"two callbacks share the object in {', '.join(shared)}")


@check(
    needs=("constructs",),
    remedy="Name handlers and their parameters as docs/events.md lists them, with at least one handler. Leave `id` at "
    "None, so that each instance gets its own.",
)
def attaches(lab: Lab) -> None:
    """Check that an instance attaches to a trainer, and that the trainer refuses to attach the same instance again.

    A second instance must attach too, or raise a `TrainbusError` that is not a `SubscriptionError`. The first instance
    must have a subscribed handler. After its removal, the first instance must have no subscribed handler.
    """
    callback = lab.new()
    try:
        trainer = lab.trainer(callback)
    except SubscriptionError as error:
        fail(str(error))
    if not subscriptions(trainer, callback):
        fail("it has no handler")
    try:
        trainer.add_callback(callback)
    except SubscriptionError:
        pass
    else:
        fail("one instance attaches twice, so its handlers run twice")
    try:
        trainer.add_callback(lab.new())
    except SubscriptionError as error:
        fail(f"a second instance does not attach: {error}")
    except TrainbusError:
        pass  # the class declares that it does not work with itself
    trainer.remove_callback(callback)
    if subscriptions(trainer, callback):
        fail("handlers stay subscribed after it is removed")


@check(remedy="Make it a dataclass, or define `__repr__` and `__eq__` from its settings.")
def describes(lab: Lab) -> None:
    """Check that the callback shows its settings in its `repr`, and equals a callback with the same settings."""
    one, other = lab.new(), lab.new()
    for shown in (repr(one), lab.trainer(one).describe()):
        if " object at 0x" in shown:
            line = next(line for line in shown.splitlines() if " object at 0x" in line)
            fail(f"it is shown with the address of an object, which differs in each run: {line.strip()[:120]}")
    if repr(one) != repr(other):
        fail(f"two new callbacks are shown differently: {repr(one)[:120]} and {repr(other)[:120]}")
    if one != other:
        fail("two new callbacks with the same settings are not equal")


@check(
    remedy="Create locks, files, functions and connections in `on_setup`, not in the constructor. If copies are not "
    "meant to work, say so: promises=().",
)
def copies(lab: Lab) -> None:
    """Check that the callback can be copied before a run in the ways that `Subject.promises` lists, such as pickle."""
    ways: dict[str, Callable[[Any], Any]] = {"deepcopy": copy.deepcopy, "pickle": _pickled}
    for way in sorted(lab.subject.promises):
        callback = lab.new()
        if way == "pickle" and "<locals>" in type(callback).__qualname__:
            continue  # Python pickles a class by its name in a module
        try:
            copied = ways[way](callback)
        except Exception as error:
            fail(f"{way} fails: {type(error).__name__}: {error}")
        if repr(copied) != repr(callback) and " object at 0x" not in repr(callback):
            fail(f"{way} returns another callback: {repr(copied)[:120]} instead of {repr(callback)[:120]}")


@check(
    remedy="A handler may not need an evaluation, a checkpoint or another callback, unless an event announced it. Read "
    "a metric with `metrics.get(name)`, and say in the error which callback or argument is missing.",
)
def trains_alone(lab: Lab) -> None:
    """Check that a run with only this callback succeeds, or raises a `TrainbusError` before the first step."""
    trainer = lab.trainer(lab.new())
    try:
        run = train(trainer)
    except TrainbusError as error:
        if trainer.state.global_step == 0:
            return  # it refuses the run before the first step, and names the remedy
        fail(f"the run fails: {type(error).__name__}: {error}")
    except Exception as error:
        fail(f"the run fails: {type(error).__name__}: {error}")
    stopped = {entry.flag for entry in run.ledger if entry.action == "take"}
    if run.steps < trainer.state.max_steps and "training_stop" not in stopped:
        fail(f"the run ends after {run.steps} of {trainer.state.max_steps} steps, and the ledger names no reason")


@check(
    remedy="`on_setup`, `on_prediction_step`, `on_evaluate` and `on_close` are also announced by `evaluate()` and "
    "`predict()`, without an optimizer. Begin `on_setup` with `if run.mode == 'train':`.",
)
def evaluates_alone(lab: Lab) -> None:
    """Check that a trainer with only this callback can evaluate and predict before any training."""
    trainer = lab.trainer(lab.new())
    try:
        with one_thread():
            trainer.evaluate()
            trainer.predict(trainer.eval_dataset)
    except Exception as error:
        fail(f"an evaluation without training fails: {type(error).__name__}: {error}")


def _attributes(callback: Any) -> dict[str, Any]:
    return dict(vars(callback)) if hasattr(callback, "__dict__") else {}


def _pickled(callback: Any) -> Any:
    return pickle.loads(pickle.dumps(callback))

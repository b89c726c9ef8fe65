"""Checks of the side effects of a callback.

A callback must release its resources, catch no errors of other code, print nothing and take little time per step. No
handler may change the training arguments. Handlers that only observe the run must not change the model or draw random
numbers.
"""

from __future__ import annotations

import gc
import signal
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from .. import Stage, Trainer
from ..callbacks.stopping.stop_on_signal import Stopped
from ..events import Kind, Subscription
from .faults import InjectedFault, Injector, raise_at, signal_at
from .lab import Lab, Watch, around_handlers, observes, other_weights, subscriptions
from .registry import RUNS, check, fail
from .resources import EXCEPT_HOOK, growth, package_of, resources, settings
from .runs import train
from .tiny import weights


def watched(lab: Lab) -> Watch:
    """Return the object that recorded the handlers of the callback under test during a run.

    The first call makes this run. Later calls return the same `Watch`.
    """
    if lab.watch is None:
        callback = lab.new()
        trainer = lab.among(callback)
        lab.watch = Watch(trainer, lab.subject)
        around_handlers(trainer, callback, lab.watch)
        train(trainer)
    return lab.watch


@check(needs=RUNS, remedy="Write to a logger: logging.getLogger(__name__).info(...). Or promise it: prints=True.")
def prints_nothing(lab: Lab) -> None:
    """Check that the callback prints nothing on stdout."""
    if not lab.subject.prints and (printed := watched(lab).printed):
        fail(printed[0])


@check(
    needs=RUNS,
    remedy="Draw from a generator of your own, such as torch.Generator().manual_seed(args.seed), or set the stage to "
    "what the handler does.",
)
def draws_no_random_numbers(lab: Lab) -> None:
    """Check that handlers in MEASURE and REPORT draw no numbers from the global random generators.

    `Subject.reporter` may change which handlers the check covers. True: the handlers of all stages. False: no handler.
    None, the default: the handlers in MEASURE and REPORT.
    """
    if drew := watched(lab).drew:
        fail(f"{drew[0]}. The dropout masks of all later steps change with it")


@check(
    needs=RUNS,
    remedy="Compute on copies, `weight.detach().clone()`, and leave `model.train()` and `model.eval()` to the engine. "
    "A handler that changes the model belongs in the stage PREPARE or ACT.",
)
def keeps_weights(lab: Lab) -> None:
    """Check that handlers in MEASURE and REPORT change no weight, gradient or mode of the model.

    `Subject.reporter` may change which handlers the check covers. True: the handlers of all stages. False: no handler.
    None, the default: the handlers in MEASURE and REPORT. If the check covers all handlers, the weights after the run
    must also equal the weights after a run without the callback.
    """
    if lab.subject.writes_weights:
        return
    if changed := watched(lab).changed:
        fail(changed[0])
    if watched(lab).drew or watched(lab).args:
        return  # these faults change weights too, and have checks of their own
    callback = lab.new()
    if not all(observes(each, lab.subject) for each in subscriptions(lab.among(callback), callback)):
        return
    # A handler may also change the batch, the loss, the optimizer or the learning rate.
    if found := other_weights(lab.bare.weights, lab.usual.weights):
        fail(f"its handlers only observe, but the run ends with other weights than a run without it: {found}")


@check(
    needs=RUNS,
    remedy="Copy what you change. To set arguments before the run, return them from `argument_overrides`.",
)
def keeps_arguments(lab: Lab) -> None:
    """Check that the callback changes no training argument."""
    if changed := watched(lab).args:
        fail(changed[0])


@check(
    needs=(*RUNS, "lets_errors_through", "keeps_weights"),
    remedy="Close in `on_close` what `on_setup` or `on_train_begin` opened. Both run after errors and Ctrl-C too; "
    "`on_train_end` does not.",
)
def closes(lab: Lab) -> None:
    """Check that the callback closes files, threads and hooks and resets signal handlers, also after an error."""
    kept: list[Any] = []  # keeps the callbacks: Python closes a file to which nothing refers
    early: set[str] = set()

    def left_after(inject: Injector, error: type[BaseException]) -> tuple[list[str], str]:
        """Train with a fault. Return the resources that the run did not release, and a text about a changed weight.

        The text names a weight that differs from the result of `NotedWeights.trained`. The text is empty if no weight
        differs. If `error` is not `InjectedFault`, the function does not compare weights, and the text is empty.

        Args:
            inject: adds the fault to a trainer, and returns a function that removes the fault.
            error: the class of the error that the fault raises.
        """
        callback = lab.new()
        kept.append(callback)
        trainer = lab.among(callback)
        before = resources(trainer.model) - settings() + lab.settings
        noted, undo = NotedWeights(trainer), inject(trainer)
        with suppress(error):
            train(trainer)
        undo()
        early.update(noted.early)
        changed = noted.change(trainer.model, early) if error is InjectedFault else ""
        trainer.end()
        return [each for each in growth(before, trainer.model) if not _of_library(each, callback)], changed

    left_after(_no_fault, Stopped)  # the first run creates resources of the whole process, such as a pool of threads
    paths: list[tuple[str, Injector, type[BaseException]]] = [("the end of a run", _no_fault, Stopped)]
    for event in ("on_gradients", "on_prediction_step", "on_save_begin"):
        paths.append((f"an exception in {event}", raise_at(3, event), InjectedFault))
    paths.append(("Ctrl-C", raise_at(3, "on_step_begin", KeyboardInterrupt), KeyboardInterrupt))
    if threading.current_thread() is threading.main_thread():
        paths.append(("SIGTERM", signal_at(3, signal.SIGTERM), Stopped))
    for path, inject, error in paths:
        left, changed = left_after(inject, error)
        if changed:
            fail(f"after {path} the model does not have the weights that were trained: {changed}")
        if left:
            fail(f"after {path} there is still {left[0]}{f', and {len(left) - 1} more' if left[1:] else ''}")


def _of_library(resource: str, callback: Any) -> bool:
    """Return whether `resource` describes a `sys.excepthook` from another package than the package of the callback.

    Libraries such as wandb and `torch.distributed` set this hook for the whole process. This is not a fault of the
    callback. `resource` is a key of the result of the function `resources`.
    """
    return resource.startswith(EXCEPT_HOOK) and not resource.endswith(f" of {package_of(type(callback))}")


def _no_fault(trainer: Trainer) -> Callable[[], None]:
    return lambda: None


class NotedWeights:
    """Copies of the weights of a model during a run, to find a callback that changes the weights when the run ends.

    The weights are copied three times in each step: at the start, before the update of the optimizer, and at the end.
    """

    def __init__(self, trainer: Trainer) -> None:
        """Start to copy the weights of a trainer's model in each step."""
        self.early: set[str] = set()
        """Names of weights that a step changed before the update of the optimizer, and that this update did not change.
        For example, a second optimizer or the forward pass trains them."""
        self._last: dict[str, Any] = {}
        self._within: dict[str, Any] = {}
        trainer.on("on_step_begin", self._begin, stage=Stage.PREPARE)
        trainer.on("on_gradients", self._gradients, stage=Stage.RELEASE)
        trainer.on("on_step_end", self._end)

    def trained(self, early: set[str]) -> dict[str, Any]:
        """Return the weights that the model must have after the run: the weights after the last complete step.

        The weights in `early` are an exception, because each step changes them before `on_gradients`. If a step fails
        after `on_gradients`, return the values that these weights had at `on_gradients` of the failed step.

        Args:
            early: names of weights. To get these names, make a run without a fault, and read the attribute `early` of
                its `NotedWeights`.
        """
        return {**self._last, **{name: self._within[name] for name in early & self._within.keys()}}

    def change(self, model: Any, early: set[str]) -> str:
        """Compare the weights of a model with the result of `trained(early)`.

        Return a text about the first weight that differs; "" if no weight differs.
        """
        trained, left = self.trained(early), weights(model)
        # Weights that were trained in half precision may have a wider dtype after the run.
        return other_weights(
            trained, {name: w.to(trained[name].dtype) if name in trained else w for name, w in left.items()}
        )

    def _begin(self, model: Any) -> None:
        self._last, self._within = weights(model), {}

    def _gradients(self, model: Any) -> None:
        self._within = weights(model)

    def _end(self, model: Any) -> None:
        began, self._last = self._last, weights(model)
        for name, within in self._within.items():
            if torch.equal(within, self._last[name]) and not torch.equal(within, began[name]):
                self.early.add(name)
        self._within = {}


@check(
    needs=RUNS,
    remedy="Do not catch errors around what a seam or a model computes. Catch only what your own code can raise, and "
    "raise again what you do not know.",
)
def lets_errors_through(lab: Lab) -> None:
    """Check that errors of the model and of other callbacks end the run: the callback does not catch them."""
    for place, event in (("the model", "forward"), ("another callback", "on_gradients")):
        trainer = lab.among(lab.new())
        raised: list[BaseException] = []

        text = f"an error in {place}"

        def fault(text: str = text, raised: list[BaseException] = raised) -> BaseException:
            raised.append(InjectedFault(text))
            return raised[-1]

        undo = raise_at(2, event, fault)(trainer)
        try:
            train(trainer)
        except BaseException as error:
            if len(raised) > 1:
                fail(f"it swallows the first error in {place}: the run continues for a step or more")
            if error is not raised[0]:
                fail(f"an error in {place} reaches the program as {type(error).__name__}: {error}")
            if error.args != (text,):
                fail(f"it changes the text of an error in {place}: {error}")
        else:
            if raised:
                fail(f"an error in {place} at step 2 does not end the run")
        finally:
            undo()


@check(
    needs=RUNS,
    remedy="Do less per step: use a trigger such as every(100), keep tensors on the device, and give files and "
    "services to a thread. Or raise the budget: budget=5000.",
)
def costs(lab: Lab) -> None:
    """Check that the handlers take at most `Subject.budget` microseconds per step, on average."""
    budget = lab.subject.budget
    if budget is None:
        return
    fastest: dict[int, float] = {}
    labels: dict[str, float] = {}
    mean = 0.0
    for _ in range(4):  # the fastest of several runs: another program may delay one of them
        for step, took in _seconds_of_steps(lab, labels).items():
            fastest[step] = min(took, fastest.get(step, took))
        mean = 1e6 * sum(fastest.values()) / max(1, len(fastest))
        if mean <= budget:
            return
    slowest = max(labels, key=lambda label: labels[label])
    fail(
        f"its handlers take {mean:.0f} microseconds per step, more than the budget of {budget:g}. The slowest is "
        f"{slowest} with {1e6 * labels[slowest]:.0f}"
    )


def _seconds_of_steps(lab: Lab, labels: dict[str, float]) -> dict[int, float]:
    """Train, and return the time in the handlers of the callback: number of completed steps -> seconds.

    The result leaves out handler calls before the end of the first step or after the end of the last step. It also
    leaves out handlers of work events, such as `on_save_due`.

    Args:
        lab: builds the run.
        labels: receives the seconds of the fastest call of each handler, by the label of the handler.
    """
    callback = lab.new()
    trainer = lab.among(callback)
    spent: dict[int, float] = {}

    def measure(found: Subscription, call: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        try:
            return call()
        finally:
            if found.event.kind is not Kind.WORK:  # the work of a step, such as a save, is not its overhead
                took = time.perf_counter() - began
                step = trainer.state.global_step
                spent[step] = spent.get(step, 0.0) + took
                labels[found.label] = min(took, labels.get(found.label, took))

    around_handlers(trainer, callback, measure)
    train(trainer)
    return {step: took for step, took in spent.items() if 0 < step < trainer.state.global_step}


@check(
    needs=RUNS,
    remedy="Take the model and the trainer's values as parameters of a handler, and do not store them. Or set the "
    "attribute to None in `on_close`.",
)
def releases_model(lab: Lab) -> None:
    """Check that the callback does not keep the model of an ended run in memory."""
    callback = lab.new()

    def run() -> weakref.ref[Any]:
        trainer = lab.among(callback)
        train(trainer)
        trainer.end()
        lab.forget(trainer)
        return weakref.ref(trainer.model)

    model = run()
    if model() is not None:
        gc.collect()
    if model() is not None:
        owners = [name for name, value in vars(callback).items() if value is model()]
        where = f" in its attribute {owners[0]}" if owners else ""
        fail(f"it keeps the model of an ended run in memory{where}")

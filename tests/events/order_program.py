"""Prints the order of 24 callbacks of all stages, with constraints, and of functions connected through blinker."""

from __future__ import annotations

from trainbus.events import CATALOG, Callback, EventBus, Stage, TrainerControl


class Run:
    """As much of a run as a bus needs."""


bus = EventBus(Run(), TrainerControl())
stages = list(Stage)
for index in range(24):
    targets = (f"C{index - 6}", f"C{index - 12}") if index >= 12 and index % 3 else ()
    handlers = {name: lambda self: None for name in (*CATALOG,)[index % 5 :: 3]}
    cls = type(f"C{index}", (Callback,), {"stage": stages[index % 6], "after": targets, **handlers})
    bus.attach(cls())
functions = [lambda run, logs: None for _ in range(3)]
for function in functions:
    bus.signals["on_log"].connect(function)
print(bus.describe())

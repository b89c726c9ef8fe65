"""The training arguments `callbacks` and `plugins`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .._base import Group, arg
from .text import problems_of


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class PluginArguments(Group):
    """Callbacks and plugins of the run, written as texts."""

    callbacks: str | list[str] | dict[str, Any] | None = arg(
        [],
        "Callbacks of the run, as texts such as 'early_stopping(patience=3)' or 'package.module:Class(x=1)'. The "
        "name of an installed plugin also works. You may also pass a dict of name -> options, such as "
        "{'early_stopping': {'patience': 3}}. The run uses these callbacks and the callbacks that you pass to the "
        "Trainer. After construction, `args.callbacks` is a list of texts.",
        texts=True,
        repeats=True,
    )
    plugins: str | list[str] | dict[str, Any] | None = arg(
        [],
        "Installed plugins to add to the run, as texts such as 'damp_spikes(factor=4)'. Some plugins join every run. "
        "'no:NAME' leaves out the plugin NAME. On a command line, `-p no:NAME` leaves out the plugin NAME. After "
        "construction, `args.plugins` is a list of texts.",
        texts=True,
        repeats=True,
        aliases=("-p",),
    )

    def problems(self) -> Iterator[str]:
        for name in ("callbacks", "plugins"):
            yield from problems_of(name, getattr(self, name))

"""`Trainer.costs`, and the view of a trainer in a notebook."""

from __future__ import annotations

import html

from ....events.errors import ArgumentError
from ..base import TrainerBase
from .costs import Costs
from .facts import facts_of
from .read import read_costs


class CostMethods(TrainerBase):
    """The method `costs` of the Trainer."""

    def costs(self) -> Costs:
        """Return the time of the training by part and by callback, and the part that limits the speed.

        Call this method during or after a training. During the training, the result shows only this rank.

        Raises:
            ArgumentError: before the first training.
        """
        timeline = self.run.bus.timeline
        if not timeline.opened:
            raise ArgumentError("There are no costs yet. Call this during or after `train()`.")
        return read_costs(self.run, timeline.ranks)

    def _repr_html_(self) -> str:
        def row(name: str, text: str) -> str:
            return f'<tr><th style="text-align: left">{html.escape(name)}</th><td>{html.escape(text)}</td></tr>'

        rows = "".join(row(*fact) for fact in facts_of(self.run))
        return f"<table><caption>{html.escape(type(self).__name__)}</caption>{rows}</table>"

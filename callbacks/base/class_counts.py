"""ClassCounts: a confusion matrix and ROC and precision-recall curves, counted batch by batch, with a fixed limit on
memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

BINS = 4000
LOG_ODDS = 20.0
"""The limit of the scores. Scores are log-odds, cut to the range from -20 to 20, in bins of 0.01. Each bin is one
threshold of the curves."""
POINTS = 200
"""The largest number of thresholds of a curve. A curve has one more point, at its start."""


class Curves(NamedTuple):
    """The ROC and precision-recall curves of one class against all others.

    Each point has a lower threshold than the point before.
    """

    false_positive_rate: list[float]
    recall: list[float]
    """The true positive rate."""
    precision: list[float]


@dataclass
class ClassCounts:
    """Counts the samples of a classification task by label, prediction and score, for a confusion matrix and curves."""

    classes: int
    """The number of classes."""
    confusion: torch.Tensor = field(init=False)
    """The number of samples by label and predicted class, of shape (classes, classes)."""
    scores: torch.Tensor = field(init=False)
    """The number of samples by class, by whether the sample belongs to the class, and by score. Shape: (classes, 2,
    BINS)."""

    def __post_init__(self) -> None:
        self.confusion = torch.zeros(self.classes, self.classes, dtype=torch.long)
        self.scores = torch.zeros(self.classes, 2, BINS, dtype=torch.long)

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Count the samples of a batch. Skip samples with a label outside of the classes, such as -100.

        Args:
            logits: shape (samples, classes).
            labels: shape (samples,).
        """
        known = (labels >= 0) & (labels < self.classes)
        logits, labels = logits[known].float(), labels[known].long()
        pairs = labels * self.classes + logits.argmax(1)
        self.confusion += torch.bincount(pairs, minlength=self.classes**2).view_as(self.confusion).cpu()
        log_odds = scores_of(logits).clamp(-LOG_ODDS, LOG_ODDS)
        bins = ((log_odds + LOG_ODDS) * (BINS / (2 * LOG_ODDS))).long().clamp_(0, BINS - 1)
        numbers = torch.arange(self.classes, device=logits.device)
        belongs = (labels[:, None] == numbers).long()
        cells = (numbers * 2 + belongs) * BINS + bins
        counted = torch.bincount(cells.flatten(), minlength=self.scores.numel())
        self.scores += counted.view_as(self.scores).cpu()

    def curves(self, number: int) -> Curves | None:
        """Return the curves of the class `number` (from 0); None if all samples or no samples belong to the class."""
        others, own = self.scores[number].flip(1).cumsum(1)
        if not others[-1] or not own[-1]:
            return None
        reached = (self.scores[number].sum(0).flip(0) > 0).nonzero().flatten()  # other thresholds repeat a point
        if len(reached) > POINTS:
            reached = reached[torch.linspace(0, len(reached) - 1, POINTS).long()]
        false, true = others[reached].double(), own[reached].double()
        return Curves(
            [0.0, *(false / others[-1]).tolist()],
            [0.0, *(true / own[-1]).tolist()],
            [1.0, *(true / (true + false)).tolist()],
        )


def scores_of(logits: torch.Tensor) -> torch.Tensor:
    """Return the log-odds of each class against the others: the logit minus the log-sum-exp of the other logits."""
    others = [torch.cat((logits[:, :each], logits[:, each + 1 :]), 1).logsumexp(1) for each in range(logits.shape[1])]
    return logits - torch.stack(others, 1)

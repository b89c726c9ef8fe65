"""The check that all ranks skipped the same number of updates."""

from __future__ import annotations

from ...events.control import TrainerControl
from ...events.errors import RankDivergence
from ...events.state import TrainerState
from .consistency import format_ranks
from .ranks import Ranks

REMEDY = (
    "Decide from values that all ranks share, such as metrics, `grad_norm` or `run.ranks.sum(...)`. Or set "
    "`local = True` in the callback's class: then all ranks do what one rank requests."
)
"""How to make all ranks raise the same flags."""


def refuse_different_skips(ranks: Ranks, state: TrainerState, control: TrainerControl) -> None:
    """Raise an error that names the ranks that skipped more updates than the others. All ranks call this function.

    Call the function only if `state.steps_skipped` differs between the ranks.

    Raises:
        RankDivergence: on all ranks.
    """
    taken = [entry for entry in control.ledger.of("skip_update") if entry.action == "take"]
    last = (taken[-1].step + 1, taken[-1].reason) if taken else (control.step, "no callback")
    of_ranks = ranks.gather_objects((state.steps_skipped, last))
    most = max(skipped for skipped, _ in of_ranks)
    skipping = [rank for rank, (skipped, _) in enumerate(of_ranks) if skipped == most]
    others = [rank for rank in range(ranks.world_size) if rank not in skipping]
    step, authors = of_ranks[skipping[0]][1]
    raise RankDivergence(
        f"The update of step {step} was skipped on {format_ranks(skipping)} and not on {format_ranks(others)}, by "
        f"{authors}. The weights of the ranks differ now. {REMEDY}"
    )

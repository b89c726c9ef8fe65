"""Agreement: the exchanges between ranks after which all ranks act on the same flags."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...events.bus import EventBus
from ...events.control import TrainerControl
from ...events.errors import SubscriptionError
from .consensus import Agree, Comparison, Consensus, agree_single_process, rank_local_callbacks
from .isolation import SharedFailures, shared_callbacks
from .protocols import DistributedRun

DEBUG = "rank_divergence"
"""The value of the argument `debug` with which the ranks compare their flags."""

BEFORE_UPDATE = (
    "on_epoch_begin",
    "on_step_begin",
    "on_batch",
    "on_loss",
    "on_substep_end",
    "on_gradients",
    "on_pre_optimizer_step",
)
"""The events between the end of a step and the update of the next step."""


def agreement(run: DistributedRun) -> tuple[Agree, Agree]:
    """Return two functions that make all ranks act on the same flags.

    Call the second function before each optimizer update, and the first function at all other times. In a single
    process, both functions do nothing.
    """
    isolation = run.bus.isolation
    isolation.shared, isolation.private = frozenset(), None
    if run.ranks.single_process:
        return agree_single_process, agree_single_process
    agree = Agreement(run)
    return agree, agree.before_update


@dataclass(frozen=True)
class Needs:
    """The exchanges that the callbacks of one rank need."""

    local: frozenset[str]
    """The ids of the callbacks with `local = True`, which decide from a value that only one rank knows."""
    isolated: frozenset[str]
    """The ids of the callbacks whose failures the ranks must exchange."""
    may_skip: bool
    """Whether a callback may skip the update of a step on some ranks only."""
    authors: frozenset[str]
    """The ids of all callbacks with handlers."""

    @classmethod
    def of(cls, bus: EventBus) -> Needs:
        """Return the needs of the callbacks that are attached now."""
        local, isolated = frozenset(rank_local_callbacks(bus)), shared_callbacks(bus)
        early = {handler.owner_id for event in BEFORE_UPDATE for handler in bus.order_of(event)}
        authors = frozenset(handler.owner_id for event in bus for handler in bus.order_of(event))
        return cls(local, isolated, not early.isdisjoint(local | isolated), authors)

    @classmethod
    def union(cls, needs: Iterable[Needs]) -> Needs:
        """Return the needs of all ranks together."""
        of_ranks = [*needs]
        return cls(
            frozenset().union(*(each.local for each in of_ranks)),
            frozenset().union(*(each.isolated for each in of_ranks)),
            any(each.may_skip for each in of_ranks),
            frozenset().union(*(each.authors for each in of_ranks)),
        )


class Agreement:
    """Makes the ranks agree on flags.

    Each call of the object makes up to three exchanges between the ranks, in this order:

    - If `shared_callbacks` lists a callback on some rank, the ranks exchange the failures of callbacks.
    - With `debug='rank_divergence'`, the ranks compare the flags that their callbacks wrote.
    - If some callback sets `local = True`, the ranks exchange their flags.

    In the first call, the ranks tell each other what their callbacks need. So all ranks make the same exchanges, even
    if a callback is attached on one rank only. All later calls make the same exchanges as the first call.
    """

    def __init__(self, run: DistributedRun) -> None:
        """Prepare the agreement of a run.

        From now on, no rank unsubscribes a callback in `shared_callbacks` by itself: all ranks do it together.
        """
        self._run = run
        self._agree: Agree | None = None
        self._needs = Needs.of(run.bus)
        self._known: frozenset[str] = frozenset()
        run.bus.isolation.shared = self._needs.isolated

    def __call__(self, control: TrainerControl) -> None:
        """Make the ranks agree. Every rank calls this method at the same point of a step.

        The first call chooses the exchanges between the ranks. Later calls make the same exchanges.

        Raises:
            SubscriptionError: if a callback that was attached after the first call needs another exchange.
            RankDivergence: if the flags of callbacks, or the skipped updates, differ between the ranks.
        """
        if self._agree is None:
            self._agree = self._choose()
        if late := self._run.bus.subscribers.keys() - self._known:
            self._admit(late)
        self._agree(control)

    def before_update(self, control: TrainerControl) -> None:
        """Make the ranks agree before the optimizer changes the weights, if they need to agree.

        The ranks need to agree in two cases:

        - `debug='rank_divergence'` is set.
        - A callback handles an event in `BEFORE_UPDATE`, and could skip the update on some ranks only.

        In all other cases, the method does nothing.
        """
        if self._needs.may_skip or DEBUG in self._run.args.observed:
            self(control)

    def _choose(self) -> Agree:
        run, isolation = self._run, self._run.bus.isolation
        self._needs = needs = Needs.union(run.ranks.gather_objects(Needs.of(run.bus)))
        self._known = frozenset(run.bus.subscribers)
        agree: Agree = Consensus(run, needs.authors) if needs.local else agree_single_process
        if DEBUG in run.args.observed:
            agree = Comparison(run.ranks, run.bus, agree)
        isolation.shared = needs.isolated
        if not needs.isolated:
            return agree
        isolation.private = self._known - needs.isolated
        return _after_failures(run, agree)

    def _admit(self, late: Iterable[str]) -> None:
        """Raise an error if a callback in `late` needs an exchange between ranks that this run does not make.

        Args:
            late: the ids of callbacks that were attached during the training.
        """
        self._known |= frozenset(late)
        now = Needs.of(self._run.bus)
        if not self._needs.local and (local := sorted(now.local.intersection(late))):
            raise SubscriptionError(
                f"{local[0]} was attached during the training and sets `local = True`, and the ranks of this run do "
                f"not exchange their flags. {_REMEDY}"
            )
        if not self._needs.isolated and (isolated := sorted(now.isolated.intersection(late))):
            raise SubscriptionError(
                f"{isolated[0]} was attached during the training and sets `on_error` or `budget`, and the ranks of "
                f"this run do not exchange failures. {_REMEDY}"
            )


_REMEDY = "On several ranks, attach such a callback before the training, or in a handler of `on_train_begin`."


def _after_failures(run: DistributedRun, agree: Agree) -> Agree:
    failures = SharedFailures(run)

    def exchange_and_agree(control: TrainerControl) -> None:
        failures.exchange(control)
        agree(control)

    return exchange_and_agree

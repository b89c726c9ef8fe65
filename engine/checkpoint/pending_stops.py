"""Stop requests of callbacks, saved in a checkpoint and repeated in the resumed run.

A callback such as early stopping may request a stop. The run may then save a checkpoint before it stops. The saved
state of the callback already contains the decision to stop. So a resumed run repeats the request, and stops too.

A resumed run does not repeat other stop requests, because they end only a session. Such requests come from a signal, a
time limit, `trainbus tell`, a function, or a callback without a state.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from ...events.bus import EventBus
from ...events.callback import Callback
from ...events.capabilities import Capability
from ...events.composition import is_rank_local
from ...events.control import TrainerControl
from .callback_states import matched, owner_of, settings_fit

logger = logging.getLogger(__name__)


class SteeredRun(Protocol):
    """The attributes of a run that the functions of this module read. `Run` implements this protocol."""

    @property
    def bus(self) -> EventBus:
        """The bus, with the attached callbacks."""

    @property
    def control(self) -> TrainerControl:
        """The control, with the requests of the callbacks."""


def pending_stops(run: SteeredRun, states: Mapping[str, Any]) -> dict[str, str]:
    """Return the stop requests to save in a checkpoint, for the resumed run: id of the callback -> reason.

    Args:
        run: the run that saves the checkpoint.
        states: the states in the checkpoint, by callback id. Requests of callbacks without a state are left out.
    """
    if not run.control.asks("training_stop"):
        return {}
    attached, reasons = run.bus.subscribers, run.control.reasons("training_stop")
    return {author: why for author, why in reasons.items() if author in states and _decides(attached.get(author))}


def restore_stops(run: SteeredRun, stops: Mapping[str, str], owners: Mapping[str, Any], *, same_length: bool) -> None:
    """Repeat the stop requests in `stops` in a resumed run.

    The function does not repeat the request of a callback in three cases: the callback is not attached, the callback
    has other settings, or the resumed run has another length.

    Args:
        run: the resumed run.
        stops: the result of `pending_stops` when the checkpoint was saved.
        owners: id of a callback -> class and settings of the callback when the checkpoint was saved.
        same_length: whether the resumed run has as many steps as the saved run.
    """
    known = {author: owners[author] for author in stops if author in owners}
    attached = run.bus.subscribers
    now = {one: owner_of(callback, run.bus.attributes_of(one)) for one, callback in attached.items() if known}
    for author, target in matched(known, known, now).items():
        if not same_length or not settings_fit(known[author]["settings"], now[target]["settings"]):
            logger.info("%s requested a stop before the checkpoint: %s. It decides again.", target, stops[author])
            continue
        logger.warning(
            "%s requested a stop before the checkpoint was saved: %s. The resumed run stops too, like the "
            "uninterrupted run. To continue the training, change the settings of %s, remove it, or set another length "
            "of the run.",
            target,
            stops[author],
            target,
        )
        run.control.request_for(target, "training_stop", stops[author])


def _decides(callback: Any) -> bool:
    """Return whether a stop request of this callback ends the run. If False, the request ends only the session."""
    if is_rank_local(callback):  # a decision from a clock, a signal or a file
        return False
    return callback is not None and not (isinstance(callback, Callback) and callback.has(Capability.INTERRUPTS))

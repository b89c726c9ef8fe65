"""The event system: what can happen in a run, who hears it in which order, and what they may ask for. No torch here."""

from .bus import Channel, EventBus, Handle, Subscription
from .callback import Callback
from .capabilities import BestMetric, Capability, Conflict
from .catalog import CATALOG, COMMON, EVENTS, Clock, Event, Kind
from .control import FLAGS, TrainerControl
from .errors import (
    ArgumentError,
    CheckpointError,
    DataError,
    MissingExtra,
    ModelError,
    NonFiniteError,
    RankDivergence,
    RankFailure,
    SubscriptionError,
    TrainbusError,
    nearest,
)
from .ledger import Entry, Ledger
from .stages import Order, Stage, order
from .state import TrainerState
from .trace import Trace, record
from .triggers import Moment, Trigger, at, at_end, every, log_spaced, never

__all__ = [
    "CATALOG",
    "COMMON",
    "EVENTS",
    "FLAGS",
    "ArgumentError",
    "BestMetric",
    "Callback",
    "Capability",
    "Channel",
    "CheckpointError",
    "Clock",
    "Conflict",
    "DataError",
    "Entry",
    "Event",
    "EventBus",
    "Handle",
    "Kind",
    "Ledger",
    "MissingExtra",
    "ModelError",
    "Moment",
    "NonFiniteError",
    "Order",
    "RankDivergence",
    "RankFailure",
    "Stage",
    "Subscription",
    "SubscriptionError",
    "Trace",
    "TrainbusError",
    "TrainerControl",
    "TrainerState",
    "Trigger",
    "at",
    "at_end",
    "every",
    "log_spaced",
    "nearest",
    "never",
    "order",
    "record",
]

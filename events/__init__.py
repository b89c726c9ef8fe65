"""The event system: the events of a run, the order of their handlers, and the flags that callbacks raise. No torch."""

from .bus import EventBus, Handle
from .callback import Callback, TypedCallback
from .capabilities import BestMetric, Capability, Conflict
from .catalog import CATALOG, COMMON, COMMON_NAMES, EVENTS, Clock, Event, Kind, Param
from .channels import Channel, Subscription
from .control import FLAGS, Flag, TrainerControl
from .errors import (
    ArgumentError,
    CheckpointError,
    DataError,
    ImportOrderError,
    MissingExtra,
    ModelError,
    NonFiniteError,
    RankDivergence,
    RankFailure,
    SubscriptionError,
    TrainbusError,
    nearest,
)
from .event_names import EventName
from .ledger import Entry, Ledger
from .stages import Order, Stage, order
from .state import TrainerState
from .trace import Trace, record
from .triggers import Moment, Trigger, at, at_end, every, log_spaced, never

__all__ = [
    "CATALOG",
    "COMMON",
    "COMMON_NAMES",
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
    "EventName",
    "Flag",
    "Handle",
    "ImportOrderError",
    "Kind",
    "Ledger",
    "MissingExtra",
    "ModelError",
    "Moment",
    "NonFiniteError",
    "Order",
    "Param",
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
    "TypedCallback",
    "at",
    "at_end",
    "every",
    "log_spaced",
    "nearest",
    "never",
    "order",
    "record",
]

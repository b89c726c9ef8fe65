"""The event system: events, the order of their handlers, and flags. The package does not import torch."""

from .bus import EventBus, Handle
from .callback import Callback, TypedCallback
from .capabilities import BestMetric, Capability, Conflict
from .catalog import CATALOG, COMMON, COMMON_NAMES, EVENTS, Clock, Event, Kind, Param
from .channels import Channel, Subscription
from .contract import CONTRACT
from .control import TrainerControl
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
from .flags import FLAGS, Flag
from .ledger import Entry, Ledger
from .stages import Order, Stage, order
from .state import TrainerState
from .trace import Trace, record
from .triggers import Moment, Trigger, at, at_end, every, log_spaced, never

__all__ = [
    "CATALOG",
    "COMMON",
    "COMMON_NAMES",
    "CONTRACT",
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

"""The testing kit for authors of callbacks: checks, small runs, a fake clock, injected faults, and recorded events."""

from .clock import VirtualClock
from .conformance import Examination, NotJudged, check_callback
from .faults import InjectedFault, full_disk, kill_at, lose_rank_at, raise_at, signal_at
from .golden import assert_golden_trace
from .parametrize import parametrize_with_checks
from .processes import Ended, in_processes
from .registry import CHECKS, Check
from .runs import TinyRun, tiny_run
from .subject import Subject
from .tiny import Net, net_samples, tiny_trainer
from .tracker import FakeTracker

__all__ = [
    "CHECKS",
    "Check",
    "Ended",
    "Examination",
    "FakeTracker",
    "InjectedFault",
    "Net",
    "NotJudged",
    "Subject",
    "TinyRun",
    "VirtualClock",
    "assert_golden_trace",
    "check_callback",
    "full_disk",
    "in_processes",
    "kill_at",
    "lose_rank_at",
    "net_samples",
    "parametrize_with_checks",
    "raise_at",
    "signal_at",
    "tiny_run",
    "tiny_trainer",
]

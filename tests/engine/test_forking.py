"""Workers are forked while the threads of the process group are idle."""

import hashlib
import sys
import threading
import time

import pytest
import torch

from trainbus import TrainingArguments
from trainbus.engine.data import loader
from trainbus.engine.data.build import build_loader
from trainbus.engine.data.workers import forking
from trainbus.engine.data.workers.forking import wait_for_idle_threads
from trainbus.engine.distributed.ranks import Ranks

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or sys.version_info >= (3, 12), reason="elsewhere nothing is waited for"
)


@pytest.fixture
def computing():
    """A thread that computes without the interpreter's lock, as those of gloo do."""
    thread = threading.Thread(target=hashlib.pbkdf2_hmac, args=("sha256", b"", b"", 400_000))
    thread.start()
    yield thread
    thread.join()


def computing_in(call):
    """Return the processor time that all threads of this process use during a call."""
    began = time.process_time()
    call()
    return time.process_time() - began


def test_waits_for_a_running_thread(computing, monkeypatch):
    monkeypatch.setattr(forking, "MAX_WAIT", 60)
    wait_for_idle_threads()
    assert computing_in(computing.join) < 0.02


def test_wait_has_a_limit(computing, monkeypatch):
    monkeypatch.setattr(forking, "MAX_WAIT", 0.01)
    wait_for_idle_threads()
    assert computing.is_alive()


@pytest.mark.parametrize(("workers", "world_size"), [(0, 1), (2, 1), (0, 2), (2, 2)])
def test_ranks_of_a_group_wait_before_each_start_of_workers(workers, world_size, monkeypatch):
    waited = []
    monkeypatch.setattr(loader, "wait_for_idle_threads", lambda: waited.append(True))
    args = TrainingArguments(use_cpu=True, dataloader_num_workers=workers)
    options = {"batch_size": 1, "training": True, "accepted": None, "seed": 0}
    rows = build_loader([1, 2, 3, 4], args, torch.tensor, Ranks(0, world_size), **options)
    for _ in range(2):
        assert len(list(rows)) == 4 // world_size
    assert len(waited) == (2 if workers and world_size > 1 else 0)

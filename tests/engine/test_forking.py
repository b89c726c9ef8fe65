"""Workers are forked while the threads of a process group rest."""

import hashlib
import sys
import threading
import time

import pytest
import torch.distributed as dist
from engine_toys import trainer

from trainbus.engine.data import forking, loader
from trainbus.engine.data.forking import let_threads_rest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or sys.version_info >= (3, 12), reason="elsewhere nothing is waited for"
)


@pytest.fixture
def group(monkeypatch):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)


@pytest.fixture
def computing():
    """A thread that computes without the interpreter's lock, as those of gloo do."""
    thread = threading.Thread(target=hashlib.pbkdf2_hmac, args=("sha256", b"", b"", 400_000))
    thread.start()
    yield thread
    thread.join()


def seconds_of(call):
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_what_a_thread_has_to_do_is_waited_for(group, computing, monkeypatch):
    monkeypatch.setattr(forking, "PATIENCE", 60)
    let_threads_rest()
    assert seconds_of(computing.join) < 0.01


def test_one_that_always_computes_holds_nothing_up(group, computing, monkeypatch):
    monkeypatch.setattr(forking, "PATIENCE", 0.01)
    let_threads_rest()
    assert computing.is_alive()


def test_without_a_process_group_nothing_is_waited_for(computing, monkeypatch):
    monkeypatch.setattr(forking, "PATIENCE", 60)
    let_threads_rest()
    assert computing.is_alive()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_training_waits_before_each_epoch_s_workers(workers, monkeypatch, tmp_path):
    waited = []
    monkeypatch.setattr(loader, "let_threads_rest", lambda: waited.append(True))
    trainer(tmp_path, args={"dataloader_num_workers": workers, "num_train_epochs": 2}).train()
    assert len(waited) == (2 if workers else 0)

"""Fake CUDA streams, so that fairscale's FullyShardedDataParallel runs without a GPU.

Only the streams are fake: work runs immediately, so there is nothing to wait for. The collectives are those of gloo,
the tensors are on the CPU, and fairscale's code is unchanged.
"""

from contextlib import contextmanager
from types import SimpleNamespace

import torch
from fairscale.internal import reduce_scatter_bucketer
from fairscale.nn.data_parallel import fully_sharded_data_parallel

import trainbus.integrations.fairscale.fsdp


class FakeStream:
    """A stream whose work is always complete."""

    def wait_stream(self, other):
        assert isinstance(other, FakeStream)

    def synchronize(self):
        pass


class TorchWithFakeStreams:
    """The module torch for fairscale, with fake streams."""

    def __init__(self):
        self._current = FakeStream()
        self.cuda = SimpleNamespace(
            Stream=FakeStream,
            stream=self._on,
            current_stream=lambda: self._current,
            synchronize=lambda: None,
            is_available=lambda: True,
        )

    @contextmanager
    def _on(self, stream):
        before, self._current = self._current, stream
        yield
        self._current = before

    def __getattr__(self, name):
        return getattr(torch, name)


def install_fake_streams():
    """Give fairscale fake streams on the CPU, for the rest of the program."""
    trainbus.integrations.fairscale.fsdp.has_cuda = lambda device: True
    fully_sharded_data_parallel.torch = TorchWithFakeStreams()
    reduce_scatter_bucketer.enable_nccl_base_collectives = False  # fairscale's own switch: gloo needs other shapes
    torch.Tensor.record_stream = lambda self, stream: None
    torch.Tensor.cuda = lambda self, *_: self
    torch.Tensor.pin_memory = lambda self, *_: self

"""What stands in for CUDA's streams, so that fairscale's FullyShardedDataParallel runs where there is no GPU.

Only where work is queued is pretended: here it is done at once, and there is nothing to wait for. The collectives are
gloo's, the tensors are on the CPU, and fairscale's code is its own.
"""

from contextlib import contextmanager
from types import SimpleNamespace

import torch
from fairscale.internal import reduce_scatter_bucketer
from fairscale.nn.data_parallel import fully_sharded_data_parallel

import trainbus.integrations.fairscale.fsdp


class Stream:
    """A queue of work, which is done by the time it is asked for."""

    def wait_stream(self, other):
        assert isinstance(other, Stream)

    def synchronize(self):
        pass


class Torch:
    """torch, as fairscale's module knows it, with other streams."""

    def __init__(self):
        self._current = Stream()
        self.cuda = SimpleNamespace(
            Stream=Stream,
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


def pretend():
    """Have fairscale find streams on the CPU, for the rest of the program."""
    trainbus.integrations.fairscale.fsdp.has_cuda = lambda device: True
    fully_sharded_data_parallel.torch = Torch()
    reduce_scatter_bucketer.enable_nccl_base_collectives = False  # fairscale's own switch: gloo wants other shapes
    torch.Tensor.record_stream = lambda self, stream: None
    torch.Tensor.cuda = lambda self, *_: self
    torch.Tensor.pin_memory = lambda self, *_: self

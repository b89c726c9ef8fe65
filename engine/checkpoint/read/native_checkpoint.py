"""Reading the training state from checkpoints of trainbus: safetensors files with JSON metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..format import files
from ..format.codec import load_values
from ..format.folder import CheckpointFolder
from ..format.tensor_cache import TensorCache
from .fitting import fitting
from .state_files import StatePart

_NAMES = {
    StatePart.OPTIMIZER: files.OPTIMIZER,
    StatePart.SCHEDULER: files.SCHEDULER,
    StatePart.SCALER: files.SCALER,
}


class NativeStateFiles:
    """The training state in a checkpoint of trainbus: safetensors files with JSON metadata."""

    resumes_loader_exactly = True

    def __init__(self, folder: CheckpointFolder, cache: TensorCache) -> None:
        """Create an object that reads the files of `folder`. Tensors that are in `cache` are not read again."""
        self._folder = folder
        self._cache = cache

    def path_of(self, part: StatePart) -> Path:
        return self._folder.path / _NAMES[part]

    def has(self, part: StatePart) -> bool:
        return self._folder.is_complete(_NAMES[part])

    def load(self, part: StatePart) -> Any:
        # The tensors of an optimizer may be sharded. They are read later, when the region of this rank is known.
        whole = part is not StatePart.OPTIMIZER
        return load_values(self.path_of(part), whole=whole, folder=self._folder, cache=self._cache)

    def restore(self, part: StatePart, target: Any, load: Callable[[Any], object]) -> None:
        state = self.load(part)
        with fitting(target, self.path_of(part)):
            load(state)

    def own(self, rank: int, world_size: int) -> dict[str, Any]:
        path = self.rng_path(rank, world_size)
        if not self._folder.has(path.name):
            return {}
        return dict(load_values(path, folder=self._folder, cache=self._cache))

    def rng_path(self, rank: int, world_size: int) -> Path:
        return self._folder.path / files.RANDOM.format(rank=rank)

    def has_rng_states(self) -> bool:
        return bool(self._folder.rng_files())

    def ignored_callbacks(self, state: Mapping[str, Any]) -> list[str]:
        return []

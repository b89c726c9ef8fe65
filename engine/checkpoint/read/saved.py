"""SavedCheckpoint: an object to read and verify a checkpoint on disk."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ....events.errors import CheckpointError
from ....events.state import flattened
from ..format import files
from ..format.folder import CheckpointFolder
from ..format.hashing import digest_of
from .state_files import StateFiles, StatePart
from .verify import STRICT, Check, problems_of

# What needs torch is imported when it is used: the command line opens checkpoints without torch.
if TYPE_CHECKING:
    import torch
    from torch import nn

    from ...seams import LoadModel
    from ..format.tensor_cache import TensorCache

T = TypeVar("T")


class SavedCheckpoint(CheckpointFolder):
    """A checkpoint on disk, written by trainbus or by transformers' Trainer.

    `open` reads no file. The manifest, the trainer state and the callback states are read at the first access, and then
    stay in memory. To see later changes of these files, open the folder again.

        checkpoint = SavedCheckpoint.open("outputs/checkpoint-500")
        if not checkpoint.problems():
            model.load_state_dict(checkpoint.weights())
    """

    @classmethod
    def open(cls, path: str | Path) -> SavedCheckpoint:
        """Create the object for a checkpoint folder. Nothing is read, and the folder need not exist."""
        return cls(Path(path))

    @classmethod
    def best_of(cls, best: str | Path, output: Path) -> SavedCheckpoint:
        """Create the object for the checkpoint with the best model.

        Args:
            best: the path that the run stored. The output folder may have been moved since.
            output: the output folder of the run. If `best` does not exist, its folder name is looked up here.
        """
        path = Path(best)
        return cls(path if path.is_dir() else output / path.name)

    def __repr__(self) -> str:
        return f"SavedCheckpoint({str(self.path)!r})"

    # Values of the manifest.

    @property
    def step(self) -> int:
        """The number of completed optimizer steps, from the folder name. If the name has no step, from the files.

        Raises:
            CheckpointError: if neither the name nor a file has the step, or if the files cannot be read.
        """
        step = files.step_of(self.path)
        step = self.recorded_step if step is None else step
        if step is None:
            raise CheckpointError(f"{self.path} does not record its step. Rename the folder to `checkpoint-<step>`.")
        return step

    @property
    def recorded_step(self) -> int | None:
        """The number of completed steps according to the files, not to the folder name; None if no file has it.

        Raises:
            CheckpointError: if the manifest or the trainer state cannot be read.
        """
        return self.state.get("global_step") if self.manifest is None else self.manifest.get("step")

    @property
    def run_id(self) -> str:
        """The id of the run that wrote the checkpoint; empty if the manifest is missing, unreadable or lacks the id."""
        return self._entry("run_id", "")

    @property
    def time(self) -> float:
        """The time of the save, in seconds since 1970; 0 if the manifest is missing, unreadable or lacks the time."""
        return self._entry("time", 0.0)

    @property
    def seconds(self) -> float:
        """The training time of the run until the save, in seconds.

        0 if the manifest is missing, unreadable or lacks the training time.
        """
        return self._entry("seconds", 0.0)

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the evaluation at this step; empty if the manifest is missing, unreadable or lacks metrics."""
        return self._entry("metrics", {})

    @property
    def world_size(self) -> int | None:
        """The number of ranks that wrote the checkpoint.

        None if the manifest is missing, unreadable or lacks the number.
        """
        return self._entry("world_size", None)

    @property
    def is_listed(self) -> bool:
        """Whether a manifest lists the files of the checkpoint with their hashes. False if no manifest can be read.

        Checkpoints of other libraries and of format 1 have no hashes, so `problems` does not find all damage in them.
        For example, it reads only the headers of their safetensors files.
        """
        try:
            return self.digests is not None
        except CheckpointError:
            return False

    def _entry(self, name: str, default: T) -> T:
        try:
            value: T = default if self.manifest is None else self.manifest.get(name, default)
        except CheckpointError:
            return default
        return value

    # Verification.

    def problems(self, *, full: bool = True, check: Check = STRICT) -> list[str]:
        """Verify the checkpoint. Return its problems, one sentence each; empty if it is good.

        Args:
            full: whether to read and hash every file. If False, only existence and sizes are checked.
            check: which files may be missing, and whether the verified tensors stay in memory for loading.
        """
        read = self._cache.digest_of if check.keep_tensors else digest_of
        found = problems_of(self, full=full, check=check, read=read)
        if found:
            self.release()
        return found

    def missing_parts(self) -> list[StatePart]:
        """Return the parts of the training state that lack a file, such as the scaler if loss scaling was off."""
        return [part for part in StatePart if not self.state_files.has(part)]

    def lacks_rng_states_of(self, rank: int, world_size: int) -> bool:
        """Return whether the RNG states of `rank` are lost, although those of other ranks exist.

        False if the checkpoint was saved with another world size than `world_size`, or has no manifest.
        """
        if self.manifest is None:
            return False
        there = self.rng_files()
        return bool(there) and rank not in there and self.world_size == world_size

    # Contents.

    @cached_property
    def state(self) -> dict[str, Any]:
        """The trainer state. Do not change it.

        Raises:
            CheckpointError: if the trainer state is missing or cannot be read.
        """
        path = self.path / files.STATE
        if not path.is_file():
            raise CheckpointError(
                f"{self.path} is not a checkpoint: it has no {files.STATE}. Give a folder `checkpoint-<step>`."
            )
        try:
            values = json.loads(self.state_bytes.decode("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        if not isinstance(values, dict):
            raise CheckpointError(f"{path} does not contain the state of a run. Resume from another checkpoint.")
        return flattened(values)

    @cached_property
    def state_files(self) -> StateFiles:
        """The files with the training state, in the layout of the library that wrote them."""
        from .hf_checkpoint import HFStateFiles, is_hf_checkpoint
        from .native_checkpoint import NativeStateFiles

        return HFStateFiles(self) if is_hf_checkpoint(self.path) else NativeStateFiles(self, self._cache)

    def weights(self) -> dict[str, torch.Tensor]:
        """Read the weights, by name, on the CPU.

        Raises:
            CheckpointError: if the checkpoint has no weights, or if they cannot be read.
        """
        from .weights import read_weights

        return read_weights(self)

    def load_weights(self, model: nn.Module, load: LoadModel | None = None) -> None:
        """Load the weights into a model, strictly. All ranks must call this method.

        Args:
            model: the model to load into.
            load: a function of a model and a state dict that loads the weights. It returns the missing and the
                unexpected names. Default: call `load_state_dict` of the model.

        Raises:
            CheckpointError: if there are no weights, or they do not fit. The message gives the names.
        """
        from ...seams import load_model
        from .weights import load_weights

        load_weights(model, self, load_model if load is None else load)

    def own(self, rank: int, world_size: int = 1) -> dict[str, Any]:
        """Read the values that only `rank` saved: RNG states, loader position, loss sums; {} if there are none.

        Args:
            rank: the rank.
            world_size: the number of ranks of the resumed run. In a checkpoint of transformers, the name of the file
                with the RNG states depends on this number.
        """
        return self.state_files.own(rank, world_size)

    def optimizer_state(self) -> Any:
        """Read the state dict of the optimizer. It may have `StoredTensor` objects, which read their values later."""
        return self.state_files.load(StatePart.OPTIMIZER)

    def callback_states(self) -> dict[str, Any]:
        """Read the states of the callbacks by id; {} if there are none."""
        return self.callbacks_and_owners()[0]

    def callbacks_and_owners(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read two dicts by callback id: the callback states, and the class and settings of each callback.

        The function `owner_of` describes the values of the second dict.
        """
        found = self._of_callbacks
        return dict(found.get("callbacks", {})), dict(found.get("owners", {}))

    @property
    def extra(self) -> dict[str, Any]:
        """The values that handlers of `on_save_begin` added to `checkpoint.extra`; {} if there are none."""
        return dict(self._of_callbacks.get("extra", {}))

    @cached_property
    def _of_callbacks(self) -> dict[str, Any]:
        if not self.has(files.CALLBACKS):
            return {}
        from ..format.codec import load_values

        found: dict[str, Any] = load_values(self.path / files.CALLBACKS, folder=self, cache=self._cache)
        return found

    @property
    def best_model_checkpoint(self) -> str:
        """The folder name of the best checkpoint, from the trainer state; an empty string if it is unknown."""
        try:
            best = self.state.get("best_model_checkpoint")
        except CheckpointError:
            return ""
        return Path(best).name if isinstance(best, str) else ""

    @cached_property
    def _cache(self) -> TensorCache:
        from ..format.tensor_cache import TensorCache

        return TensorCache()

    def release(self) -> None:
        """Drop the callback states and the verified tensors from memory. A later access reads the files again."""
        self.__dict__.pop("_of_callbacks", None)
        if "_cache" in self.__dict__:
            self._cache.clear()

    def keeps(self, name: str) -> bool:
        """Return whether the tensors of the verified file `name` are in memory."""
        return self.path / name in self._cache

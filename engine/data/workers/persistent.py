"""Evaluation loaders with workers that stay alive between evaluations, and the RNG states of these workers."""

from __future__ import annotations

from typing import Any, Protocol


class KeptLoader(Protocol):
    """A loader with persistent workers, as `PersistentLoaders` uses it. `Loader` implements this protocol."""

    def inherit_workers(self, state: dict[str, Any]) -> None:
        """Make the workers start with the RNG states `state["workers"]`, a result of `worker_states`."""

    def worker_states(self) -> dict[str, Any] | None:
        """Return the RNG states of the workers, by worker number; None if no worker has started in this session."""


class PersistentLoaders:
    """The evaluation loaders with persistent workers, stored by the name of the dataset.

    The first evaluation of a dataset starts the workers, and draws their seeds from the global generator. Later
    evaluations use the same workers, and draw no seeds. If a checkpoint has RNG states of workers, a resumed run starts
    the workers with these states, and draws no seeds.
    """

    def __init__(self) -> None:
        """Create the object. It has no loaders at first."""
        self._loaders: dict[str, tuple[Any, KeptLoader]] = {}
        self._saved: dict[str, dict[str, Any]] = {}

    def find(self, name: str, dataset: Any) -> KeptLoader | None:
        """Return the stored loader of a dataset; None if `name` has no loader, or has the loader of another dataset."""
        kept, loader = self._loaders.get(name, (None, None))
        return loader if kept is dataset else None

    def keep(self, name: str, dataset: Any, loader: KeptLoader) -> None:
        """Store the loader of a dataset.

        If `load_state_dict` received RNG states for the dataset name `name`, the first loader under this name gets
        these states. The workers of later loaders under this name draw new seeds, as in an uninterrupted run.
        """
        if name in self._loaders:
            self._saved.pop(name, None)
        self._loaders[name] = dataset, loader
        if name in self._saved:
            loader.inherit_workers({"workers": self._saved[name]})

    def state_dict(self) -> dict[str, Any]:
        """Return the RNG states of the workers, by name of the dataset.

        If the workers of a dataset have not started in this session, their states come from `load_state_dict`.
        """
        found = {name: loader.worker_states() for name, (_, loader) in self._loaders.items()}
        return {**self._saved, **{name: states for name, states in found.items() if states is not None}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remove all loaders, and store the RNG states that the method `state_dict` returned.

        Later, the method `keep` passes the RNG states of a dataset to the first loader of this dataset.
        """
        self._loaders, self._saved = {}, dict(state)

"""Loaders of the user that save their own position, such as torchdata's StatefulDataLoader."""

from __future__ import annotations

from typing import Any

from .loader import Loader


def adopt_state(loader: Any) -> Any:
    """Prepare a training loader to save and restore its position in checkpoints, if it can. Return the loader.

    A loader of the user with `state_dict` and `load_state_dict` gets the methods `resume_state` and `resume_from` that
    checkpoints need. For a `Loader` of trainbus, the function calls its method `track_training`. After this call, other
    code that iterates over the loader does not change the position. Any other loader stays unchanged.
    """
    if isinstance(loader, Loader):
        loader.track_training()
    saves = callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))
    if not saves or hasattr(loader, "resume_state"):
        return loader

    def resume_state() -> dict[str, Any]:
        return {"loader": loader.state_dict()}

    def resume_from(state: dict[str, Any]) -> bool:
        if "loader" not in state:
            return False  # another loader wrote the checkpoint, so the batches are read up to the position
        loader.load_state_dict(state["loader"])
        return True

    loader.resume_state, loader.resume_from = resume_state, resume_from
    return loader

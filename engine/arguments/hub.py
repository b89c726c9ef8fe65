"""Pushing the model to the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ._base import Group, Strategy, arg


class HubStrategy(Strategy):
    """What the run pushes to the Hub, and when."""

    END = "end"
    """The model, when training ends."""
    EVERY_SAVE = "every_save"
    """The model, at each save and when training ends."""
    CHECKPOINT = "checkpoint"
    """As `every_save`, plus the newest checkpoint as `last-checkpoint`."""
    ALL_CHECKPOINTS = "all_checkpoints"
    """As `every_save`, plus all checkpoints under their own names."""


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class HubArguments(Group):
    """Arguments for pushing the model to the Hugging Face Hub: the repository, and when to push."""

    push_to_hub: bool = arg(False, "Push the model to the Hugging Face Hub. `hub_strategy` says when.")
    hub_token: str | None = arg(
        None, "Token for the Hub. None: the token of `hf auth login`. Logs and checkpoints never contain it."
    )
    hub_private_repo: bool | None = arg(
        None, "Whether a new repository is private. None: the default of the repository's owner."
    )
    hub_model_id: str | None = arg(None, "Repository, as 'name' or 'owner/name'. None: the name of `output_dir`.")
    hub_strategy: HubStrategy | str = arg(
        HubStrategy.EVERY_SAVE,
        "What to push, and when: 'end', 'every_save', 'checkpoint' or 'all_checkpoints'. 'end' pushes the model when "
        "training ends. 'every_save' pushes the model at each save and when training ends. 'checkpoint' also pushes "
        "the newest checkpoint, as `last-checkpoint`. 'all_checkpoints' pushes the model and all checkpoints, under "
        "their own names.",
        choices=HubStrategy,
    )
    hub_always_push: bool = arg(
        False,
        "Push each save, even if an earlier push is still in progress. False: do not push a save during an earlier "
        "push.",
    )
    hub_revision: str | None = arg(None, "Branch to push to. It must exist. None: the main branch.")

    def problems(self) -> Iterator[str]:
        for name in ("hub_model_id", "hub_revision", "hub_token"):
            if getattr(self, name) == "":
                yield f"`{name}` is empty; set it, or remove it."

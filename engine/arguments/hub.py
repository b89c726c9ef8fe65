"""Whether the model goes to a hub, to which repository, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ._base import Group, Strategy, arg


class HubStrategy(Strategy):
    """What is pushed to a hub, and when."""

    END = "end"
    """The model, when training ends."""
    EVERY_SAVE = "every_save"
    """The model, at every save, and when training ends."""
    CHECKPOINT = "checkpoint"
    """As `every_save`, and the newest checkpoint, as `last-checkpoint`."""
    ALL_CHECKPOINTS = "all_checkpoints"
    """As `every_save`, and every checkpoint, under its own name."""


@dataclass(kw_only=True)
class HubArguments(Group):
    """Whether the model goes to a hub, to which repository, and when."""

    push_to_hub: bool = arg(False, "Whether to push the model to the Hugging Face hub, when `hub_strategy` says.")
    hub_token: str | None = arg(
        None, "The token to push with; None takes the one of `hf auth login`. It is never written down."
    )
    hub_private_repo: bool | None = arg(
        None, "Whether the repository is private if it must be made; None leaves it to the owner's settings."
    )
    hub_model_id: str | None = arg(
        None, "The repository, as 'name' or 'owner/name'; None takes the name of `output_dir`."
    )
    hub_strategy: HubStrategy | str = arg(
        HubStrategy.EVERY_SAVE,
        "What is pushed, and when: the model at the 'end', at 'every_save', and with it the last 'checkpoint' or "
        "'all_checkpoints'.",
        choices=HubStrategy,
    )
    hub_always_push: bool = arg(
        False, "Whether a save is pushed even while the push of an earlier one is still under way."
    )
    hub_revision: str | None = arg(None, "The branch to push to; None is the main one, and it must exist.")

    def problems(self) -> Iterator[str]:
        for name in ("hub_model_id", "hub_revision", "hub_token"):
            if getattr(self, name) == "":
                yield f"`{name}` is empty; give one, or leave it out."

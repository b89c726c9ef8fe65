"""The Trainer's methods for the model card and the hub."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ...events.capabilities import Capability
from ...events.composition import providers
from ...events.errors import ArgumentError
from ...events.keywords import checked_keywords
from ..checkpoint.format import files
from ..checkpoint.write.whole_files import disk_errors_explained, whole_file
from ..run import Run
from .loading import LoadingMethods
from .model_card import GENERATED, Facts, base_of, card_text, dataset_of, final_results, library_of, task_of
from .overrides import save_internally
from .saving import SavingMethods

logger = logging.getLogger(__name__)

CARD = "README.md"
"""The file name of the model card."""


@runtime_checkable
class PushesSaves(Protocol):
    """A callback that pushes checkpoints to a hub. `PushToHub` implements this protocol."""

    def push_save(self, run: Run, checkpoint: files.CheckpointRecord) -> None:
        """Push files of a new checkpoint. The strategy of the callback says which files are pushed, if any."""


class Publisher(Protocol):
    """An object that pushes to a hub, and reads and writes the metadata of model cards.

    `Repository` in `integrations/hub.py` implements this protocol. A callback that pushes has a publisher in its field
    `publisher`.
    """

    def create_repository(self, run: Run, token: str | None, private: bool | None) -> str:
        """Create the repository if it does not exist, and return its full name.

        If `token` or `private` is None, the value comes from the settings of the publisher.
        """

    def push(self, run: Run, commit_message: str, *, blocking: bool, token: str | None, revision: str | None) -> Any:
        """Push the output folder without its checkpoints. Return the commit, or a future if not `blocking`."""

    def wait(self) -> None:
        """Wait for the pushes in progress."""

    def existing_metadata(self, card: Path) -> tuple[tuple[str, ...], str | None]:
        """Return the tags and the library in the header of a card. Without a library, the second value is None."""

    def header(self, facts: Facts, results: dict[str, Any]) -> str:
        """Return the metadata block at the top of a card."""


@dataclass(frozen=True)
class PushInProgress:
    """The value of `Trainer.push_in_progress` while a push is not complete."""

    def is_done(self) -> bool:
        """Return False at all times, because the object does not know when its push ends.

        To see whether a push is in progress, read `Trainer.push_in_progress` again. The value is None if no push is in
        progress.
        """
        return False


class PublishingMethods(SavingMethods, LoadingMethods):
    """Describes the model and pushes it to a hub. Requires the extra `hub`."""

    train_dataset: Any
    eval_dataset: Any
    hub_model_id: str | None = None
    """The full name of the repository; None before `init_hf_repo`, and on ranks other than 0."""

    _integration: Callable[[str], Any]
    _own_publisher: Publisher | None = None
    _pushing = False

    @checked_keywords
    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Create the hub repository if it does not exist. Only rank 0 sends the request.

        Args:
            token: a token with write permission; by default `args.hub_token`.
            private: whether a new repository is private; by default `args.hub_private_repo`.
        """
        if self.is_world_process_zero():
            self.hub_model_id = self._publisher().create_repository(self.run, token, private)

    @checked_keywords
    def create_model_card(
        self,
        language: str | list[str] | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Write the model card `README.md` to the output folder: settings, results, versions, and a header for the hub.

        If a card exists, replace it, but keep its tags and its field `library_name`. Only rank 0 writes.

        Args:
            language: the languages of the model.
            license: the license of the model.
            tags: search tags.
            model_name: the name of the model; by default the name of the repository or of the output folder.
            finetuned_from: the base model; by default the hub name from which the model was loaded.
            tasks: task names of the hub; by default derived from the class of the model.
            dataset_tags: names of the datasets on the hub; by default read from the dataset.
            dataset: display names of the datasets.
            dataset_args: the configuration of each dataset; by default read from the dataset.
        """
        if not self.is_world_process_zero():
            return
        publisher, model = self._publisher(), self.run.model
        card = self.args.output_path / CARD
        had_tags, had_library = publisher.existing_metadata(card)
        seen = dataset_of(self.eval_dataset if self.eval_dataset is not None else self.train_dataset)
        seen |= {"dataset_tags": _tuple(dataset_tags)} if dataset_tags is not None else {}
        seen |= {"dataset_args": _tuple(dataset_args)} if dataset_args is not None else {}
        facts = Facts(
            model_name=model_name or self._repository_name(),
            language=_tuple(language),
            license=license,
            tags=tuple(dict.fromkeys([*_tuple(tags), *had_tags, GENERATED])),
            finetuned_from=finetuned_from or base_of(model),
            tasks=_tuple(tasks or task_of(model)),
            datasets=_tuple(dataset),
            library=had_library or library_of(model),
            **seen,
        )
        header = publisher.header(facts, final_results(self.args, self.state))
        with whole_file(card, "The model card") as path:
            path.write_text(f"{header}\n{card_text(facts, self.args, self.state)}", encoding="utf-8")

    def push_to_hub(
        self,
        commit_message: str = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Save the model, its card and the arguments to the output folder. Push this folder without checkpoints.

        Call this method on every rank. Rank 0 pushes.

        Args:
            commit_message: the commit message.
            blocking: wait until the push is complete. If False, the push continues in the background.
            token: a token with write permission; by default `args.hub_token`.
            revision: the branch; by default `args.hub_revision`.
            private: whether a new repository is private; by default `args.hub_private_repo`.
            **kwargs: fields of the card; see `create_model_card`.

        Returns:
            Rank 0: the commit, or a future with the commit if not `blocking`. Other ranks: None.
        """
        self._pushing = True
        try:
            self.bus.announce("on_push_begin")
            # Saving may need every rank, so it comes before anything that can fail on rank 0 only.
            with disk_errors_explained("The model", self.args.output_path):
                save_internally(self)
        finally:
            self._pushing = False
        if not self.is_world_process_zero():
            return None
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        kwargs["tags"] = [*_tuple(kwargs.get("tags")), *_tuple(getattr(self.run.model, "model_tags", None))]
        self.create_model_card(**kwargs)
        with whole_file(self.args.output_path / files.ARGUMENTS, "The arguments") as path:
            path.write_text(self.args.to_json_string(), encoding="utf-8")
        return self._publisher().push(self.run, commit_message, blocking=blocking, token=token, revision=revision)

    @checked_keywords
    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model, its config and its tokenizer. With `args.push_to_hub`, also push the output folder.

        During `train()`, `evaluate()` and `predict()`, the method does not push. A push that fails is logged as a
        warning.

        Args:
            output_dir: the folder for the model; by default `args.output_dir`, the output folder.
            _internal_call: if True, the method does not push. The engine passes True when it saves a checkpoint or
                pushes the model.
        """
        super().save_model(output_dir, _internal_call)
        if not self.args.push_to_hub or self._pushing or self.run.mode or _internal_call:
            return
        try:
            self.push_to_hub("Model save")
        except Exception as error:
            logger.warning("The model is saved, but the push failed: %s: %s", type(error).__name__, error)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Push the files that `hub_strategy` selects to the hub. The push continues in the background.

        The engine calls this method after each checkpoint. With `hub_strategy="end"`, the method pushes nothing.

        Raises:
            ArgumentError: if the program itself calls this method, and no callback pushes to the hub.
        """
        if self._is_work("_push_from_checkpoint", checkpoint_folder):
            self._work("_push_from_checkpoint")
            return
        pushing = [callback for callback in self.bus.subscribers.values() if isinstance(callback, PushesSaves)]
        if not pushing:
            raise ArgumentError(
                f"{checkpoint_folder} cannot be pushed, because no callback pushes to the hub. Set `push_to_hub=True`, "
                "or add the callback `PushToHub`."
            )
        for callback in pushing:
            callback.push_save(self.run, files.CheckpointRecord(Path(checkpoint_folder), self.state.global_step))

    def _finish_current_push(self) -> None:
        """Wait for the pushes in progress.

        The engine calls an override of this method at the end of the training. In this call,
        `super()._finish_current_push()` does not wait, because the callback `PushToHub` waits later, in `on_close`.
        """
        if not self._is_work("_finish_current_push"):
            for publisher in self._publishers():
                publisher.wait()

    @property
    def push_in_progress(self) -> PushInProgress | None:
        """The push in progress; None if no push is in progress."""
        busy = any(getattr(publisher, "busy", False) for publisher in self._publishers())
        return PushInProgress() if busy else None

    def _publishers(self) -> list[Publisher]:
        """Return the publishers of the attached callbacks, and the publisher that the trainer built, if any."""
        attached = [each.publisher for each in providers(self.bus.subscribers.values(), Capability.PUBLISHES)]
        return [publisher for publisher in [*attached, self._own_publisher] if publisher is not None]

    def _publisher(self) -> Publisher:
        """Return the publisher of the first attached callback that has one.

        If no callback has a publisher, return the trainer's own publisher, which is built once from the arguments.
        """
        if found := self._publishers():
            return found[0]
        if self._own_publisher is None:
            self._own_publisher = self._integration("hub").from_arguments(self.args).publisher
        return self._own_publisher

    def _repository_name(self) -> str:
        wanted = self.hub_model_id or self.args.hub_model_id
        return wanted.rpartition("/")[2] if wanted else self.args.output_path.absolute().name


def _tuple(value: str | list[str] | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return one or several names as a tuple; an empty tuple for None."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)

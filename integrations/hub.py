"""The Hugging Face hub: the model, its card and its checkpoints, pushed while the training goes on."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from fnmatch import fnmatch
from numbers import Real
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData, constants
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
    validate_repo_id,
)

from ..callbacks.monitor.status_file import NAME as STATUS
from ..engine.api.model_card import Facts, known_metrics, title
from ..engine.api.publishing import CARD
from ..engine.arguments import TrainingArguments
from ..engine.arguments.hub import HubStrategy
from ..engine.checkpoint.format import files
from ..engine.run import Run
from ..events.callback import Callback
from ..events.errors import ArgumentError, nearest
from ..events.stages import Stage

logger = logging.getLogger(__name__)

STAGED = ".push-"
"""What the names of folders begin with that hold a push until it is done."""

NOT_OF_MODEL = tuple(pattern for pattern in files.TO_RESUME if pattern != files.ARGUMENTS)
"""Patterns of the files in a checkpoint that are not pushed as the model: they tell nothing of how it was made."""

REMEDY = "When the hub can be reached, `trainer.push_to_hub()` pushes what is in the output folder."

NOT_PUSHED = ("_*", f"{files.PREFIX}-*", f".tmp-{files.PREFIX}-*", f"{STAGED}*", STATUS)
"""Patterns of what stays behind when the output folder is pushed."""


def files_of_model(checkpoint: Path) -> list[Path]:
    """Return the files of a checkpoint that using the model needs, and its arguments."""
    found = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    return [path for path in found if not any(fnmatch(path.name, pattern) for pattern in NOT_OF_MODEL)]


def stage(paths: Iterable[Path], root: Path, target: Path) -> Path:
    """Give files of a checkpoint a second name in a folder of their own, so that deleting the checkpoint spares them.

    Where the file system has no hard links, they are copied. A file of a checkpoint is never written again, so both
    names hold what was saved.

    Args:
        paths: the files.
        root: the folder they are in, below which they keep their place.
        target: the new folder; one that a killed run left there is removed.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in paths:
        new = target / path.relative_to(root)
        new.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, new)
        except OSError:
            shutil.copy2(path, new)
    return target


def evaluations(facts: Facts, results: dict[str, Any]) -> list[EvalResult]:
    """Return the results as the hub's tables want them: of known metrics, for each task on each dataset."""
    tags = facts.dataset_tags
    names = (*facts.datasets, *tags[len(facts.datasets) :])
    configurations = (*facts.dataset_args, *[None] * (len(tags) - len(facts.dataset_args)))
    return [
        EvalResult(
            task_type=task,
            dataset_type=tag,
            dataset_name=name,
            dataset_config=configuration,
            dataset_split=facts.dataset_split,
            metric_type=metric,
            metric_name=title(key),
            metric_value=float(results[key]),
        )
        for task in facts.tasks
        for tag, name, configuration in zip(tags, names, configurations, strict=False)
        for metric, key in known_metrics(results).items()
        if isinstance(results[key], Real)
    ]


def check_name(name: str, what: str) -> None:
    """Refuse a name that no repository can have, saying `what` it is."""
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ArgumentError(f"{name!r} {what}: {error}") from error


class Repository:
    """A repository on the hub: one thing is done to it after the other, in the background if wanted."""

    def __init__(self, settings: PushToHub) -> None:
        """Be the one that the callback's `settings` name; nothing is asked of the hub yet."""
        self.settings = settings
        self.name: str | None = None
        """Its full name, `owner/name`, once it is known to exist."""
        self._api = HfApi(endpoint=settings.endpoint)
        self._under_way: list[Future[Any]] = []

    @property
    def busy(self) -> bool:
        """Whether a push is under way."""
        return any(not push.done() for push in self._under_way)

    def create_repository(self, run: Run, token: str | None, private: bool | None) -> str:
        """Create it unless it is there, and return its full name."""
        wanted = self.settings.repository or Path(run.args.output_dir).absolute().name
        check_name(wanted, "is the name of `output_dir`, and cannot be the repository's; give `hub_model_id`")
        private = self.settings.private if private is None else private
        made = self._api.create_repo(wanted, token=token or self._token(run), private=private, exist_ok=True)
        self.name = name = str(made.repo_id)
        return name

    def push(self, run: Run, commit_message: str, *, blocking: bool, token: str | None, revision: str | None) -> Any:
        """Push the output folder without its checkpoints; return the commit, or a future of it if not blocking."""
        if self.name is None:
            self.create_repository(run, token, None)
        folder = Path(run.args.output_dir)
        options = {"token": token, "revision": revision, "ignore_patterns": [*NOT_PUSHED]}
        # Both ways on the one thread of the API, which takes pushes in the order in which they were asked for.
        push = self._api.run_as_future(self._upload, run, folder, commit_message, **options)
        return push.result() if blocking else push

    def push_staged(self, run: Run, staged: Path, message: str, path_in_repo: str | None = None) -> None:
        """Push a folder in the background, and delete it."""

        def push() -> Any:
            try:
                return self._upload(run, staged, message, path_in_repo=path_in_repo)
            finally:
                shutil.rmtree(staged)

        self.watch(self._api.run_as_future(push), message)

    def watch(self, push: Future[Any], message: str) -> None:
        """Wait for a push before the training is over, and warn if it fails."""

        def tell() -> None:
            error = push.exception()
            if error is not None:
                said = f"{type(error).__name__}: {error}"
                logger.warning(
                    "The commit %r did not get to %s, and the run goes on: %s. %s",
                    *(message, self.name, said, REMEDY),
                )

        self._under_way = [other for other in self._under_way if not other.done()]
        # The API does one thing after the other, so this comes when the push is over, and is waited for in its place.
        self._under_way.append(self._api.run_as_future(tell))

    def wait(self) -> None:
        """Wait until all pushes are done that are watched."""
        if self.busy:
            logger.info("Waiting for the pushes to %s to be done.", self.name)
        wait(self._under_way)

    def existing_metadata(self, card: Path) -> tuple[tuple[str, ...], str | None]:
        """Return the tags and the library that the header of an existing card names."""
        if not card.is_file():
            return (), None
        data = ModelCard.load(card, ignore_metadata_errors=True).data
        return tuple(data.tags or ()), data.library_name

    def header(self, facts: Facts, results: dict[str, Any]) -> str:
        """Return the metadata of a card, as the block it begins with."""
        found = evaluations(facts, results)
        data = ModelCardData(
            library_name=facts.library,
            language=list(facts.language) or None,
            license=facts.license,
            base_model=facts.finetuned_from,
            tags=list(facts.tags),
            datasets=list(facts.dataset_tags) or None,
            metrics=list(known_metrics(results)) or None,
            pipeline_tag=facts.tasks[0] if len(facts.tasks) == 1 else None,
            model_name=facts.model_name if found else None,
            eval_results=found or None,
        )
        return f"---\n{data.to_yaml()}\n---\n"

    def _upload(
        self,
        run: Run,
        folder: Path,
        message: str,
        *,
        token: str | None = None,
        revision: str | None = None,
        **options: Any,
    ) -> Any:
        assert self.name is not None
        return self._api.upload_folder(
            repo_id=self.name,
            folder_path=folder,
            commit_message=message,
            token=token or self._token(run),
            revision=revision or self.settings.revision,
            **options,
        )

    def _token(self, run: Run) -> str | None:
        return self.settings.token or run.args.hub_token


@dataclass
class PushToHub(Callback):
    """Pushes the model to the Hugging Face hub: at every save in the background, and when training ends.

    A push that fails is told in one warning, and the training goes on. All pushes are waited for before it is over.
    """

    stage = Stage.REPORT
    # Not `hub_token`: what stands here is shown where a callback in the list contradicts the arguments.
    arguments = (
        *("push_to_hub", "hub_model_id", "hub_strategy", "hub_private_repo", "hub_always_push", "hub_revision"),
    )

    repository: str | None = None
    """The repository, as `name` or `owner/name`; by default the name of the output folder."""
    strategy: str = "every_save"
    """What is pushed, and when: `end`, `every_save`, `checkpoint` or `all_checkpoints`."""
    private: bool | None = None
    """Whether the repository is private if it must be made; by default what its owner's settings say."""
    always: bool = False
    """Whether a save is pushed even while the push of an earlier one is under way."""
    revision: str | None = None
    """The branch; by default the main one."""
    token: str | None = field(default=None, repr=False, compare=False)
    """The token; by default `args.hub_token`, or else the one of `hf auth login`."""
    endpoint: str | None = None
    """The address of the hub; by default what `HF_ENDPOINT` says, or else https://huggingface.co."""
    on_error: str = "warn"
    """What its failures do: a hub that is down does not stop the training."""
    publisher: Repository = field(init=False, repr=False, compare=False)
    """The repository, for the methods of the Trainer."""
    _skipped: list[tuple[Path, str]] = field(default_factory=list, init=False, repr=False, compare=False)
    _silenced: bool = field(default=False, init=False, repr=False, compare=False)
    _told: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.strategy not in [*HubStrategy]:
            known = [str(strategy) for strategy in HubStrategy]
            raise ArgumentError(
                f"`strategy` is {self.strategy!r}{nearest(self.strategy, known)} Known: {', '.join(known)}."
            )
        self.strategy = str(self.strategy)
        if self.repository is not None:
            check_name(self.repository, "is no name of a repository")
        self.publisher = Repository(self)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> PushToHub:
        return cls(
            repository=args.hub_model_id,
            strategy=args.hub_strategy,
            private=args.hub_private_repo,
            always=args.hub_always_push,
            revision=args.hub_revision,
        )

    def on_train_begin(self, run: Run) -> None:
        if run.state.is_world_process_zero:
            self._skipped = []
            for leftover in Path(run.args.output_dir).glob(f"{STAGED}*"):
                shutil.rmtree(leftover)
            self._silence()
            self._told = False
            self._repository_is_there(run)

    def on_save(self, run: Run, checkpoint: files.Checkpoint) -> None:
        if self.strategy == HubStrategy.END or not run.state.is_world_process_zero:
            return
        path, message = checkpoint.path, _message(run)
        if self.publisher.busy and not self.always:
            logger.info("%s is not pushed: an earlier push is under way.", path.name)
            self._skipped.append((path, message))
            return
        if not self._repository_is_there(run):
            return
        run.announce("on_push_begin")
        run.services.create_model_card()
        staged = stage(files_of_model(path), path, self._staging(run, f"{path.name}-model"))
        shutil.copy2(Path(run.args.output_dir) / CARD, staged)
        self.publisher.push_staged(run, staged, message)
        self._push_checkpoint(run, path, message)
        if self.strategy == HubStrategy.CHECKPOINT:
            self._skipped = []  # a newer one is on its way

    def on_train_end(self, run: Run) -> None:
        # A checkpoint belongs on the hub even if its turn came while another was being pushed.
        waiting = self._skipped if self.strategy == HubStrategy.ALL_CHECKPOINTS else self._skipped[-1:]
        for path, message in waiting:
            if path.is_dir():
                self._push_checkpoint(run, path, message)
        message = "End of training"
        try:
            pushed = run.services.push_to_hub(message, blocking=False)
        except Exception as error:
            if self.publisher.name is not None:
                raise
            self._tell(error)
            return
        if isinstance(pushed, Future):
            self.publisher.watch(pushed, message)

    def on_close(self) -> None:
        self.publisher.wait()
        if self._silenced:
            enable_progress_bars()
            self._silenced = False

    def _repository_is_there(self, run: Run) -> bool:
        """Create the repository unless it is known to exist, and say whether it does."""
        if self.publisher.name is None:
            try:
                run.services.init_hf_repo()
            except Exception as error:
                self._tell(error)
                return False
        self._told = False
        return True

    def _tell(self, error: Exception) -> None:
        """Warn, once for all attempts that fail one after the other, that there is no repository to push to."""
        if self.on_error != "warn" or isinstance(error, ArgumentError):
            raise error
        said = f"{type(error).__name__}: {error}"
        level, self._told = (logging.INFO if self._told else logging.WARNING), True
        logger.log(
            level,
            "There is no repository to push to, and the run goes on; it is tried again at each save: %s. `hf auth "
            "login` says who you are, `HF_ENDPOINT` where the hub is. %s",
            *(said, REMEDY),
        )
        logger.debug("Where that came from:", exc_info=error)

    def _push_checkpoint(self, run: Run, path: Path, message: str) -> None:
        if self.strategy not in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            return
        everything = [found for found in path.rglob("*") if found.is_file()]
        staged = stage(everything, path, self._staging(run, path.name))
        name = "last-checkpoint" if self.strategy == HubStrategy.CHECKPOINT else path.name
        self.publisher.push_staged(run, staged, f"{message}, checkpoint", name)

    def _staging(self, run: Run, name: str) -> Path:
        return Path(run.args.output_dir) / f"{STAGED}{name}"

    def _silence(self) -> None:
        """Turn off the hub's own progress bars, which would be drawn into that of the training."""
        if constants.HF_HUB_DISABLE_PROGRESS_BARS is None and not are_progress_bars_disabled():
            disable_progress_bars()
            self._silenced = True


def _message(run: Run) -> str:
    state = run.state
    by_epoch = run.args.save_strategy == "epoch"
    return f"Training in progress, {f'epoch {int(state.epoch)}' if by_epoch else f'step {state.global_step}'}"

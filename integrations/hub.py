"""The Hugging Face hub: push the model, its card and its checkpoints while training continues."""

from __future__ import annotations

import logging
import shutil
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
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

from ..engine.api.costs.goodput import NAME as GOODPUT
from ..engine.api.model_card import Facts, known_metrics, title
from ..engine.api.publishing import CARD
from ..engine.api.pushed_files import files_of_model, stage
from ..engine.arguments import TrainingArguments
from ..engine.arguments.hub import HubStrategy
from ..engine.checkpoint.format import files
from ..engine.checkpoint.write.capsule_files import FOLDER as CAPSULES
from ..engine.checkpoint.write.stopwatch import Stopwatch
from ..engine.commands.status import NAME as STATUS
from ..engine.run import Run
from ..events.callback import Callback
from ..events.capabilities import Capability
from ..events.errors import ArgumentError, nearest
from ..events.stages import Stage

logger = logging.getLogger(__name__)

STAGED = ".push-"
"""The prefix of staging folders. A staging folder holds the files of one push until the push is done."""

REMEDY = "When the hub is reachable, `trainer.push_to_hub()` pushes the output folder."
"""The end of the warning about a failed push: what to do."""

NOT_PUSHED = ("_*", ".*", "*/.*", f"{files.PREFIX}-*", STATUS, GOODPUT, f"{CAPSULES}/*")
"""Patterns of files in the output folder that are not pushed. Hidden files are temporary, so they are not pushed."""


def evaluations(facts: Facts, results: dict[str, Any]) -> list[EvalResult]:
    """Build an `EvalResult` for each task, dataset and metric. Leave out metrics that the hub does not know."""
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


def check_name(name: str, remedy: str) -> None:
    """Raise an `ArgumentError` if `name` cannot be the name of a repository. The message ends with `remedy`."""
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ArgumentError(f"{name!r} cannot be the name of a repository ({error}). {remedy}") from error


class Repository:
    """A repository on the hub, to which `PushToHub` pushes. Pushes run one after the other, on another thread."""

    def __init__(self, settings: PushToHub) -> None:
        """Store `settings`, the callback with the options of pushes. The constructor sends no request to the hub."""
        self.settings = settings
        self.name: str | None = None
        """The full name, `owner/name`. None until `create_repository` has found or created the repository."""
        self._api = HfApi(endpoint=settings.endpoint)
        self._pushes: list[Future[Any]] = []
        self.stopwatch = Stopwatch()
        """Measures the time of each push."""

    @property
    def busy(self) -> bool:
        """Whether a push is in progress."""
        return any(not push.done() for push in self._pushes)

    def create_repository(self, run: Run, token: str | None, private: bool | None) -> str:
        """Create the repository if it does not exist, and return its full name.

        If `token` or `private` is None, the option of `PushToHub` with this name applies. If `PushToHub` has no
        `repository`, the name is the name of the output folder.
        """
        wanted = self.settings.repository or run.args.output_path.absolute().name
        check_name(wanted, "It is the name of `output_dir`. Set `hub_model_id`.")
        private = self.settings.private if private is None else private
        made = self._api.create_repo(wanted, token=token or self._token(run), private=private, exist_ok=True)
        self.name = name = str(made.repo_id)
        return name

    def push(self, run: Run, commit_message: str, *, blocking: bool, token: str | None, revision: str | None) -> Any:
        """Push the output folder without its checkpoints. `token` and `revision` default to options of `PushToHub`.

        Returns:
            The commit if `blocking` is True; a future of the commit if `blocking` is False.
        """
        if self.name is None:
            self.create_repository(run, token, None)
        folder = run.args.output_path
        options = {"token": token, "revision": revision, "ignore_patterns": [*NOT_PUSHED]}
        # A blocking push uses the thread of the API too, so that pushes happen in the order of the calls.
        push = self._api.run_as_future(self._upload, run, folder, commit_message, **options)
        return push.result() if blocking else push

    def push_staged(self, run: Run, staged: Path, message: str, path_in_repo: str | None = None) -> None:
        """Push the folder `staged` to `path_in_repo` (None: the root) in the background, then delete `staged`."""

        def push() -> Any:
            try:
                return self._upload(run, staged, message, path_in_repo=path_in_repo)
            finally:
                shutil.rmtree(staged)

        self.watch(self._api.run_as_future(push), message)

    def watch(self, push: Future[Any], message: str) -> None:
        """Make `wait` also wait for a push. If the push fails, log a warning with its commit message, `message`."""

        def warn_if_failed() -> None:
            error = push.exception()
            if error is not None:
                said = f"{type(error).__name__}: {error}"
                logger.warning("The push %r to %s failed: %s. Training continues. %s", message, self.name, said, REMEDY)

        self._pushes = [other for other in self._pushes if not other.done()]
        # The API runs one call at a time, so this call runs after the push.
        self._pushes.append(self._api.run_as_future(warn_if_failed))

    def wait(self) -> None:
        """Wait for all pushes that `watch` received."""
        if self.busy:
            logger.info("Waiting for the pushes to %s.", self.name)
        wait(self._pushes)

    def existing_metadata(self, card: Path) -> tuple[tuple[str, ...], str | None]:
        """Return the tags and the library name in the header of a card; `((), None)` if the card does not exist."""
        if not card.is_file():
            return (), None
        data = ModelCard.load(card, ignore_metadata_errors=True).data
        return tuple(data.tags or ()), data.library_name

    def header(self, facts: Facts, results: dict[str, Any]) -> str:
        """Build the YAML block at the start of a model card: the metadata in `facts`, and the metrics in `results`."""
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
        with self.stopwatch.task():
            return self._api.upload_folder(
                repo_id=self.name,
                folder_path=folder,
                commit_message=message,
                token=token or self._token(run),
                revision=revision or self.settings.revision,
                **options,
            )

    def _token(self, run: Run) -> str | bool | None:
        return self.settings.token or run.args.hub_token


@dataclass
class PushToHub(Callback):
    """Pushes the model to the Hugging Face hub, by default at each save and when training ends.

    Set `push_to_hub=True`, or add `PushToHub("me/model", strategy="end")` to the callbacks. Log in with `hf auth login`
    or set `hub_token`. Training continues while a push runs, and the end of the run waits for all pushes. A push that
    fails logs one warning, and training continues.

    Raises:
        ArgumentError: if `strategy` is unknown, or if the hub does not allow the name of the repository.
    """

    stage = Stage.REPORT
    # `hub_token` is left out: an error about contradicting arguments shows the values of the arguments in this list.
    arguments = ("push_to_hub", "hub_model_id", "hub_strategy", "hub_private_repo", "hub_always_push", "hub_revision")
    capabilities = frozenset({Capability.PUBLISHES, Capability.REPORTS})

    repository: str | None = None
    """The repository, as `name` or `owner/name`. Default: the name of the output folder."""
    strategy: str = "every_save"
    """What to push, and when. `end` pushes the model at the end. `every_save` pushes the model at each save and at
    the end. `checkpoint` and `all_checkpoints` do the same. `checkpoint` also pushes the newest checkpoint, as the
    folder `last-checkpoint`. `all_checkpoints` also pushes every checkpoint."""
    private: bool | None = None
    """Whether a new repository is private. Default: the setting of the owner on the hub."""
    always: bool = False
    """Whether to push at a save while an earlier push is still in progress. False: do not push at such a save."""
    revision: str | None = None
    """The branch. Default: the main branch."""
    token: str | bool | None = field(default=None, repr=False, compare=False)
    """The access token, or True for the token of `hf auth login`. Default: `args.hub_token`, else the stored token."""
    endpoint: str | None = None
    """The address of the hub. Default: `HF_ENDPOINT`, else https://huggingface.co."""
    on_error: str = "warn"
    """The action if the repository cannot be created. A failed push in the background only warns, whatever the
    value."""
    publisher: Repository = field(init=False, repr=False, compare=False)
    """The object that pushes. `trainer.push_to_hub()` also uses this object."""
    _skipped: list[tuple[Path, str]] = field(default_factory=list, init=False, repr=False, compare=False)
    _bars_disabled: bool = field(default=False, init=False, repr=False, compare=False)
    _warned: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.strategy not in [*HubStrategy]:
            known = [str(strategy) for strategy in HubStrategy]
            raise ArgumentError(
                f"`strategy` is {self.strategy!r}{nearest(self.strategy, known)} Known: {', '.join(known)}."
            )
        self.strategy = str(HubStrategy(self.strategy))  # transformers has an enum of the same values
        if self.repository is not None:
            check_name(self.repository, "Set another `hub_model_id`, or another name for `PushToHub`.")
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
            for leftover in run.args.output_path.glob(f"{STAGED}*"):
                shutil.rmtree(leftover)
            self._disable_progress_bars()
            self._warned = False
            self._repository_exists(run)

    def on_save(self, run: Run, checkpoint: files.Checkpoint) -> None:
        run.services.at("_push_from_checkpoint", lambda: self.push_save(run, checkpoint), str(checkpoint.path))

    def push_save(self, run: Run, checkpoint: files.Checkpoint) -> None:
        """Push a checkpoint from rank 0, in the background. `strategy` says which of its files are pushed."""
        if self.strategy == HubStrategy.END or not run.state.is_world_process_zero:
            return
        path, message = checkpoint.path, _message(run)
        if self.publisher.busy and not self.always:
            logger.info("%s is not pushed, because an earlier push is still in progress.", path.name)
            self._skipped.append((path, message))
            return
        if not self._repository_exists(run):
            return
        run.announce("on_push_begin")
        run.services.create_model_card()
        staged = stage(files_of_model(path), path, self._staging(run, f"{path.name}-model"))
        shutil.copy2(run.args.output_path / CARD, staged)
        self.publisher.push_staged(run, staged, message)
        self._push_checkpoint(run, path, message)
        if self.strategy == HubStrategy.CHECKPOINT:
            self._skipped = []  # a newer checkpoint is being pushed

    def on_train_end(self, run: Run) -> None:
        # Push the checkpoints that were skipped while another push was in progress.
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
            self._warn(error)
            return
        if isinstance(pushed, Future):
            self.publisher.watch(pushed, message)

    def on_close(self) -> None:
        self.publisher.wait()
        if self._bars_disabled:
            enable_progress_bars()
            self._bars_disabled = False

    @property
    def slowest_write(self) -> float:
        """The expected time of the pushes at the end of a training, in seconds.

        The estimate is (number of these pushes) * (time of the slowest push so far).
        """
        checkpoints = self.strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS)
        waiting = len(self._skipped) if self.strategy == HubStrategy.ALL_CHECKPOINTS else min(1, len(self._skipped))
        of_last_save = 0 if self.strategy == HubStrategy.END else 1 + checkpoints
        return self.publisher.stopwatch.slowest * (of_last_save + waiting * checkpoints + 1)

    @property
    def busy(self) -> bool:
        """Whether a push is in progress."""
        return self.publisher.busy

    def _repository_exists(self, run: Run) -> bool:
        """Create the repository, if no earlier call created it. Return False if the creation fails, else True."""
        if self.publisher.name is None:
            try:
                run.services.init_hf_repo()
            except Exception as error:
                self._warn(error)
                return False
        self._warned = False
        return True

    def _warn(self, error: Exception) -> None:
        """Log an error: the first as a warning, later ones as INFO. If `on_error` is not "warn", raise it instead.

        An `ArgumentError` is always raised.
        """
        if self.on_error != "warn" or isinstance(error, ArgumentError):
            raise error
        said = f"{type(error).__name__}: {error}"
        level, self._warned = (logging.INFO if self._warned else logging.WARNING), True
        logger.log(
            level,
            "The repository on the hub could not be created: %s. Training continues, and each push tries again. Log in "
            "with `hf auth login`, or set `HF_ENDPOINT` to the address of the hub. %s",
            said,
            REMEDY,
        )
        logger.debug("The traceback of the failed request:", exc_info=error)

    def _push_checkpoint(self, run: Run, path: Path, message: str) -> None:
        if self.strategy not in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            return
        everything = [found for found in path.rglob("*") if found.is_file()]
        staged = stage(everything, path, self._staging(run, path.name))
        name = "last-checkpoint" if self.strategy == HubStrategy.CHECKPOINT else path.name
        self.publisher.push_staged(run, staged, f"{message}, checkpoint", name)

    def _staging(self, run: Run, name: str) -> Path:
        return run.args.output_path / f"{STAGED}{name}"

    def _disable_progress_bars(self) -> None:
        """Disable the progress bars of the hub library, because they would break the progress bar of the training."""
        if constants.HF_HUB_DISABLE_PROGRESS_BARS is None and not are_progress_bars_disabled():
            disable_progress_bars()
            self._bars_disabled = True


def _message(run: Run) -> str:
    by_epoch, state = run.args.save_strategy == "epoch", run.state
    return f"Training in progress, {f'epoch {int(state.epoch)}' if by_epoch else f'step {state.global_step}'}"

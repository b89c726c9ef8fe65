"""Upload checkpoints as artifacts, on the worker thread.

The aliases of an artifact, such as `best`, show why the retention policy keeps the checkpoint.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wandb

from ...engine.checkpoint.write.whole_files import disk_errors_explained
from ...engine.optim.sizes import count_elements
from ...engine.run import Run
from .client import WandbSession

if TYPE_CHECKING:
    from ...callbacks.base.row_tracker import RowTracker

logger = logging.getLogger(__name__)

LAST, BEST = "latest", "best"


@dataclass(frozen=True)
class Model:
    """A model to upload."""

    folder: Path
    """The folder of the model."""
    step: int
    """The number of completed steps when the model was saved."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The metadata of the artifact."""
    final: bool = False
    """Whether this is the model at the end of the training, not a checkpoint during the training."""


@dataclass
class ModelArtifacts:
    """Uploads checkpoints of a run as artifacts."""

    pending: list[Model] = field(default_factory=list)
    """The checkpoints that are being written, to upload after their commit."""
    versions: dict[str, str] = field(default_factory=dict)
    """`<artifact>:<alias>` of each uploaded checkpoint -> the folder of the checkpoint. The callback state has this
    dict."""
    loaded: Any = None
    """The checkpoint of the best model, if the training ended with its weights."""
    _logged: dict[str, Any] = field(default_factory=dict)
    _rotated: set[str] = field(default_factory=set)
    """The names of the folders that the retention policy deleted. `expire_rotated` deletes only the artifact versions
    of these folders. A folder may also be missing because the run moved to another machine."""

    def note(self, run: Run, checkpoint: Any, only_best: bool) -> None:
        """Append to `self.pending` a checkpoint that is being written. `upload_committed` uploads it after the commit.

        With `only_best=True`, skip a checkpoint if its step is not the best step so far.
        """
        if only_best and run.state.best_global_step != checkpoint.step:
            return
        self._rotated.discard(checkpoint.path.name)
        metadata = {"step": checkpoint.step, "epoch": run.state.epoch, "metrics": plain_metrics(checkpoint.metrics)}
        self.pending.append(Model(checkpoint.path, checkpoint.step, metadata))

    def note_rotated(self, checkpoint: Any) -> None:
        """Store the name of a rotated checkpoint, so that `expire_rotated` deletes its artifact version."""
        self._rotated.add(checkpoint.path.name)

    def upload_committed(self, tracker: RowTracker, run: Run) -> None:
        """Upload the committed checkpoints in `self.pending`. Delete the artifact versions of rotated checkpoints."""
        ready = [model for model in self.pending if model.folder.is_dir()]
        self.pending = [model for model in self.pending if model not in ready]
        best = run.state.best_global_step
        for model in ready:
            self._upload(tracker, run, model, [LAST, f"step-{model.step}", *([BEST] if model.step == best else [])])
        self.expire_rotated(tracker)

    def upload_at_end(self, tracker: RowTracker, run: Run, wanted: str) -> None:
        """Upload models at the end of the training. All ranks must call this method.

        With `wanted="end"`, save and upload the model of the trainer. With `checkpoint` or `best`, call
        `upload_committed`.
        """
        if wanted != "end":
            self.upload_committed(tracker, run)
            return
        folder = run.args.output_path / "_wandb_model"
        with disk_errors_explained("The model", folder):
            run.services.save_model(str(folder))
        if tracker.writes(run):
            metadata = self._metadata_at_end(run)
            model = Model(folder, metadata["step"], {**metadata, "final_model": True}, final=True)
            self._upload(tracker, run, model, [LAST, f"step-{model.step}", "final_model"])

    def _metadata_at_end(self, run: Run) -> dict[str, Any]:
        state, best = run.state, self.loaded
        step = state.global_step if best is None else best.step
        metrics = run.metrics_at(step) if best is None else best.metrics
        epochs = {entry.get("step"): entry.get("epoch") for entry in state.log_history}
        epoch = epochs.get(step) if step < state.global_step else state.epoch
        return {"step": step, "epoch": epoch, "metrics": plain_metrics(metrics)}

    def _upload(self, tracker: RowTracker, run: Run, model: Model, aliases: list[str]) -> None:
        limit = getattr(tracker, "reference_above", None)
        metadata = {"num_parameters": count_elements(run.model.parameters()), **model.metadata}

        def upload(session: Any) -> None:
            if not isinstance(session, WandbSession) or session.live.disabled:
                return
            if not model.folder.is_dir():
                logger.info("%s was rotated before its upload.", model.folder)
                return
            size = sum(file.stat().st_size for file in model.folder.rglob("*") if file.is_file())
            artifact = wandb.Artifact(name_of(run, session.run_id), "model", metadata={**metadata, "size_bytes": size})
            if limit is not None and size > limit:
                artifact.add_reference(model.folder.resolve().as_uri(), checksum=False)
            else:
                try:
                    artifact.add_dir(str(model.folder))  # copies the files, so that rotation may delete them
                except FileNotFoundError:
                    if model.folder.is_dir():
                        raise
                    logger.info("%s was rotated during its upload.", model.folder)
                    return
            logger.info("Uploading %s, %.1f MB.", model.folder, size / 1e6)
            version = f"{artifact.name}:step-{model.step}"
            logged = session.log_artifact(artifact, aliases)
            if not model.final:
                self.versions[version], self._logged[version] = str(model.folder), logged

        tracker.submit(upload)

    def resume(self, run: Run, run_id: str, step: int, versions: Mapping[str, str]) -> None:
        """Add to `self.versions` the artifact versions that earlier sessions uploaded.

        The callback state in a checkpoint lacks the artifact version of this checkpoint, because the upload comes after
        the save. So the method adds this version too.

        Args:
            run: the run.
            run_id: the id of the wandb run.
            step: the step of the checkpoint from which the run resumes.
            versions: the dict `versions` from the callback state of this checkpoint.
        """
        own = {f"{name_of(run, run_id)}:step-{step}": str(run.args.output_path / f"checkpoint-{step}")}
        self.versions = {**own, **versions, **self.versions}

    def expire_rotated(self, tracker: RowTracker) -> None:
        """Delete the artifact versions of checkpoints that the retention policy deleted."""
        gone = [name for name, folder in list(self.versions.items()) if Path(folder).name in self._rotated]
        for name in gone:
            self.versions.pop(name)
            logged = self._logged.pop(name, None)
            tracker.submit(partial(delete_version, name, logged))


def delete_version(name: str, logged: Any, session: WandbSession) -> None:
    """Delete a version of an artifact. In an offline run, do nothing. An error is only logged.

    Args:
        name: the artifact and its alias, as `<artifact>:<alias>`.
        logged: the object that `log_artifact` of the client returned; None if an earlier process uploaded the artifact.
        session: the open wandb run.
    """
    live = session.live
    if live.offline or live.disabled:
        return
    place = {"base_url": live.settings.base_url, "entity": live.entity, "project": live.project}
    try:
        if logged is not None:
            logged.wait(timeout=60)  # an upload in progress has no version yet
        found = wandb.Api(overrides=place, timeout=60).artifact(f"{live.entity}/{live.project}/{name}")
        found.delete(delete_aliases=True)
    except Exception as error:
        level = logging.INFO if logged is None else logging.WARNING  # an earlier process may not have uploaded it
        logger.log(level, "The artifact %s of a rotated checkpoint cannot be deleted: %s", name, error)


def name_of(run: Run, run_id: str) -> str:
    """Return the name of the artifact: `model-` and the argument `run_name`, such as `model-first`.

    If `run_name` is None, equals `output_dir`, or has no ASCII letter or digit, the wandb run id `run_id` replaces it.
    """
    named = run.args.run_name if run.args.run_name not in (None, run.args.output_dir) else None
    valid = _valid(named or run_id)
    return f"model-{valid if valid.strip('-_.') else _valid(run_id)}"


def plain_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are numbers, as floats."""
    return {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float))}


def _valid(name: str) -> str:
    """Return a name that wandb accepts for an artifact.

    ASCII letters, digits, `-`, `_` and `.` stay. Each other character becomes `-`. The name is cut to 100 characters.
    """
    return re.sub(r"[^\w\-.]", "-", name, flags=re.ASCII)[:100]

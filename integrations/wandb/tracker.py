"""The Weights & Biases tracker: writes the config and one row per step, and continues the same run after a restart."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from ...callbacks.base.predictions import Predictions
from ...callbacks.base.row_tracker import Opening, Outcome, RowTracker, TrackerSession, outcome_of
from ...callbacks.base.tracker import in_sections, number_of, numbered
from ...engine.arguments import ALIASES, TrainingArguments
from ...engine.distributed.ranks import Ranks
from ...engine.run import Run
from ...events.capabilities import BestMetric, Capability
from ...events.composition import best_metric_of
from ...events.control import TrainerControl
from ...events.stages import Stage, order
from ...events.state import TrainerState
from . import identity
from .artifacts import ModelArtifacts
from .axes import AXES, axis_column, check_axes
from .client import WandbSession, open_run, speaking_for
from .config import changed_arguments, changes_between, run_config
from .histograms import Histograms
from .identity import Identity
from .limits import loss_not_finite
from .nodes import NodeWriter, check_shared, is_further_node, label_of, node_request
from .opening import Request
from .options import (
    LOG_MODEL,
    OFFLINE,
    WATCH,
    check_choices,
    check_environment,
    check_fields,
    checked,
    choice_from_environment,
    folder_of,
    from_environment,
    is_disabled,
    settings_of,
    sweep_parameters,
)
from .tables import EvaluationTables

logger = logging.getLogger(__name__)

SETTLE_SECONDS = 0.1
"""Seconds that a save waits for rows that are not written yet. The wait starts again with each written row."""


@dataclass
class Wandb(RowTracker):
    """Reports to one Weights & Biases run. A resumed training, and its later evaluations, report to the same run.

    Set `report_to="wandb"`, or add `Wandb(project="demo", mode="offline")` to the callbacks. All values that are logged
    at one step form one row. The run finishes at `trainer.end()` or at the end of the program. The exit code of the run
    is 0, or another number if an error or a signal ended the training. If the service fails, the run goes offline and
    training continues. If your program already opened `wandb.run`, the callback uses this run and does not finish it.
    See `docs/wandb.md`.

    Raises:
        ArgumentError: if a field has an unknown value, or if wandb does not know an option or refuses its value.
    """

    service: ClassVar[str] = "wandb"
    local = True  # the Stop button of the web page reaches one rank only
    checks_types = False  # `check_fields` names the units of the fields

    project: str | None = None
    """The project. Default: `project` of the arguments, else `WANDB_PROJECT`, else the project that wandb chooses."""
    name: str | None = None
    """The name of the run. Default: `args.run_name`, else `WANDB_NAME`, else a generated name."""
    mode: Literal["online", "offline", "shared", "disabled"] | None = None
    """The mode: `online`, `offline`, `shared` or `disabled`. Default: the environment variable `WANDB_MODE`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Additional options of `wandb.init`. They override the options that this callback sets. The option `config` is
    merged into the config that the callback writes."""
    entity: str | None = field(default=None, kw_only=True)
    """The user or team. Default: `WANDB_ENTITY`, else the default of the account."""
    group: str | None = field(default=None, kw_only=True)
    """The group of runs to which this run belongs. Default: `WANDB_RUN_GROUP`."""
    tags: Sequence[str] | None = field(default=None, kw_only=True)
    """The tags. Default: `WANDB_TAGS`, separated by commas."""
    notes: str | None = field(default=None, kw_only=True)
    """A description. Default: `WANDB_NOTES`."""
    job_type: str | None = field(default=None, kw_only=True)
    """The type of the job, such as `train`. Default: `WANDB_JOB_TYPE`."""
    axis: str | Mapping[str, str] = field(default="step", kw_only=True)
    """The x-axis: `step`, `epoch`, `samples` or `tokens`. A dict sets the axis per metric: `{"eval/*": "epoch"}`."""
    on_change: str = field(default="continue", kw_only=True)
    """The action if a resumed training has other arguments: `continue` the run, `fork` the run at the step of the
    checkpoint, or start a `new` run."""
    init_timeout: float = field(default=60.0, kw_only=True)
    """How many seconds the start of the run waits for the service. After this time, the run goes offline."""
    finish_timeout: float = field(default=300.0, kw_only=True)
    """How many seconds the end of the run waits for uploads. To upload the rest later, run `wandb sync`."""
    log_model: str | None = field(default=None, kw_only=True)
    """The models to upload as artifacts: `checkpoint` (every checkpoint), `best` (each new best checkpoint) or `end`
    (the final model). Default: `WANDB_LOG_MODEL`, else none."""
    watch: str | None = field(default=None, kw_only=True)
    """The histograms to add to each log: `gradients` (unclipped), `parameters` or `all`. Default: `WANDB_WATCH`."""
    alerts: bool = field(default=False, kw_only=True)
    """Whether to send an alert if the run fails or a loss is not finite: at most one per problem in ten minutes."""
    save_code: bool = field(default=False, kw_only=True)
    """Whether to upload the Python files of the working directory."""
    reference_above: float | None = field(default=None, kw_only=True)
    """The largest size of a checkpoint to upload, in bytes. The artifact of a larger checkpoint has only the path of
    its folder. Default: no limit."""
    tables: Predictions | None = field(default=None, kw_only=True)
    """The settings of the prediction table, the confusion matrix and the curves. None: no evaluation records them."""
    shared: bool = field(default=False, kw_only=True)
    """Whether all machines record their system metrics in the run. True uses the shared mode of wandb."""
    _node: NodeWriter | None = field(default=None, init=False, repr=False, compare=False)
    _stop: bool = field(default=False, init=False, repr=False, compare=False)
    _models: ModelArtifacts = field(default_factory=ModelArtifacts, init=False, repr=False, compare=False)
    _histograms: Histograms = field(default_factory=Histograms, init=False, repr=False, compare=False)
    _tables: EvaluationTables = field(default_factory=EvaluationTables, init=False, repr=False, compare=False)
    _config: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _changes: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self)
        check_fields(self)
        check_axes(self.axis)
        given = checked({**self._own_options(), **self.options})
        if not is_disabled():
            check_environment(given)
        if self.shared:
            check_shared(self.options.get("mode") or self.mode, {**settings_of(self.options), **self.options})
        self.log_model = self.log_model or choice_from_environment("WANDB_LOG_MODEL", LOG_MODEL)
        self.watch = self.watch or choice_from_environment("WANDB_WATCH", WATCH)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Wandb:
        return cls(args.project, args.run_name)

    @property
    def live(self) -> Any:
        """The open run of wandb; None if no run is open in this process."""
        session = self._session
        return session.live if isinstance(session, WandbSession) and not session.ended else None

    @property
    def opening_timeout(self) -> float:
        return self.init_timeout

    @property
    def closing_timeout(self) -> float:
        return self.finish_timeout + 10.0

    def writes(self, run: Run) -> bool:
        return super().writes(run) and not is_disabled()

    def new_id(self, run: Run) -> str:
        options = {**from_environment(), **self.options}
        return options.get("id") or numbered(run.run_id or uuid.uuid4().hex, self, run)

    def unfinished_run(self, run: Run) -> str | None:
        named = {**from_environment(), **self.options}.get("id")
        return identity.unfinished(run.args.output_path, number_of(self, run), named)

    def argument_overrides(self, args: TrainingArguments) -> dict[str, Any]:
        if is_disabled():
            return {}
        known = {field.name for field in fields(args) if field.init} | set(ALIASES)
        return {name: value for name, value in sweep_parameters().items() if name in known}

    def prepare(self, run: Run, opening: Opening) -> Opening:
        self._config = {**run_config(run), **(self.options.get("config") or {})}
        known = self._stored(run, opening)
        before = opening.state.get("config") or known.config
        changed = changed_arguments(changes_between(before, self._config)) if before else []
        if not changed or not opening.resumes:
            return opening
        names = ", ".join(changed)
        if not opening.state:  # a restart before the first checkpoint, with other arguments
            return Opening(uuid.uuid4().hex)
        if self.on_change == "new":
            return Opening(uuid.uuid4().hex)
        if self.on_change == "fork":
            self._config["forked_from"] = {"run": opening.run_id, "step": opening.step}
            return Opening(uuid.uuid4().hex, 0, opening.step)
        logger.warning(
            "The arguments %s differ from the arguments of run %s, which continues. Rows after step %d that the run "
            "already has are written a second time. Set on_change='fork' to write to a new run.",
            *(names, opening.run_id, opening.step),
        )
        return replace(opening, exact=False)

    # What it reports beside the rows.

    def has(self, capability: Capability) -> bool:
        reads = capability is Capability.READS_PREDICTIONS and self.tables is not None
        return reads or super().has(capability)  # on every rank, as the gathering of predictions is collective

    def on_setup(self, run: Run) -> None:
        # Every rank has the same handlers; only the rank that writes collects.
        if self.tables is not None:
            self._tables.attach(run, self.tables, self.add, self.writes)
        if run.mode == "train" and self.watch is not None:
            self._histograms.attach(run, self.watch, self.writes)

    def on_step_end(self, run: Run, state: TrainerState, control: TrainerControl) -> None:
        super().on_step_end(run, state, control)
        if self._stop:
            self._stop = False
            reason = "the Stop button of the wandb run"
            with speaking_for(control, self.live):
                control.request("training_stop", reason)
                if run.saves:
                    control.request("save", reason)
        if self._models.pending:
            self._models.upload_committed(self, run)

    def on_log(self, run: Run, state: TrainerState, logs: dict[str, Any]) -> None:
        super().on_log(run, state, logs)
        if self.alerts and (found := loss_not_finite(logs)):
            self._alert("The loss is not finite", f"{found} at step {state.global_step}.")

    def on_snapshot(self, run: Run, checkpoint: Any) -> None:
        if self.log_model in ("checkpoint", "best") and self.writes(run):
            self._models.note(run, checkpoint, only_best=self.log_model == "best")

    def on_delete(self, checkpoint: Any) -> None:
        self._models.note_rotated(checkpoint)

    def on_best_loaded(self, checkpoint: Any) -> None:
        self._models.loaded = checkpoint

    def on_train_end(self, run: Run, control: TrainerControl) -> None:
        if self.log_model is not None:
            self._models.upload_at_end(self, run, self.log_model)
        super().on_train_end(run, control)

    def on_exception(self, run: Run, exception: BaseException) -> None:
        outcome = outcome_of(exception)
        if outcome.error and self.alerts:
            reason = run.control.why("training_stop")
            self._alert("The run failed", f"Step {run.state.global_step}: {outcome.error[:500]}. {reason}")
        if self._models.pending:
            self._models.upload_committed(self, run)
        self.submit(lambda session: session.summarize({"stopped": outcome.reason}))
        super().on_exception(run, exception)

    def final_summary(self, run: Run) -> dict[str, Any]:
        state = run.state
        seconds = run.seconds()
        values: dict[str, Any] = {"total/steps": state.global_step, "total/seconds": round(seconds, 3)}
        if seconds > 0:
            values["total/samples_per_second"] = round(state.samples_seen / seconds, 3)
            if state.num_input_tokens_seen:
                values["total/tokens_per_second"] = round(state.num_input_tokens_seen / seconds, 3)
        if state.best_metric is not None:
            metric = best_metric_of(run.bus.subscribers.values()) or BestMetric()
            values |= {f"best/{in_sections(metric.name)}": state.best_metric, "best/step": state.best_global_step}
        return values

    def _alert(self, title: str, text: str) -> None:
        self.submit(lambda session: session.alert(title, text) if isinstance(session, WandbSession) else None)

    def _request_stop(self) -> None:
        self._stop = True

    # Opening.

    @order(Stage.PREPARE)
    def on_train_begin(self, run: Run) -> None:
        super().on_train_begin(run)
        self._models.loaded = None
        if self.shared and not is_disabled() and not run.ranks.single_process:
            joined = self.run_id if self.live is not None and not self.live.offline else None
            joined = run.ranks.broadcast_object(joined)  # a run that went offline has no further writers
            if joined is not None and is_further_node(run):
                request = self._request(run.args.output_path, Identity(joined), self._chosen(run))
                self._node = NodeWriter(node_request(request, joined, run.ranks.rank), self.init_timeout)
                self._node.open()

    def _finish(self, outcome: Outcome) -> None:
        if self._worker is not None:
            self._models.expire_rotated(self)
        super()._finish(outcome)
        node, self._node = self._node, None
        if node is not None:
            node.close(outcome)

    def connect(self, run: Run, opening: Opening) -> Callable[[], TrackerSession]:
        known = self._stored(run, opening)
        if opening.resumes:
            before = opening.state.get("config") or known.config or self._config
            differing = changes_between(before, self._config)
            earlier = opening.state.get("changes") or {}
            self._changes = {**earlier, str(opening.resumes): {"step": opening.step, **differing}}
            self._config = dict(before)
            if self.log_model in ("checkpoint", "best"):
                self._models.resume(run, opening.run_id, opening.step, opening.state.get("versions") or {})
        else:
            self._changes, self._models.versions = {}, {}
        request = replace(
            self._request(run.args.output_path, known, self._chosen(run)),
            config=self._config,
            changes={"resume": self._changes} if self._changes else {},
            known_step=int(opening.state.get("written", -1)),
            known_rows=int(opening.state.get("rows", -1)),
            resumes=opening.resumes > 0 or bool(known.segments),
        )
        return lambda: open_run(request)

    def start(self, output_dir: str = "tmp_trainer", resume: bool = False) -> Wandb:
        """Open the wandb run early, so that it also shows the output of the code that builds data and model.

        Only rank 0 opens a wandb run.

        Args:
            output_dir: the output folder of the arguments.
            resume: whether to continue the wandb run of this folder, if there is one. Set it if `train` resumes.

        Returns:
            This callback, for the list of the trainer.
        """
        if is_disabled() or Ranks.from_environment().rank or self._worker is not None:
            return self
        folder = Path(output_dir)
        known = (identity.load(folder) if resume else None) or Identity(uuid.uuid4().hex)
        request = self._request(folder, known, {**from_environment(), **self._own_options()})
        request = replace(request, config=known.config, resumes=bool(known.segments))
        self.run_id = known.run_id
        self._begin(lambda: open_run(request))
        return self

    def describe(self, run: Run, opening: Opening) -> None:
        if not opening.resumes:
            config = self._config
            self.submit(lambda session: session.update_config(config))

    def _request(self, folder: Path, known: Identity, chosen: Mapping[str, Any]) -> Request:
        return Request(
            options={**chosen, "id": known.run_id, **self._given_options(), "dir": folder_of(self.options)},
            settings={**({"x_label": label_of(0)} if self.shared else {}), **settings_of(self.options)},
            folder=folder,
            identity=replace(known, config=self._config or known.config),
            config={},
            init_timeout=self.init_timeout,
            finish_timeout=self.finish_timeout,
            axis_of=partial(axis_column, self.axis),
            stop=lambda: self._request_stop(),  # the client copies its settings: a method would copy the callback
            before_finish=self.flush,
            save_code=self.save_code,
        )

    def extra_columns(self, run: Run) -> dict[str, Any]:
        wanted = {self.axis} if isinstance(self.axis, str) else set(self.axis.values())
        values = {"epoch": run.state.epoch, "samples": run.state.samples_seen}
        values["tokens"] = run.state.num_input_tokens_seen
        return {**{AXES[axis]: values[axis] for axis in wanted if axis in values}, **self._histograms.take()}

    def saved_state(self) -> dict[str, Any]:
        if self._worker is not None:
            self._worker.drain(SETTLE_SECONDS)  # rows gather: the checkpoint says which of them are written
        session = self._session if isinstance(self._session, WandbSession) else None
        step, rows = (-1, -1) if session is None else session.progress
        return {
            "config": self._config,
            "changes": self._changes,
            "written": step,
            "rows": rows,
            "versions": self._models.versions,
            "segments": [] if session is None else [asdict(part) for part in session.segments],
        }

    def _own_options(self) -> dict[str, Any]:
        own: dict[str, Any] = {"project": self.project, "name": self.name, "mode": self.mode, "entity": self.entity}
        if self.shared and os.environ.get("WANDB_MODE") not in OFFLINE:
            own["mode"] = "shared"
        own |= {"group": self.group, "tags": self.tags, "notes": self.notes, "job_type": self.job_type}
        return {name: value for name, value in own.items() if value is not None}

    def _given_options(self) -> dict[str, Any]:
        return {name: value for name, value in self.options.items() if name not in ("settings", "config")}

    def _chosen(self, run: Run) -> dict[str, Any]:
        named = {"project": run.args.project, "name": run.args.run_name}
        arguments = {name: value for name, value in named.items() if value is not None}
        chosen = {**from_environment(), **arguments, **self._own_options()}
        if os.environ.get("WANDB_SWEEP_ID"):  # the sweep decides these
            chosen = {name: value for name, value in chosen.items() if name not in ("project", "entity")}
        return chosen

    @staticmethod
    def _stored(run: Run, opening: Opening) -> Identity:
        known, state = identity.load(run.args.output_path, opening.run_id), opening.state
        segments = state.get("segments", ()) if state.get("run_id") == opening.run_id else ()
        return known or Identity(opening.run_id, tuple(identity.Segment(**part) for part in segments))

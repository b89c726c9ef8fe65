"""Views of a run of trainbus that callbacks of Lightning receive as their trainer and module."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.accelerators import CPUAccelerator, CUDAAccelerator
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import nn

from ...engine.run import Run
from ...events.errors import ArgumentError

_FN = {"train": TrainerFn.FITTING, "evaluate": TrainerFn.VALIDATING, "predict": TrainerFn.PREDICTING}
_STAGE = {"train": "fit", "evaluate": "validate", "predict": "predict"}


class ModuleView(lightning.LightningModule):  # type: ignore[misc] # mypy does not read Lightning
    """A `LightningModule` with the model in its attribute `model`.

    An attribute that a `LightningModule` does not have is read from the model.
    """

    def __init__(self, model: nn.Module) -> None:
        """Store a model."""
        super().__init__()
        self.model = model

    @staticmethod
    def of(run: Run) -> lightning.LightningModule:
        """Return the model of a run, if the model is a `LightningModule`. Otherwise, return a view of the model."""
        return run.model if isinstance(run.model, lightning.LightningModule) else ModuleView(run.model)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "model":
                raise
            return getattr(self.model, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        return self.model(*args, **kwargs)

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Add a value to the next log of the run."""
        self._view.log_metrics({name: value})

    def log_dict(self, dictionary: Any, *args: Any, **kwargs: Any) -> None:
        """Add values to the next log of the run."""
        self._view.log_metrics(dict(dictionary))

    @property
    def _view(self) -> Any:
        return self.trainer


class HeldSchedule:
    """A learning-rate schedule that changes no rate, because a callback of Lightning sets the rate."""

    def __init__(self, schedule: Any, optimizer: Any) -> None:
        """Store the schedule that this object replaces, and the optimizer of the run."""
        self._schedule, self.optimizer = schedule, optimizer

    def step(self, *args: Any) -> None:
        """Do nothing, because the callback of Lightning sets the learning rate."""

    def get_last_lr(self) -> list[float]:
        """Return the current learning rate of each parameter group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._schedule, name)


class Strategy:
    """The attributes of Lightning's `Strategy` that callbacks use: the device and collectives.

    Any other attribute raises an `ArgumentError`.
    """

    def __init__(self, run: Run) -> None:
        """Store the run and its device."""
        self._run = run
        self.root_device = torch.device(run.args.device)

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """Return the value that rank 0 passed. `src` is not used."""
        return self._run.ranks.broadcast_object(value)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Return whether all ranks passed `decision=True`. With `all=False`, return whether at least one rank did."""
        ranks = self._run.ranks
        if ranks.single_process:
            return bool(decision)
        votes = ranks.sum_numbers([int(decision)])[0]
        return votes == ranks.world_size if all else votes > 0

    def barrier(self, *args: Any) -> None:
        """Do nothing. Callbacks of Lightning need no barrier on trainbus."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ArgumentError(
            f"A callback of Lightning reads `trainer.strategy.{name}`, which trainbus does not have. Write it as a "
            "callback of trainbus: docs/plugins/migrating.md."
        )


class FitLoop:
    """The counters of Lightning's training loop that callbacks read. Setting a counter raises an `ArgumentError`."""

    _skip_backward = False

    def __init__(self, max_epochs: int, steps: int) -> None:
        """Store the counters: the planned epochs and the optimizer steps done."""
        self.__dict__.update(
            max_epochs=max_epochs,
            epoch_loop=SimpleNamespace(_batches_that_stepped=steps, global_step=steps),
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "_skip_backward" or value:
            raise ArgumentError(
                f"A callback of Lightning sets `trainer.fit_loop.{name}`, which has no effect here. For the averages "
                "of a model with BatchNorm, use the callback SWA of trainbus."
            )


class TrainerView:
    """A view of a run with the attributes of a `lightning.pytorch.Trainer` that callbacks of Lightning read.

    If a callback sets `should_stop = True`, the run stops. If a callback reads an attribute that the view does not
    have, or sets an attribute that has no effect, the view raises an `ArgumentError` that names the attribute.
    """

    _run: Run
    _stops: bool
    _logged: dict[str, Any]
    fast_dev_run = False
    sanity_checking = False
    group_separator = "/"
    val_check_interval = None  # so that EarlyStopping checks after evaluations, which follow the end of an epoch
    check_val_every_n_epoch = 1

    def __init__(self, run: Run, callback: Any) -> None:
        """Create the view of a run for one callback of Lightning."""
        args = run.args
        self.__dict__.update(
            _run=run,
            callback=callback,
            callbacks=[callback],
            strategy=Strategy(run),
            accelerator=CUDAAccelerator() if args.device.type == "cuda" else CPUAccelerator(),
            state=SimpleNamespace(fn=_FN.get(run.mode, TrainerFn.FITTING), stage=RunningStage.TRAINING),
            stage=_STAGE.get(run.mode, run.mode),
            callback_metrics={},
            optimizers=[],
            lr_scheduler_configs=[],
            accumulate_grad_batches=args.gradient_accumulation_steps,
            current_epoch=0,
            lightning_module=None,
            _own_schedule=None,
            _logged={},
            _stops=False,
        )

    def __deepcopy__(self, memo: Any) -> TrainerView:
        return self  # a callback that copies the module, such as an average, copies no run

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ArgumentError(
            f"A callback of Lightning, {type(self.callback).__name__}, reads `trainer.{name}`, which trainbus does not "
            "have. Write it as a callback of trainbus: docs/plugins/migrating.md."
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "should_stop":
            self.__dict__["_stops"] = bool(value)
        elif name == "accumulate_grad_batches" and value != self.accumulate_grad_batches:
            raise ArgumentError(
                f"{type(self.callback).__name__} sets `trainer.accumulate_grad_batches = {value}`. Set "
                "`gradient_accumulation_steps` or `gradient_accumulation_schedule` in TrainingArguments."
            )
        elif name not in self.__dict__:
            raise ArgumentError(
                f"A callback of Lightning, {type(self.callback).__name__}, sets `trainer.{name}`, which has no effect "
                "here. Write it as a callback of trainbus: docs/plugins/migrating.md."
            )
        else:
            self.__dict__[name] = value

    # What the run has.

    @property
    def should_stop(self) -> bool:
        """Whether the training will stop."""
        return self._stops or self._run.control.should_training_stop

    @property
    def global_step(self) -> int:
        """The number of optimizer steps done."""
        return self._run.state.global_step

    @property
    def max_epochs(self) -> int:
        """The number of planned epochs."""
        return self._run.state.num_train_epochs

    @property
    def max_steps(self) -> int:
        """The number of planned optimizer steps."""
        return self._run.state.max_steps

    @property
    def model(self) -> Any:
        """The module that the hooks of the Lightning callback receive."""
        return self.lightning_module

    @property
    def train_dataloader(self) -> Any:
        """The loader of the training batches."""
        return self._run.train_dataloader

    @property
    def num_training_batches(self) -> int:
        """The number of batches of an epoch; 0 outside of training."""
        return self._run.plan.batches_per_epoch if self._run.plan is not None else 0

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self._run.ranks.world_size

    @property
    def global_rank(self) -> int:
        """The rank of this process."""
        return self._run.ranks.rank

    @property
    def is_global_zero(self) -> bool:
        """Whether this process has rank 0."""
        return self._run.ranks.rank == 0

    @property
    def default_root_dir(self) -> str:
        """The output folder."""
        return str(self._run.args.output_dir)

    @property
    def log_every_n_steps(self) -> int:
        """The number of steps from one log to the next."""
        return max(1, int(self._run.state.logging_steps))

    @property
    def loggers(self) -> list[Any]:
        """A list with the only logger: this view. The next log of the run contains the values sent to the view."""
        return [self]

    @property
    def logger(self) -> Any:
        """The logger that callbacks of Lightning use: this view."""
        return self

    @property
    def _logger_connector(self) -> Any:
        return SimpleNamespace(should_update_logs=(self.global_step + 1) % self.log_every_n_steps == 0)

    @property
    def fit_loop(self) -> Any:
        """The counters of the training loop that callbacks read."""
        return FitLoop(self.max_epochs, self.global_step)

    # What the adapter calls.

    def request_stop(self) -> None:
        """If the callback of Lightning has set `trainer.should_stop = True`, request a stop.

        `Lightning` calls this method after each hook, because some callbacks first set `should_stop` and then their
        attribute `stopping_reason_message`.
        """
        if self._stops:
            reason = getattr(self.callback, "stopping_reason_message", None) or "trainer.should_stop = True"
            self.__dict__["_stops"] = False
            self._run.control.request("training_stop", str(reason))

    def attach_optimizer(self) -> None:
        """Store the optimizer of the run in the list `optimizers`, and the schedule in the list `lr_scheduler_configs`.

        Without a schedule, or if `lr_scheduler_type` is `constant`, the list `lr_scheduler_configs` is empty.
        """
        schedule: Any = self._run.lr_scheduler
        self.optimizers = [self._run.optimizer]
        moves = schedule is not None and self._run.args.lr_scheduler_type != "constant"
        self.lr_scheduler_configs = [LRSchedulerConfig(schedule, interval="step")] if moves else []
        self._own_schedule = schedule if moves else None

    @property
    def schedule_changed(self) -> bool:
        """Whether the callback of Lightning replaced the schedule of the run since the last read of this property."""
        configs = self.lr_scheduler_configs
        changed = bool(configs) and configs[0].scheduler is not self._own_schedule
        if changed:
            self._own_schedule = configs[0].scheduler
        return changed

    def step_schedules(self) -> None:
        """Step each schedule that the callback created with the interval `epoch`. Call this at the end of an epoch."""
        for config in self.lr_scheduler_configs:
            if config.interval == "epoch":
                schedule: Any = config.scheduler
                with warnings.catch_warnings():
                    # A run that resumes at the end of an epoch ends it before its own first step.
                    warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
                    schedule.step()

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Add values to the next log of the run. `step` has no effect."""
        for name, value in metrics.items():
            self._logged[name] = value.item() if hasattr(value, "item") else value

    def take_logged(self) -> dict[str, Any]:
        """Return the values that the Lightning callback logged since the last call, and remove them from the view."""
        logged, self.__dict__["_logged"] = self._logged, {}
        return logged

    def note(self, values: dict[str, Any]) -> None:
        """Add the numbers in `values` to `callback_metrics`, which callbacks of Lightning read.

        Add a number such as `eval_loss` under two names: `eval_loss` and `val_loss`.
        """
        for name, value in values.items():
            if isinstance(value, (int, float)):
                shown = torch.tensor(value, dtype=torch.float32)
                self.callback_metrics[name] = shown
                if name.startswith("eval_"):
                    self.callback_metrics[name.replace("eval_", "val_", 1)] = shown

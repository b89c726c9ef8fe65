"""A grammar of small training programs. A seed draws one program, which both trainers can run.

The grammar draws no program in which a row of docs/differences/ changes the steps. The comment where it avoids one
has the first words of the row. The other rows are in `parity_random.ROWS`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from parity_tasks import FORMS, TASKS
from torch import nn

from support.parity_data import everything, summed_loss


class Request(NamedTuple):
    """A callback that raises a flag in an event of a step."""

    event: str
    step: int
    flag: str


@dataclass
class Program:
    """A training program that both trainers run."""

    seed: int
    """What draws it."""
    task: str = ""
    """The name of its task."""
    form: str = "list"
    """The form of its datasets."""
    train_rows: int = 8
    eval_rows: int = 5
    args: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of `TrainingArguments`."""
    model: Callable[[], nn.Module] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments of `Trainer`."""
    requests: list[Request] = field(default_factory=list)
    patience: int | None = None
    """The patience of `EarlyStoppingCallback`; None without one."""
    recorder_first: bool = True
    """Whether the callback that records the calls is the first or the last."""
    resumed_at: int | None = None
    """The step at which the first session is killed, after its checkpoint. A second one resumes."""

    @property
    def batches(self) -> int:
        """Return the batches of an epoch."""
        size = self.args["per_device_train_batch_size"]
        return self.train_rows // size if self.args.get("dataloader_drop_last") else math.ceil(self.train_rows / size)

    @property
    def epoch(self) -> int:
        """Return the steps of an epoch."""
        return math.ceil(self.batches / self.args.get("gradient_accumulation_steps", 1))

    @property
    def steps(self) -> int:
        """Return the planned steps."""
        if self.args.get("max_steps", -1) > 0:
            return int(self.args["max_steps"])
        return math.ceil(self.args["num_train_epochs"] * self.epoch)

    def data(self, rows: int, seed: int) -> Any:
        """Return a dataset of the program."""
        return FORMS[self.form](TASKS[self.task].rows(rows, seed))


def program(seed: int) -> Program:
    """Draw the program of a seed."""
    draw = random.Random(seed)
    made = Program(seed, task=draw.choice(list(TASKS)))
    for rule in (_data, _length, _optimizer, _loss, _intervals, _best, _evaluation, _callbacks, _resume):
        rule(made, draw)
    return made


def _maybe(draw: random.Random, chance: float = 0.3) -> bool:
    return draw.random() < chance


def _data(made: Program, draw: random.Random) -> None:
    task, args = TASKS[made.task], made.args
    made.model = task.model(draw)
    if task.collator is not None:
        made.options["data_collator"] = task.collator
    forms = ["list", "dataset", "table", "stream", "sized stream", *(["objects"] if "plain" in task.tags else [])]
    made.form = draw.choice(forms)
    made.train_rows, made.eval_rows = draw.randint(5, 14), draw.randint(4, 9)
    args["per_device_train_batch_size"] = draw.randint(2, 4)
    args["per_device_eval_batch_size"] = draw.randint(2, min(5, made.eval_rows - 1))
    args["seed"] = draw.randint(0, 99)
    if _maybe(draw):
        args["data_seed"] = draw.randint(0, 99)
    streamed = "stream" in made.form
    if not streamed:  # row: `dataloader_drop_last` with a stream
        args["dataloader_drop_last"] = _maybe(draw)
        strategies = [
            "random",
            "random",
            "sequential",
            *(["group_by_length"] if "words" in task.tags and made.form != "objects" else []),
        ]
        args["train_sampling_strategy"] = draw.choice(strategies)
    if "words" in task.tags and _maybe(draw, 0.2):
        args["include_num_input_tokens_seen"] = draw.choice(("all", "non_padding"))


def _length(made: Program, draw: random.Random) -> None:
    args = made.args
    batches = made.batches
    accumulations = range(1, 5)
    if made.form == "stream":  # row: End of a stream
        accumulations = [size for size in accumulations if batches % size == 0]
    args["gradient_accumulation_steps"] = draw.choice([1, 1, *accumulations])
    if made.form == "stream" or _maybe(draw, 0.4):
        args["max_steps"] = draw.randint(1, 8)
    else:
        args["num_train_epochs"] = draw.choice((1, 1.5, 2, 2.4, 3))
        if made.steps > 9:
            args["num_train_epochs"] = draw.choice((0.5, 1))


OPTIMIZERS = ("adamw_torch_fused", "adamw_torch", "sgd", "adafactor", "adagrad", "rmsprop")
SCHEDULES = (
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
)


def _optimizer(made: Program, draw: random.Random) -> None:
    args = made.args
    args["optim"] = draw.choice(OPTIMIZERS)
    args["learning_rate"] = draw.choice((1e-3, 1e-2, 0.1 if args["optim"] == "sgd" else 3e-3))
    if args["optim"] == "sgd" and _maybe(draw):
        args["optim_args"] = "momentum=0.9"
    if _maybe(draw):
        args["weight_decay"] = draw.choice((0.01, 0.3))
    if _maybe(draw):
        args["max_grad_norm"] = draw.choice((0.0, 0.05, 0.5))
    args["lr_scheduler_type"] = draw.choice(SCHEDULES)
    if _maybe(draw):
        # row: `polynomial` with a warmup as long as the run
        args["warmup_steps"] = draw.choice((0.2, 0.5, 1)) if made.steps > 1 else 0


def _loss(made: Program, draw: random.Random) -> None:
    tags, args = TASKS[made.task].tags, made.args
    if "smooth" in tags and _maybe(draw, 0.2):
        args["label_smoothing_factor"] = draw.choice((0.1, 0.4))
    elif made.task == "bert" and _maybe(draw, 0.2):
        made.options["compute_loss_func"] = summed_loss
    if _maybe(draw, 0.2):
        args["bf16"] = True
    if "hf" in tags:
        if made.task != "t5" and _maybe(draw, 0.2):
            args["neftune_noise_alpha"] = draw.choice((1.0, 5.0))
        if _maybe(draw, 0.15):
            args["gradient_checkpointing"] = True


def _interval(draw: random.Random) -> float:
    return draw.choice((1, 2, 2, 3, 4, 0.25, 0.5))


def _intervals(made: Program, draw: random.Random) -> None:
    args = made.args
    for name, choices in (
        ("logging", "steps steps epoch no"),
        ("eval", "steps epoch no"),
        ("save", "no no no steps epoch"),
    ):
        args[f"{name}_strategy"] = strategy = draw.choice(choices.split())
        if strategy == "steps":
            args[f"{name}_steps"] = _interval(draw)
    args["logging_first_step"] = _maybe(draw, 0.2)
    if args["eval_strategy"] != "no":
        if _maybe(draw, 0.2):
            args["eval_delay"] = draw.choice((1, 2, 3))
        args["eval_on_start"] = _maybe(draw, 0.2)
        if _maybe(draw, 0.15):
            args["lr_scheduler_type"] = "reduce_lr_on_plateau"
            args["lr_scheduler_kwargs"] = {"patience": 0, "factor": 0.5}
            args["metric_for_best_model"] = "loss"
            args.pop("eval_delay", None)  # a schedule by a metric needs it before a checkpoint
            args.pop("warmup_steps", None)
    if args["save_strategy"] != "no":
        if _maybe(draw):
            args["save_total_limit"] = draw.choice((1, 2))
        args["save_only_model"] = _maybe(draw, 0.2)


def _best(made: Program, draw: random.Random) -> None:
    args = made.args
    if args["eval_strategy"] == "no" or not _maybe(draw, 0.4):
        return
    args["metric_for_best_model"] = "loss"
    if _maybe(draw, 0.2):
        args["greater_is_better"] = True
    kind = draw.choice(("load", "track", "save best"))
    if kind == "save best":
        args["save_strategy"] = "best"
        args.pop("save_steps", None)
    if kind == "load":
        # row: Intervals for `load_best_model_at_end`
        args["load_best_model_at_end"] = True
        args["save_strategy"] = args["eval_strategy"]
        args["save_only_model"] = False
        if args["eval_strategy"] == "steps":
            args["save_steps"] = args["eval_steps"]
        args.pop("eval_delay", None)


def _evaluation(made: Program, draw: random.Random) -> None:
    args = made.args
    if made.form in ("list", "table") and _maybe(draw, 0.15):
        made.options["eval_dataset"] = "two"
        args["metric_for_best_model"] = "b_loss" if args.get("metric_for_best_model") else None
        if args["metric_for_best_model"] is None:
            del args["metric_for_best_model"]
    if args.get("lr_scheduler_type") != "reduce_lr_on_plateau" and _maybe(draw, 0.15):
        args["prediction_loss_only"] = True
    else:
        if _maybe(draw, 0.5):
            made.options["compute_metrics"] = everything
            if _maybe(draw):
                args["include_for_metrics"] = draw.choice((["inputs"], ["loss"], ["inputs", "loss"]))
        if _maybe(draw, 0.2):
            args["eval_accumulation_steps"] = draw.choice((1, 2))


FLAGS = ("should_log", "should_evaluate", "should_save", "should_training_stop", "should_epoch_stop")


def _callbacks(made: Program, draw: random.Random) -> None:
    args = made.args
    by_epoch = "epoch" in (args["logging_strategy"], args["eval_strategy"], args["save_strategy"])
    made.recorder_first = _maybe(draw, 0.5)
    if _maybe(draw, 0.4):
        for _ in range(draw.randint(1, 2)):
            event = draw.choice(("on_step_end", "on_step_end", "on_epoch_end", "on_step_begin"))
            flag = draw.choice(FLAGS)
            if "stop" in flag and (by_epoch or event != "on_step_end"):  # row: Stop inside an epoch
                flag = draw.choice(FLAGS[:3])
            if args["save_strategy"] == "best" and flag == "should_save":  # row: Lower a flag
                flag = "should_evaluate"
            # row: Intervals for `load_best_model_at_end`
            if args.get("load_best_model_at_end") and flag == "should_evaluate":
                flag = "should_log"
            made.requests.append(Request(event, draw.randint(1, made.steps), flag))
    # rows: Stop inside an epoch; Improvement for `EarlyStoppingCallback` (its threshold is 0)
    by_steps = args["eval_strategy"] == "steps" and not by_epoch
    by_epochs = args["eval_strategy"] == "epoch"
    if args.get("load_best_model_at_end") and (by_steps or by_epochs) and _maybe(draw, 0.6):
        made.patience = draw.choice((1, 1, 2))


def _resume(made: Program, draw: random.Random) -> None:
    args = made.args
    possible = (
        made.steps > 1
        and not made.requests
        and made.patience is None
        and not args.get("eval_on_start")  # row: `eval_on_start`
        and args.get("train_sampling_strategy") != "group_by_length"  # row: Exact resume
        and not args.get("save_only_model")
        and args["save_strategy"] != "best"  # row: Lower a flag
    )
    if not possible or not _maybe(draw, 0.5):
        return
    # row: Position in the data. A stream of unknown length is resumed in its first pass.
    last = min(made.steps, made.epoch) - 1 if made.form == "stream" else made.steps - 1
    if last > 0:
        made.resumed_at = draw.randint(1, last)

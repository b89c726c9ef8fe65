"""The arguments for logs and trackers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

from ...events.errors import nearest
from ._base import Group, IntervalStrategy, Strategy, arg, must, steps_or_share
from ._names import TRACKER_ALIASES, TRACKER_PACKAGES


class DebugOption(Strategy):
    """Values of `debug`."""

    UNDERFLOW_OVERFLOW = "underflow_overflow"
    """Name the first layer whose values are not finite."""
    RANK_DIVERGENCE = "rank_divergence"
    """Name a callback that raises a flag on some ranks only."""
    CALLBACKS = "callbacks"
    """Name a handler that breaks a rule of `WatchCallbacks`, for example because it changes weights in an evaluation.
    """


OBSERVED = tuple(option.value for option in DebugOption)
"""Values of `debug`, as strings."""


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class ReportingArguments(Group):
    """When training values are logged, and which trackers receive them."""

    logging_strategy: IntervalStrategy | str = arg(
        IntervalStrategy.STEPS,
        "When to log training values: 'no' (never), 'steps' (every `logging_steps`) or 'epoch' (after each epoch).",
        choices=IntervalStrategy,
    )
    logging_steps: float = arg(
        500,
        "Number of steps between two logs, for `logging_strategy='steps'`. A value below 1 is a fraction of the run.",
    )
    logging_first_step: bool = arg(
        False, "Log at the first step, in addition to the steps that `logging_strategy` selects."
    )
    logging_nan_inf_filter: bool = arg(
        False,
        "Exclude NaN and infinite losses from the logged average. False: the average includes them. transformers has "
        "the default True.",
    )
    include_num_input_tokens_seen: str | bool = arg(
        "no",
        "Log the number of input tokens so far. 'no' or False: off. 'all' or True: count padding too. 'non_padding': "
        "count no padding. After construction, `args.include_num_input_tokens_seen` is 'no', 'all' or "
        "'non_padding'.",
        choices=("no", "all", "non_padding", True, False),
    )
    skip_memory_metrics: bool = arg(True, "Do not add memory usage to the metrics of training and evaluation.")
    debug: str | list[str] | None = arg(
        "",
        "Names of checks that cost time: one name, several names separated by spaces, or a list of names. '' means "
        "no checks. 'underflow_overflow' names the layer where values stop being finite. 'rank_divergence' names a "
        "callback that raises a flag on some ranks, but not on all ranks. 'callbacks' raises an error if a handler "
        "makes a forbidden change, such as a change of weights in an evaluation. The documentation of "
        "`WatchCallbacks` lists the forbidden changes. After construction, `args.debug` is a "
        "list.",
    )
    capsule: bool | str = arg(
        "auto",
        "Write each failing step to a folder, for `trainbus rerun`. True: always. False: never. 'auto': on a CPU, if "
        "the capsule costs little. 'auto' takes at most 1 % of the time, and writes no capsule above 1 GB.",
        choices=("auto", True, False),
    )
    disable_tqdm: bool | None = arg(
        None,
        "Print lines instead of progress bars, and do not print the summary at the start and the end of a run. None "
        "draws bars in a terminal or a notebook, and prints lines everywhere else.",
    )
    record: bool = arg(
        False,
        "Record every event, flag and value of the run in `events.jsonl` in `output_dir`. `trainbus diff`, "
        "`trainbus trace` and `trainbus replay` read the file.",
    )
    stall_after: float | None = arg(
        600.0,
        "Seconds without progress after which a warning shows what the training waits for. None: no warning. The "
        "warning contains the stack of the training thread.",
    )
    dry_batch: bool | str = arg(
        "auto",
        "Check the training before its first step. 'auto' checks that the optimizer has all trainable parameters, and "
        "that evaluations measure the metrics that callbacks read. 'auto' reads no sample and calls none of your code. "
        "True also runs forward and backward of the largest batch, and prints memory, loss, labels and padding. False "
        "turns the check off.",
        choices=("auto", True, False),
    )
    plan: str | None = arg(
        None,
        "File of a preview to compare the run with. The command `trainbus preview --out` writes this file. The run "
        "logs one warning at the first difference.",
        path=True,
    )
    report_to: str | list[str] | None = arg(
        None,
        "Trackers that receive the logs: one name, a list of names, 'all' or 'none'. 'all': every tracker whose "
        "package is installed. The name of an installed plugin also works. None means 'tensorboard' if `logging_dir` "
        "is set and TensorBoard is installed. Otherwise, None means 'none'. After construction, `args.report_to` is a "
        "list.",
    )
    run_name: str | None = arg(None, "Name of the run in trackers. None: the tracker chooses it.")
    project: str | None = arg(
        None,
        "Name of the project in trackers. None: the tracker chooses the project, for example from an environment "
        "variable.",
    )
    trackio_space_id: str | None = arg(
        None,
        "Hub Space that receives the run of Trackio, as 'name' or 'owner/name'. None: the run stays on this machine.",
    )
    trackio_bucket_id: str | None = arg(None, "Hub bucket with the data of Trackio's Space. None: Trackio creates one.")
    trackio_static_space_id: str | bool | None = arg(
        None,
        "Hub Space that receives a snapshot of Trackio's Space after training. None: Trackio chooses the name. "
        "False: no snapshot.",
    )
    logging_dir: str | None = arg(
        None,
        "Folder for TensorBoard's event files. None: the environment variable `TENSORBOARD_LOGGING_DIR`, else `runs` "
        "in `output_dir`.",
        path=True,
    )

    @property
    def trackers(self) -> list[str]:
        """`report_to` as a list: empty for 'none'; for 'all', the trackers whose package is installed."""
        names = [self.report_to] if isinstance(self.report_to, str) else [*(self.report_to or [])]
        if names == ["all"]:
            return [name for name, package in TRACKER_PACKAGES.items() if package and find_spec(package)]
        return [TRACKER_ALIASES.get(name, name) for name in names if name != "none"]

    @property
    def observed(self) -> list[str]:
        """The names of the checks in `debug`, such as `['callbacks']`; an empty list for no checks."""
        return (
            self.debug.split()
            if isinstance(self.debug, str)
            else [getattr(option, "value", option) for option in self.debug or []]
        )

    @property
    def tokens_counted(self) -> str:
        """The input tokens that the run counts: 'no', 'all' or 'non_padding', from `include_num_input_tokens_seen`."""
        value = self.include_num_input_tokens_seen
        return value if isinstance(value, str) else "all" if value else "no"

    def problems(self) -> Iterator[str]:
        yield from must(
            self,
            steps_or_share,
            "set it to a whole number of steps, or to a fraction of the run in (0, 1).",
            "logging_steps",
        )
        if self.stall_after is not None and not self.stall_after > 0:
            yield f"`stall_after` is {self.stall_after}; set a number of seconds above 0, or None for no warning."
        for name in self.observed:
            if name not in OBSERVED:
                yield f"`debug` is {self.debug!r}{nearest(name, OBSERVED)} Known: {', '.join(OBSERVED)}."
        if self.logging_strategy == IntervalStrategy.STEPS and self.logging_steps == 0:
            yield "`logging_steps` is 0; set it to 1 or more, or turn logs off with `logging_strategy='no'`."

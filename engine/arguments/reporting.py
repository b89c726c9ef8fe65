"""When training values are logged, and who hears of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...events.errors import nearest
from ._base import Group, IntervalStrategy, arg, must, steps_or_share

OBSERVED = ("underflow_overflow", "rank_divergence")
"""What `debug` takes."""


@dataclass(kw_only=True)
class ReportingArguments(Group):
    """When training values are logged, and who hears of them."""

    logging_strategy: IntervalStrategy | str = arg(
        IntervalStrategy.STEPS, "When training values are logged.", choices=IntervalStrategy
    )
    logging_steps: float = arg(500, "Steps between two logs; below 1, a share of the run.")
    logging_first_step: bool = arg(False, "Whether the first step is logged too.")
    logging_nan_inf_filter: bool = arg(
        False, "Whether a NaN or infinite loss is left out of the logged average. Off here, so that it is seen."
    )
    include_num_input_tokens_seen: str | bool = arg(
        "no",
        "Whether logs count the input tokens so far: 'all' (or true), 'non_padding', or 'no' (or false).",
        choices=("no", "all", "non_padding", True, False),
    )
    skip_memory_metrics: bool = arg(
        True, "Whether the metrics of training and evaluation leave out how much memory it took."
    )
    debug: str | list[str] = arg(
        "",
        "What to look out for at some cost: 'underflow_overflow' names the layer where numbers stop being finite, "
        "'rank_divergence' the callback that asks for something on some processes only.",
    )
    disable_tqdm: bool | None = arg(
        None, "Whether to print lines instead of progress bars; None goes by the level of the log."
    )
    report_to: str | list[str] | None = arg(
        "none", "Trackers to report to, by name: one, several, 'all' that are installed, or 'none'."
    )
    run_name: str | None = arg(None, "What trackers call this run.")
    project: str | None = arg(None, "What trackers call the project that the run belongs to; None leaves it to them.")
    trackio_space_id: str | None = arg(
        None, "Space of the hub that Trackio reports to, as 'name' or 'owner/name'; None keeps the run on this machine."
    )
    trackio_bucket_id: str | None = arg(
        None, "Bucket of the hub that keeps the data of Trackio's Space; None has Trackio make one."
    )
    trackio_static_space_id: str | bool | None = arg(
        None,
        "Space that gets a snapshot of Trackio's Space after training: its name, None for one that Trackio names, or "
        "False for no snapshot.",
    )
    logging_dir: str | None = arg(
        None, "Folder of TensorBoard's event files; None puts it under `output_dir`.", path=True
    )

    @property
    def trackers(self) -> list[str]:
        """`report_to` as a list: empty for none, `["all"]` for all."""
        names = [self.report_to] if isinstance(self.report_to, str) else [*(self.report_to or [])]
        return [name for name in names if name != "none"]

    @property
    def observed(self) -> list[str]:
        """`debug` as a list, empty for nothing."""
        return self.debug.split() if isinstance(self.debug, str) else [*self.debug]

    @property
    def tokens_counted(self) -> str:
        """`include_num_input_tokens_seen` as its name: 'no', 'all' or 'non_padding'."""
        wanted = self.include_num_input_tokens_seen
        return wanted if isinstance(wanted, str) else "all" if wanted else "no"

    def problems(self) -> Iterator[str]:
        yield from must(self, steps_or_share, "give whole steps, or a share of the run in (0, 1).", "logging_steps")
        for name in self.observed:
            if name not in OBSERVED:
                yield f"`debug` is {self.debug!r}{nearest(name, OBSERVED)} Known: {', '.join(OBSERVED)}."
        if self.logging_strategy == IntervalStrategy.STEPS and self.logging_steps == 0:
            yield "`logging_steps` is 0; give 1 or more, or turn logs off with `logging_strategy='no'`."

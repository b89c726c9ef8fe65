"""When training values are logged, and who hears of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ._base import Group, IntervalStrategy, arg, must, steps_or_share


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
    disable_tqdm: bool | None = arg(
        None, "Whether to print lines instead of progress bars; None goes by the level of the log."
    )
    report_to: str | list[str] | None = arg(
        "none", "Trackers to report to, by name: one, several, 'all' that are installed, or 'none'."
    )
    run_name: str | None = arg(None, "What trackers call this run.")
    logging_dir: str | None = arg(
        None, "Folder of TensorBoard's event files; None puts it under `output_dir`.", path=True
    )

    @property
    def trackers(self) -> list[str]:
        """`report_to` as a list: empty for none, `["all"]` for all."""
        names = [self.report_to] if isinstance(self.report_to, str) else [*(self.report_to or [])]
        return [name for name in names if name != "none"]

    def problems(self) -> Iterator[str]:
        yield from must(self, steps_or_share, "give whole steps, or a share of the run in (0, 1).", "logging_steps")
        if self.logging_strategy == IntervalStrategy.STEPS and self.logging_steps == 0:
            yield "`logging_steps` is 0; give 1 or more, or turn logs off with `logging_strategy='no'`."

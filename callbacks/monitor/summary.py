"""Print a summary of a training before its first step and after its last step."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten

from ...engine.api.console import say
from ...engine.api.costs.facts import Fact, block, facts_of
from ...engine.api.costs.read import read_costs
from ...engine.api.costs.verdict import duration
from ...engine.arguments import TrainingArguments
from ...engine.checkpoint.format import files
from ...engine.run import Run
from ...events.callback import Callback
from ...events.composition import best_metric_of
from ...events.ledger import Entry
from ...events.stages import Stage, order

PARTS = 5
"""The largest number of parts of the training time in the closing lines, the longest first."""
CHECKPOINTS = 4
"""The largest number of checkpoints in the closing lines. The closing lines name the newest checkpoints."""


@dataclass
class Summary(Callback):
    """Prints facts about the run when training begins, and results when training ends. Only rank 0 prints.

    The results include failures that did not end the run, such as a save that failed with `on_save_error="warn"`.

    Every trainer has a `Summary`. To print nothing, set `disable_tqdm=True`, or a log level above `warning`.
    """

    stage = Stage.REPORT
    on_error = "warn"

    silent: bool | None = None
    """Whether to print nothing. Default: True if `disable_tqdm` is True, or if the log level is above `warning`."""
    _resumed: str = field(default="", init=False, repr=False, compare=False)
    _loaded: int | None = field(default=None, init=False, repr=False, compare=False)
    _written: int = field(default=0, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Summary:
        return cls()

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            self._resumed, self._loaded = "", None

    def on_load(self, checkpoint: files.Checkpoint) -> None:
        self._resumed = str(checkpoint.path)

    def on_best_loaded(self, checkpoint: files.Checkpoint) -> None:
        self._loaded = checkpoint.step

    def on_train_begin(self, run: Run) -> None:
        if self._speaks(run):
            facts = list(facts_of(run))
            if self._resumed:
                facts.append(("resumed", f"{self._resumed}, at step {run.state.global_step:,}"))
            say(block("Training", facts))
        self._written = run.control.ledger.written

    @order(Stage.RELEASE)
    def on_train_end(self, run: Run) -> None:
        if self._speaks(run):
            say(block("", list(self._closing(run))))

    def _speaks(self, run: Run) -> bool:
        args, silent = run.args, self.silent
        if silent is None:
            silent = bool(args.disable_tqdm) or args.get_process_log_level() > logging.WARNING
        return not silent and bool(run.state.is_world_process_zero)

    def _closing(self, run: Run) -> Iterator[Fact]:
        state, costs = run.state, read_costs(run, run.bus.timeline.ranks)
        if state.best_metric is not None:
            loaded = "" if self._loaded is None else f", loaded from step {self._loaded}"
            yield "best", f"{_metric_name(run)}{state.best_metric:.6g} at step {state.best_global_step}{loaded}"
        yield "output", _output(run.args.output_path)
        yield from _failures(run.control.ledger.since(self._written))
        if not costs.steps:
            yield "steps", f"none in this session, {state.global_step:,} in the run{_how_to_train_more(run)}"
            return
        longest = sorted((part for part in costs.parts if part.seconds), key=lambda part: -part.seconds)[:PARTS]
        yield (
            "time",
            f"{duration(costs.seconds)} in this session: "
            + ", ".join(f"{each.part} {each.share:.0%}" for each in longest),
        )
        yield "callbacks", ", ".join(f"{name} {duration(seconds)}" for name, seconds in costs.dearest(3))
        tokens = f", {costs.tokens_per_second:,.0f} tokens a second" if costs.tokens_per_second else ""
        yield "speed", f"{costs.samples_per_second:,.0f} samples a second{tokens}"
        yield "verdict", str(costs.verdict)


def _how_to_train_more(run: Run) -> str:
    """Return how to train more if all planned steps are done; an empty text otherwise."""
    state = run.state
    if state.global_step < state.max_steps:
        return ""
    name = "max_steps" if run.args.max_steps > 0 else "num_train_epochs"
    return f". All {state.max_steps:,} planned steps were done before. To train more, raise `{name}`"


def _failures(entries: Iterable[Entry]) -> Iterator[Fact]:
    """Yield a line about failures that did not end the run: for each callback, their number and the last reason."""
    failed = [entry for entry in entries if (entry.flag, entry.action) == ("callback", "fail")]
    last = {entry.author: entry for entry in failed}
    for author, entry in last.items():
        number = sum(each.author == author for each in failed)
        times = "" if number == 1 else f" {number:,} times, the last"
        yield "failed", f"{author}{times} at step {entry.step:,}: {shorten(entry.reason, 160, placeholder='...')}"


def _metric_name(run: Run) -> str:
    best = best_metric_of(run.bus.subscribers.values())
    return "" if best is None else f"{best.name} "


def _output(folder: Path) -> str:
    found = sorted(step for step in map(files.step_of, folder.glob("checkpoint-*")) if step is not None)
    if not found:
        return f"{folder}, no checkpoints"
    named = ", ".join(files.folder_name(step) for step in found[-CHECKPOINTS:])
    return f"{folder}: {'..., ' if len(found) > CHECKPOINTS else ''}{named}"

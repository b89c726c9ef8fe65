"""The result of a dry batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class DryBatchReport:
    """The values that a dry batch measured, and its findings. A value that is not known is None or empty."""

    checks: list[str] = field(default_factory=list)
    """The names of the checks that were made."""
    findings: list[str] = field(default_factory=list)
    """The problems that were found, one text each, with a remedy."""
    skipped: list[str] = field(default_factory=list)
    """The parts of the dry batch that did not run, one text each, with the reason."""
    rows: list[int] = field(default_factory=list)
    """The dataset indices of the samples of the batch."""
    chosen: str = ""
    """How the samples were chosen, such as "the longest ones, by the length of 'input_ids'"."""
    shapes: dict[str, str] = field(default_factory=dict)
    """The dtype and the shape of each tensor of the batch as text, by name."""
    loss: float | None = None
    """The loss of the batch."""
    grad_norm: float | None = None
    """The norm of the gradients of the batch, before clipping."""
    peak_bytes: int | None = None
    """The peak of allocated GPU memory in forward and backward, with weights and gradients, in bytes."""
    device_bytes: int | None = None
    """The total memory of the GPU, in bytes."""
    masked: float | None = None
    """The share of labels that are -100, which the loss ignores, from 0 to 1."""
    padding: float | None = None
    """The share of tokens of the batch that are padding, from 0 to 1."""
    padding_of_run: float | None = None
    """The share of padding in all batches of the run, estimated from the lengths of the samples."""
    truncated: float | None = None
    """The share of samples with `max_length` tokens or more. If the lengths of all samples are known, it is a share of
    all samples, otherwise of the batch."""
    max_length: int | None = None
    """The maximum length of the tokenizer or of the model, whichever is smaller."""
    seconds: float = 0.0
    """The duration of the dry batch, in seconds."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return dataclasses.asdict(self)

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield the known values as pairs of a name and a text."""
        if self.rows:
            yield "samples", f"{len(self.rows)}: {self.chosen}"
        for name, text in self.shapes.items():
            yield name, text
        if self.masked is not None:
            yield "labels", f"{self.masked:.1%} are -100, which the loss ignores"
        if self.padding is not None:
            of_run = "" if self.padding_of_run is None else f", about {self.padding_of_run:.1%} in the run"
            yield "padding", f"{self.padding:.1%} of this batch{of_run}"
        if self.truncated is not None:
            yield "truncation", f"{self.truncated:.1%} of the samples have the maximum length of {self.max_length:,}"
        if self.loss is not None:
            norm = "" if self.grad_norm is None else f", gradient norm {self.grad_norm:.4g}"
            yield "loss", f"{self.loss:.4g}{norm}"
        if self.peak_bytes is not None:
            whole = "" if self.device_bytes is None else f" of {self.device_bytes / 2**30:.1f} GiB"
            peak = f"{self.peak_bytes / 2**30:.2f}"
            yield "memory", f"peak {peak}{whole}, with weights and gradients, without optimizer state"
        yield "checked", ", ".join(self.checks) or "nothing"
        for text in self.skipped:
            yield "skipped", text
        yield "time", f"{self.seconds:.3g} s" if self.seconds >= 1 else f"{1000 * self.seconds:.2g} ms"

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.facts())
        lines = [f"  {name.ljust(width)}  {text}" for name, text in self.facts()]
        return "\n".join(["Dry batch", *lines, *(f"  warning: {text}" for text in self.findings)])

"""TrainerState: the facts of a run that a checkpoint holds."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class TrainerState:
    """How far the run is. Written by the engine; callbacks read it.

    Every attribute of transformers' class of this name is here under the same name. A step is an optimizer step: with
    gradient accumulation over n batches, one step takes n batches.
    """

    epoch: float = 0.0
    """Epochs done, the fraction being the share of the current one."""
    global_step: int = 0
    """Optimizer steps done."""
    max_steps: int = 0
    """Optimizer steps planned for the whole run."""
    logging_steps: float = 500
    """Steps between logs, a share of the run already turned into steps."""
    eval_steps: float = 500
    """Steps between evaluations, likewise."""
    save_steps: float = 500
    """Steps between checkpoints, likewise."""
    train_batch_size: int | None = None
    """Rows per batch of one process."""
    num_train_epochs: int = 0
    """Epochs planned, the last one perhaps in part."""
    num_input_tokens_seen: int = 0
    """Tokens trained on, where they are counted."""
    total_flos: float = 0.0
    """Floating-point operations of all forward and backward passes, where the model can estimate them."""
    log_history: list[dict[str, Any]] = field(default_factory=list)
    """Everything that was logged, in order, each with its `step`."""
    best_metric: float | None = None
    """The best value so far of the metric that chooses the best model."""
    best_global_step: int | None = None
    """The step at which it was reached."""
    best_model_checkpoint: str | None = None
    """The folder of the checkpoint that holds it."""
    is_local_process_zero: bool = True
    """Whether this is the first process of its machine."""
    is_world_process_zero: bool = True
    """Whether this is the first process of all."""
    is_hyper_param_search: bool = False
    """Whether this run is a trial of a search."""
    trial_name: str | None = None
    """The trial's name, in a search."""
    trial_params: dict[str, Any] | None = None
    """The trial's parameters, in a search."""
    stateful_callbacks: dict[str, Any] = field(default_factory=dict)
    """The state of each callback that has one, by its id."""
    samples_seen: int = 0
    """Rows trained on, over all processes."""
    steps_skipped: int = 0
    """Steps counted in `global_step` whose update was skipped."""
    seconds: float = 0.0
    """Wall-clock time spent training, earlier sessions of a resumed run included."""

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes as plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainerState:
        """Build a state from saved values, of `to_dict` or `to_file`; keys that are not known here are left out."""
        values = flattened(values)
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{key: value for key, value in values.items() if key in known and value is not None})

    def to_file(self, **further: Any) -> dict[str, Any]:
        """Return all attributes as a file holds them that transformers reads: with those it does not know apart.

        Args:
            **further: values that are no attributes and stand beside those; `flattened` gives them back.
        """
        values = self.to_dict()
        own = {name: values.pop(name) for name in _OWN}
        values["stateful_callbacks"] = {**values["stateful_callbacks"], _APART: {**own, **further}}
        return values

    def save_to_json(self, json_path: str | Path) -> None:
        """Write the state as JSON, keys sorted, that transformers' class of this name reads too."""
        Path(json_path).write_text(json.dumps(self.to_file(), indent=2, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def load_from_json(cls, json_path: str | Path) -> TrainerState:
        """Read a state written by `save_to_json`, here or by transformers."""
        return cls.from_dict(json.loads(Path(json_path).read_text(encoding="utf-8")))


_OWN = ("samples_seen", "steps_skipped", "seconds")
"""The attributes that transformers' class does not have: it refuses a file that names them beside its own."""

_APART = "trainbus"
"""Where they are in a file: among the states of callbacks, which may have any name."""


def flattened(values: dict[str, Any]) -> dict[str, Any]:
    """Return what a file holds of a state, with all that `TrainerState.to_file` put apart at its top."""
    states = values.get("stateful_callbacks")
    own = states.get(_APART) if isinstance(states, dict) else None
    if not isinstance(states, dict) or not isinstance(own, dict):
        return values
    return {**values, **own, "stateful_callbacks": {name: states[name] for name in states if name != _APART}}

"""TrainerState: the progress of a run, as checkpoints save it."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class TrainerState:
    """The progress of a run. The engine writes the state, and callbacks read it.

    It has every attribute of transformers' `TrainerState`. A step is an optimizer step: with gradient accumulation over
    n batches, one step takes n batches.
    """

    epoch: float = 0.0
    """Epochs done, including the fraction of the current epoch."""
    global_step: int = 0
    """Optimizer steps done."""
    max_steps: int = 0
    """Optimizer steps planned for the whole run."""
    logging_steps: float = 500
    """Steps between logs, also if the argument `logging_steps` is a fraction of the run."""
    eval_steps: float = 500
    """Steps between evaluations, also if the argument `eval_steps` is a fraction of the run."""
    save_steps: float = 500
    """Steps between checkpoints, also if the argument `save_steps` is a fraction of the run."""
    train_batch_size: int | None = None
    """Samples per batch on one rank."""
    num_train_epochs: int = 0
    """Epochs planned, rounded up."""
    num_input_tokens_seen: int = 0
    """Tokens trained on. 0 if the run does not count tokens (argument `include_num_input_tokens_seen`)."""
    total_flos: float = 0.0
    """Floating-point operations of all forward and backward passes; 0 if the model cannot estimate them."""
    log_history: list[dict[str, Any]] = field(default_factory=list)
    """All logged values in order, each entry with its `step`."""
    best_metric: float | None = None
    """The best value so far of the metric that selects the best model."""
    best_global_step: int | None = None
    """The step of `best_metric`."""
    best_model_checkpoint: str | None = None
    """The checkpoint folder of the best model."""
    is_local_process_zero: bool = True
    """Whether this process has local rank 0."""
    is_world_process_zero: bool = True
    """Whether this process has rank 0."""
    is_hyper_param_search: bool = False
    """Whether this run is a trial of a hyperparameter search."""
    trial_name: str | None = None
    """The name of the trial, in a search."""
    trial_params: dict[str, Any] | None = None
    """The parameters of the trial, in a search."""
    stateful_callbacks: dict[str, Any] = field(default_factory=dict)
    """The states of the callbacks, by id."""
    samples_seen: int = 0
    """Samples trained on, over all ranks."""
    steps_skipped: int = 0
    """Steps in `global_step` whose update was skipped."""
    seconds = 0.0
    """Wall-clock seconds of training, including the earlier sessions of a resumed run. `seconds` is not a dataclass
    field, so a resumed run and an uninterrupted run can have equal states."""

    def __post_init__(self) -> None:
        """Convert the values None and list, which the `TrainerState` of transformers accepts too.

        For `log_history`, None becomes an empty list. For `stateful_callbacks`, None becomes an empty dict, and a list
        of callbacks becomes the result of `exported_states`.
        """
        logs: Any = self.log_history
        states: Any = self.stateful_callbacks
        self.log_history = [] if logs is None else logs
        self.stateful_callbacks = states if isinstance(states, dict) else exported_states(states or ())

    def misspelt(self) -> dict[str, str]:
        """Return the attributes that are not fields, but have almost the name of a field: name -> name of the field.

        Other attributes are not returned, because programs for transformers store their own values in the state.
        """
        known = type(self).__dataclass_fields__
        added = [name for name in vars(self) if name not in known and not hasattr(type(self), name)]
        nearest = {name: difflib.get_close_matches(name, known, n=1, cutoff=0.85) for name in added}
        return {name: found[0] for name, found in nearest.items() if found}

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes as plain values."""
        return {**dataclasses.asdict(self), "seconds": self.seconds}

    def compute_steps(self, args: Any, max_steps: int) -> None:
        """Set the intervals of logs, evaluations and saves from the arguments, in steps.

        Args:
            args: an object with `logging_steps`, `eval_steps` and `save_steps`. A value below 1 is a fraction of
                `max_steps`.
            max_steps: the steps of the run.
        """
        for name in ("logging_steps", "eval_steps", "save_steps"):
            value = getattr(args, name)
            if value is not None:
                setattr(self, name, math.ceil(max_steps * value) if value < 1 else value)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainerState:
        """Build a state from the values of `to_dict` or `to_file`. Unknown keys are ignored."""
        values = flattened(values)
        known = {field.name for field in dataclasses.fields(cls)}
        state = cls(**{key: value for key, value in values.items() if key in known and value is not None})
        state.seconds = values.get("seconds") or 0.0
        return state

    def to_file(self, exported: Mapping[str, Any] | None = None, **further: Any) -> dict[str, Any]:
        """Return all attributes as a dict, in the format of a file that transformers can read.

        The method writes no file. Attributes that transformers does not know are in `stateful_callbacks["trainbus"]`.

        Args:
            exported: class name -> callback state, for transformers. transformers requires a state for each of its
                exportable callbacks. trainbus does not read these states.
            **further: other values to store in `stateful_callbacks["trainbus"]`. The function `flattened` moves them
                to the top level.
        """
        # A callback may set a number of numpy or torch. JSON cannot hold it.
        values = {name: value.item() if hasattr(value, "item") else value for name, value in self.to_dict().items()}
        own = {name: values.pop(name) for name in _OWN}
        values["stateful_callbacks"] = {**(exported or {}), **values["stateful_callbacks"], _APART: {**own, **further}}
        if exported:
            values["stateful_callbacks"][_APART]["exported"] = [*exported]
        return values

    def save_to_json(self, json_path: str | Path) -> None:
        """Write the state as JSON with sorted keys. The `TrainerState` of transformers can read the file."""
        Path(json_path).write_text(json.dumps(self.to_file(), indent=2, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def load_from_json(cls, json_path: str | Path) -> TrainerState:
        """Read a state that `TrainerState.save_to_json` of trainbus or of transformers wrote."""
        return cls.from_dict(json.loads(Path(json_path).read_text(encoding="utf-8")))


_OWN = ("samples_seen", "steps_skipped", "seconds")
"""The attributes that transformers' `TrainerState` does not have. transformers rejects a file with unknown keys."""

_APART = "trainbus"
"""The key in `stateful_callbacks` under which a file stores the attributes `_OWN`. transformers accepts any key in
`stateful_callbacks`."""


def flattened(values: dict[str, Any]) -> dict[str, Any]:
    """Undo the nesting of `TrainerState.to_file`: return the values of a file with all attributes at the top level."""
    states = values.get("stateful_callbacks")
    own = states.get(_APART) if isinstance(states, dict) else None
    if not isinstance(states, dict) or not isinstance(own, dict):
        return values
    own = dict(own)
    apart = {_APART, *own.pop("exported", ())}
    return {**values, **own, "stateful_callbacks": {name: states[name] for name in states if name not in apart}}


def exported_states(callbacks: Iterable[Any]) -> dict[str, Any]:
    """Return the states of callbacks in the format of transformers: class name -> state.

    If several callbacks have the same class, the value is a list of their states. Callbacks without the interface of
    transformers' `ExportableState` are left out.
    """
    found: dict[str, list[Any]] = {}
    for callback in callbacks:
        cls = type(callback)
        if hasattr(cls, "from_state") and callable(getattr(cls, "state", None)):
            found.setdefault(cls.__name__, []).append(_plain(callback.state()))
    return {name: states if len(states) > 1 else states[0] for name, states in found.items()}


def _plain(state: Any) -> Any:
    """Return a callback state if JSON can hold it; otherwise a state with empty `args` and `attributes`."""
    try:
        json.dumps(state)
    except (TypeError, ValueError):
        return {"args": {}, "attributes": {}}
    return state

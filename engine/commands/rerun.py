"""The command `trainbus rerun`: repeat the failed step of a capsule."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ...events.callback import Callback
from ...events.errors import ArgumentError
from ...events.stages import Stage, order
from .first_training import TRAINING_ONLY, Enough, at_first_training, only_observes, with_arguments
from .json_output import print_json, versioned
from .option_order import own_first

DIFFERENT = 1
"""The exit status if the step does not fail in the same way."""
SHOWN = 5
"""The largest number of parameters that `Found.gradients` lists."""


@dataclass
class Found:
    """The result of repeating the failed step of a capsule."""

    losses: list[float] = field(default_factory=list)
    """The loss of each batch, in the order of the batches."""
    grad_norm: float | None = None
    """The gradient norm; None if the step raised an error before the norm was computed."""
    error: dict[str, str] | None = None
    """The keys `type` and `message` of the error that the step raised; None if it raised none."""
    inputs: list[str] = field(default_factory=list)
    """The names of tensors in the batches that contain NaN or infinite values."""
    module: str = ""
    """The first module whose output contains NaN or infinite values; empty if there is none."""
    gradients: list[str] = field(default_factory=list)
    """The names of the first parameters with NaN or infinite values in the gradient, at most `SHOWN` names."""


class Repeat(Callback):
    """A callback that repeats the step of a capsule as the first step of a training, and then ends the training.

    The step uses the weights, the batches and the RNG states of the capsule.
    """

    on_error = "raise"

    def __init__(self, folder: Path, step: int) -> None:
        from ..checkpoint.format.codec import load_values
        from ..checkpoint.write.capsule_files import BATCHES

        self.folder, self.found, self.step, self.begun = folder, Found(), step, False
        self.hooks: list[Any] = []
        values = load_values(folder / BATCHES)
        self.batches, self.states = values["batches"], values["states"]

    @order(Stage.RELEASE)
    def on_train_begin(self, run: Any) -> None:
        import torch

        from ..checkpoint.read.saved import SavedCheckpoint

        with torch.no_grad():
            load(run.unwrapped_model, SavedCheckpoint.open(self.folder).weights())
        for name, module in run.unwrapped_model.named_modules():
            self.hooks.append(module.register_forward_hook(self._watch(name or type(module).__name__)))

    @order(Stage.PREPARE)
    def on_step_begin(self, state: Any) -> None:
        state.global_step = self.step - 1  # a model or a callback may read it

    @order(Stage.RELEASE)
    def on_batch(self, run: Any) -> None:
        from ..checkpoint.rng_state import restore_random_states
        from ..data.batches import to_device

        number, self.begun = run.step.batch_index, True
        run.batch = to_device(self.batches[number], run.device)
        self.found.inputs += [f"batch {number}: {name}" for name in _bad_in(self.batches[number], "batch")]
        restore_random_states(self.states[number])

    @order(Stage.PREPARE)
    def on_loss(self, loss: Any) -> None:
        self.found.losses.append(float(loss.detach().float().mean()))

    @order(Stage.PREPARE)
    def on_pre_optimizer_step(self, run: Any, grad_norm: Any) -> None:
        self.found.grad_norm = None if grad_norm is None else float(grad_norm)
        parameters = run.unwrapped_model.named_parameters()
        self.found.gradients = [
            name for name, each in parameters if each.grad is not None and not each.grad.isfinite().all()
        ][:SHOWN]
        raise Enough

    def on_exception(self, exception: BaseException) -> None:
        if self.begun and isinstance(exception, Exception):
            message = f"{type(exception).__name__}: {exception}"
            self.found.error = {"type": type(exception).__name__, "message": message}

    def on_close(self) -> None:
        for hook in self.hooks:
            hook.remove()

    def _watch(self, name: str) -> Any:
        def look(module: Any, given: Any, output: Any) -> None:
            if not self.found.module and _bad_in(output, "output"):
                self.found.module = f"{name} ({type(module).__name__})"

        return look


def load(model: Any, weights: Mapping[str, Any]) -> None:
    """Copy the weights of a capsule into a model.

    Args:
        model: the model of the program.
        weights: name -> tensor, for all parameters and buffers.

    Raises:
        ArgumentError: if names or shapes differ between `weights` and the model.
    """
    own = {name: value for name, value in model.state_dict().items() if hasattr(value, "shape")}
    own |= dict(model.named_buffers())  # a state dict leaves out some buffers
    different = [name for name in sorted(own.keys() | weights.keys()) if _shape(own, name) != _shape(weights, name)]
    if different:
        raise ArgumentError(f"The program builds another model than the capsule has. They differ in {different[:5]}.")
    for name, value in own.items():
        value.copy_(weights[name])


def _shape(tensors: Mapping[str, Any], name: str) -> Any:
    """Return the shape of the tensor with a name; None if there is no such tensor."""
    return tensors[name].shape if name in tensors else None


def _bad_in(data: Any, name: str) -> list[str]:
    """Return the names of the tensors in nested data that contain NaN or infinite numbers.

    `name` is the name of `data`. The name of a tensor is `name` and its keys in the data, such as `name['input_ids']`.
    """
    if hasattr(data, "isfinite"):
        return [] if not data.is_floating_point() or data.isfinite().all() else [name]
    if isinstance(data, Mapping):
        return [found for key, value in data.items() for found in _bad_in(value, f"{name}[{key!r}]")]
    if isinstance(data, (list, tuple)):
        return [found for key, value in enumerate(data) for found in _bad_in(value, f"{name}[{key}]")]
    return []


def expanded(words: list[str]) -> list[str]:
    """Return the words of a command line, with `--json` moved in front of the program.

    Other options after the program belong to the program.
    """
    return own_first(words, ("--json",))


def add_to(commands: Any) -> None:
    """Add the command `rerun` to the subcommands of `trainbus`."""
    parser = commands.add_parser(
        "rerun",
        help="repeat the failed step that a capsule holds",
        description="Run the program of a capsule up to its first training, and repeat the failed step there, with the "
        "batches, weights and random states of the capsule. The command evaluates, saves and reports nothing. The exit "
        "status is 0 if the step fails in the same way, and 1 if not. `--json` may also follow the program. Words "
        "after -- are always arguments of the program.",
        allow_abbrev=False,
    )
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, as in `python -m`")
    parser.add_argument("--transformers", action="store_true", help="the program is written for transformers")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("capsule", help="the folder of a capsule, such as outputs/capsules/step-37")
    parser.add_argument("program", nargs="?", help="a Python file to run instead of the program in the capsule")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the arguments of the program")
    parser.set_defaults(do=_rerun)


def _rerun(options: argparse.Namespace) -> int:
    folder = Path(options.capsule).resolve()
    described = read(folder)
    program, arguments, module = options.program, options.arguments, options.module
    if program is None:
        program, arguments, module = described["program"], described["arguments"], described["module"]
        if program is None:
            raise ArgumentError(
                f"{folder} was written by a notebook. Name a program: trainbus rerun CAPSULE program.py"
            )
        if Path(described["folder"]).is_dir():
            os.chdir(described["folder"])
    if not module and not Path(program).is_file():
        raise ArgumentError(f"There is no program {program!r}. Name one: trainbus rerun CAPSULE program.py ARGS")
    found = repeat(Repeat(folder, described["step"]), program, arguments, module, options.transformers)
    same = reproduced(described, found)
    if options.json:
        print_json(versioned({"reproduced": same, "capsule": described, "found": vars(found)}))
    else:
        print(text(described, found, same))
    return 0 if same else DIFFERENT


def read(folder: Path) -> dict[str, Any]:
    """Read the description of a capsule: a dict with the step, its losses, its error, the program and more.

    Raises:
        ArgumentError: if the folder has no capsule, or a capsule of another format.
    """
    from ...events.recording.files import number
    from ..checkpoint.write.capsule_files import DESCRIPTION, FORMAT

    try:
        values: dict[str, Any] = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{folder} holds no capsule: {error}. Name a folder in `capsules`.") from error
    if values.get("format") != FORMAT:
        raise ArgumentError(f"{folder} has format {values.get('format')}. This version of trainbus reads {FORMAT}.")
    values["losses"] = [number(loss) for loss in values.get("losses", [])]
    return {"error": None, "samples": None, **values, "grad_norm": number(values.get("grad_norm"))}


def repeat(step: Repeat, program: str, arguments: list[str], module: bool, of_transformers: bool = False) -> Found:
    """Run a program up to its first training, repeat the step of a capsule there, and return the result.

    Args:
        step: the callback that repeats the step.
        program: a Python file, or the name of a module.
        arguments: the arguments of the program.
        module: whether the program is a module.
        of_transformers: whether the program imports its Trainer from transformers.

    Raises:
        ArgumentError: if there is no such program, or if the program ends without a training.
    """
    accumulation = {"gradient_accumulation_steps": len(step.batches), "gradient_accumulation_schedule": None}

    def repeated(trainer: Any, train: Callable[[], Any], resume_from_checkpoint: Any) -> Found:
        trainer.bus.attach(step)
        trainer.get_train_dataloader = lambda: _loader(step.batches)
        try:
            train()
        except Enough:
            pass
        except Exception:
            if step.found.error is None:  # the error was raised before the step
                raise
        return step.found

    with tempfile.TemporaryDirectory() as output:
        off = {**TRAINING_ONLY, **accumulation, "debug": "", "output_dir": output}
        changed = partial(with_arguments, values=off, left_out=only_observes)
        return at_first_training(program, arguments, module, repeated, changed, of_transformers)


def _loader(batches: list[Any]) -> Any:
    """Return a loader that yields these batches unchanged."""
    from torch.utils.data import DataLoader

    return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]


def reproduced(described: dict[str, Any], found: Found) -> bool:
    """Return whether the repeated step failed in the same way as the step in the capsule.

    If the step in the capsule raised an error, the repeated step must raise an error of the same type. Otherwise the
    losses and the gradient norm of both steps must be exactly equal.

    Args:
        described: the description of the capsule, from `read`.
        found: the result of the repeated step.
    """
    if described.get("error") is not None:
        return found.error is not None and found.error["type"] == described["error"]["type"]
    former = [*described["losses"], described["grad_norm"]]
    return list(map(repr, former)) == list(map(repr, [*found.losses, found.grad_norm]))  # NaN equals NaN


def text(described: dict[str, Any], found: Found, same: bool) -> str:
    """Return the lines that `trainbus rerun` prints.

    Args:
        described: the description of the capsule, from `read`.
        found: the result of the repeated step.
        same: the result of `reproduced`.
    """
    lines = [f"step {described['step']}: {described['reason']}"]
    for number, indices in enumerate(described["samples"] or []):
        lines.append(f"  samples    batch {number}: {', '.join(map(str, indices))}")
    lines += [f"  input      {name} is not finite" for name in found.inputs]
    lines += [f"  loss       batch {number}: {loss}" for number, loss in enumerate(found.losses)]
    if found.error:
        lines.append(f"  error      {found.error['message']}")
    if found.grad_norm is not None:
        lines.append(f"  grad_norm  {found.grad_norm}")
    if found.module:
        lines.append(f"  module     {found.module} is the first with an output that is not finite")
    if found.gradients:
        lines.append(f"  gradients  not finite: {', '.join(found.gradients)}")
    if not same and described["world_size"] > 1:
        lines.append("The gradients of all ranks count in the norm. Rerun the capsules of the other ranks too.")
    lines.append("The step fails as before." if same else "The step does not fail as before.")
    return "\n".join(lines)

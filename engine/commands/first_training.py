"""Run a program up to its first `train()`, and run another function instead: a preview, a measurement or a rerun."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ...events.callback import Callback
from ...events.capabilities import Capability
from ...events.errors import ArgumentError
from ...events.imported import imported
from ..api.transformers_names import as_transformers
from .run import execute

if TYPE_CHECKING:  # they import torch, which other commands do not need
    from ..api.inputs import TrainerInputs
    from ..trainer import Trainer

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)

TRAINING_ONLY = {
    **{"save_strategy": "no", "logging_strategy": "no", "report_to": "none", "disable_tqdm": True, "record": False},
    **{"load_best_model_at_end": False, "push_to_hub": False, "plan": None, "max_time": None},
    **{"eval_on_start": False, "auto_find_batch_size": False, "dry_batch": False, "capsule": False},
}
"""Arguments with which a training writes and reports nothing. `with_arguments` also turns evaluations off."""
NEVER = {"eval_strategy": "steps", "eval_steps": 10**12}
"""Arguments with which no evaluation becomes due. With `eval_strategy="no"`, callbacks that need evaluations would
raise an error."""


MONITORS = f"{__name__.partition('.')[0]}.callbacks.monitor."
"""The beginning of the module names of the monitoring callbacks of trainbus."""


class Instead(Protocol[Result_co]):
    """A function that runs instead of the first `train()` of a program. `preview`, `profile` and `rerun` define one."""

    def __call__(self, trainer: Trainer, train: Callable[[], Any], resume_from_checkpoint: Any) -> Result_co:
        """Run in place of `train()`. The function `at_first_training` calls this function and returns its result.

        Args:
            trainer: the trainer on which the program calls `train()`.
            train: the original `train()` of this trainer.
            resume_from_checkpoint: the value that the program passes to `train()`.
        """


class Enough(BaseException):
    """The exception that ends a training early.

    The class is not a subclass of `Exception`, so that no callback and no program catches the exception.
    """


class _Left(BaseException):
    """The exception that ends the program at its first `train()`.

    The attribute `result` is the result of the function that ran instead of `train()`. The class is not a subclass of
    `Exception`, so that programs do not catch the exception.
    """

    def __init__(self, result: Any) -> None:
        self.result = result


def at_first_training(
    program: str,
    arguments: list[str],
    is_module: bool,
    instead: Instead[Result],
    changed: Callable[[TrainerInputs], TrainerInputs] | None = None,
    of_transformers: bool = False,
) -> Result:
    """Run a program in this process up to its first `train()`, call `instead` there, and return its result.

    The output of the program goes to stderr, so that stdout has only the result of the command. At the end, `sys.argv`,
    `sys.path`, the main module and the Trainer are restored.

    Args:
        program: a Python file, or the name of a module.
        arguments: the arguments of the program.
        is_module: whether the program is a module.
        instead: the function to call instead of `train()`.
        changed: a function that receives the inputs of each Trainer that the program builds, and returns the inputs to
            use instead. None: the Trainer uses the inputs of the program.
        of_transformers: whether the program imports its Trainer from transformers. If True, the program gets the
            Trainer of trainbus instead. A file that contains `transformers` but not `trainbus` is recognized without
            this option.

    Raises:
        ArgumentError: if there is no such program, or if it ends without a call of `train()`.
        SystemExit: if the program ends with an error status.
    """
    from ..api.training import TrainingMethods
    from ..trainer import Trainer

    if not is_module and not Path(program).is_file():
        raise ArgumentError(f"There is no program {program!r}. Name a Python file, or a module after -m.")
    if of_transformers or _imports_transformers(program, is_module):
        as_transformers()
    build, train = Trainer._build, TrainingMethods.train

    def build_changed(trainer: Any, inputs: TrainerInputs, overridden: bool = False) -> None:
        build(trainer, inputs if changed is None else changed(inputs), overridden)

    def train_instead(trainer: Any, resume_from_checkpoint: Any = None, *_: Any, **__: Any) -> Any:
        raise _Left(instead(trainer, partial(train, trainer), resume_from_checkpoint))

    path, words, main_module = list(sys.path), sys.argv, sys.modules["__main__"]
    Trainer._build = build_changed  # type: ignore[method-assign,assignment]
    TrainingMethods.train = train_instead  # type: ignore[method-assign,assignment]
    try:
        with redirect_stdout(sys.stderr) if sys.stderr is not None else nullcontext():
            execute(program, arguments, is_module)
    except _Left as left:
        result: Result = left.result
        return result
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise
    finally:
        Trainer._build, TrainingMethods.train = build, train  # type: ignore[method-assign]
        sys.path[:], sys.argv = path, words
        sys.modules["__main__"] = main_module
    raise ArgumentError(f"{program} ended without a call of `train()`.")


def with_arguments(inputs: TrainerInputs, values: Mapping[str, Any], left_out: Callable[[Any], bool]) -> TrainerInputs:
    """Copy the inputs of a Trainer: set some training arguments, turn evaluations off, and leave out some callbacks.

    Args:
        inputs: the values with which the program builds its Trainer.
        values: the training arguments to set: name -> value. Names that the arguments of the program do not have are
            skipped.
        left_out: a function that receives a callback or a callback class of the inputs, and returns whether to leave
            the callback out.
    """
    from ..search.hyperparameters import with_values

    known = inputs.training_arguments
    if known.eval_strategy != "no":
        values = {**NEVER, **values}
    args = with_values(known, {name: value for name, value in values.items() if hasattr(known, name)})
    return replace(inputs, args=args, callbacks=[each for each in inputs.callbacks or [] if not left_out(each)])


def only_reports(callback: Any) -> bool:
    """Return whether a callback or callback class only reports the run to a tracker or a file.

    Such a callback has the capability `REPORTS`, or is a tracker of transformers.
    """
    kind = _class_of(callback)
    theirs = imported("transformers.integrations.integration_utils")
    trackers = () if theirs is None else tuple(theirs.INTEGRATION_TO_CALLBACK.values())
    declares = issubclass(kind, Callback) and Capability.REPORTS in kind.capabilities
    return declares or issubclass(kind, trackers)


def only_observes(callback: Any) -> bool:
    """Return whether `only_reports(callback)` is True, or the class of the callback is in `callbacks/monitor`.

    The callbacks in `callbacks/monitor` do not change the training.
    """
    return only_reports(callback) or _class_of(callback).__module__.startswith(MONITORS)


def _class_of(callback: Any) -> type:
    return callback if isinstance(callback, type) else type(callback)


def _imports_transformers(program: str, is_module: bool) -> bool:
    """Return whether the text of a program file has the word `transformers` but not the word `trainbus`.

    The result is False for a module, or if transformers is not installed.
    """
    if is_module or find_spec("transformers") is None:
        return False
    text = Path(program).read_text(encoding="utf-8", errors="replace")
    return "transformers" in text and "trainbus" not in text

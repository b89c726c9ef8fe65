"""`as_transformers`, a function that replaces `transformers.Trainer` and related classes with classes of trainbus."""

from __future__ import annotations

import gc
import importlib
import logging
import sys
from dataclasses import dataclass, field
from types import ModuleType, TracebackType
from typing import Any

from ...events.errors import ImportOrderError, MissingExtra

logger = logging.getLogger(__name__)

_LIBRARY = "transformers"
_OURS = __name__.partition(".")[0]

NAMES: dict[str, tuple[str, ...]] = {
    "hf_argparser": ("HfArgumentParser",),
    "trainer": ("Trainer",),
    "trainer_callback": (
        "DefaultFlowCallback", "EarlyStoppingCallback", "PrinterCallback", "ProgressCallback", "TrainerCallback",
        "TrainerControl", "TrainerState",
    ),
    "trainer_seq2seq": ("Seq2SeqTrainer",),
    "trainer_utils": (
        "BestRun", "EvalLoopOutput", "EvalPrediction", "HubStrategy", "IntervalStrategy", "PredictionOutput",
        "SaveStrategy", "SchedulerType", "TrainOutput", "get_last_checkpoint",
    ),
    "training_args": ("OptimizerNames", "ParallelMode", "TrainingArguments"),
    "training_args_seq2seq": ("Seq2SeqTrainingArguments",),
}  # fmt: skip
"""Module of transformers -> the names in this module that trainbus replaces.

Collators, schedule functions and trackers of transformers are not replaced, because they work with this Trainer.
"""

_TRAINING = ("Trainer", "Seq2SeqTrainer", "TrainingArguments", "Seq2SeqTrainingArguments")
"""The names of the classes for training. A library that imported such a class keeps training with transformers."""


def as_transformers(*, strict: bool = True) -> Replacement:
    """Replace the training classes of transformers with trainbus classes. Call this before you import other libraries.

    Libraries that build on `transformers.Trainer`, such as TRL, then train with this Trainer:

        import trainbus
        trainbus.as_transformers()
        from trl import SFTConfig, SFTTrainer

    The classes stay replaced until the end of the process, or until a call of `undo` on the returned object. With the
    returned object in a `with` statement, they stay replaced until the end of the block. A library that is imported
    while the classes are replaced keeps the classes of trainbus.

    Args:
        strict: raise an error if a module that is already imported uses `transformers.Trainer` or `TrainingArguments`.
            False logs a warning that lists these modules. These modules keep the classes of transformers.

    Returns:
        A `Replacement` with the names that were replaced. `print` shows them as a list.

    Raises:
        MissingExtra: if transformers is not installed.
        ImportOrderError: if `strict` is True, and a module that uses these classes is already imported. The error names
            the line to move.
    """
    exchanged = _exchanged()
    held = _holders({id(theirs) for theirs, _ in exchanged.values() if theirs.__name__ in _TRAINING})
    if held:
        said = (
            f"These modules were imported before `{_OURS}.as_transformers()` and keep the Trainer or the "
            f"TrainingArguments of transformers: {', '.join(held)}. Call `{_OURS}.as_transformers()` before these "
            f"imports, or start the program with `{_OURS} run program.py`"
        )
        if strict:
            raise ImportOrderError(f"{said}, or pass `strict=False` if they need not train with {_OURS}.")
        logger.warning("%s.", said)
    replacement = Replacement(held=held, _exchanged=exchanged)
    replacement._replace()
    return replacement


@dataclass
class Replacement:
    """The names of transformers that trainbus replaced. In a `with` statement, the end of the block restores them."""

    names: dict[str, Any] = field(default_factory=dict)
    """Path of a name, such as `transformers.trainer.Trainer` -> the object of trainbus that has this name now. Empty if
    an earlier call had already replaced the names."""
    held: tuple[str, ...] = ()
    """The modules of other packages that imported the `Trainer` or the `TrainingArguments` of transformers before the
    call. These modules keep the classes of transformers."""
    _exchanged: dict[int, tuple[Any, Any]] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return "\n".join(f"{place} -> {ours.__module__}.{ours.__name__}" for place, ours in self.names.items())

    def __enter__(self) -> Replacement:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def undo(self) -> None:
        """Restore the replaced names in all modules of transformers, also in modules imported after the replacement."""
        for module in _modules_of(_LIBRARY):
            for name, value in list(vars(module).items()):
                theirs, ours = self._exchanged.get(id(value), (None, None))
                if value is ours and ours is not None:
                    setattr(module, name, theirs)
        self.names = {}

    def _replace(self) -> None:
        for module in _modules_of(_LIBRARY):
            for name, value in list(vars(module).items()):
                theirs, ours = self._exchanged.get(id(value), (None, None))
                if value is theirs and ours is not None:
                    setattr(module, name, ours)
                    self.names[f"{module.__name__}.{name}"] = ours


def _exchanged() -> dict[int, tuple[Any, Any]]:
    """Return the objects to exchange: `id` -> (object of transformers, object of trainbus with the same name).

    The dict has each pair under two keys: the `id` of the object of transformers, and the `id` of the object of
    trainbus. Names that are already replaced are left out. The function imports every module in `NAMES`.
    """
    try:
        package = importlib.import_module(_LIBRARY)
    except ModuleNotFoundError as error:
        if error.name != _LIBRARY:
            raise
        raise MissingExtra(f"`as_transformers` needs transformers: pip install {_LIBRARY}") from error
    modules = {name: importlib.import_module(f"{_LIBRARY}.{name}") for name in NAMES}
    here = importlib.import_module(_OURS)
    found: dict[int, tuple[Any, Any]] = {}
    for module, names in NAMES.items():
        for name in names:
            theirs, ours = getattr(modules[module], name, None), getattr(here, name)
            if theirs is not None and theirs is not ours:
                getattr(package, name, None)  # the package imports its names when they are first used
                found[id(theirs)] = found[id(ours)] = (theirs, ours)
    return found


def _modules_of(package: str) -> list[ModuleType]:
    """Return the modules of a package, including module objects that are no longer in `sys.modules`.

    For example, the import of transformers 5 replaces the top module, and a program may still hold the old module
    object. The function finds the old object in the objects that the garbage collector lists, or, after `gc.freeze()`,
    in the attributes of loaded modules.
    """
    loaded = [each for each in list(sys.modules.values()) if isinstance(each, ModuleType)]
    held = [value for each in loaded for value in list(vars(each).values())]
    everything = (*loaded, *held, *gc.get_objects())
    modules = {id(each): each for each in everything if issubclass(type(each), ModuleType)}
    return [each for each in modules.values() if str(vars(each).get("__name__")).partition(".")[0] == package]


def _holders(theirs: set[int]) -> tuple[str, ...]:
    """Return the names of the imported modules that have a given class, or a subclass of it, as an attribute.

    Modules of transformers and trainbus are left out.

    Args:
        theirs: the ids of the given classes: `id(cls)`.
    """
    found = []
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in (_LIBRARY, _OURS) and isinstance(module, ModuleType):
            values = [value for value in list(vars(module).values()) if issubclass(type(value), type)]
            if any(id(base) in theirs for value in values for base in value.__mro__):
                found.append(name)
    return tuple(sorted(found))

"""Find the methods that a subclass overrides, and adapt overrides that have an older signature of transformers."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ...events.errors import ModelError
from .removed_names import NEVER_CALLED

Method = Callable[..., Any]

CALLED_BY_STEPS = (
    *("_get_learning_rate", "_get_num_items_in_batch", "_prepare_input", "autocast_smart_context_manager"),
    *("compute_loss_context_manager", "get_batch_samples"),
)
"""Methods that each step calls if a subclass overrides them. The attribute `_overridden` of a trainer contains the
names of the methods that its class overrides. A step looks up a name in this set, which is fast."""

_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
_LIBRARY = __name__.partition(".")[0]


def is_overridden(trainer: object, name: str) -> bool:
    """Return whether a subclass outside of trainbus, or the trainer object itself, overrides a method."""
    if name in vars(trainer):
        return True
    return not _is_ours(next(cls for cls in type(trainer).__mro__ if name in vars(cls)))


def overrides_evaluate(trainer: object) -> bool:
    """Return whether `evaluate` is overridden with the parameters that it has in transformers."""
    names = _names(getattr(trainer, "evaluate"))  # noqa: B009 # `object` has no such attribute
    takes_all = all(_takes(name, names) for name in ("eval_dataset", "ignore_keys", "metric_key_prefix"))
    return takes_all and is_overridden(trainer, "evaluate")


def save_internally(trainer: Any, output_dir: str | None = None) -> None:
    """Call `trainer.save_model` with `_internal_call=True`, because the engine makes this call, and not the program.

    An override without this parameter is called without it.
    """
    options = {"_internal_call": True} if _takes("_internal_call", _names(trainer.save_model)) else {}
    trainer.save_model(output_dir, **options)


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == _LIBRARY


def adapt_overrides(cls: type) -> None:
    """Adapt the methods that `cls`, a new subclass of the Trainer, overrides.

    - An override with an older signature of transformers gets a wrapper that accepts the current signature. It gets no
      wrapper if it accepts all current parameters, for example with `**kwargs`.
    - An override of `evaluate`, `_evaluate` or `predict` gets a wrapper that opens a session.
    - An override that trainbus never calls causes a warning, which names the replacement.
    - If `cls` overrides `compute_loss`, `cls.loss_takes_items` says whether the override takes `num_items_in_batch`.
    - `cls._overridden` contains the names of overridden methods that each step calls: see `CALLED_BY_STEPS`.
    """
    for name, adapt in _ADAPTERS.items() if not _is_ours(cls) else ():
        method = _defined_by(cls, name)
        if method is not None:
            adapted = adapt(method, _names(method))
            if adapted is not method:
                setattr(cls, name, adapted)
    for name, remedy in NEVER_CALLED.items():
        if _defined_by(cls, name) is not None:
            # The class statement is three calls up: this function, `__init_subclass__`, the statement.
            warnings.warn(f"{cls.__name__}.{name} is never called: {remedy}", UserWarning, stacklevel=3)
    defined = {name for name in CALLED_BY_STEPS if _defined_by(cls, name) is not None}
    cls._overridden = getattr(cls, "_overridden", frozenset()) | defined  # type: ignore[attr-defined]
    loss = _defined_by(cls, "compute_loss")
    if loss is not None:
        cls.loss_takes_items = _takes("num_items_in_batch", _names(loss))  # type: ignore[attr-defined]


def _defined_by(cls: type, name: str) -> Method | None:
    """Return the function that `cls` or a mixin of `cls` defines under a name.

    Return None if there is no such function, or if `cls` inherits the function from another trainer class.
    """
    for owner in cls.__mro__:
        if name in vars(owner):
            trainer = hasattr(owner, "loss_takes_items") or _is_ours(owner)
            inherited = owner is not cls and trainer
            method = vars(owner)[name]
            method = method.__func__ if isinstance(method, (staticmethod, classmethod)) else method
            return None if inherited or not inspect.isfunction(method) else method
    return None


def _names(method: Method) -> set[str]:
    """Return the names of a method's parameters. `*args` has the name `*`, and `**kwargs` has the name `**`."""
    parameters = inspect.signature(method).parameters.values()
    return {_STARS.get(each.kind, each.name) for each in parameters}


def _takes(name: str, names: set[str]) -> bool:
    return name in names or "**" in names


def _compute_loss(method: Method, names: set[str]) -> Method:
    takes_outputs, takes_items = _takes("return_outputs", names), _takes("num_items_in_batch", names)
    if takes_outputs and takes_items:
        return method

    @functools.wraps(method)
    def compute_loss(
        self: Any, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        options = {"num_items_in_batch": num_items_in_batch} if takes_items else {}
        if takes_outputs:
            return method(self, model, inputs, return_outputs=return_outputs, **options)
        if not return_outputs:
            return method(self, model, inputs, **options)
        with _outputs_of(model) as outputs:
            loss = method(self, model, inputs, **options)
        if not outputs:
            raise ModelError(
                f"{type(self).__name__}.compute_loss does not call the `model` argument, so the predictions of this "
                "batch are unknown. Add the parameter `return_outputs` and return `(loss, outputs)` when it is true."
            )
        return loss, _with_loss(loss, outputs[-1])

    return compute_loss


def _training_step(method: Method, names: set[str]) -> Method:
    if names & {"*", "**"} or len(names) > len(("self", "model", "inputs")):
        return method

    @functools.wraps(method)
    def training_step(self: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        return method(self, model, inputs)

    return training_step


def _prediction_step(method: Method, names: set[str]) -> Method:
    if _takes("ignore_keys", names):
        return method

    @functools.wraps(method)
    def prediction_step(self: Any, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None) -> Any:
        return method(self, model, inputs, prediction_loss_only)

    return prediction_step


def _train_sampler(method: Method, names: set[str]) -> Method:
    if names & {"*", "**"} or len(names) > len(("self",)):
        return method

    @functools.wraps(method)
    def _get_train_sampler(self: Any, train_dataset: Any = None) -> Any:
        return method(self)

    return _get_train_sampler


def _evaluate(method: Method, names: set[str]) -> Method:
    @functools.wraps(method)
    def evaluate(self: Any, *args: Any, **options: Any) -> Any:
        return self._through_evaluate(method, args, options)

    return evaluate


def _predict(method: Method, names: set[str]) -> Method:
    @functools.wraps(method)
    def predict(self: Any, *args: Any, **options: Any) -> Any:
        return self._through_predict(method, args, options)

    return predict


def arguments_of_evaluation(
    method: Method, trainer: object, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Any, str]:
    """Return the dataset and the metric prefix of a call of an overridden `evaluate`.

    If the call does not pass a value, return the default of the override's parameter. If the override has no such
    parameter, the dataset is None and the prefix is `eval`.

    Args:
        method: the method that overrides `evaluate`. Its parameters may differ from the parameters in transformers.
        trainer: the `self` of the call.
        args: the positional arguments of the call after `self`.
        options: the keyword arguments of the call.
    """
    bound = inspect.signature(method).bind(trainer, *args, **options)
    bound.apply_defaults()
    given: dict[str, Any] = dict(bound.arguments)
    for parameter in inspect.signature(method).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= given.pop(parameter.name)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            given |= dict(zip(("eval_dataset", "ignore_keys", "metric_key_prefix"), given.pop(parameter.name)))
    return given.get("eval_dataset"), given.get("metric_key_prefix", "eval")


def _with_loss(loss: Any, outputs: Any) -> Any:
    """Return the outputs of a model, with `loss` as a new first item if they are a tuple without a loss.

    A tuple that begins with a scalar tensor has a loss. Outputs that are not a tuple are returned unchanged.
    """
    computed = isinstance(outputs, tuple) and outputs and isinstance(outputs[0], torch.Tensor) and outputs[0].dim() == 0
    return (loss, *outputs) if isinstance(outputs, tuple) and not computed else outputs


@contextmanager
def _outputs_of(model: nn.Module) -> Iterator[list[Any]]:
    """Yield a list. Each call of the model inside of the `with` block appends its outputs to the list."""
    outputs: list[Any] = []
    hook = model.register_forward_hook(lambda module, args, output: outputs.append(output))
    try:
        yield outputs
    finally:
        hook.remove()


_ADAPTERS: dict[str, Callable[[Method, set[str]], Method]] = {
    "compute_loss": _compute_loss,
    "training_step": _training_step,
    "prediction_step": _prediction_step,
    "_get_train_sampler": _train_sampler,
    "_evaluate": _evaluate,
    "evaluate": _evaluate,
    "predict": _predict,
}
"""Name of a method -> the function that adapts an override of this method: see `adapt_overrides`."""

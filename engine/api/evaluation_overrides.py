"""Call overrides of `evaluate` and `predict`, and build metric prefixes such as `eval_math`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from ...events.activity import EVALUATION, PREDICTION
from ...events.capabilities import Capability
from ...events.composition import provides
from ..evaluation.evaluation_record import EvaluationRecord
from ..evaluation.metrics import metrics_of_first
from ..session import session
from .eval_datasets import EvalDatasetMethods
from .logging import LoggingMethods
from .overrides import arguments_of_evaluation, overrides_evaluate


class EvaluationOverrideMethods(EvalDatasetMethods, LoggingMethods):
    """Methods that call overrides of `evaluate` and `predict`, and build metric prefixes such as `eval_math`."""

    evaluate: Callable[..., dict[str, float]]

    _override: EvaluationRecord | None = None
    """The record of the evaluation while an override of `evaluate` runs; otherwise None."""

    _by_dataset = False
    """Whether `_evaluate_each` is calling an override of `evaluate`."""

    def _override_takes_each(self, eval_dataset: Any) -> bool:
        """Return whether `Trainer.evaluate` must call its override for each dataset, as in transformers.

        The result is True if all of these conditions are true:

        - An override of `evaluate` runs now, and has called `super().evaluate(...)`.
        - The data is a dict of named datasets.
        - The override has the parameters of `evaluate`.
        """
        given = self.eval_dataset if eval_dataset is None else eval_dataset
        called = self._override is not None and not self._by_dataset
        return called and isinstance(given, dict) and overrides_evaluate(self)

    def _evaluate_each(
        self, datasets: dict[str, Any], ignore_keys: list[str] | None, metric_key_prefix: str
    ) -> dict[str, float]:
        """Call the override of `evaluate` for each dataset, and return all metrics.

        An override may change the metrics of a dataset, or add metrics with its `metric_key_prefix`.
        """
        everything: dict[str, float] = {}
        self._by_dataset = True
        try:
            for name, dataset in datasets.items():
                prefix = joined(metric_key_prefix, name)
                options: dict[str, Any] = {"ignore_keys": ignore_keys, "metric_key_prefix": prefix}
                everything.update(self.evaluate(eval_dataset=dataset, **options) or {})
        finally:
            self._by_dataset = False
        self._note_metrics(everything)
        return everything

    def _through_evaluate(self, method: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call a method that overrides `evaluate` or `_evaluate`, and record the call as one evaluation.

        Callbacks such as `EarlyStopping` read the metrics of the evaluation:

        - the metrics that the method returns;
        - the metrics that the method passes to `trainer.log` or `callback_handler.on_evaluate`, if their names begin
          with the prefix of the evaluation, such as `eval_`.
        """
        if self._override is not None:  # an override that calls another one
            return method(self, *args, **options)
        run = self.run
        dataset, prefix = arguments_of_evaluation(method, self, args, options)
        names = dataset if isinstance(dataset, dict) else [dataset] if isinstance(dataset, str) else None
        named = self._eval_datasets(None) if dataset is None else names or [""]
        with (
            session(run, "evaluate"),
            run.activity(EVALUATION),
            self._evaluating(prefix, dataset, named) as record,
        ):
            self._override = record
            try:
                result = method(self, *args, **options)
            finally:
                self._override = None
            measured = {**record.heard, **(result if isinstance(result, dict) else {})}
            if measured:
                record.measured(metrics_of_first(run.ranks, measured), run.state.global_step)
                self.bus.announce("on_evaluate_end")
        return result

    def _through_predict(self, method: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Start a session for predictions, and call a method that overrides `predict`."""
        with session(self.run, "predict"), self.run.activity(PREDICTION):
            return method(self, *args, **options)

    def _evaluate_for_callback(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Evaluate at the request of a callback, and return the metrics."""
        outer = self._override
        inside = "_evaluate" in self._works or "_evaluate" in self._called
        # An override of `evaluate` does not record these metrics. An override of `_evaluate` does, because it is this
        # evaluation.
        self._override = outer if inside else None
        try:
            own = "evaluate" in vars(self)  # a function that was set on the trainer
            return self._through_evaluate(_call_own, args, options) if own else self.evaluate(*args, **options)
        finally:
            self._override = outer

    def _note_metrics(self, metrics: dict[str, Any]) -> None:
        if self._override is not None:
            prefix = f"{self._override.prefix}_"
            self._override.heard.update({name: value for name, value in metrics.items() if name.startswith(prefix)})

    def _evaluating(self, prefix: str, dataset: Any, names: Iterable[str]) -> AbstractContextManager[EvaluationRecord]:
        """Return a context manager that sets `run.evaluation` to a new record, which stores the metrics.

        Args:
            prefix: the prefix of the metric names.
            dataset: the value that the caller passed as the dataset.
            names: the names of the evaluated datasets; an empty text for a dataset without a name.
        """
        own = dataset is None or dataset is self.eval_dataset
        prefixes = {self._prefix_of(prefix, name, dataset) for name in names}
        return self.run.evaluating(
            prefix,
            complete=own and prefix == "eval",
            prefixes=prefixes,
            foreign=not own and self._is_foreign(prefixes),
        )

    def _prefix_of(self, prefix: str, name: str, wanted: Any) -> str:
        """Return the prefix of the metric names of a dataset, such as `eval_math`.

        If the caller asked for one dataset by its name, `prefix` may already end with the name.

        Args:
            prefix: the `metric_key_prefix` that the caller passed.
            name: the name of the dataset; an empty text for a dataset without a name.
            wanted: the `eval_dataset` that the caller passed.
        """
        named = isinstance(wanted, str) and (self._by_dataset or prefix.endswith(f"_{name}"))
        return prefix if named else joined(prefix, name)

    def _is_foreign(self, prefixes: set[str]) -> bool:
        """Return whether callbacks such as `EarlyStopping` must ignore an evaluation of data that the caller passed.

        The result is True if a metric of the caller's data could have the same name as a metric of the trainer's own
        eval datasets, such as `eval_loss`. Callbacks cannot tell these two metrics apart.

        There are two exceptions. The result is False if an `Evaluate` callback passed the data, or if the trainer has
        no `eval_dataset`.

        Args:
            prefixes: the metric prefixes of the evaluation, one per dataset.
        """
        if self.eval_dataset is None:
            return False
        asks = self.bus.subscribers.get(self.run.control.speaker)
        own = {joined("eval", name) for name in self._eval_datasets(None)}
        return not provides([asks], Capability.EVALUATES) and bool(prefixes & own)


def _call_own(trainer: Any, *args: Any, **options: Any) -> Any:
    return vars(trainer)["evaluate"](*args, **options)


def joined(prefix: str, name: str) -> str:
    return f"{prefix}_{name}" if name else prefix

"""The Trainer's methods for evaluation and prediction."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ...events.activity import EVALUATION, PREDICTION
from ...events.capabilities import Capability
from ...events.composition import provides
from ...events.errors import ArgumentError, DataError
from ...events.keywords import checked_keywords
from ..data.build import length_of
from ..distributed.consistency import compare_lengths
from ..evaluation.evaluation_record import EvaluationRecord
from ..evaluation.loop import evaluation_loop
from ..evaluation.metrics import metrics_of_first
from ..evaluation.no_batch import no_batch_warning
from ..evaluation.outputs import EvalLoopOutput, EvalPrediction, PredictionOutput, speed_metrics
from ..evaluation.prediction import ignored_keys, prediction_step
from ..evaluation.rehearsal import REPLACEABLE, rehearse
from ..evaluation.streamed import StreamedMetrics
from ..loss.index_errors import indices_explained
from ..session import session
from .eval_datasets import EvalDatasetMethods, no_samples
from .logging import LoggingMethods
from .overrides import arguments_of_evaluation, is_overridden
from .tracebacks import short_tracebacks

logger = logging.getLogger(__name__)


class EvaluationMethods(EvalDatasetMethods, LoggingMethods):
    """Methods that evaluate and predict."""

    compute_metrics: Callable[[EvalPrediction], dict[str, Any]] | None
    preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None
    _told_no_loss = False
    """Whether the warning about evaluations without a loss was logged."""
    _ignore_keys: list[str] | None = None
    """The value of `ignore_keys_for_eval` in the last call of `train`. Evaluations during training use it."""

    @short_tracebacks
    @checked_keywords
    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Evaluate, log the metrics and return them.

        Args:
            eval_dataset: a dataset, a data frame, the path of a file of rows, a dict of named datasets, or the name of
                an eval dataset of the trainer. By default, all eval datasets of the trainer. The metrics of a named
                dataset are `<prefix>_<name>_<metric>`.
            ignore_keys: keys of the model's outputs that are not predictions. Default: the keys that the config of the
                model names. During training, `ignore_keys_for_eval` of `train` is the default, if it is not None.
            metric_key_prefix: the prefix of all metric names.

        Raises:
            ArgumentError: if a text is neither the name of an eval dataset nor the path of a file of rows.
            DataError: if there is no dataset, or if a dataset gives no batch.
        """
        run = self.run
        if not run.mode:
            self._follow_arguments()
        if ignore_keys is None and run.mode == "train":
            ignore_keys = self._ignore_keys
        datasets = self._eval_datasets(eval_dataset)
        everything: dict[str, float] = {}
        scope = (
            self._evaluating(metric_key_prefix, eval_dataset, datasets)
            if self._override is None
            else nullcontext(self._override)  # an override called this: its evaluation includes this one
        )
        with session(run, "evaluate"), run.activity(EVALUATION), scope as record:
            self.bus.announce("on_evaluate_begin")
            for name, dataset in datasets.items():
                prefix, record.dataset_name = _joined(metric_key_prefix, name), name
                loss_only = self.compute_metrics is None
                output = self._run_over(self.get_eval_dataloader(dataset), "Evaluation", prefix, ignore_keys, loss_only)
                if output.num_samples == 0:
                    if self.args.dataloader_drop_last:  # a stream has samples, but maybe no full batch
                        raise DataError(self._no_batch(self.get_eval_dataloader(dataset), "Evaluation", prefix))
                    raise DataError(no_samples(name))
                record.metrics, record.step = output.metrics, run.state.global_step
                self.bus.announce("on_evaluate_dataset")
                record.metrics = metrics_of_first(run.ranks, record.metrics)
                self.log(record.metrics)
                self.bus.announce("on_evaluate")
                everything.update(record.metrics)
            if self._override is None:
                record.metrics = everything
                self.bus.announce("on_evaluate_end")
            self._note_metrics(everything)
        return everything

    # Overrides of `evaluate` and `predict`.

    _override: EvaluationRecord | None = None
    """The record of the evaluation while an override of `evaluate` runs; otherwise None."""

    def _through_evaluate(self, method: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call a method that overrides `evaluate` or `_evaluate`, and record the call as one evaluation.

        The evaluation gets the metrics that the method returns, logs, or passes to `callback_handler.on_evaluate`.
        Logged and passed metrics count only if their names begin with the prefix of the evaluation, such as `eval_`.
        Callbacks such as `EarlyStopping` read these metrics.
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
                record.step = run.state.global_step
                record.metrics = metrics_of_first(run.ranks, measured)
                self.bus.announce("on_evaluate_end")
        return result

    def _through_predict(self, method: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Start a session for predictions, and call a method that overrides `predict`."""
        with session(self.run, "predict"), self.run.activity(PREDICTION):
            return method(self, *args, **options)

    def _evaluate_for_callback(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Evaluate at the request of a callback, and return the metrics.

        - While an override of `evaluate` runs, the request is a separate evaluation. The `EvaluationRecord` of the
          override does not get the metrics.
        - While an override of `_evaluate` runs, its call `super()._evaluate(...)` caused the request. The
          `EvaluationRecord` of the override gets the metrics.
        """
        outer = self._override
        inside = "_evaluate" in self._works or "_evaluate" in self._called
        self._override = outer if inside else None  # an overridden `_evaluate` is this evaluation
        try:
            own = "evaluate" in vars(self)  # a function that was set on the trainer
            return self._through_evaluate(_call_own, args, options) if own else self.evaluate(*args, **options)
        finally:
            self._override = outer

    def _note_metrics(self, metrics: dict[str, Any]) -> None:
        if self._override is not None:
            prefix = f"{self._override.prefix}_"
            self._override.heard.update({name: value for name, value in metrics.items() if name.startswith(prefix)})

    @short_tracebacks
    @checked_keywords
    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Run the model over a dataset. Return predictions and labels as arrays of shape (samples, ...), and metrics.

        For samples without labels, most models give only metrics of speed, such as `test_runtime`.

        Args:
            test_dataset: a dataset, a data frame, or the path of a file of rows.
            ignore_keys: keys of the model's outputs that are not predictions. If None, the config of the model names
                the keys.
            metric_key_prefix: the prefix of all metric names.
        """
        run = self.run
        if not run.mode:
            self._follow_arguments()
        with (
            session(run, "predict"),
            run.activity(PREDICTION),
            run.evaluating(metric_key_prefix, complete=False) as record,
        ):
            loss_only = self.args.prediction_loss_only
            loader = self.get_test_dataloader(test_dataset)
            output = self._run_over(loader, "Prediction", metric_key_prefix, ignore_keys, loss_only)
            record.metrics = output.metrics
            self.bus.announce("on_predict")
        return PredictionOutput(output.predictions, output.label_ids, output.metrics)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Run the model over a loader. Return predictions, labels, metrics and the number of samples.

        `evaluate` and `predict` call this method. Override it for a loop of your own.

        Args:
            dataloader: the loader of the batches.
            description: `Evaluation` or `Prediction`.
            prediction_loss_only: if True, compute only the loss. If None or False, `args.prediction_loss_only` decides.
            ignore_keys: keys of the model's outputs that are not predictions. If None, the config of the model names
                the keys.
            metric_key_prefix: the prefix of all metric names.
        """
        streams = isinstance(self.compute_metrics, StreamedMetrics)
        compute_metrics: Any = self.compute_metrics
        by_batch = self.args.batch_eval_metrics or streams
        if ignore_keys is None and not is_overridden(self, "prediction_step"):
            ignore_keys = ignored_keys(self.run.model_wrapped)  # now, and not again for each batch
        activity = PREDICTION if description == "Prediction" else EVALUATION
        with self.run.activity(activity), indices_explained(self.run):
            return evaluation_loop(
                self.run,
                dataloader,
                self.prediction_step,
                prefix=metric_key_prefix,
                loss_only=prediction_loss_only or self.args.prediction_loss_only,
                compute_metrics=compute_metrics.begin() if streams else compute_metrics,
                by_batch=by_batch,
                keeps_batches=not by_batch or description == "Prediction",
                observed=provides(self.bus.subscribers.values(), Capability.READS_PREDICTIONS),
                preprocess_logits=self.preprocess_logits_for_metrics,
                ignore_keys=ignore_keys,
                limit=self.args.limit_eval_batches if description == "Evaluation" else None,
            )

    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Any, Any, Any]:
        """Return loss, logits and labels of a batch, without gradients. A value that does not exist is None.

        With `prediction_loss_only`, logits and labels are None. Override this method to change the evaluation of a
        batch.
        """
        inputs = self._prepare_inputs(inputs)
        return prediction_step(model, inputs, prediction_loss_only, ignore_keys, self.objective, self._loss_and_outputs)

    def _loss_and_outputs(self, model: Any, inputs: Any) -> Any:
        items = self.count_items([inputs])
        if self._overridden and self._has_loss_context:
            with self.compute_loss_context_manager():
                return self.compute_loss(model, inputs, return_outputs=True, num_items_in_batch=items)
        return self.compute_loss(model, inputs, return_outputs=True, num_items_in_batch=items)

    def _prepare_inputs(self, inputs: Any) -> Any:
        """Return the batch that the model receives. Override this method to change batches.

        The Trainer calls it for each batch. The default returns the batch unchanged, because the batch is already on
        the device. If a subclass overrides `_prepare_input`, the default calls the override.
        """
        return self._prepare_input(inputs) if "_prepare_input" in self._overridden else inputs

    def rehearse_evaluation(self) -> tuple[str, ...] | None:
        """Return the names of the metrics that an evaluation of the trainer's datasets measures; None if unknown.

        The method evaluates one batch of each dataset to find the names. It returns None if this evaluation would take
        long or change the run. See `engine/evaluation/rehearsal.py`.

        Raises:
            ArgumentError: for a metric value that logs and checkpoints cannot store.
        """
        given, run = self.eval_dataset, self.run
        unknown = any(is_overridden(self, name) for name in REPLACEABLE)
        if given is None or not run.ranks.single_process or unknown:
            return None
        datasets = given if isinstance(given, dict) else {"": given}
        return rehearse(
            run.model,
            {_joined("eval", name): dataset for name, dataset in datasets.items()},
            self.args,
            self.objective,
            self.data_collator,
            self._accepted_columns(),
            self.compute_metrics,
            self.preprocess_logits_for_metrics,
        )

    def _evaluating(self, prefix: str, dataset: Any, names: Iterable[str]) -> AbstractContextManager[EvaluationRecord]:
        """Return a context manager that sets `run.evaluation` to a new record, which stores the metrics.

        Args:
            prefix: the prefix of the metric names.
            dataset: the value that the caller passed as the dataset.
            names: the names of the evaluated datasets; an empty text for a dataset without a name.
        """
        own = dataset is None or dataset is self.eval_dataset
        prefixes = {_joined(prefix, name) for name in names}
        return self.run.evaluating(
            prefix,
            complete=own and prefix == "eval",
            prefixes=prefixes,
            foreign=not own and self._is_foreign(prefixes),
        )

    def _is_foreign(self, prefixes: set[str]) -> bool:
        """Return whether callbacks such as `EarlyStopping` must ignore an evaluation of data that the caller passed.

        The result is False if an `Evaluate` callback passed the data, or if the trainer has no `eval_dataset`. In any
        other case, the result is True if one prefix in `prefixes` is also the prefix of one of the trainer's own eval
        datasets, such as `eval`.

        Args:
            prefixes: the metric prefixes of the evaluation, one per dataset.
        """
        if self.eval_dataset is None:
            return False
        asks = self.bus.subscribers.get(self.run.control.speaker)
        own = {_joined("eval", name) for name in self._eval_datasets(None)}
        return not provides([asks], Capability.EVALUATES) and bool(prefixes & own)

    def _run_over(
        self, loader: Any, description: str, prefix: str, ignore_keys: list[str] | None, loss_only: bool
    ) -> EvalLoopOutput:
        if self.run.mode != "train":
            self._follow_loss()
        compare_lengths(self.run, loader)
        self._check_slice(loader)
        began = time.time()
        output = self.evaluation_loop(loader, description, loss_only, ignore_keys, prefix)
        # A prediction without labels is usual. With metrics to compute, it is not.
        if self.run.evaluation.empty:
            if output.num_samples or description == "Prediction":  # else an error follows
                logger.warning("%s", self._no_batch(loader, description, prefix))
        elif f"{prefix}_loss" not in output.metrics and (
            description == "Evaluation" or self.compute_metrics is not None
        ):
            self._tell_no_loss(output, description, prefix)
        steps = math.ceil(output.num_samples / (self.args.eval_batch_size * self.run.ranks.world_size))
        output.metrics.update(speed_metrics(prefix, began, output.num_samples, steps))
        return output

    def _no_batch(self, loader: Any, description: str, prefix: str) -> str:
        return no_batch_warning(loader, description, prefix, self.args, self.run.ranks.world_size)

    def _check_slice(self, loader: Any) -> None:
        """Raise an ArgumentError if a loader may have more samples than `eval_rows` or `Evaluate(rows=...)` allows."""
        rows, found = self.run.evaluation.rows, length_of(getattr(loader, "dataset", None))
        if rows is not None and (found is None or found > rows):
            raise ArgumentError(
                f"An evaluation on {rows} rows got a loader of {'an unknown number of' if found is None else found} "
                "rows from an overridden `get_eval_dataloader`. Call `super().get_eval_dataloader(eval_dataset)` in "
                "it, or remove `eval_rows` or `Evaluate(rows=...)`."
            )

    def _tell_no_loss(self, output: EvalLoopOutput, description: str, prefix: str) -> None:
        """Warn once that an evaluation has no loss, because its batches have no labels.

        The warning contains the expected names of the labels, and the remedy. If the trainer overrides
        `evaluation_loop` or `prediction_step`, the method does nothing.
        """
        steps = ("evaluation_loop", "prediction_step")
        if self._told_no_loss or not output.num_samples or any(is_overridden(self, name) for name in steps):
            return
        self._told_no_loss = True
        without_metrics = self.compute_metrics is not None and output.label_ids is None
        logger.warning(
            "The %s has no %s_loss%s: the batches have no labels under the expected names (%s). The model's "
            "forward takes: %s. Name the labels, as in TrainingArguments(label_names=[%r]), and pass samples as "
            "dicts.%s",
            description.lower(),
            prefix,
            ", and compute_metrics is not called" if without_metrics else "",
            ", ".join(self.label_names) or "a parameter with 'label' in its name",
            ", ".join(self.objective.signature.parameters),
            self.objective.signature.last_named or "y",
            " Ignore this if the samples have no labels." if description == "Prediction" else "",
        )


def _call_own(trainer: Any, *args: Any, **options: Any) -> Any:
    return vars(trainer)["evaluate"](*args, **options)


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}_{name}" if name else prefix

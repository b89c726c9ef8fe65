"""The Trainer's methods for evaluation and prediction."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from ...events.activity import EVALUATION, PREDICTION
from ...events.capabilities import Capability
from ...events.composition import provides
from ...events.errors import ArgumentError, DataError
from ...events.keywords import checked_keywords
from ..data.build import length_of
from ..distributed.consistency import compare_lengths
from ..evaluation.loop import evaluation_loop
from ..evaluation.metrics import metrics_of_first
from ..evaluation.no_batch import no_batch_warning
from ..evaluation.outputs import EvalLoopOutput, EvalPrediction, PredictionOutput, speed_metrics
from ..evaluation.prediction import ignored_keys, prediction_step
from ..evaluation.rehearsal import REPLACEABLE, rehearse
from ..evaluation.streamed import StreamedMetrics
from ..loss.index_errors import indices_explained
from ..session import session
from .eval_datasets import no_samples
from .evaluation_overrides import EvaluationOverrideMethods, joined
from .overrides import is_overridden
from .tracebacks import short_tracebacks

logger = logging.getLogger(__name__)


class EvaluationMethods(EvaluationOverrideMethods):
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
            metric_key_prefix: the prefix of all metric names. With `eval_dataset="math"`, the prefixes `eval` and
                `eval_math` give the same metric names, such as `eval_math_loss`.

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
            if not self._by_dataset:
                self.bus.announce("on_evaluate_begin")
            if self._override_takes_each(eval_dataset):
                return self._evaluate_each(datasets, ignore_keys, metric_key_prefix)
            for name, dataset in datasets.items():
                prefix, record.dataset_name = self._prefix_of(metric_key_prefix, name, eval_dataset), name
                loss_only = True if self.compute_metrics is None else None
                output = self._run_over(self.get_eval_dataloader(dataset), "Evaluation", prefix, ignore_keys, loss_only)
                if output.num_samples == 0:
                    if self.args.dataloader_drop_last:  # a stream has samples, but maybe no full batch
                        raise DataError(self._no_batch(self.get_eval_dataloader(dataset), "Evaluation", prefix))
                    raise DataError(no_samples(name))
                record.measured(output.metrics, run.state.global_step)
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
            loader = self.get_test_dataloader(test_dataset)
            output = self._run_over(loader, "Prediction", metric_key_prefix, ignore_keys, None)
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
            prediction_loss_only: whether to compute only the loss. If None, `args.prediction_loss_only` decides.
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
                loss_only=self.args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only,
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

        The Trainer calls it for each batch. The default moves the tensors of the batch to the device with
        `_prepare_input`. The batches of a loader of the Trainer are there already, but a program may pass its own
        batches, for example to `prediction_step`.
        """
        return self._prepare_input(inputs)

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
            {joined("eval", name): dataset for name, dataset in datasets.items()},
            self.args,
            self.objective,
            self.data_collator,
            self._accepted_columns(),
            self.compute_metrics,
            self.preprocess_logits_for_metrics,
        )

    def _run_over(
        self, loader: Any, description: str, prefix: str, ignore_keys: list[str] | None, loss_only: bool | None
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

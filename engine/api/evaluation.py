"""The Trainer's methods for evaluation and prediction."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from ...events.activity import EVALUATION, PREDICTION
from ...events.errors import ArgumentError, DataError, nearest
from ..arguments import IntervalStrategy
from ..data.build import is_iterable
from ..distributed.consistency import compare_lengths
from ..evaluation.loop import evaluation_loop
from ..evaluation.metrics import metrics_of_first
from ..evaluation.outputs import EvalLoopOutput, EvalPrediction, PredictionOutput, speed_metrics
from ..evaluation.prediction import prediction_step
from ..session import session
from .dataloaders import DataLoaderMethods
from .logging import LoggingMethods
from .overrides import is_overridden


class EvaluationMethods(DataLoaderMethods, LoggingMethods):
    """Runs the model without training it."""

    compute_metrics: Callable[[EvalPrediction], dict[str, Any]] | None
    preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None
    _ignore_keys: list[str] | None = None
    """The `ignore_keys` of evaluations during training."""

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Evaluate, log the metrics and return them.

        Args:
            eval_dataset: a dataset, a dict of named datasets, or the name of one of the trainer's; by default all of
                the trainer's. The metrics of a named dataset are `<prefix>_<name>_<metric>`.
            ignore_keys: keys of the model's outputs that are not predictions.
            metric_key_prefix: the prefix of all metric names.

        Raises:
            DataError: if there is no dataset, or if one is empty.
        """
        run = self.run
        if ignore_keys is None and run.mode == "train":
            ignore_keys = self._ignore_keys
        datasets = self._eval_datasets(eval_dataset)
        complete = eval_dataset is None and metric_key_prefix == "eval"
        everything: dict[str, float] = {}
        with (
            session(run, "evaluate"),
            run.activity(EVALUATION),
            run.evaluating(metric_key_prefix, complete=complete) as record,
        ):
            self.bus.announce("on_evaluate_begin")
            for name, dataset in datasets.items():
                prefix = f"{metric_key_prefix}_{name}" if name else metric_key_prefix
                loss_only = self.compute_metrics is None
                output = self._run_over(self.get_eval_dataloader(dataset), prefix, ignore_keys, loss_only)
                if output.num_samples == 0:
                    raise DataError(
                        f"The eval dataset{f' {name!r}' if name else ''} has no samples. Pass another, or leave it out."
                    )
                record.metrics, record.dataset_name, record.step = output.metrics, name, run.state.global_step
                self.bus.announce("on_evaluate_dataset")
                record.metrics = metrics_of_first(run.ranks, record.metrics)
                self.log(record.metrics)
                self.bus.announce("on_evaluate")
                everything.update(record.metrics)
            record.metrics = everything
            self.bus.announce("on_evaluate_end")
        return everything

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Predict. Return predictions and labels as arrays (samples, ...), and metrics if there are labels.

        Args:
            test_dataset: the samples.
            ignore_keys: keys of the model's outputs that are not predictions.
            metric_key_prefix: the prefix of all metric names.
        """
        run = self.run
        with (
            session(run, "predict"),
            run.activity(PREDICTION),
            run.evaluating(metric_key_prefix, complete=False) as record,
        ):
            loss_only = self.args.prediction_loss_only
            output = self._run_over(self.get_test_dataloader(test_dataset), metric_key_prefix, ignore_keys, loss_only)
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

        `evaluate` and `predict` call it. Override it for a loop of your own.

        Args:
            dataloader: the batches.
            description: `Evaluation` or `Prediction`.
            prediction_loss_only: compute only the loss; by default `args.prediction_loss_only`.
            ignore_keys: keys of the model's outputs that are not predictions.
            metric_key_prefix: the prefix of all metric names.
        """
        with self.run.activity(PREDICTION if description == "Prediction" else EVALUATION):
            return evaluation_loop(
                self.run,
                dataloader,
                self.prediction_step,
                prefix=metric_key_prefix,
                loss_only=prediction_loss_only or self.args.prediction_loss_only,
                compute_metrics=self.compute_metrics,
                by_batch=self.args.batch_eval_metrics,
                keeps_batches=not self.args.batch_eval_metrics or description == "Prediction",
                preprocess_logits=self.preprocess_logits_for_metrics,
                ignore_keys=ignore_keys,
            )

    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Any, Any, Any]:
        """Return loss, logits and labels of a batch, without gradients; None for each that does not exist.

        Override it to change how a batch is evaluated.
        """
        inputs = self._prepare_inputs(inputs)

        def compute(model: Any, inputs: Any) -> Any:
            items = self.count_items([inputs])
            return self.compute_loss(model, inputs, return_outputs=True, num_items_in_batch=items)

        return prediction_step(model, inputs, prediction_loss_only, ignore_keys, self.objective, compute)

    def _prepare_inputs(self, inputs: Any) -> Any:
        """Return the batch that the model receives. Override it to change batches.

        Called for each batch. The default returns the batch unchanged: it is on its device already.
        """
        return inputs

    def _run_over(self, loader: Any, prefix: str, ignore_keys: list[str] | None, loss_only: bool) -> EvalLoopOutput:
        compare_lengths(self.run, loader)
        began = time.time()
        description = "Prediction" if self.run.mode == "predict" else "Evaluation"
        output = self.evaluation_loop(loader, description, loss_only, ignore_keys, prefix)
        steps = math.ceil(output.num_samples / (self.args.eval_batch_size * self.run.ranks.world_size))
        output.metrics.update(speed_metrics(prefix, began, output.num_samples, steps))
        return output

    def _known_eval_datasets(self) -> dict[str, Any]:
        """Return by name the map-style datasets that training evaluates on through the default loader."""
        overridden = is_overridden(self, "get_eval_dataloader")
        if self.eval_dataset is None or overridden or self.args.eval_strategy == IntervalStrategy.NO:
            return {}
        given = self.eval_dataset if isinstance(self.eval_dataset, dict) else {"": self.eval_dataset}
        return {name: dataset for name, dataset in given.items() if not is_iterable(dataset)}

    def _eval_datasets(self, wanted: Any) -> dict[str, Any]:
        """Return the datasets of an evaluation by name; a single dataset has an empty name."""
        given = self.eval_dataset
        if isinstance(wanted, str):
            if not isinstance(given, dict) or wanted not in given:
                names = list(given) if isinstance(given, dict) else []
                raise ArgumentError(f"There is no eval dataset {wanted!r}{nearest(wanted, names)} There are: {names}.")
            return {wanted: wanted}
        if wanted is None:
            # Names, not datasets: an overridden `get_eval_dataloader` receives what transformers passes to it.
            return {name: name for name in given} if isinstance(given, dict) else {"": given}
        return dict(wanted) if isinstance(wanted, dict) else {"": wanted}

"""Running the model: its loss, evaluation, prediction."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from ...events.activity import EVALUATION, PREDICTION
from ...events.errors import ArgumentError, DataError, nearest
from ..arguments import IntervalStrategy
from ..data.build import is_iterable
from ..distributed.consistency import compare_lengths
from ..evaluation.loop import evaluation_loop, metrics_of_first, prediction_step
from ..evaluation.outputs import EvalLoopOutput, EvalPrediction, PredictionOutput, speed_metrics
from ..session import session
from .dataloaders import Loading
from .saving import Recording


class Evaluating(Recording, Loading):
    """The part of the Trainer that runs the model without training it."""

    eval_dataset: Any
    compute_metrics: Callable[[EvalPrediction], dict[str, Any]] | None
    preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None
    _ignore_keys: list[str] | None = None
    _kept_loaders: Mapping[str, tuple[Any, Any]] = {}
    """Of persistent workers: the name of a dataset of the trainer's, or an empty one -> the dataset and its loader."""

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Evaluate, and return the metrics, which are also logged.

        Args:
            eval_dataset: a dataset, several by name, or the name of one of those given to the Trainer; by default all
                of those. The metrics of a named dataset are called `<prefix>_<name>_<metric>`.
            ignore_keys: keys of the model's outputs that are no predictions.
            metric_key_prefix: what all names begin with.

        Raises:
            DataError: if there is no dataset to evaluate on, or one of them is empty.
        """
        run = self.run
        if ignore_keys is None and run.mode == "train":
            ignore_keys = self._ignore_keys
        datasets = self._datasets(eval_dataset)
        everything: dict[str, float] = {}
        with session(run, "evaluate"), run.activity(EVALUATION):
            run.metric_prefix = metric_key_prefix
            run.evaluates_all = eval_dataset is None and metric_key_prefix == "eval"
            self.bus.announce("on_evaluate_begin")
            for name, dataset in datasets.items():
                prefix = f"{metric_key_prefix}_{name}" if name else metric_key_prefix
                output = self._run_over(
                    self.get_eval_dataloader(dataset), prefix, ignore_keys, self.compute_metrics is None
                )
                if output.num_samples == 0:
                    raise DataError(
                        f"The eval dataset{f' {name!r}' if name else ''} has no rows, so there is nothing to measure: "
                        "pass another, or leave it out."
                    )
                run.metrics, run.dataset_name, run.metrics_step = output.metrics, name, run.state.global_step
                self.bus.announce("on_evaluate_dataset")
                run.metrics = metrics_of_first(run.ranks, run.metrics)
                self.log(run.metrics)
                self.bus.announce("on_evaluate")
                everything.update(run.metrics)
            run.metrics = everything
            self.bus.announce("on_evaluate_end")
        return everything

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Predict, and return predictions and labels as arrays, and the metrics if there are labels.

        Args:
            test_dataset: the rows to predict for.
            ignore_keys: keys of the model's outputs that are no predictions.
            metric_key_prefix: what the metrics' names begin with.
        """
        run = self.run
        with session(run, "predict"), run.activity(PREDICTION):
            loss_only = self.args.prediction_loss_only
            output = self._run_over(self.get_test_dataloader(test_dataset), metric_key_prefix, ignore_keys, loss_only)
            run.metrics = output.metrics
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
        """Run the model over a loader; return predictions, labels, metrics and the number of rows.

        `evaluate` and `predict` both do so. Override it for a loop of your own.

        Args:
            dataloader: the batches.
            description: what it is for, `Evaluation` or `Prediction`.
            prediction_loss_only: compute nothing but the loss; by default, what the arguments say.
            ignore_keys: keys of the model's outputs that are no predictions.
            metric_key_prefix: what the metrics' names begin with.
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
        """Return loss, logits and labels of a batch, without gradients; each None where there is none.

        Override it to change how a batch is predicted for.
        """

        inputs = self._prepare_inputs(inputs)

        def compute(model: Any, inputs: Any) -> Any:
            items = self.count_items([inputs])
            return self.compute_loss(model, inputs, return_outputs=True, num_items_in_batch=items)

        return prediction_step(model, inputs, prediction_loss_only, ignore_keys, self.objective, compute)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of a batch, and the model's outputs with it if `return_outputs`.

        Override it for a loss of your own.
        """
        loss, outputs = self.objective(model, inputs, num_items_in_batch)
        if num_items_in_batch is not None and self._averages_items:
            loss = loss * self.run.ranks.world_size  # the average over processes, which follows, divides by it
        self.run.outputs = outputs
        return (loss, outputs) if return_outputs else loss

    def count_items(self, batches: list[Any]) -> Any:
        """Return the label items of a step, over all processes where they are averaged over all; None if unwanted."""
        items = self.objective.count_items(batches) if self.loss_takes_items else None
        return self.run.ranks.sum(items) if items is not None and self._averages_items else items

    @property
    def _averages_items(self) -> bool:
        return self.args.average_tokens_across_devices and not self.run.ranks.single_process

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the loader of evaluation batches. Override it for one of your own."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        name = dataset if isinstance(dataset, str) else ""
        if name:
            dataset = self.eval_dataset[name]
        if dataset is None:
            raise DataError("There is nothing to evaluate on: pass `eval_dataset`, here or to the Trainer.")
        kept, loader = self._kept_loaders.get(name, (None, None))
        if kept is dataset:
            return loader
        loader = self._loader(dataset, batch_size=self.args.eval_batch_size, training=False)
        if self.args.dataloader_persistent_workers and (name or dataset is self.eval_dataset):
            self._kept_loaders = {**self._kept_loaders, name: (dataset, loader)}
        return loader

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return the loader of the batches to predict for. Override it for one of your own."""
        return self._loader(test_dataset, batch_size=self.args.eval_batch_size, training=False)

    def _run_over(self, loader: Any, prefix: str, ignore_keys: list[str] | None, loss_only: bool) -> EvalLoopOutput:
        compare_lengths(self.run, loader)
        began = time.time()
        description = "Prediction" if self.run.mode == "predict" else "Evaluation"
        output = self.evaluation_loop(loader, description, loss_only, ignore_keys, prefix)
        steps = math.ceil(output.num_samples / (self.args.eval_batch_size * self.run.ranks.world_size))
        output.metrics.update(speed_metrics(prefix, began, output.num_samples, steps))
        return output

    def _rows_to_evaluate(self) -> dict[str, Any]:
        """Return the datasets with a length that training will be evaluated on as they are, by name."""
        overridden = type(self).get_eval_dataloader is not Evaluating.get_eval_dataloader
        if self.eval_dataset is None or overridden or self.args.eval_strategy == IntervalStrategy.NO:
            return {}
        given = self.eval_dataset if isinstance(self.eval_dataset, dict) else {"": self.eval_dataset}
        return {name: dataset for name, dataset in given.items() if not is_iterable(dataset)}

    def _datasets(self, wanted: Any) -> dict[str, Any]:
        """Return what to evaluate on by name; a single dataset has an empty name."""
        given = self.eval_dataset
        if isinstance(wanted, str):
            if not isinstance(given, dict) or wanted not in given:
                names = list(given) if isinstance(given, dict) else []
                raise ArgumentError(f"There is no eval dataset {wanted!r}{nearest(wanted, names)} There are: {names}.")
            return {wanted: wanted}
        if wanted is None:
            # By name, so that a `get_eval_dataloader` of one's own is given what transformers gives it.
            return {name: name for name in given} if isinstance(given, dict) else {"": given}
        return dict(wanted) if isinstance(wanted, dict) else {"": wanted}

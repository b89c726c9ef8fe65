"""The class `Metrics`: a `compute_metrics` from metrics that the user passes by name, by path or as objects."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from ...events.errors import ArgumentError, nearest
from ..data.batches import IGNORED_LABEL
from .bundled.base import Bundled, Reads
from .bundled.registry import BUNDLED
from .metric_files import is_path, load_metric
from .outputs import EvalPrediction, batches_of
from .readings import Reader, refuse_unnamed
from .streamed import StreamedMetrics


class Metrics(StreamedMetrics):
    """Metrics as `compute_metrics`, such as `Metrics("accuracy", "f1", average="macro")`.

    An evaluation passes each batch to the metrics as soon as the batch is predicted, and stores no logits. On several
    ranks, each rank receives the batches of all ranks. `docs/metrics.md` lists the metrics and their options.

    Args:
        *metrics: the name of a bundled metric, the path of a file with a metric in the format of the library
            `evaluate`, a metric that `evaluate.load` or `evaluate.combine` returned, or another `Metrics`. Nothing is
            downloaded.
        reads: the values to read from the outputs of the model: `argmax`, `sigmoid`, `labels`, `logits`, `values` or
            `text`. None uses the default of each bundled metric. For a metric that is not bundled, `reads` must be set.
        prefix: start of the names of the results.
        tokenizer: decodes tokens for `reads="text"`.
        label_names: names of the classes, as a list or a dict from class number to name. `seqeval` needs this argument.
            Results by class use these names, and include every named class.
        threshold: the probability above which `reads="sigmoid"` predicts 1.
        shift: whether a position predicts the label of the next position, as in causal language models. For
            `perplexity`, `shift` must be set. For any other metric, None means False.
        ignore_index: labels with this value do not count. Has no effect with `reads="values"` or `reads="sigmoid"`.
        output: the index of the output to read, if the model returns several outputs. If there are several labels, the
            same index selects the labels.
        **options: options of the metrics. Each metric receives the options that it supports.

    Raises:
        ArgumentError: for an unknown metric, a wrong value, an option that no metric has, or an argument that a metric
            needs and that is not set. The error names the remedy.
    """

    def __init__(
        self,
        *metrics: Any,
        reads: str | None = None,
        prefix: str = "",
        tokenizer: Any = None,
        label_names: Sequence[str] | Mapping[int, str] | None = None,
        threshold: float = 0.5,
        shift: bool | None = None,
        ignore_index: int = IGNORED_LABEL,
        output: int = 0,
        **options: Any,
    ) -> None:
        if not metrics:
            raise ArgumentError(f"Metrics() needs a metric, such as Metrics('accuracy'). {_known()}")
        names = label_names if isinstance(label_names, Mapping) else dict(enumerate(label_names or ()))
        if repeated := [name for name, count in Counter(names.values()).items() if count > 1]:
            raise ArgumentError(f"`label_names` has {repeated[0]!r} for several classes. Give each class its own name.")
        if not 0 <= threshold <= 1:
            raise ArgumentError(
                f"threshold={threshold!r} is not a probability. Set a number from 0 to 1; a logit of 0 has 0.5."
            )
        common: dict[str, Any] = {"ignore_index": ignore_index, "output": output, "threshold": threshold}
        common.update(label_names={int(number): name for number, name in names.items()}, tokenizer=tokenizer)
        self.prefix = prefix
        self._metrics = [_resolved(metric, _reading(reads), shift, common, options) for metric in metrics]
        _check_options(options, self._metrics)
        self._pass: MetricPass | None = None

    def begin(self) -> MetricPass:
        """Return a new `MetricPass` without batches. Each evaluation begins its own pass."""
        return MetricPass(self.prefix, [metric.begin() for metric in self._metrics])

    def __call__(self, prediction: EvalPrediction, compute_result: bool | None = None) -> dict[str, Any]:
        """Measure a prediction and return the metrics by name.

        Args:
            prediction: outputs and labels. If both are lists, each item is a batch.
            compute_result: None measures only this prediction. False adds this prediction to the batches so far, and
                returns an empty dict. True adds this prediction, returns the metrics of all batches so far, and starts
                again without batches.
        """
        if compute_result is None:
            return self.begin()(prediction)
        self._pass = self._pass or self.begin()
        result = self._pass(prediction, compute_result)
        if compute_result:
            self._pass = None
        return result

    @property
    def names_are_known(self) -> bool:
        """Whether one batch is enough to know the names of all values that the metrics return.

        True if all metrics are bundled with trainbus, and no name depends on the data.
        """
        return all(metric.names_are_known for metric in self._metrics)

    @property
    def smaller_is_better(self) -> list[str]:
        """The names of the results that are better when they are smaller, such as `mse`."""
        found = []
        for metric in self._metrics:
            if isinstance(metric, Metrics):
                found += metric.smaller_is_better
            elif metric.options is not None and metric.metric.smaller_is_better:
                found.append(metric.name)
        return [f"{self.prefix}{name}" for name in found]

    def __repr__(self) -> str:
        return f"Metrics({', '.join(map(repr, self._metrics))})"


@dataclass
class MetricPass:
    """The metrics of one evaluation in progress, with the batches that were added so far."""

    prefix: str
    """Start of the names of the results."""
    metrics: list[Any]
    """One object for each metric, with the methods `add` and `result`."""

    def __call__(self, prediction: EvalPrediction, compute_result: bool | None = None) -> dict[str, Any]:
        """Add a prediction, and return the metrics of all batches so far; empty if `compute_result` is False."""
        for predictions, labels in batches_of(prediction):
            self.add(predictions, labels)
        return {} if compute_result is False else self.result()

    def add(self, predictions: Any, labels: Any) -> None:
        """Add one batch to all metrics."""
        for metric in self.metrics:
            metric.add(predictions, labels)

    def result(self) -> dict[str, Any]:
        """Return the metrics of all batches.

        Raises:
            ArgumentError: if two metrics have the same name.
        """
        results: dict[str, Any] = {}
        for metric in self.metrics:
            for name, value in metric.result().items():
                if f"{self.prefix}{name}" in results:
                    raise ArgumentError(
                        f"Two metrics have the name {name!r}. Give one of them a prefix: "
                        f"Metrics(..., Metrics({name!r}, prefix='other_'))."
                    )
                results[f"{self.prefix}{name}"] = value
        return results


@dataclass
class _Chosen:
    """One metric of a `Metrics`, and the settings of this metric."""

    name: str
    """The name of a bundled metric. For any other metric, the name of its class."""
    metric: Any
    """The class of a bundled metric. For any other metric, the metric object."""
    reader: Reader
    """Converts outputs and labels to the values that the metric compares."""
    options: dict[str, Any] | None
    """The options of a bundled metric; None for any other metric."""
    computing: dict[str, Any] = field(default_factory=dict)
    """The options for `compute` of a metric that is not bundled."""
    classes_are_named: bool = False
    """Whether an unnamed class is an error, because the metric has one result for each class in `label_names`."""

    def begin(self) -> _Measured:
        counter = _Collected(self.metric, self.computing) if self.options is None else self.metric(**self.options)
        return _Measured(counter, self.reader, self.classes_are_named)

    @property
    def names_are_known(self) -> bool:
        return self.options is not None and not self.metric(**self.options).names_vary

    def takes(self, option: str) -> bool:
        return option in (_bundled_options(self.metric) if self.options is not None else self.computing)

    def __repr__(self) -> str:
        return f"{self.name}(reads={self.reader.reads.value!r})"


@dataclass
class _Measured:
    """One metric of an evaluation in progress."""

    counter: Any
    """The metric object, to which the batches are added."""
    reader: Reader
    """Converts outputs and labels to the values that the metric compares."""
    classes_are_named: bool = False
    """Whether a class without a name in `label_names` raises an error. Otherwise the results would silently lack this
    class."""

    def add(self, predictions: Any, labels: Any) -> None:
        pair = self.reader(predictions, labels)
        if len(pair[1]):
            self.counter.add_batch(predictions=pair[0], references=pair[1])

    def result(self) -> dict[str, Any]:
        names = self.reader.label_names or {}
        if self.classes_are_named:
            refuse_unnamed(self.counter.classes, names)
        return dict(_flat(self.counter.compute(), names))


class _Collected:
    """Stores the inputs of a metric that is not bundled. Computes the metric from them at the end.

    The class does not call the metric's own `add_batch`, which writes to a file for metrics of the library
    `evaluate`. If an evaluation failed, this file would stay on the disk.
    """

    def __init__(self, metric: Any, options: dict[str, Any]) -> None:
        self._metric, self._options = metric, options
        self._pairs: list[tuple[Any, Any]] = []

    def add_batch(self, *, predictions: Any, references: Any) -> None:
        self._pairs.append((predictions, references))

    def compute(self) -> Any:
        if not self._pairs:
            return {}
        predictions, references = (_joined([pair[index] for pair in self._pairs]) for index in (0, 1))
        return self._metric.compute(predictions=predictions, references=references, **self._options)


def _resolved(given: Any, reads: Reads | None, shift: bool | None, common: dict[str, Any], options: Any) -> Any:
    """Return a `_Chosen` for a metric: the metric with its reader and options. Return a `Metrics` unchanged.

    Args:
        given: the name of a bundled metric, the path of a file, a metric object, or a `Metrics`.
        reads: the values to read from the outputs; None for the default of a bundled metric.
        shift: the argument `shift` of `Metrics`.
        common: the arguments of `Reader` that all metrics of a `Metrics` share, by name.
        options: one dict from option name to value, for all metrics together. The metric receives the options that it
            supports.

    Raises:
        ArgumentError: for an unknown metric, or for a value of `reads` that the metric does not support. Also if the
            metric needs `reads`, `shift` or `label_names`, and the argument is not set.
    """
    if isinstance(given, Metrics):
        return given
    if isinstance(given, (str, os.PathLike)) and (not isinstance(given, str) or given not in BUNDLED):
        if not is_path(given):
            raise ArgumentError(_unknown(os.fspath(given)))
        given = load_metric(given)
    if isinstance(given, str):
        return _chosen_bundled(given, reads, shift, common, options)
    if not all(callable(getattr(given, name, None)) for name in ("add_batch", "compute")) or isinstance(given, type):
        raise ArgumentError(
            f"{given!r} is not a metric. Pass a name, a path, or an object with `add_batch` and `compute`, such as "
            f"`evaluate.load(...)` returns.{_unpacked(given)}"
        )
    if reads is None:
        raise ArgumentError(
            f"The trainer does not know what {type(given).__name__} reads from the outputs of the "
            f"model. Set `reads` to one of: "
            f"{', '.join(kind.value for kind in Reads)}."
        )
    name = type(given).__name__
    reader = _reader(name, reads, False, shift, common)
    return _Chosen(name, given, reader, None, {name: options[name] for name in _computing_options(given, options)})


def _chosen_bundled(
    name: str, reads: Reads | None, shift: bool | None, common: dict[str, Any], options: Any
) -> _Chosen:
    cls = BUNDLED[name]
    reads = cls.reads[0] if reads is None else reads
    if reads not in cls.reads:
        raise ArgumentError(
            f"{name!r} cannot read {reads.value!r}, only {', '.join(kind.value for kind in cls.reads)}. To combine "
            f"it with metrics that do, write Metrics({name!r}, Metrics(..., reads={reads.value!r}))."
        )
    if name == "perplexity" and shift is None:
        raise ArgumentError(
            "'perplexity' needs `shift`. Set shift=True for a causal language model, whose labels are its inputs, and "
            "shift=False for a model that predicts the label of the same position."
        )
    if cls.needs_sequences and not common["label_names"]:
        raise ArgumentError(f"{name!r} needs `label_names`, such as label_names=['O', 'B-PER', 'I-PER'].")
    own = {key: options[key] for key in _bundled_options(cls) if key in options}
    made = cls(**own)  # refuses wrong values now
    if common["label_names"]:
        refuse_unnamed(getattr(made, "labels", None) or (), common["label_names"])
    by_class = made.names_vary
    named = by_class and "labels" in _bundled_options(cls) and bool(common["label_names"])
    if named:
        own["labels"] = sorted(common["label_names"])  # the same results in each evaluation
    return _Chosen(name, cls, _reader(name, reads, cls.needs_sequences, shift, common), own, classes_are_named=named)


def _reader(name: str, reads: Reads, sequences: bool, shift: bool | None, common: dict[str, Any]) -> Reader:
    if reads is Reads.TEXT and not hasattr(common["tokenizer"], "batch_decode"):
        raise ArgumentError(
            f"{name!r} reads text. Pass the tokenizer that decodes it: Metrics(..., tokenizer=tokenizer)."
        )
    return Reader(reads, sequences=sequences, shift=bool(shift), **common)


def _reading(reads: str | None) -> Reads | None:
    known = [kind.value for kind in Reads]
    if reads is not None and reads not in known:
        raise ArgumentError(f"reads={reads!r} is unknown{nearest(str(reads), known)} Set one of: {', '.join(known)}.")
    return None if reads is None else Reads(reads)


def _bundled_options(cls: type[Bundled]) -> list[str]:
    return [each.name for each in fields(cls) if each.init]  # type: ignore[arg-type]


def _computing_options(metric: Any, options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names in `options` that the method `compute` of the metric accepts."""
    parameters = inspect.signature(getattr(metric, "_compute", metric.compute)).parameters
    any_name = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return (name for name in options if any_name or name in parameters)


def _check_options(options: Mapping[str, Any], metrics: list[Any]) -> None:
    chosen = [metric for metric in metrics if isinstance(metric, _Chosen)]
    for option in options:
        if not any(metric.takes(option) for metric in chosen):
            known = sorted(
                {name for metric in chosen if metric.options is not None for name in _bundled_options(metric.metric)}
            )
            raise ArgumentError(
                f"No metric of {', '.join(map(repr, chosen)) or 'these'} has the option {option!r}"
                f"{nearest(option, known)} Known: {', '.join(known) or 'none'}."
            )


def _unknown(name: str) -> str:
    return (
        f"The metric {name!r} is not bundled{nearest(name, BUNDLED)} {_known()} Metrics downloads nothing. To use a "
        f"module of the library `evaluate`, load it, and set what it reads: Metrics(evaluate.load({name!r}), "
        "reads='argmax'). To use a file, pass its path: Metrics('./my_metric.py', reads='argmax')."
    )


def _known() -> str:
    return f"Bundled: {', '.join(BUNDLED)}."


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], list):
        return [item for part in parts for item in part]
    arrays = [part.float().cpu().numpy() if hasattr(part, "cpu") else part for part in parts]
    return np.concatenate(arrays)


def _flat(values: Any, names: Mapping[int, str]) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of results. Dicts, lists and arrays are flattened: `{"f1": {0: 0.5}}` gives `f1_0`.

    If `names` has a name for a key of an inner dict, this name replaces the key.
    """
    for name, value in values.items():
        if isinstance(value, np.ndarray) and value.ndim:
            value = value.tolist()
        if isinstance(value, list):
            value = {str(index): part for index, part in enumerate(value)}
        if not isinstance(value, Mapping):
            yield str(name), value
            continue
        for inner, one in _flat({names.get(key, key): part for key, part in value.items()}, names):
            yield f"{name}_{inner}", one


def _unpacked(given: Any) -> str:
    """If `given` is a list or tuple of names, return advice: `Metrics("a", "b")`. Otherwise return an empty text."""
    names = given if isinstance(given, (list, tuple)) and all(isinstance(each, str) for each in given) else []
    return f" Pass each name by itself: Metrics({', '.join(map(repr, names))})." if names else ""

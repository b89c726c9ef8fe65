"""The text of a model card: the model, the settings of its training, and its results."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...events.state import TrainerState
from ..arguments import TrainingArguments
from ..evaluation.outputs import is_train_summary

GENERATED = "generated_from_trainer"
"""The tag of every card that a trainer writes."""

TASKS = {
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "ForConditionalGeneration": "text2text-generation",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForTableQuestionAnswering": "table-question-answering",
    "ForMultipleChoice": "multiple-choice",
    "ForImageClassification": "image-classification",
    "ForImageSegmentation": "image-segmentation",
    "ForObjectDetection": "object-detection",
    "ForAudioClassification": "audio-classification",
    "ForCTC": "automatic-speech-recognition",
    "ForSpeechSeq2Seq": "automatic-speech-recognition",
}
"""Suffix of a transformers model class -> the hub's task name."""

METRICS = (
    *("accuracy", "bleu", "f1", "matthews_correlation", "pearsonr", "precision", "recall", "rouge", "sacrebleu"),
    *("spearmanr", "wer"),
)
"""The names of metrics that the hub knows."""

NO_DATASETS = frozenset({None, "csv", "json", "pandas", "parquet", "text", "generator"})
"""Builders of the library `datasets` for files and generators. A card does not show these names, because they say
nothing about the data."""

_SPEEDS = ("runtime", "samples_per_second", "steps_per_second")
_NEEDED = "More information needed"


@dataclass(frozen=True)
class Facts:
    """The facts of a model card: name, license, datasets and so on. Settings and results are not included."""

    model_name: str
    """The name of the model: the title of the card."""
    language: tuple[str, ...] = ()
    """The languages of the model."""
    license: str | None = None
    """The license of the model."""
    tags: tuple[str, ...] = (GENERATED,)
    """Search tags."""
    finetuned_from: str | None = None
    """The base model; None for a model trained from scratch."""
    tasks: tuple[str, ...] = ()
    """Task names of the hub."""
    datasets: tuple[str, ...] = ()
    """Display names of the datasets."""
    dataset_tags: tuple[str, ...] = ()
    """Names of the datasets on the hub."""
    dataset_args: tuple[str, ...] = ()
    """The configuration of each dataset."""
    dataset_split: str | None = None
    """The split of the results."""
    library: str | None = None
    """The library that loads the model."""


# Facts that are derived from the model and the dataset.


def task_of(model: object) -> str | None:
    """Return the hub's task name for the class of a transformers model; None if `TASKS` does not list the class."""
    name = type(model).__name__
    found = [end for end in TASKS if name.endswith(end)]
    return TASKS[max(found, key=len)] if found and library_of(model) else None


def library_of(model: object) -> str | None:
    """Return `transformers` for a transformers model, otherwise None."""
    return "transformers" if any(cls.__module__.startswith("transformers.") for cls in type(model).__mro__) else None


def base_of(model: object) -> str | None:
    """Return the hub name from which a model was loaded; None for a new model, or for a model from a folder."""
    name = getattr(getattr(model, "config", None), "_name_or_path", None)
    return name if name and not Path(name).is_dir() else None


def dataset_of(dataset: object) -> dict[str, Any]:
    """Return name, configuration and split of a dataset from the hub, as fields of `Facts`; {} for other datasets."""
    name = getattr(dataset, "builder_name", None)
    if name in NO_DATASETS:
        return {}
    config, split = getattr(dataset, "config_name", None), getattr(dataset, "split", None)
    return {
        "dataset_tags": (str(name),),
        "dataset_args": () if config is None else (str(config),),
        "dataset_split": None if split is None else str(split),
    }


# The parts of a card.


def hyperparameters(args: TrainingArguments) -> dict[str, Any]:
    """Return the settings that affect the result of a training, by name."""
    world, accumulated = args.world_size, args.gradient_accumulation_steps
    values: dict[str, Any] = {
        "learning_rate": args.learning_rate,
        "train_batch_size": args.train_batch_size,
        "eval_batch_size": args.eval_batch_size,
        "seed": args.seed,
    }
    if world > 1:
        values["distributed_type"] = "multi-GPU" if args.device.type == "cuda" else "multi-CPU"
        values["num_devices"] = world
    if accumulated > 1:
        values["gradient_accumulation_steps"] = accumulated
    if world * accumulated > 1:
        values["total_train_batch_size"] = args.train_batch_size * world * accumulated
    if world > 1:
        values["total_eval_batch_size"] = args.eval_batch_size * world
    values["optimizer"] = _optimizer(args)
    values["lr_scheduler_type"] = str(args.lr_scheduler_type)
    if args.warmup_steps:
        values["lr_scheduler_warmup_steps"] = args.warmup_steps
    if args.max_steps > 0:
        values["training_steps"] = args.max_steps
    else:
        values["num_epochs"] = args.num_train_epochs
    if args.fp16 or args.bf16:
        values["mixed_precision_training"] = "Native AMP" if args.fp16 else "bfloat16"
    if args.label_smoothing_factor:
        values["label_smoothing_factor"] = args.label_smoothing_factor
    return values


def _optimizer(args: TrainingArguments) -> str:
    said = str(args.optim)
    if "adam" in said.lower():
        said += f" with betas=({args.adam_beta1}, {args.adam_beta2}) and epsilon={args.adam_epsilon}"
    return f"{said}, {args.optim_args}" if args.optim_args else said


def training_results(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Build the rows of the table of results: one row for each step with an evaluation. Step 0 has no row.

    A row maps titles of columns to values: the last logged training loss, the epoch, the step, and each metric.

    Args:
        history: `state.log_history`.
    """
    rows: dict[int, dict[str, Any]] = {}
    loss: Any = "No log"
    for entry in history:
        loss = entry.get("loss", loss)
        metrics = _metrics(entry)
        step = entry.get("step", 0)
        if metrics and step > 0:  # an evaluation before training is not a result of it
            row = rows.setdefault(step, {"Training Loss": loss, "Epoch": entry.get("epoch"), "Step": step})
            row.update({"Validation Loss" if name == "loss" else title(name): v for name, v in metrics.items()})
    return list(rows.values())


def final_results(args: TrainingArguments, state: TrainerState) -> dict[str, Any]:
    """Return the metrics of the last evaluation, by name and without `eval_`; {} if there was no evaluation.

    If the trainer loaded the best model at the end of training and did not evaluate again, return the metrics of the
    evaluation at the best step.
    """
    history = state.log_history
    last = max((index for index, entry in enumerate(history) if _metrics(entry)), default=None)
    if last is None:
        return {}
    step = history[last].get("step")
    if args.load_best_model_at_end and any(is_train_summary(entry) for entry in history[last:]):
        step = state.best_global_step or step
    found: dict[str, Any] = {}
    for entry in history:
        if entry.get("step") == step:
            found.update(_metrics(entry))
    return found


def known_metrics(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the metrics in `results` that have a name on the hub: name on the hub -> name in `results`."""
    known = {name: name for name in results if name in METRICS}
    return {**known, **({"rouge": "rouge1"} if "rouge1" in results else {})}


def title(name: str) -> str:
    """Return a metric's name as a heading: `f1_macro` becomes `F1 Macro`."""
    return " ".join(part.capitalize() for part in name.split("_"))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a Markdown table. Rows may have different columns."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = [[_shown(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    lines = [columns, *cells]
    padded = ["".join(f"| {c:<{width}} " for c, width in zip(line, widths, strict=True)) + "|" for line in lines]
    ruler = "".join(f"|:{'-' * width}:" for width in widths) + "|"
    return "\n".join([padded[0], ruler, *padded[1:]])


def frameworks() -> dict[str, str]:
    """Return the versions of trainbus, of torch, and of related libraries that the program imported."""
    others = {"transformers": "Transformers", "datasets": "Datasets", "tokenizers": "Tokenizers"}
    loaded = {name: package for package, name in others.items() if package in sys.modules}
    return {name: version(package) for name, package in {"Trainbus": "trainbus", "PyTorch": "torch", **loaded}.items()}


def card_text(facts: Facts, args: TrainingArguments, state: TrainerState) -> str:
    """Build the text of a model card, without its metadata header.

    Args:
        facts: the facts about the model and the data.
        args: the arguments. The card lists their settings.
        state: the trainer state. The card shows its log history as a table.
    """
    sections = {
        "Model description": _NEEDED,
        "Intended uses & limitations": _NEEDED,
        "Training and evaluation data": _NEEDED,
        "Training procedure": "\n\n".join(_procedure(args, state)),
    }
    text = [
        "<!-- This card was generated by the trainer. Proofread and complete it, then remove this comment. -->",
        f"# {facts.model_name}",
        _origin(facts),
    ]
    if results := final_results(args, state):
        text.append("It achieves the following results on the evaluation set:\n" + _listed(results, title))
    text += [f"## {name}\n\n{content}" for name, content in sections.items()]
    return "\n\n".join(text) + "\n"


def _origin(facts: Facts) -> str:
    base = facts.finetuned_from
    made = f"is a fine-tuned version of [{base}](https://huggingface.co/{base})" if base else "was trained from scratch"
    *others, last = [f"the {name}" for name in facts.datasets or facts.dataset_tags] or ["an unknown"]
    data = f"{', '.join(others)} and {last} datasets" if others else f"{last} dataset"
    return f"This model {made} on {data}."


def _procedure(args: TrainingArguments, state: TrainerState) -> list[str]:
    parts = ["### Training hyperparameters", "The following hyperparameters were used during training:"]
    parts.append(_listed(hyperparameters(args)))
    if rows := training_results(state.log_history):
        parts += ["### Training results", table(rows)]
    return [*parts, "### Framework versions", "\n".join(f"- {name} {said}" for name, said in frameworks().items())]


def _listed(values: Mapping[str, Any], heading: Any = str) -> str:
    return "\n".join(f"- {heading(name)}: {_shown(value)}" for name, value in values.items())


def _metrics(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a logged evaluation by name, without `eval_`; {} for any other log entry.

    The speed, such as `eval_runtime`, does not count as a metric.
    """
    evaluated = {key.removeprefix("eval_"): value for key, value in entry.items() if key.startswith("eval_")}
    return {name: value for name, value in evaluated.items() if not name.endswith(_SPEEDS)}


def _shown(value: Any) -> str:
    text = str(value)
    return f"{value:.4f}" if isinstance(value, float) and len(text.partition(".")[2]) > 4 else text

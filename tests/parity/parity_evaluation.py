"""Cases about evaluating and predicting, and about sequences of calls in scripts."""

from __future__ import annotations

from typing import Any

from parity_case import EVAL_ROWS, RESUMED_AT, Case
from parity_losses import BART, GPT2

from support.data import sentences
from support.models import bert
from support.parity_data import (
    BatchwiseAccuracy,
    Stream,
    accuracy,
    all_in_order,
    best_guess,
    everything,
    nothing,
    of_every_type,
    summed_loss,
    texts,
    without,
)
from support.parity_models import Plain, of_bert, plain
from support.trainers import Fresh

SHORT = {"max_steps": 3, "eval_strategy": "epoch"}
ALL = {"compute_metrics": everything}


def kept(about: str, options: Any = (), test: Any = None, **args: Any) -> Case:
    """Return a case of three training steps, an evaluation and a prediction."""
    return Case({**SHORT, **args}, {"model": plain(), **ALL, **dict(options)}, about=about, test=test)


EVALUATING = {
    "predictions": kept("Predictions and labels are complete and in order.", {"model": plain()}),
    "predictions of different widths": kept("Predictions are padded with -100.", GPT2, test=texts(9, 2)),
    "eval_accumulation_steps": kept("Predictions move to the host every two batches.", eval_accumulation_steps=2),
    "eval_accumulation_steps, different widths": kept(
        "The run joins the predictions of several parts. The padding is the same as without the option.",
        GPT2,
        eval_accumulation_steps=1,
        test=texts(9, 2),
    ),
    "predictions per batch": kept("Predictions are a list of arrays, one per batch.", eval_do_concat_batches=False),
    "predictions per batch, different widths": kept(
        "No batch is padded to the width of another batch.", GPT2, eval_do_concat_batches=False, test=texts(9, 2)
    ),
    "losses and inputs per batch": kept(
        "`compute_metrics` receives lists of arrays.",
        GPT2,
        eval_do_concat_batches=False,
        include_for_metrics=["inputs", "loss"],
    ),
    "predictions per batch with eval_accumulation_steps": kept(
        "The option `eval_accumulation_steps` does not join the arrays of the batches.",
        eval_do_concat_batches=False,
        eval_accumulation_steps=2,
    ),
    "loss only": kept("Predictions and metrics are not computed.", prediction_loss_only=True),
    "metrics with inputs": kept("The inputs are in the order of the samples.", include_for_metrics=["inputs"]),
    "metrics with losses": kept("`compute_metrics` receives one loss per sample.", include_for_metrics=["loss"]),
    "metrics with inputs and losses": kept(
        "The samples have different lengths.", GPT2, include_for_metrics=["inputs", "loss"], test=texts(9, 2)
    ),
    "metrics per batch": kept(
        "`compute_metrics` receives one batch at a time. The parameter `compute_result` is True for the last batch.",
        {"compute_metrics": Fresh(BatchwiseAccuracy)},
        batch_eval_metrics=True,
    ),
    "metrics of every type": kept(
        "Numbers of NumPy and torch are logged as Python numbers.", {"compute_metrics": of_every_type}
    ),
    "preprocessed predictions": kept(
        "Only the predicted class is kept.", {"preprocess_logits_for_metrics": best_guess}
    ),
    "predictions in bf16": kept("Predictions are returned in float32.", bf16=True),
    "predictions with bf16 weights": kept(
        "`bf16_full_eval` converts the weights to bfloat16.", {"model": plain()}, bf16_full_eval=True
    ),
    "predictions with label smoothing": kept(
        "Smoothing changes the loss, not the predictions.", {"model": bert}, label_smoothing_factor=0.1
    ),
    "predictions gathered as objects": kept(
        "With one process, the results do not change.", eval_use_gather_object=True
    ),
    "predictions with a custom loss": kept(
        "The loss function receives the number of items of each batch.", {"compute_loss_func": summed_loss}
    ),
    "predictions without labels": kept(
        "Loss and metrics are not computed.", {"model": plain("tuple")}, test=without("labels", sentences(EVAL_ROWS, 1))
    ),
    "predictions as a tuple": kept(
        "Predictions are a tuple of arrays.", {"model": plain("three")}, test=sentences(9, 3)
    ),
    "prediction of one sample": kept("The batch is not full.", test=sentences(1, 3)),
    "predictions of a stream": kept(
        "The number of predictions is the number of samples read.", test=Stream(sentences(9, 3))
    ),
    "evaluation in one batch": kept("One batch has all samples.", per_device_eval_batch_size=64),
    "evaluation with two workers": kept("The samples keep their order.", dataloader_num_workers=2),
}
"""Cases about the results of evaluations and predictions."""


def trained_twice(trainer: Any) -> Any:
    """Train twice."""
    trainer.train()
    return trainer.train()


def evaluated_first(trainer: Any) -> Any:
    """Evaluate, then train."""
    trainer.evaluate()
    return trainer.train()


def changed(trainer: Any) -> Any:
    """Train, then train on other samples, with another number of steps and another learning rate."""
    trainer.train()
    trainer.train_dataset = sentences(17, 5)
    trainer.args.max_steps, trainer.args.learning_rate = 4, 1e-2
    return trainer.train()


def predicted_between(trainer: Any) -> Any:
    """Train, predict, and train a second time."""
    trainer.train()
    trainer.predict(sentences(5, 4))
    return trainer.train()


def under_another_name(trainer: Any) -> Any:
    """Train, and evaluate other samples with another prefix."""
    output = trainer.train()
    trainer.evaluate(sentences(5, 2), metric_key_prefix="other")
    trainer.evaluate({"left": sentences(3, 5), "right": sentences(4, 6)})
    return output


def resumed(trainer: Any) -> Any:
    """Train, then resume from the checkpoint in the middle."""
    trainer.train()
    return trainer.train(resume_from_checkpoint=f"{trainer.args.output_dir}/checkpoint-{RESUMED_AT}")


TWO = {"compute_metrics": accuracy, "eval_dataset": {"easy": sentences(9, 1), "hard": sentences(5, 2)}}

ORDERS = {
    "no training": Case({}, ALL, about="`evaluate()` and `predict()` run without training.", train=nothing),
    "evaluation before training": Case(
        {}, about="The evaluation does not change the random numbers of training.", train=evaluated_first
    ),
    "ignore_keys_for_eval": Case(
        {"eval_strategy": "epoch"},
        {
            "model": of_bert("SequenceClassification", vocab_size=50, output_hidden_states=True),
            "compute_metrics": everything,
        },
        about="`train(ignore_keys_for_eval=...)` applies only to the evaluations of that training.",
        train=lambda trainer: trainer.train(ignore_keys_for_eval=["hidden_states"]),
    ),
    "prediction before training": Case(
        {"eval_strategy": "epoch"},
        {"model": plain()},
        about="The prediction does not change the random numbers of training.",
        train=lambda trainer: [trainer.predict(sentences(4, 4)), trainer.train()][-1],
    ),
    "changes between two trainings": Case(
        {"num_train_epochs": 1},
        {"model": plain()},
        about="The second training uses the changed arguments and samples, and keeps the optimizer.",
        train=changed,
    ),
    "two trainings": Case(
        {"num_train_epochs": 1},
        about="The second training continues with the weights of the first.",
        train=trained_twice,
    ),
    "two trainings with model_init": Case(
        {"num_train_epochs": 1},
        {"model_init": lambda: Plain()},
        about="The second training starts with a new model.",
        train=trained_twice,
    ),
    "resume inside an epoch": Case(
        {"save_strategy": "steps", "save_steps": RESUMED_AT, "lr_scheduler_type": "cosine"},
        about="The RNG state, the order of samples and the schedule continue.",
        train=resumed,
        differs="loss of a resumed run",
    ),
    "resume inside an epoch with accumulation": Case(
        {"save_strategy": "steps", "save_steps": RESUMED_AT, "gradient_accumulation_steps": 2, "num_train_epochs": 3},
        {"model": plain()},
        about="The batches of finished steps are skipped.",
        train=resumed,
        differs="loss of a resumed run",
    ),
    "resume with tied submodules": Case(
        {"save_strategy": "steps", "save_steps": RESUMED_AT},
        BART,
        about="A weight that is saved once is loaded under each of its names.",
        train=resumed,
        differs="loss of a resumed run",
    ),
    "prediction between two trainings": Case(
        {"num_train_epochs": 1},
        {"model": plain()},
        about="The prediction does not change the second training.",
        train=predicted_between,
    ),
    "evaluation and two trainings": Case(
        {"max_steps": 4},
        {"model": plain()},
        about="The program calls `evaluate()`, then `train()` two times.",
        train=all_in_order,
    ),
    "evaluation with other prefixes": Case(
        {"max_steps": 4},
        {"model": plain(), "compute_metrics": accuracy},
        about="The metric names start with the given prefix.",
        train=under_another_name,
    ),
    "several datasets without training": Case(
        {}, TWO, about="Metrics of all datasets are returned, with the names of the datasets.", train=nothing
    ),
    "predictions of one of several datasets": Case(
        {"max_steps": 3, "eval_strategy": "steps"},
        {**TWO, "model": plain()},
        about="`predict()` receives the first of two evaluation datasets. Evaluations log an entry for each dataset.",
    ),
}
"""Cases about sequences of calls."""

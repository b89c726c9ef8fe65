"""Cases about evaluating and predicting, and about the order in which scripts do things."""

from __future__ import annotations

from typing import Any

from engine_toys import Fresh, bert, sentences
from parity_case import EVAL_ROWS, RESUMED_AT, Case
from parity_losses import BART, GPT2
from parity_models import Plain, of_bert, plain
from parity_toys import (
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

SHORT = {"max_steps": 3, "eval_strategy": "epoch"}
ALL = {"compute_metrics": everything}


def kept(about: str, options: Any = (), test: Any = None, **args: Any) -> Case:
    """A case of three steps, an evaluation and a prediction with arguments of their own."""
    return Case({**SHORT, **args}, {"model": plain(), **ALL, **dict(options)}, about=about, test=test)


EVALUATING = {
    "predictions": kept("Numbers of all predictions and labels, in their order.", {"model": plain()}),
    "predictions padded to different widths": kept("Filled up with -100.", GPT2, test=texts(9, 2)),
    "predictions moved to the host on the way": kept("Every two batches.", eval_accumulation_steps=2),
    "uneven predictions moved to the host on the way": kept(
        "Joined in parts, they are padded the same.", GPT2, eval_accumulation_steps=1, test=texts(9, 2)
    ),
    "predictions batch by batch": kept("A list of arrays.", eval_do_concat_batches=False),
    "uneven predictions batch by batch": kept("None is padded.", GPT2, eval_do_concat_batches=False, test=texts(9, 2)),
    "losses and inputs batch by batch": kept(
        "Metrics are given lists of arrays.",
        GPT2,
        eval_do_concat_batches=False,
        include_for_metrics=["inputs", "loss"],
    ),
    "batches of predictions moved to the host": kept(
        "A list of arrays, all the same.", eval_do_concat_batches=False, eval_accumulation_steps=2
    ),
    "the loss alone": kept("No predictions, no metrics.", prediction_loss_only=True),
    "metrics given the inputs": kept("In the order of the rows.", include_for_metrics=["inputs"]),
    "metrics given the losses": kept("One for each row.", include_for_metrics=["loss"]),
    "metrics given inputs and losses": kept(
        "Of rows of different lengths.", GPT2, include_for_metrics=["inputs", "loss"], test=texts(9, 2)
    ),
    "metrics given batches": kept(
        "One batch at a time, and told of the last.",
        {"compute_metrics": Fresh(BatchwiseAccuracy)},
        batch_eval_metrics=True,
    ),
    "metrics of every type": kept("They become numbers of Python.", {"compute_metrics": of_every_type}),
    "predictions preprocessed": kept("The best guess is what is kept.", {"preprocess_logits_for_metrics": best_guess}),
    "predictions in half precision": kept("They come back in full.", bf16=True),
    "predictions in half precision of weights": kept(
        "The weights are halved.", {"model": plain()}, bf16_full_eval=True
    ),
    "predictions with a smoothed loss": kept(
        "The loss is, the predictions are not.", {"model": bert}, label_smoothing_factor=0.1
    ),
    "predictions gathered as objects": kept("With one process it is the same.", eval_use_gather_object=True),
    "predictions with a loss of one's own": kept(
        "It is given the items of each batch.", {"compute_loss_func": summed_loss}
    ),
    "predictions without labels": kept(
        "No loss, no metrics.", {"model": plain("tuple")}, test=without("labels", sentences(EVAL_ROWS, 1))
    ),
    "predictions of a tuple": kept("Arrays in a tuple.", {"model": plain("three")}, test=sentences(9, 3)),
    "predictions of one row": kept("A batch that is far from full.", test=sentences(1, 3)),
    "predictions of a stream": kept("Their number is what came.", test=Stream(sentences(9, 3))),
    "evaluation in larger batches": kept("One batch for all.", per_device_eval_batch_size=64),
    "evaluation by two workers": kept("In the order of the rows.", dataloader_num_workers=2),
}
"""What an evaluation and a prediction return."""


def trained_twice(trainer: Any) -> Any:
    """Train, and train again."""
    trainer.train()
    return trainer.train()


def evaluated_first(trainer: Any) -> Any:
    """Evaluate, then train."""
    trainer.evaluate()
    return trainer.train()


def changed(trainer: Any) -> Any:
    """Train, then train on other rows, for another number of steps and at another rate."""
    trainer.train()
    trainer.train_dataset = sentences(17, 5)
    trainer.args.max_steps, trainer.args.learning_rate = 4, 1e-2
    return trainer.train()


def predicted_between(trainer: Any) -> Any:
    """Train, predict, and train again."""
    trainer.train()
    trainer.predict(sentences(5, 4))
    return trainer.train()


def under_another_name(trainer: Any) -> Any:
    """Train, and evaluate other rows under another name."""
    output = trainer.train()
    trainer.evaluate(sentences(5, 2), metric_key_prefix="other")
    trainer.evaluate({"left": sentences(3, 5), "right": sentences(4, 6)})
    return output


def resumed(trainer: Any) -> Any:
    """Train, and train again from a checkpoint in the middle."""
    trainer.train()
    return trainer.train(resume_from_checkpoint=f"{trainer.args.output_dir}/checkpoint-{RESUMED_AT}")


TWO = {"compute_metrics": accuracy, "eval_dataset": {"easy": sentences(9, 1), "hard": sentences(5, 2)}}

ORDERS = {
    "not trained at all": Case({}, ALL, about="A fresh model is evaluated, and predicts.", train=nothing),
    "evaluated before it is trained": Case(
        {}, about="The random draws of training do not move.", train=evaluated_first
    ),
    "keys left out of evaluations on the way": Case(
        {"eval_strategy": "epoch"},
        {
            "model": of_bert("SequenceClassification", vocab_size=50, output_hidden_states=True),
            "compute_metrics": everything,
        },
        about="`train(ignore_keys_for_eval=...)` is about that training's evaluations alone.",
        train=lambda trainer: trainer.train(ignore_keys_for_eval=["hidden_states"]),
    ),
    "predicted before it is trained": Case(
        {"eval_strategy": "epoch"},
        {"model": plain()},
        about="Nor do they move by predicting.",
        train=lambda trainer: [trainer.predict(sentences(4, 4)), trainer.train()][-1],
    ),
    "changed between two trainings": Case(
        {"num_train_epochs": 1},
        {"model": plain()},
        about="What is new is read, and the optimizer stays.",
        train=changed,
    ),
    "trained twice": Case({"num_train_epochs": 1}, about="The second goes on from the weights.", train=trained_twice),
    "trained twice with a model_init": Case(
        {"num_train_epochs": 1}, {"model_init": lambda: Plain()}, about="The second begins anew.", train=trained_twice
    ),
    "resumed inside an epoch": Case(
        {"save_strategy": "steps", "save_steps": RESUMED_AT, "lr_scheduler_type": "cosine"},
        about="The random draws, the order of rows and the schedule go on.",
        train=resumed,
        differs="loss of a resumed run",
    ),
    "resumed inside an epoch of accumulated steps": Case(
        {"save_strategy": "steps", "save_steps": RESUMED_AT, "gradient_accumulation_steps": 2, "num_train_epochs": 3},
        {"model": plain()},
        about="The batches of the steps done are skipped.",
        train=resumed,
        differs="loss of a resumed run",
    ),
    "resumed with a model whose parts tie weights": Case(
        {"save_strategy": "steps", "save_steps": RESUMED_AT},
        BART,
        about="What is written once is there under each name.",
        train=resumed,
        differs="loss of a resumed run",
    ),
    "predicted between two trainings": Case(
        {"num_train_epochs": 1}, {"model": plain()}, about="Predicting leaves no trace.", train=predicted_between
    ),
    "evaluated, trained, trained": Case({"max_steps": 4}, {"model": plain()}, about="All of it.", train=all_in_order),
    "evaluated under other names": Case(
        {"max_steps": 4},
        {"model": plain(), "compute_metrics": accuracy},
        about="The names begin as was said.",
        train=under_another_name,
    ),
    "several datasets, not trained": Case({}, TWO, about="The metrics of all, named.", train=nothing),
    "one of several datasets": Case(
        {"max_steps": 3, "eval_strategy": "steps"}, {**TWO, "model": plain()}, about="Each has entries of its own."
    ),
}
"""What scripts do, in which order."""

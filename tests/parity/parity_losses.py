"""Cases about what is learned: losses, precision, memory, and the models of every kind of task."""

from __future__ import annotations

from engine_toys import Fresh, bert
from parity_case import EVAL_ROWS, TRAIN_ROWS, Case
from parity_models import Anything, Normalised, TwoHeaded, bart, gpt2, llama, of_bert, plain, t5
from parity_toys import (
    accuracy,
    answered,
    collator_of_transformers,
    everything,
    half_labelled,
    marked,
    measured,
    padded,
    pictured,
    renamed,
    summed_loss,
    texts,
    tokenizer,
    twice_labelled,
    without,
)

TEXTS = {"train_dataset": texts(TRAIN_ROWS), "eval_dataset": texts(EVAL_ROWS, 1), "data_collator": padded}
GPT2, LLAMA, BART = ({**TEXTS, "model": model} for model in (gpt2, llama, bart))
POINTS = {"train_dataset": pictured(TRAIN_ROWS), "eval_dataset": pictured(EVAL_ROWS, 1)}
UNLABELLED = {
    "train_dataset": without("labels", texts(TRAIN_ROWS)),
    "eval_dataset": without("labels", texts(EVAL_ROWS, 1)),
}
RAGGED = {"gradient_accumulation_steps": 4, "eval_strategy": "epoch"}

LOSSES = {
    "tokens counted over a step": Case(
        RAGGED, GPT2, about="A causal model's loss is averaged over the tokens of a step, however many each batch has."
    ),
    "tokens counted, the first of a row left out": Case(
        RAGGED, LLAMA, about="A model that shifts its labels never predicts the first one."
    ),
    "tokens counted by each process": Case(
        {**RAGGED, "average_tokens_across_devices": False}, LLAMA, about="With one process it is the same."
    ),
    "tokens in an epoch of one step": Case(
        {"gradient_accumulation_steps": 9}, GPT2, about="A step of fewer batches than were asked for."
    ),
    "label smoothing": Case(
        {"label_smoothing_factor": 0.1, "eval_strategy": "epoch"},
        {"compute_metrics": accuracy},
        about="Of the classes of a row, in training and in evaluation.",
    ),
    "label smoothing, accumulated": Case(
        {"label_smoothing_factor": 0.3, "gradient_accumulation_steps": 4}, about="The batches of a step count alike."
    ),
    "label smoothing of a tuple": Case(
        {"label_smoothing_factor": 0.2, "eval_strategy": "epoch"},
        {"model": of_bert("SequenceClassification", vocab_size=50, return_dict=False)},
        about="Logits that come in a tuple.",
        differs="first of a tuple",
    ),
    "label smoothing of several labels a row": Case(
        {"label_smoothing_factor": 0.2, "eval_strategy": "epoch"},
        {
            "model": of_bert("SequenceClassification", num_labels=3, problem_type="multi_label_classification"),
            "train_dataset": marked(TRAIN_ROWS),
            "eval_dataset": marked(EVAL_ROWS, 1),
        },
        about="There is no one right class to take a share from, so nothing is smoothed.",
    ),
    "label smoothing of a causal model": Case(
        {"label_smoothing_factor": 0.1, "eval_strategy": "epoch"},
        GPT2,
        about="The labels are shifted, padding ignored.",
    ),
    "label smoothing of a causal model, accumulated": Case(
        {**RAGGED, "label_smoothing_factor": 0.2}, LLAMA, about="The tokens of a step are counted."
    ),
    "a loss of one's own": Case(
        {"eval_strategy": "epoch"}, {"compute_loss_func": summed_loss}, about="In place of the model's."
    ),
    "a loss of one's own, accumulated": Case(
        {"gradient_accumulation_steps": 4}, {"compute_loss_func": summed_loss}, about="It is given the items of a step."
    ),
    "bf16": Case(
        {"bf16": True, "eval_strategy": "epoch"},
        {"compute_metrics": accuracy},
        about="Half precision where it is safe.",
    ),
    "bf16, accumulated": Case(
        {"bf16": True, "gradient_accumulation_steps": 3, "max_grad_norm": 0.1}, GPT2, about="Weights stay float32."
    ),
    "bf16 and label smoothing": Case(
        {"bf16": True, "label_smoothing_factor": 0.2, "gradient_accumulation_steps": 2},
        GPT2,
        about="The loss is computed outside of the model, in its precision.",
    ),
    "evaluated in bf16": Case(
        {"bf16_full_eval": True, "num_train_epochs": 1},
        {"compute_metrics": accuracy},
        about="The weights themselves are halved, after training.",
    ),
    "evaluated in bf16 while training": Case(
        {"bf16_full_eval": True, "eval_strategy": "epoch"},
        {"compute_metrics": accuracy},
        about="Only evaluations outside of training are halved.",
    ),
    "evaluated in fp16": Case({"fp16_full_eval": True, "max_steps": 2}, about="The other half."),
    "batches without a label": Case(
        {"gradient_accumulation_steps": 3}, {**GPT2, "train_dataset": half_labelled(TRAIN_ROWS)}, about="None counts."
    ),
    "all at once": Case(
        {
            **{"bf16": True, "gradient_accumulation_steps": 4, "gradient_checkpointing": True},
            **{"label_smoothing_factor": 0.1, "max_grad_norm": 0.05, "weight_decay": 0.1, "warmup_steps": 1},
            **{"neftune_noise_alpha": 3.0, "lr_scheduler_type": "cosine", "eval_strategy": "epoch"},
        },
        LLAMA,
        about="Features that meet in one step.",
    ),
    "gradient checkpointing": Case({"gradient_checkpointing": True}, about="Activations are computed twice."),
    "gradient checkpointing, reentrant": Case(
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        about="The older way; dropout draws the same.",
    ),
    "gradient checkpointing, not reentrant": Case(
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
        GPT2,
        about="The newer way, of a causal model.",
    ),
    "noise on the embeddings": Case(
        {"neftune_noise_alpha": 5.0, "eval_strategy": "epoch"},
        about="NEFTune's draws are those of training alone; evaluation has none.",
    ),
    "noise on the embeddings of a causal model": Case(
        {"neftune_noise_alpha": 2.0, "gradient_accumulation_steps": 4}, LLAMA, about="Rows of different lengths."
    ),
}
"""How the loss is made, and in which precision."""

MODELS = {
    "a plain model that returns a dict": Case(
        {"eval_strategy": "epoch"}, {"model": plain()}, about="`loss`, `logits`."
    ),
    "a plain model that returns a tuple": Case(
        {"eval_strategy": "epoch", "gradient_accumulation_steps": 4},
        {"model": plain("tuple"), "compute_metrics": accuracy},
        about="The loss first.",
    ),
    "a plain model that returns three values": Case(
        {"max_steps": 3}, {"model": plain("three")}, about="Predictions are a tuple of what follows the loss."
    ),
    "a plain model that returns an output of transformers": Case(
        {"eval_strategy": "epoch"}, {"model": plain("output"), "compute_metrics": accuracy}, about="A `ModelOutput`."
    ),
    "a plain model that counts what it saw": Case(
        {"eval_strategy": "steps", "eval_steps": 2},
        {"model": Normalised, "compute_metrics": everything},
        about="Batch normalisation learns in training alone, also between evaluations.",
    ),
    "hidden states among the outputs": Case(
        {"eval_strategy": "epoch"},
        {
            "model": of_bert("SequenceClassification", vocab_size=50, output_hidden_states=True),
            "compute_metrics": everything,
        },
        about="Predictions are nested tuples.",
    ),
    "a model that takes anything": Case(
        {"gradient_accumulation_steps": 4, "eval_strategy": "epoch", "include_for_metrics": ["inputs"]},
        {"model": Anything, "compute_metrics": everything, **POINTS},
        about="`**kwargs` are taken to mean that it divides by the items of a step; its main input has a name.",
    ),
    "a model that takes anything, and says it does not count": Case(
        {"gradient_accumulation_steps": 4, "eval_strategy": "epoch"},
        {"model": lambda: Anything(counts=False), **POINTS},
        about="`accepts_loss_kwargs` wins.",
    ),
    "two kinds of labels": Case(
        {"eval_strategy": "epoch"},
        {
            **{"model": TwoHeaded, "compute_metrics": everything},
            **{"train_dataset": twice_labelled(TRAIN_ROWS), "eval_dataset": twice_labelled(EVAL_ROWS, 1)},
        },
        about="Labels are found by their names in `forward`, and given to the metrics as a tuple.",
    ),
    "labels named": Case(
        {"label_names": ["tone_labels"], "eval_strategy": "epoch"},
        {
            **{"model": TwoHeaded, "compute_metrics": everything},
            **{"train_dataset": twice_labelled(TRAIN_ROWS), "eval_dataset": twice_labelled(EVAL_ROWS, 1)},
        },
        about="Only those are given to the metrics.",
    ),
    "a model without dropout": Case({}, {"model": lambda: bert(0.0)}, about="Nothing is drawn but the order."),
    "gpt2": Case({"eval_strategy": "epoch"}, {**GPT2, "compute_metrics": everything}, about="A causal model."),
    "llama": Case({"eval_strategy": "epoch"}, {**LLAMA, "compute_metrics": everything}, about="A causal model."),
    "gpt2 with transformers' collator": Case(
        {},
        {
            **{**UNLABELLED, "model": gpt2},
            "data_collator": Fresh(lambda: collator_of_transformers("DataCollatorForLanguageModeling", mlm=False)),
        },
        about="Labels are made of the inputs.",
    ),
    "masked words": Case(
        {"eval_strategy": "epoch", "num_train_epochs": 3},
        {
            **{**UNLABELLED, "model": of_bert("MaskedLM")},
            "data_collator": Fresh(lambda: collator_of_transformers("DataCollatorForLanguageModeling")),
        },
        about="Transformers' collator draws the masks, in training and in evaluation.",
    ),
    "words classified": Case(
        {"eval_strategy": "epoch"},
        {
            **{**TEXTS, "model": of_bert("TokenClassification", num_labels=40), "compute_metrics": everything},
            "data_collator": Fresh(lambda: collator_of_transformers("DataCollatorForTokenClassification")),
        },
        about="Predictions and labels of different widths are padded alike.",
    ),
    "questions answered": Case(
        {"eval_strategy": "epoch"},
        {
            **{"model": of_bert("QuestionAnswering"), "compute_metrics": everything},
            **{"train_dataset": answered(TRAIN_ROWS), "eval_dataset": answered(EVAL_ROWS, 1)},
        },
        about="Two labels, known by the model's name, and two logits.",
    ),
    "numbers predicted": Case(
        {"eval_strategy": "epoch"},
        {
            "model": of_bert("SequenceClassification", num_labels=1),
            "train_dataset": measured(TRAIN_ROWS),
            "eval_dataset": measured(EVAL_ROWS, 1),
        },
        about="Labels that are floats.",
    ),
    "several labels a row": Case(
        {"eval_strategy": "epoch"},
        {
            "model": of_bert("SequenceClassification", num_labels=3, problem_type="multi_label_classification"),
            "train_dataset": marked(TRAIN_ROWS),
            "eval_dataset": renamed("label_ids", marked(EVAL_ROWS, 1)),
        },
        about="Labels that are a row of floats each, or `label_ids`, as older datasets call them.",
    ),
    "t5": Case({**RAGGED, "num_train_epochs": 1}, {**TEXTS, "model": t5}, about="An encoder and a decoder."),
    "bart": Case({"eval_strategy": "epoch"}, {**TEXTS, "model": bart}, about="Its logits come with more outputs."),
    "t5 with transformers' collator": Case(
        {"num_train_epochs": 1, "label_smoothing_factor": 0.1},
        {
            **{**TEXTS, "model": t5},
            "data_collator": Fresh(lambda: collator_of_transformers("DataCollatorForSeq2Seq", model=t5())),
        },
        about="The decoder's inputs are made beside the labels, which are smoothed unshifted.",
    ),
    "a tokenizer beside a collator": Case(
        {"num_train_epochs": 1}, {**GPT2, "processing_class": Fresh(tokenizer)}, about="The collator wins."
    ),
}
"""What is trained."""

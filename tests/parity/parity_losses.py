"""Cases about losses, precision, memory, and the models of every kind of task."""

from __future__ import annotations

from parity_case import EVAL_ROWS, TRAIN_ROWS, Case

from support.models import bert
from support.parity_data import (
    accuracy,
    answered,
    collator_of_transformers,
    everything,
    half_labelled,
    marked,
    measured,
    padded,
    paired,
    pictured,
    renamed,
    summed_loss,
    texts,
    tokenizer,
    twice_labelled,
    without,
)
from support.parity_models import Anything, Contrastive, Normalised, TwoHeaded, bart, gpt2, llama, of_bert, plain, t5
from support.trainers import Fresh

TEXTS = {"train_dataset": texts(TRAIN_ROWS), "eval_dataset": texts(EVAL_ROWS, 1), "data_collator": padded}
GPT2, LLAMA, BART = ({**TEXTS, "model": model} for model in (gpt2, llama, bart))
POINTS = {"train_dataset": pictured(TRAIN_ROWS), "eval_dataset": pictured(EVAL_ROWS, 1)}
PAIRS = {"model": Contrastive, "train_dataset": paired(TRAIN_ROWS), "eval_dataset": paired(EVAL_ROWS, 1)}
UNLABELLED = {
    "train_dataset": without("labels", texts(TRAIN_ROWS)),
    "eval_dataset": without("labels", texts(EVAL_ROWS, 1)),
}
RAGGED = {"gradient_accumulation_steps": 4, "eval_strategy": "epoch"}

LOSSES = {
    "token mean over a step": Case(
        RAGGED,
        GPT2,
        about="The loss of a causal model is averaged over the tokens of a step, for any number of tokens per batch.",
    ),
    "token mean without the first token": Case(
        RAGGED,
        LLAMA,
        about="A model that shifts its labels never predicts the first token, so this token does not count.",
    ),
    "token mean per rank": Case(
        {**RAGGED, "average_tokens_across_devices": False}, LLAMA, about="The option has no effect with one process."
    ),
    "token mean of an incomplete step": Case(
        {"gradient_accumulation_steps": 9}, GPT2, about="The step has fewer batches than `gradient_accumulation_steps`."
    ),
    "label smoothing": Case(
        {"label_smoothing_factor": 0.1, "eval_strategy": "epoch"},
        {"compute_metrics": accuracy},
        about="The label of a sample is smoothed over all classes, in training and in evaluation.",
    ),
    "label smoothing with accumulation": Case(
        {"label_smoothing_factor": 0.3, "gradient_accumulation_steps": 4},
        about="All batches of a step have the same weight.",
    ),
    "label smoothing of a tuple": Case(
        {"label_smoothing_factor": 0.2, "eval_strategy": "epoch"},
        {"model": of_bert("SequenceClassification", vocab_size=50, return_dict=False)},
        about="The model returns its logits in a tuple.",
        differs="first value of a tuple",
    ),
    "label smoothing of multi-label samples": Case(
        {"label_smoothing_factor": 0.2, "eval_strategy": "epoch"},
        {
            "model": of_bert("SequenceClassification", num_labels=3, problem_type="multi_label_classification"),
            "train_dataset": marked(TRAIN_ROWS),
            "eval_dataset": marked(EVAL_ROWS, 1),
        },
        about="A sample has no single correct class, so nothing is smoothed.",
    ),
    "label smoothing of a causal model": Case(
        {"label_smoothing_factor": 0.1, "eval_strategy": "epoch"},
        GPT2,
        about="The labels are shifted, and padding is ignored.",
    ),
    "label smoothing of a causal model with accumulation": Case(
        {**RAGGED, "label_smoothing_factor": 0.2}, LLAMA, about="The loss is averaged over the tokens of a step."
    ),
    "custom loss": Case(
        {"eval_strategy": "epoch"},
        {"compute_loss_func": summed_loss},
        about="The function replaces the loss of the model.",
    ),
    "custom loss with accumulation": Case(
        {"gradient_accumulation_steps": 4},
        {"compute_loss_func": summed_loss},
        about="The function receives the number of items of a step.",
    ),
    "bf16": Case(
        {"bf16": True, "eval_strategy": "epoch"},
        {"compute_metrics": accuracy},
        about="Operations run in half precision where this is safe.",
    ),
    "bf16 with accumulation": Case(
        {"bf16": True, "gradient_accumulation_steps": 3, "max_grad_norm": 0.1}, GPT2, about="The weights stay float32."
    ),
    "bf16 and label smoothing": Case(
        {"bf16": True, "label_smoothing_factor": 0.2, "gradient_accumulation_steps": 2},
        GPT2,
        about="The model returns float32 logits. The loss is computed from these logits, outside of the model.",
    ),
    "evaluation in bf16": Case(
        {"bf16_full_eval": True, "num_train_epochs": 1},
        {"compute_metrics": accuracy},
        about="After training, `evaluate()` and `predict()` convert the weights.",
    ),
    "evaluation in bf16 during training": Case(
        {"bf16_full_eval": True, "eval_strategy": "epoch"},
        {"compute_metrics": accuracy},
        about="Only evaluations outside of training convert the weights.",
    ),
    "evaluation in fp16": Case(
        {"fp16_full_eval": True, "max_steps": 2}, about="`evaluate()` and `predict()` convert the weights to float16."
    ),
    "batches without labels": Case(
        {"gradient_accumulation_steps": 3},
        {**GPT2, "train_dataset": half_labelled(TRAIN_ROWS)},
        about="If all labels of a batch are ignored, the batch does not count in the loss.",
    ),
    "many features together": Case(
        {
            **{"bf16": True, "gradient_accumulation_steps": 4, "gradient_checkpointing": True},
            **{"label_smoothing_factor": 0.1, "max_grad_norm": 0.05, "weight_decay": 0.1, "warmup_steps": 1},
            **{"neftune_noise_alpha": 3.0, "lr_scheduler_type": "cosine", "eval_strategy": "epoch"},
        },
        LLAMA,
        about="Several features apply to the same step.",
    ),
    "gradient checkpointing": Case(
        {"gradient_checkpointing": True}, about="The backward pass computes the activations a second time."
    ),
    "gradient checkpointing, reentrant": Case(
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        about="The older implementation of torch recomputes activations. Dropout repeats its random numbers.",
    ),
    "gradient checkpointing, not reentrant": Case(
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
        GPT2,
        about="The newer implementation of torch recomputes activations of a causal model.",
    ),
    "NEFTune": Case(
        {"neftune_noise_alpha": 5.0, "eval_strategy": "epoch"},
        about="Noise is added in training, and not in evaluation.",
    ),
    "NEFTune of a causal model": Case(
        {"neftune_noise_alpha": 2.0, "gradient_accumulation_steps": 4},
        LLAMA,
        about="The samples have different lengths.",
    ),
}
"""Cases about the loss and its precision."""

MODELS = {
    "plain model, dict": Case(
        {"eval_strategy": "epoch"}, {"model": plain()}, about="The model returns a dict with `loss` and `logits`."
    ),
    "plain model, tuple": Case(
        {"eval_strategy": "epoch", "gradient_accumulation_steps": 4},
        {"model": plain("tuple"), "compute_metrics": accuracy},
        about="The loss is the first value of the tuple.",
    ),
    "plain model, three values": Case(
        {"max_steps": 3}, {"model": plain("three")}, about="Predictions are a tuple of the two values after the loss."
    ),
    "plain model, ModelOutput": Case(
        {"eval_strategy": "epoch"},
        {"model": plain("output"), "compute_metrics": accuracy},
        about="The model returns a `ModelOutput` of transformers.",
    ),
    "plain model with batch normalization": Case(
        {"eval_strategy": "steps", "eval_steps": 2},
        {"model": Normalised, "compute_metrics": everything},
        about="Training updates the running statistics. Evaluations do not.",
    ),
    "hidden states in the outputs": Case(
        {"eval_strategy": "epoch"},
        {
            "model": of_bert("SequenceClassification", vocab_size=50, output_hidden_states=True),
            "compute_metrics": everything,
        },
        about="Predictions are nested tuples.",
    ),
    "model with **kwargs": Case(
        {"gradient_accumulation_steps": 4, "eval_strategy": "epoch", "include_for_metrics": ["inputs"]},
        {"model": Anything, "compute_metrics": everything, **POINTS},
        about=(
            "The model divides its loss by the number of items of a step. The main input of the model is not "
            "`input_ids`."
        ),
    ),
    "model with accepts_loss_kwargs=False": Case(
        {"gradient_accumulation_steps": 4, "eval_strategy": "epoch"},
        {"model": lambda: Anything(counts=False), **POINTS},
        about="The model does not receive the number of items, although `forward` has a parameter for this number.",
    ),
    "two kinds of labels": Case(
        {"eval_strategy": "epoch"},
        {
            **{"model": TwoHeaded, "compute_metrics": everything},
            **{"train_dataset": twice_labelled(TRAIN_ROWS), "eval_dataset": twice_labelled(EVAL_ROWS, 1)},
        },
        about=(
            "The Trainer finds the labels by the parameter names of `forward`. `compute_metrics` receives the labels "
            "as a tuple."
        ),
    ),
    "label_names": Case(
        {"label_names": ["tone_labels"], "eval_strategy": "epoch"},
        {
            **{"model": TwoHeaded, "compute_metrics": everything},
            **{"train_dataset": twice_labelled(TRAIN_ROWS), "eval_dataset": twice_labelled(EVAL_ROWS, 1)},
        },
        about="`compute_metrics` receives only the labels that `label_names` names.",
    ),
    "model without dropout": Case({}, {"model": lambda: bert(0.0)}, about="Only the order of samples is random."),
    "gpt2": Case(
        {"eval_strategy": "epoch"},
        {**GPT2, "compute_metrics": everything},
        about="The model is a causal language model.",
    ),
    "llama": Case(
        {"eval_strategy": "epoch"},
        {**LLAMA, "compute_metrics": everything},
        about="The model is a causal language model.",
    ),
    "gpt2 with transformers' collator": Case(
        {},
        {
            **{**UNLABELLED, "model": gpt2},
            "data_collator": Fresh(lambda: collator_of_transformers("DataCollatorForLanguageModeling", mlm=False)),
        },
        about="The collator makes the labels from the inputs.",
    ),
    "masked language model": Case(
        {"eval_strategy": "epoch", "num_train_epochs": 3},
        {
            **{**UNLABELLED, "model": of_bert("MaskedLM")},
            "data_collator": Fresh(lambda: collator_of_transformers("DataCollatorForLanguageModeling")),
        },
        about="transformers' collator draws the masks, in training and in evaluation.",
    ),
    "token classification": Case(
        {"eval_strategy": "epoch"},
        {
            **{**TEXTS, "model": of_bert("TokenClassification", num_labels=40), "compute_metrics": everything},
            "data_collator": Fresh(lambda: collator_of_transformers("DataCollatorForTokenClassification")),
        },
        about="Predictions and labels of different widths are padded in the same way.",
    ),
    "question answering": Case(
        {"eval_strategy": "epoch"},
        {
            **{"model": of_bert("QuestionAnswering"), "compute_metrics": everything},
            **{"train_dataset": answered(TRAIN_ROWS), "eval_dataset": answered(EVAL_ROWS, 1)},
        },
        about="The class name of the model determines the two label names. The model returns two logits.",
    ),
    "regression": Case(
        {"eval_strategy": "epoch"},
        {
            "model": of_bert("SequenceClassification", num_labels=1),
            "train_dataset": measured(TRAIN_ROWS),
            "eval_dataset": measured(EVAL_ROWS, 1),
        },
        about="Labels are floats.",
    ),
    "multi-label classification": Case(
        {"eval_strategy": "epoch"},
        {
            "model": of_bert("SequenceClassification", num_labels=3, problem_type="multi_label_classification"),
            "train_dataset": marked(TRAIN_ROWS),
            "eval_dataset": renamed("label_ids", marked(EVAL_ROWS, 1)),
        },
        about=(
            "The labels of a sample are a list of floats. The collator accepts `label_ids`, the name in older datasets."
        ),
    ),
    "loss without labels": Case(
        {"eval_strategy": "epoch", "include_for_metrics": ["inputs", "loss"]},
        {**PAIRS, "compute_metrics": everything},
        about="The model compares the samples of a batch. Metrics receive an empty tuple of labels.",
    ),
    "loss without labels, metrics per batch": Case(
        {"eval_strategy": "epoch", "batch_eval_metrics": True},
        {**PAIRS, "compute_metrics": lambda prediction, compute_result: everything(prediction)},
        about="Metrics are computed from the predictions of the last batch, with an empty tuple of labels.",
    ),
    "t5": Case(
        {**RAGGED, "num_train_epochs": 1}, {**TEXTS, "model": t5}, about="The model has an encoder and a decoder."
    ),
    "bart": Case(
        {"eval_strategy": "epoch"},
        {**TEXTS, "model": bart},
        about="The model returns more tensors than the loss and the logits.",
    ),
    "t5 with transformers' collator": Case(
        {"num_train_epochs": 1, "label_smoothing_factor": 0.1},
        {
            **{**TEXTS, "model": t5},
            "data_collator": Fresh(lambda: collator_of_transformers("DataCollatorForSeq2Seq", model=t5())),
        },
        about="The collator makes the decoder's inputs. The labels are smoothed without a shift.",
    ),
    "tokenizer and collator": Case(
        {"num_train_epochs": 1},
        {**GPT2, "processing_class": Fresh(tokenizer)},
        about="The Trainer uses the given collator, and builds no collator from the tokenizer.",
    ),
}
"""Cases about models and tasks."""

"""Teach a small BART to spell numbers, such as 407 -> four hundred seven, and measure the generated text.

Added to sequence_classification.py: `Seq2SeqTrainer`. With `predict_with_generate`, the metrics receive the tokens
that the model generates.
"""

import random

from source_data import word_tokenizer
from transformers import BartConfig, BartForConditionalGeneration

from trainbus import DataCollatorForSeq2Seq, EvalPrediction, Seq2SeqTrainer, Seq2SeqTrainingArguments

DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def spell(number: int) -> tuple[str, str]:
    """Return the input and the target: the separate digits, and the number in words."""
    hundreds, tens, ones = (DIGITS[int(digit)] for digit in f"{number:03}")
    return " ".join(f"{number:03}"), f"{hundreds} hundred {tens} ty {ones}"


pairs = [spell(number) for number in random.sample(range(1000), 1000)]
tokenizer = word_tokenizer([text for pair in pairs for text in pair])
samples = [{**tokenizer(digits), "labels": tokenizer(words)["input_ids"]} for digits, words in pairs]


def exact(prediction: EvalPrediction) -> dict[str, float]:
    """Return the fraction of numbers without a mistake."""
    generated, expected = (
        tokenizer.batch_decode(tokens.clip(min=0), skip_special_tokens=True)
        for tokens in (prediction.predictions, prediction.label_ids)
    )
    return {"exact": sum(one == other for one, other in zip(generated, expected, strict=True)) / len(expected)}


size = {"d_model": 64, "max_position_embeddings": 16, "dropout": 0.0, "vocab_size": len(tokenizer)}
for side in ("encoder", "decoder"):
    size |= {f"{side}_layers": 1, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 128}
tokens = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}
model = BartForConditionalGeneration(BartConfig(**size, **tokens, forced_eos_token_id=None))
args = Seq2SeqTrainingArguments(
    "outputs/seq2seq",
    num_train_epochs=10,
    learning_rate=3e-3,
    per_device_train_batch_size=32,
    per_device_eval_batch_size=100,
    predict_with_generate=True,
    generation_max_length=8,
)
collator = DataCollatorForSeq2Seq(tokenizer, model=model)
trainer = Seq2SeqTrainer(model, args, collator, samples[:900], samples[900:], tokenizer, compute_metrics=exact)
before = trainer.evaluate()
trainer.train()
after = trainer.evaluate()
print(f"exact: {before['eval_exact']:.3f} before, {after['eval_exact']:.3f} after")

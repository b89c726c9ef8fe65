"""Find an answer in a text: the name or the arguments of a function, in a line such as `def join(self, words):`.

Added to sequence_classification.py: the input is a pair of question and text. The labels are the positions of the
first and the last token of the answer.
"""

from typing import Any

import numpy as np
from source_data import lines, small, split, word_tokenizer
from transformers import BertConfig, BertForQuestionAnswering

from trainbus import EvalPrediction, Trainer, TrainingArguments

texts = [
    line for line in lines("argparse.py", "ast.py", "typing.py") if line.startswith("def ") and line.endswith("):")
]
tokenizer = word_tokenizer([*texts, "which name", "which arguments"])


def make_sample(question: str, line: str) -> dict[str, Any]:
    """Return the tokens of the pair, and the first and the last token of the answer."""
    opens = line.index("(")
    first, last = (4, opens - 1) if question == "which name" else (opens, len(line) - 2)
    pair = tokenizer(question, line, truncation=True)
    return {
        **pair,
        "start_positions": pair.char_to_token(0, first, 1) or 0,
        "end_positions": pair.char_to_token(0, last, 1) or 0,
    }


def exact(prediction: EvalPrediction) -> dict[str, float]:
    """Return the fraction of answers with the correct start and end."""
    starts, ends = (logits.argmax(-1) for logits in prediction.predictions)
    correct = (starts == prediction.label_ids[0]) & (ends == prediction.label_ids[1])
    return {"exact": float(np.mean(correct))}


samples = [make_sample(question, line) for line in texts for question in ("which name", "which arguments")]
train, test = split(samples)
args = TrainingArguments(
    "outputs/question_answering", num_train_epochs=5, learning_rate=2e-3, per_device_train_batch_size=32
)
trainer = Trainer(
    BertForQuestionAnswering(BertConfig(**small(tokenizer))),
    args,
    train_dataset=train,
    eval_dataset=test,
    processing_class=tokenizer,
    compute_metrics=exact,
)
before = trainer.evaluate()
trainer.train()
after = trainer.evaluate()
print(f"exact: {before['eval_exact']:.3f} before, {after['eval_exact']:.3f} after")

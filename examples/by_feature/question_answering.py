"""Find an answer in a text: the function's name, or its arguments, in a line as `def join(self, words):`.

Beside sequence_classification.py: question and text go in as a pair, and the labels are the ends of the answer.
"""

from source_data import lines, small, word_tokenizer
from torch.utils.data import random_split
from transformers import BertConfig, BertForQuestionAnswering

from trainbus import Trainer, TrainingArguments

texts = [
    line for line in lines("argparse.py", "ast.py", "typing.py") if line.startswith("def ") and line.endswith("):")
]
tokenizer = word_tokenizer([*texts, "which name", "which arguments"])


def asked(question, line):
    """Return the pair as tokens, and the first and the last token of the answer."""
    opens = line.index("(")
    first, last = (4, opens - 1) if question == "which name" else (opens, len(line) - 2)
    pair = tokenizer(question, line, truncation=True)
    return {
        **pair,
        "start_positions": pair.char_to_token(0, first, 1) or 0,
        "end_positions": pair.char_to_token(0, last, 1) or 0,
    }


def exact(prediction):
    """Return the share of answers whose two ends are both right."""
    starts, ends = (logits.argmax(-1) for logits in prediction.predictions)
    return {"exact": ((starts == prediction.label_ids[0]) & (ends == prediction.label_ids[1])).mean()}


rows = [asked(question, line) for line in texts for question in ("which name", "which arguments")]
train, test = random_split(rows, [0.8, 0.2])
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

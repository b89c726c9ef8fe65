"""Classify Chinese reviews: the fine-tuning program of PaddleNLP's Trainer page. README.md has its command line."""

from dataclasses import dataclass, field
from functools import partial

from local_data import HERE, small_bert, table, word_tokenizer
from torch import nn

from trainbus.trainer import PdArgumentParser, Trainer, TrainingArguments  # pyright: ignore[reportMissingImports]


@dataclass
class DataArguments:
    """The data."""

    dataset: str = field(default="chnsenticorp", metadata={"help": "The name of the dataset to use."})
    max_seq_length: int = field(default=128, metadata={"help": "The maximum length of a text in tokens."})


def convert_example(example: dict[str, str], tokenizer, longest: int) -> dict:
    """Return a sample: the tokens of a text, padded, and its label."""
    encoded = tokenizer(example["text"], max_length=longest, truncation=True, padding="max_length")
    return {**encoded, "labels": int(example["label"])}


def main() -> None:
    """Train and save, as the command line says."""
    parser = PdArgumentParser((TrainingArguments, DataArguments))
    training_args, data_args = parser.parse_args_into_dataclasses()
    rows = table(HERE / data_args.dataset / "train.tsv", delimiter="\t")
    tokenizer = word_tokenizer([row["text"] for row in rows], by_character=True)
    longest = min(data_args.max_seq_length, tokenizer.model_max_length)
    train_dataset = list(map(partial(convert_example, tokenizer=tokenizer, longest=longest), rows))
    model = small_bert(tokenizer, num_labels=len({row["label"] for row in rows}))
    trainer = Trainer(
        model=model,
        criterion=nn.CrossEntropyLoss(),
        args=training_args,
        train_dataset=train_dataset if training_args.do_train else None,
        tokenizer=tokenizer,
    )
    if training_args.do_train:
        train_result = trainer.train()
        metrics = train_result.metrics
        trainer.save_model()
        trainer.log_metrics("train", metrics)
        trainer.save_state()


if __name__ == "__main__":
    main()

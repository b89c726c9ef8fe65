"""Pre-train an ERNIE with masked words: `model_zoo/ernie-1.0/run_pretrain_trainer.py` of PaddleNLP.

README.md has the command line. `--input_dir` is a folder with text files, one text per line.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from local_data import lines, word_tokenizer
from torch import nn
from transformers import ErnieConfig, ErnieForMaskedLM

from trainbus import DataCollatorForLanguageModeling, get_last_checkpoint, get_polynomial_decay_schedule_with_warmup
from trainbus.trainer import PdArgumentParser, Trainer, TrainingArguments, set_seed  # pyright: ignore[reportMissingImports]


@dataclass
class PreTrainingArguments(TrainingArguments):
    """The training arguments, and those of the schedule."""

    min_learning_rate: float = field(default=1e-5, metadata={"help": "Learning rate at the end of the decay."})
    decay_steps: int | None = field(default=None, metadata={"help": "Steps until then; by default all of the run."})


@dataclass
class DataArguments:
    """The data."""

    input_dir: str = field(default="wmt_en_ro", metadata={"help": "Folder with the texts."})
    split: str = field(default="949,50,1", metadata={"help": "Shares of train, valid and test data."})
    max_seq_length: int = field(default=512, metadata={"help": "Tokens of a sample."})


@dataclass
class ModelArguments:
    """The model."""

    model_type: str = field(default="ernie", metadata={"help": "The architecture. Only ernie."})
    hidden_size: int = field(default=32, metadata={"help": "Size of the hidden states."})


class ErniePretrainingCriterion(nn.Module):
    """The cross entropy of the masked words."""

    def forward(self, prediction_scores: torch.Tensor, masked_lm_labels: torch.Tensor) -> torch.Tensor:
        """Return the loss. Scores are (batch, length, words), labels (batch, length), -100 where nothing is masked."""
        return nn.functional.cross_entropy(prediction_scores.flatten(0, 1), masked_lm_labels.flatten())


class PretrainingTrainer(Trainer):
    """Builds the schedule of the program: warmup, then linear decay to `min_learning_rate`."""

    def create_scheduler(self, num_training_steps: int, optimizer=None):
        """Return the schedule."""
        steps, args = self.args.decay_steps or num_training_steps, self.args
        self.lr_scheduler = get_polynomial_decay_schedule_with_warmup(
            self.optimizer, args.get_warmup_steps(num_training_steps), steps, lr_end=args.min_learning_rate
        )
        return self.lr_scheduler


def split_samples(samples: list, split: str) -> list[list]:
    """Divide samples into consecutive parts with these shares."""
    shares = [float(share) for share in split.split(",")]
    ends = [round(len(samples) * sum(shares[: part + 1]) / sum(shares)) for part in range(3)]
    return [samples[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def main() -> None:
    """Train, evaluate and predict, as the command line says."""
    parser = PdArgumentParser((ModelArguments, DataArguments, PreTrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)
    last_checkpoint = None
    if Path(training_args.output_dir).is_dir() and training_args.do_train and not training_args.overwrite_output_dir:
        last_checkpoint = get_last_checkpoint(training_args.output_dir)

    texts = [text for path in sorted(Path(data_args.input_dir).glob("*.source")) for text in lines(path)]
    tokenizer = word_tokenizer(texts)
    longest = min(data_args.max_seq_length, tokenizer.model_max_length)
    samples = [tokenizer(text, truncation=True, max_length=longest, padding="max_length") for text in texts]
    train, valid, test = split_samples(samples, data_args.split)
    size: dict[str, Any] = {
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
    }
    config = ErnieConfig(vocab_size=len(tokenizer), hidden_size=model_args.hidden_size, **size)
    trainer = PretrainingTrainer(
        ErnieForMaskedLM(config),
        ErniePretrainingCriterion(),
        training_args,
        DataCollatorForLanguageModeling(tokenizer),
        train if training_args.do_train else None,
        valid if training_args.do_eval else None,
        tokenizer,
    )
    if training_args.do_train:
        train_result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint or last_checkpoint)
        trainer.save_model()
        trainer.log_metrics("train", train_result.metrics)
        trainer.save_metrics("train", train_result.metrics)
        trainer.save_state()
    if training_args.do_eval:
        trainer.log_metrics("eval", trainer.evaluate())
    if training_args.do_predict:
        trainer.log_metrics("test", trainer.predict(test).metrics)
    if training_args.do_export and not training_args.do_train:
        trainer.export_model()


if __name__ == "__main__":
    main()

"""Train a text classifier on real text in about a minute. It predicts the Python package that a function belongs to.

    python examples/classify.py                                              # Python's standard library, no download
    python examples/classify.py --train_file mine.csv --text_column review --label_column stars

The program prints the accuracy on unseen files, the accuracy of simpler methods, a confusion matrix, and the most
confident mistakes. It writes the learning curves as a picture, and the checkpoints, to the output folder. The final
model is the model of the best epoch.
"""

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from classify_data import from_files, standard_library
from datasets import Dataset, DatasetDict
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from torch import nn

from trainbus import (
    Checkpoint,
    EarlyStopping,
    EvalPrediction,
    Evaluate,
    Keep,
    KeepBest,
    Log,
    Trainer,
    TrainingArguments,
    every,
)

BUCKETS = 2**16
PAD = 0
CAMEL_CASE = re.compile(r"(?<=[a-z\d])(?=[A-Z])")
WORD = re.compile(r"[\u3040-\u9fff]|[^\W\d_\u3040-\u9fff]+|\d+|[^\w\s]|_")  # single characters of Chinese and Japanese


def words(text: str) -> list[str]:
    """Split a text into words: `self.readBytes(2)` is self . read bytes ( 2 )."""
    return WORD.findall(CAMEL_CASE.sub(" ", text).lower())


def encode(row: dict[str, Any]) -> dict[str, list[int]]:
    """Return the hash buckets of the words of a row, and of its pairs of adjacent words. Each bucket occurs once.

    A hash needs no vocabulary, so nothing leaks from the test rows. crc32 gives the same buckets in each process.
    Python's `hash` does not.
    """
    found = words(row["text"])
    features = [*found, *map(" ".join, pairwise(found))]
    return {"input_ids": sorted({1 + crc32(feature.encode()) % (BUCKETS - 1) for feature in features})}


def collate(rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Return a batch of rows: input_ids (rows, longest row) padded with zeros, labels (rows,)."""
    ids = [torch.tensor(row["input_ids"]) for row in rows]
    return {
        "input_ids": nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=PAD),
        "labels": torch.tensor([row["labels"] for row in rows]),
    }


class AttentionPooling(nn.Module):
    """Classifies the weighted average of the word vectors of a text. The weights of the words are learned."""

    def __init__(self, num_labels: int, size: int = 32, word_dropout: float = 0.3) -> None:
        super().__init__()
        self.vectors = nn.Embedding(BUCKETS, size)
        self.scores = nn.Embedding(BUCKETS, 1)
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(size, num_labels))
        self.word_dropout = word_dropout
        # All words start at zero, so that words which are not in the training data have no effect.
        nn.init.zeros_(self.vectors.weight)
        nn.init.zeros_(self.scores.weight)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor | None]:
        """Return logits (rows, labels), and the loss if there are labels."""
        shown = input_ids != PAD
        if self.training:  # word dropout, so that the model does not depend on a few words
            shown = shown & (torch.rand(shown.shape, device=shown.device) >= self.word_dropout)
        weights = self.scores(input_ids).squeeze(-1).masked_fill(~shown, -1e4).softmax(-1)
        text = nn.functional.embedding_bag(input_ids, self.vectors.weight, per_sample_weights=weights, mode="sum")
        logits = self.head(text)
        loss = nn.functional.cross_entropy(logits, labels) if labels is not None else None
        return {"loss": loss, "logits": logits}


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """Return the fraction of rows whose largest logit is at the true label."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def baselines(data: DatasetDict) -> dict[str, float]:
    """Return the test accuracy of three simpler methods by name. The last two methods use the function `words`."""
    train, test = data["train"], data["test"]
    scores = {"always the largest class": float(np.mean(np.equal(test["labels"], 0)))}
    for name, vectorizer in [("bag of words, counts", CountVectorizer), ("bag of words, tf-idf", TfidfVectorizer)]:
        model = make_pipeline(vectorizer(analyzer=words), LogisticRegression(max_iter=1000))
        scores[name] = model.fit(train["text"], train["labels"]).score(test["text"], test["labels"])
    return scores


def draw(history: list[dict[str, Any]], simple: dict[str, float], path: Path) -> None:
    """Draw the losses on the left, and the accuracies of the model and of the simpler methods on the right."""
    # A Figure without pyplot needs no screen.
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    epochs: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    for axes, key, label, color in [
        (left, "loss", "training set", "C0"),
        (left, "eval_loss", "test set", "C1"),
        (right, "eval_accuracy", "this model", "C1"),
    ]:
        epochs, values = zip(*((entry["epoch"], entry[key]) for entry in history if key in entry))
        axes.plot(epochs, values, "o-", color=color, label=label)
    best = int(np.argmax(values))  # the last curve is the accuracy
    right.plot(epochs[best], values[best], "o", ms=14, mfc="none", color="C3", label=f"best: {values[best]:.1%}")
    for (name, value), style in zip(simple.items(), (":", "--", "-.")):
        right.axhline(value, color="gray", linestyle=style, label=f"{name}: {value:.1%}")
    left.set(title="Loss", ylim=(0, None))
    right.set(title="Accuracy on the test set", ylim=(0, 1))
    right.yaxis.set_major_formatter(PercentFormatter(1))
    for axes in (left, right):
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)


def print_confusion(truth: np.ndarray, guess: np.ndarray, names: list[str], most: int = 10) -> None:
    """Print the confusion matrix. With more than `most` labels, the rarest labels share a row and a column."""
    if len(names) > most:
        names = [*names[: most - 1], "(others)"]
        truth, guess = np.minimum(truth, most - 1), np.minimum(guess, most - 1)
    print("\nTrue label in the row, prediction in the column")
    print(" " * 19 + "".join(f"{i:>7}" for i in range(1, len(names) + 1)) + "  found")
    for i, name in enumerate(names):
        counts = np.bincount(guess[truth == i], minlength=len(names))
        found = f"{counts[i] / counts.sum():7.0%}" if counts.sum() else ""
        print(f"{i + 1:>2} {name[:15]:<16}" + "".join(f"{count or '.':>7}" for count in counts) + found)


def print_mistakes(rows: Dataset, logits: np.ndarray, names: list[str], most: int = 5) -> None:
    """Print the wrong predictions with the highest probability."""
    probabilities = torch.tensor(logits).softmax(-1).numpy()
    guess, confidence = probabilities.argmax(-1), probabilities.max(-1)
    wrong = [i for i in np.argsort(-confidence, kind="stable") if guess[i] != rows[int(i)]["labels"]][:most]
    print("\nThe most confident mistakes" if wrong else "\nNo mistakes")
    for i in wrong:
        row = rows[int(i)]
        print(
            f"  {row['name'][:50]:<50} is {row['label'][:15]}, predicted {names[guess[i]][:15]} ({confidence[i]:.0%})"
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", default="outputs/classify")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train_file", help="CSV, JSON lines or Parquet; without it, Python's standard library")
    parser.add_argument("--eval_file", help="a file with the test rows; without it, a quarter of --train_file")
    parser.add_argument("--text_column", default="text")
    parser.add_argument("--label_column", default="label")
    parser.add_argument("--resume", action="store_true", help="resume from the newest checkpoint in --output_dir")
    options = parser.parse_args()
    if options.eval_file and not options.train_file:
        parser.error("--eval_file needs a --train_file.")
    return options


def load(options: argparse.Namespace) -> tuple[DatasetDict, list[str]]:
    """Return the data and the label names. `labels` are numbers: 0 is the largest class of the training rows."""
    if options.train_file:
        data = from_files(options.train_file, options.eval_file, options.text_column, options.label_column)
    else:
        data = standard_library()
    names = [name for name, _ in Counter(data["train"]["label"]).most_common()]
    return data.map(lambda row: {**encode(row), "labels": names.index(row["label"])}, desc="Encoding"), names


def main() -> None:
    options = parse_arguments()
    try:
        data, names = load(options)
    except (OSError, ValueError) as error:
        raise SystemExit(f"classify.py: {error}") from error
    print(f"{len(data['train'])} rows to train on, {len(data['test'])} to test on, {len(names)} labels")
    simple = baselines(data)

    torch.set_num_threads(1)  # more threads do not make so small a model faster
    torch.manual_seed(options.seed)  # for the initial weights; the Trainer seeds the rest
    each_epoch = every(1, "epoch")
    trainer = Trainer(
        AttentionPooling(len(names)),
        TrainingArguments(
            output_dir=options.output_dir,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            seed=options.seed,
        ),
        data_collator=collate,
        train_dataset=data["train"],
        eval_dataset=data["test"],  # it also chooses the best epoch: for a paper, use a third split
        compute_metrics=accuracy,
        callbacks=[  # in any order: stages define the order of the handlers
            Log(each_epoch),
            Evaluate(each_epoch),
            Checkpoint(each_epoch, keep=Keep(last=1, best=1)),
            KeepBest("eval_accuracy", load_at_end=True),
            EarlyStopping("eval_loss", patience=3),
        ],
    )
    trainer.train(resume_from_checkpoint=options.resume)
    picture = Path(options.output_dir) / "curves.png"
    draw(trainer.state.log_history, simple, picture)

    metrics = trainer.evaluate()  # KeepBest has loaded the model of the best epoch
    print("\nAccuracy on the test set")
    for name, value in {**simple, "this model": metrics["eval_accuracy"]}.items():
        print(f"  {name:<26}{value:6.1%}")
    out = trainer.predict(data["test"])
    print_confusion(out.label_ids, out.predictions.argmax(-1), names)
    print_mistakes(data["test"], out.predictions, names)
    print(f"\nLearning curves: {picture}")


if __name__ == "__main__":
    main()

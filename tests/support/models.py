"""Models that several tests train. Their parameters and the order of initialization are fixed by golden files."""

from __future__ import annotations

import torch
from torch import nn

from trainbus.testing.tiny import Block, Net

__all__ = ["Block", "Classifier", "Net", "Regression", "Remembering", "Wide", "Words", "bert", "llama"]

torch.set_num_threads(1)  # the models are small, and the machine may be busy


class Regression(nn.Module):
    """Linear regression with optional dropout. Returns a dict with the loss and the logits."""

    def __init__(self, dropout: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        predicted = self.linear(self.dropout(x)).squeeze(-1)
        if labels is None:
            return {"logits": predicted}
        return {"loss": nn.functional.mse_loss(predicted, labels), "logits": predicted}


class Classifier(nn.Module):
    """A classifier of 4 features with dropout. Returns logits of 2 classes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class WideLayer(nn.Module):
    """Two linear layers with dropout and a residual connection, of 32 features."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.down(torch.tanh(self.up(x))))


class Wide(nn.Module):
    """A model with the inputs of `Net` and two layers that are wide enough for the kernels of float8."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.project = nn.Linear(6, 32)
        self.layers = nn.ModuleList(WideLayer() for _ in range(2))
        self.head = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        x = self.project(x)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x).squeeze(-1)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.mse_loss(logits.float(), labels.float()), "logits": logits}


class Words(nn.Module):
    """An embedding, a block and a head, for `token_samples`."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.tokens = nn.Embedding(20, 6)
        self.block = Block()
        self.head = nn.Linear(6, 1)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.head(self.block(self.tokens(input_ids)).mean(1)).squeeze(-1)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


class Remembering(nn.Module):
    """A recurrent model: it adds the hidden states of the last batch, `mems`, to the next batch."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.block = Block()
        self.head = nn.Linear(6, 1)

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor | None = None, mems: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        hidden = self.block(x if mems is None else x + mems.mean(0))
        logits = self.head(hidden).squeeze(-1)
        if labels is None:
            return {"mems": hidden, "logits": logits}
        return {"loss": nn.functional.mse_loss(logits, labels), "mems": hidden, "logits": logits}


def bert(dropout: float = 0.1) -> nn.Module:
    """Return a BERT with two classes and 3,000 weights."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=50,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )


def llama() -> nn.Module:
    """Return a causal language model of 2 layers, with a vocabulary of 300 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=300,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=64,
        )
    )


class Vectors(nn.Module):
    """Four vectors of the same shape. The optimizer state of one vector therefore fits each other vector."""

    NAMES = ("weight_1", "weight_2", "bias_1", "bias_2")

    def __init__(self) -> None:
        super().__init__()
        for number, name in enumerate(self.NAMES):
            self.register_parameter(name, nn.Parameter(torch.full((3,), 0.1 * (number + 1))))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        vectors = [getattr(self, name) for name in self.NAMES]
        predicted = sum((number + 1) * (vector * x[:, :1]).sum(-1) for number, vector in enumerate(vectors))
        return {"loss": (predicted - labels.view(-1)).pow(2).mean()}


class OtherDecay:
    """A mixin for trainers of `Vectors`. It chooses two vectors for weight decay, but not the two default ones."""

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        return ["weight_1", "bias_1"]

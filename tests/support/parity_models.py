"""Models for the cases of the parity suite. Models of transformers are imported when they are built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

TINY = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32}
BERT = {**TINY, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16}


# Models of torch.


class Plain(nn.Module):
    """A torch classifier with dropout, without a config or `save_pretrained`."""

    def __init__(self, returns: str = "dict") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.returns = returns
        self.embedding = nn.Embedding(50, 8)
        self.norm = nn.LayerNorm(8)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(8, 2)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        hidden = self.dropout(self.norm(self.embedding(input_ids))).mean(1)
        logits = self.head(hidden)
        if labels is None:
            return {"logits": logits} if self.returns == "dict" else (logits,)
        loss = nn.functional.cross_entropy(logits, labels)
        return {
            "dict": {"loss": loss, "logits": logits},
            "tuple": (loss, logits),
            "three": (loss, logits, hidden),
            "output": _model_output(loss, logits) if self.returns == "output" else None,
        }[self.returns]


def _model_output(loss: torch.Tensor, logits: torch.Tensor) -> Any:
    from transformers.modeling_outputs import SequenceClassifierOutput

    return SequenceClassifierOutput(loss=loss, logits=logits)


def plain(returns: str = "dict") -> Callable[[], nn.Module]:
    """Return a factory of a plain model that returns a dict, a tuple, three values in a tuple, or a `ModelOutput`."""
    return lambda: Plain(returns)


class TwoHeaded(Plain):
    """A model with two kinds of labels. Neither is called `labels`."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(8, 3)

    def forward(self, input_ids: torch.Tensor, topic_labels: Any = None, tone_labels: Any = None) -> Any:
        hidden = self.dropout(self.norm(self.embedding(input_ids))).mean(1)
        topic, tone = self.head(hidden), self.second(hidden)
        logits = {"topic": topic, "tone": tone}
        if topic_labels is None or tone_labels is None:
            return logits
        loss = nn.functional.cross_entropy(topic, topic_labels) + nn.functional.cross_entropy(tone, tone_labels)
        return {"loss": loss, **logits}


class Normalised(Plain):
    """A model with batch normalization. Evaluation uses its running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(8), nn.Unflatten(0, (-1, 12)))


class Poisoned(Plain):
    """A model whose loss is NaN if a batch has the token 49. Its gradients are finite."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        outputs = super().forward(input_ids, labels)
        if labels is not None and (input_ids == 49).any():
            outputs["loss"] = outputs["loss"] + float("nan")
        return outputs


class Anything(nn.Module):
    """A model that accepts any keyword argument, with a main input that is not called `input_ids`."""

    main_input_name = "pixels"

    def __init__(self, counts: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 2)
        if not counts:
            self.accepts_loss_kwargs = False

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor | None = None, **kwargs: Any) -> Any:
        logits = self.linear(pixels)
        if labels is None:
            return {"logits": logits}
        # Every output except for the loss is a prediction, in any order.
        return {"doubled": 2 * logits, "loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Contrastive(nn.Module):
    """A model of pairs that computes its loss without labels: the other pairs of the batch are the negatives."""

    main_input_name = "left"

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right, self.dropout = nn.Linear(3, 5), nn.Linear(3, 5), nn.Dropout(0.1)

    def forward(self, left: torch.Tensor, right: torch.Tensor, return_loss: bool = True) -> dict[str, torch.Tensor]:
        scores = self.dropout(self.left(left)) @ self.right(right).T
        loss = {"loss": nn.functional.cross_entropy(scores, torch.arange(len(scores)))} if return_loss else {}
        return {**loss, "left": self.left(left), "right": self.right(right)}


class Frozen(Plain):
    """A model with a frozen embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding.requires_grad_(False)


# Models of transformers.


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0)
    )


def llama() -> nn.Module:
    """A causal model that, unlike GPT-2, declares that its loss shifts the labels. The first token does not count."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**BERT, bos_token_id=0, eos_token_id=0))


def sequence_to_sequence(name: str, **config: Any) -> Callable[[], nn.Module]:
    """Return a factory of a small encoder-decoder, such as `MBart`. These models accept any keyword."""

    def built() -> nn.Module:
        import transformers

        torch.manual_seed(0)
        sizes = {"vocab_size": 40, "d_model": 16, "pad_token_id": 0, "decoder_start_token_id": 0, **config}
        return getattr(transformers, f"{name}ForConditionalGeneration")(getattr(transformers, f"{name}Config")(**sizes))

    return built


def of_bert(task: str, **config: Any) -> Callable[[], nn.Module]:
    """Return a factory of a small BERT for a task, such as `MaskedLM`."""

    def bert_for_the_task() -> nn.Module:
        import transformers

        torch.manual_seed(0)
        return getattr(transformers, f"BertFor{task}")(transformers.BertConfig(**{**BERT, **config}))

    return bert_for_the_task


def t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0))


def bart() -> nn.Module:
    from transformers import BartConfig, BartForConditionalGeneration

    torch.manual_seed(0)
    sides = {
        f"{side}_{name}": size
        for side in ("encoder", "decoder")
        for name, size in (("layers", 1), ("ffn_dim", 32), ("attention_heads", 2))
    }
    return BartForConditionalGeneration(
        BartConfig(vocab_size=40, d_model=16, max_position_embeddings=16, **sides, forced_eos_token_id=None)
    )

"""Seq2SeqTrainer: a Trainer whose evaluations and predictions can be what the model generates."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...events.errors import ArgumentError, ModelError
from ..arguments.seq2seq import Seq2SeqTrainingArguments
from ..trainer import Trainer
from .outputs import PredictionOutput

DEFAULT_MAX_LENGTH = 20
"""How many tokens transformers' `generate` makes at most when nobody says it."""


class Seq2SeqTrainer(Trainer):
    """A `Trainer` for models that generate sequences, under the names of transformers' class.

    With `predict_with_generate`, evaluations that have metrics to compute, and predictions, call `model.generate` on
    every batch; what it returns is padded, and takes the place of the logits. It takes the arguments of `Trainer`,
    `args` being `Seq2SeqTrainingArguments`.

    Raises:
        ArgumentError: if `args` are others, or the generation config cannot be used.
    """

    args: Seq2SeqTrainingArguments

    def __init__(
        self, model: nn.Module | None = None, args: Seq2SeqTrainingArguments | None = None, *rest: Any, **options: Any
    ) -> None:
        args = Seq2SeqTrainingArguments(output_dir="tmp_trainer") if args is None else args
        if not isinstance(args, Seq2SeqTrainingArguments):
            raise ArgumentError(
                f"`args` are {type(args).__name__}, which say nothing of generating: pass `Seq2SeqTrainingArguments`."
            )
        self._generation: dict[str, Any] = {}
        super().__init__(model, args, *rest, **options)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """Evaluate, and return the metrics; see `Trainer.evaluate`.

        Args:
            eval_dataset: what to evaluate on.
            ignore_keys: keys of the model's outputs that are no predictions.
            metric_key_prefix: what all names begin with.
            **gen_kwargs: for `model.generate`, as `max_length`, `max_new_tokens`, `num_beams`; they come before the
                arguments `generation_max_length` and `generation_num_beams`, and these before the model's own config.
        """
        self._generation = self._with_arguments(gen_kwargs)
        return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    def predict(
        self,
        test_dataset: Any,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        **gen_kwargs: Any,
    ) -> PredictionOutput:
        """Predict, and return predictions, labels and metrics; see `Trainer.predict`.

        Generated sequences of different lengths are filled up with -100 behind the padding token.

        Args:
            test_dataset: the rows to predict for.
            ignore_keys: keys of the model's outputs that are no predictions.
            metric_key_prefix: what the metrics' names begin with.
            **gen_kwargs: for `model.generate`, see `evaluate`.
        """
        self._generation = self._with_arguments(gen_kwargs)
        return super().predict(test_dataset, ignore_keys, metric_key_prefix)

    def prediction_step(
        self,
        model: Any,
        inputs: Any,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[Any, Any, Any]:
        """Return loss, generated tokens and labels of a batch; without `predict_with_generate`, logits for tokens.

        Tokens and labels are padded with the padding token to the length that the model's generation config allows.

        Args:
            model: the model as it is called.
            inputs: the batch, a dict.
            prediction_loss_only: return nothing but the loss, and generate nothing.
            ignore_keys: keys of the model's outputs that are no predictions.
            **gen_kwargs: for `model.generate`, in place of those given to `evaluate` or `predict`.
        """
        if not self.args.predict_with_generate or prediction_loss_only:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        generator: Any = self.run.model
        inputs = self._prepare_inputs(inputs)
        if not hasattr(generator, "generate") or not isinstance(inputs, Mapping):
            raise ModelError(
                "`predict_with_generate=True` needs a model with a method `generate`, and batches that are dicts; here "
                f"they are a {type(generator).__name__} and a {type(inputs).__name__}."
            )
        options = {
            name: value for name, value in (gen_kwargs or self._generation).items() if not _left_out(name, value)
        }
        labels, loss = inputs.get("labels"), None
        with torch.no_grad():
            tokens = generator.generate(**_inputs_for_generation(inputs), **options)
            if labels is not None:
                loss = self.compute_loss(model, inputs).detach().mean()
        _fill_in(getattr(generator, "generation_config", None))
        return loss, self._padded(tokens), None if labels is None else self._padded(labels)

    def load_generation_config(self, gen_config_arg: Any) -> Any:
        """Return the generation config to use: a copy of one, or what a file or folder holds.

        Raises:
            ArgumentError: if the model has no such configs, there is none at that path, or it contradicts itself.
        """
        if not isinstance(gen_config_arg, (str, os.PathLike)):
            config = copy.deepcopy(gen_config_arg)
        else:
            cls: Any = type(getattr(self.run.model, "generation_config", None))
            if not hasattr(cls, "from_pretrained"):
                raise ArgumentError(
                    f"`generation_config` is a path, and {type(self.run.model).__name__} has no `generation_config` "
                    "whose class could read it: pass the config itself."
                )
            path = Path(gen_config_arg).expanduser()
            try:
                if path.is_file():
                    config = cls.from_pretrained(path.parent, path.name)
                else:
                    config = cls.from_pretrained(path if path.is_dir() else gen_config_arg)
            except (OSError, ValueError) as error:
                raise ArgumentError(
                    f"`generation_config` is {gen_config_arg!r}, where none can be read: {error}"
                ) from error
        try:
            if hasattr(config, "validate"):
                config.validate(strict=True)
        except ValueError as error:
            raise ArgumentError(
                f"The generation config contradicts itself, and could not be saved with the model: {error}"
            ) from error
        return config

    def _use_model(self, model: nn.Module) -> None:
        super()._use_model(model)
        if self.args.generation_config is not None:
            model.generation_config = self.load_generation_config(self.args.generation_config)

    def _with_arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of `generate`: those given, and what the arguments say where these are silent."""
        options = dict(given)
        lengths = (options.get("max_length"), options.get("max_new_tokens"), self.args.generation_max_length)
        if lengths[:2] == (None, None) and lengths[2] is not None:
            options["max_length"] = lengths[2]
        if options.get("num_beams") is None and self.args.generation_num_beams is not None:
            options["num_beams"] = self.args.generation_num_beams
        return options

    def _padded(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return tokens of shape (rows, width) padded to the length that the model's generation config allows."""
        config = getattr(self.run.model, "generation_config", None)
        most, new = getattr(config, "max_length", None), getattr(config, "max_new_tokens", None)
        width = DEFAULT_MAX_LENGTH if most is None else most
        if tokens.shape[-1] >= width and new is not None:
            width = new + 1  # the token that decoding starts with
        missing = width - tokens.shape[-1]
        return tokens if missing <= 0 else nn.functional.pad(tokens, (0, missing), value=self._padding_token())

    def _padding_token(self) -> int:
        processor, config = self.run.processing_class, getattr(self.run.model, "config", None)
        candidates = [(config, "pad_token_id")]
        if hasattr(processor, "pad_token_id"):
            candidates = [(processor, "pad_token_id"), (processor, "eos_token_id")]
        for owner, name in candidates:
            token = getattr(owner, name, None)
            if token is not None:
                return int(token)
        raise ArgumentError(
            "What is generated must be padded, and there is no token for it: set `pad_token_id` in the model's config, "
            "or pass a `processing_class` that has one."
        )


def _left_out(name: str, value: Any) -> bool:
    return name in ("max_length", "num_beams") and value is None


def _fill_in(config: Any) -> None:
    """Write into a model's generation config what it does not say, as transformers' trainer does after each batch.

    Above all a `max_length`: a model without one may generate a token more for the very first batch than later on.
    """
    if hasattr(config, "_get_default_generation_params"):
        config.update(**config._get_default_generation_params(), defaults_only=True)


def _inputs_for_generation(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch without its labels, and without the decoder's inputs where those were made from them.

    The model would otherwise go on from the labels that it is to find.
    """
    labels, begun = inputs.get("labels"), inputs.get("decoder_input_ids")
    dropped = {"labels"}
    if labels is not None and begun is not None and labels.shape == begun.shape:
        dropped |= {"decoder_input_ids", "decoder_attention_mask"}
    return {name: value for name, value in inputs.items() if name not in dropped}

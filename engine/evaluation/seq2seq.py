"""Seq2SeqTrainer: a Trainer that can evaluate and predict with sequences that the model generates."""

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
from .prediction import mean_loss

DEFAULT_MAX_LENGTH = 20
"""Default maximum length of the output of transformers' `generate`, in tokens."""


class Seq2SeqTrainer(Trainer):
    """A `Trainer` for models that generate sequences. It has the interface of transformers' class.

    With `predict_with_generate`, `predict` calls `model.generate` on every batch. `evaluate` does the same if
    `compute_metrics` or a callback reads the predictions. The generated tokens are padded and replace the logits. The
    class takes the arguments of `Trainer`, with a `Seq2SeqTrainingArguments` as `args`.

    Raises:
        ArgumentError: if `args` has another type, or the generation config cannot be used.
    """

    args: Seq2SeqTrainingArguments
    _gen_kwargs: dict[str, Any]
    """The options of `model.generate` for the evaluation or prediction in progress. A subclass may set them."""

    def __init__(
        self, model: nn.Module | None = None, args: Seq2SeqTrainingArguments | None = None, *rest: Any, **options: Any
    ) -> None:
        args = Seq2SeqTrainingArguments(output_dir="tmp_trainer") if args is None else args
        if not isinstance(args, Seq2SeqTrainingArguments):
            raise ArgumentError(
                f"`args` is a {type(args).__name__}, which has no options for generation. Pass a "
                "`Seq2SeqTrainingArguments`."
            )
        self._gen_kwargs = {}
        super().__init__(model, args, *rest, **options)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """Evaluate and return the metrics. See `Trainer.evaluate`.

        Args:
            eval_dataset: the dataset or datasets to evaluate on.
            ignore_keys: keys of the model's outputs that are not predictions. Default: the keys that the config of the
                model names. During training, `ignore_keys_for_eval` of `train` is the default, if it is not None.
            metric_key_prefix: the prefix of all metric names.
            **gen_kwargs: options of `model.generate`, such as `max_length`, `max_new_tokens` or `num_beams`. They
                override the training arguments `generation_max_length` and `generation_num_beams`. The training
                arguments override the generation config of the model.
        """
        if gen_kwargs or not self._by_dataset:  # else the options of the evaluation of all datasets apply
            self._gen_kwargs = self._with_arguments(gen_kwargs)
        return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    def predict(
        self,
        test_dataset: Any,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        **gen_kwargs: Any,
    ) -> PredictionOutput:
        """Predict and return predictions, labels and metrics. See `Trainer.predict`.

        If the sequences of two batches have different lengths, the shorter sequences are filled up with -100.

        Args:
            test_dataset: the dataset to predict for.
            ignore_keys: keys of the model's outputs that are not predictions. If None, the config of the model names
                the keys.
            metric_key_prefix: the prefix of all metric names.
            **gen_kwargs: options of `model.generate`, as in the method `evaluate`.
        """
        self._gen_kwargs = self._with_arguments(gen_kwargs)
        return super().predict(test_dataset, ignore_keys, metric_key_prefix)

    def prediction_step(
        self,
        model: Any,
        inputs: Any,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[Any, Any, Any]:
        """Return loss, generated tokens and labels of a batch.

        Without `predict_with_generate`, or with `prediction_loss_only`, the method of `Trainer` computes the result.
        Tokens and labels have shape (rows, width). Shorter tokens and labels are padded with the padding token to the
        maximum length of the model's generation config. Loss and labels are None if the batch has no `labels`.

        Args:
            model: the model that computes the loss, with its wrappers. The unwrapped model generates.
            inputs: the batch, a dict.
            prediction_loss_only: return only the loss, and generate nothing.
            ignore_keys: keys of the model's outputs that are not predictions. If None, the config of the model names
                the keys.
            **gen_kwargs: options of `model.generate`. If there are any, they replace all options that `evaluate` or
                `predict` received.

        Raises:
            ModelError: if the model has no method `generate`, or the batch is not a dict.
        """
        if not self.args.predict_with_generate or prediction_loss_only:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        generator: Any = self.run.model
        inputs = self._prepare_inputs(inputs)
        if not hasattr(generator, "generate") or not isinstance(inputs, Mapping):
            raise ModelError(
                "`predict_with_generate=True` needs a model with a method `generate`, and batches that are dicts. The "
                f"model is a {type(generator).__name__} and the batch is a {type(inputs).__name__}."
            )
        given = gen_kwargs or self._gen_kwargs
        options = {name: value for name, value in given.items() if not _is_unset(name, value)}
        labels, loss = inputs.get("labels"), None
        with torch.no_grad():
            tokens = generator.generate(**_inputs_for_generation(inputs), **options)
            if labels is not None:
                loss = mean_loss(self.compute_loss(model, inputs))
        _complete_config(getattr(generator, "generation_config", None))
        return loss, self._padded(tokens), None if labels is None else self._padded(labels)

    def load_generation_config(self, gen_config_arg: Any) -> Any:
        """Return the generation config to use.

        Args:
            gen_config_arg: a config, the path of a config file, the path of a folder, or the name of a model. A config
                is copied. Anything else is loaded.

        Raises:
            ArgumentError: if the config is not valid or cannot be loaded. To load it, the model must have an attribute
                `generation_config` with a method `from_pretrained`.
        """
        if not isinstance(gen_config_arg, (str, os.PathLike)):
            config = copy.deepcopy(gen_config_arg)
        else:
            cls: Any = type(getattr(self.run.model, "generation_config", None))
            if not hasattr(cls, "from_pretrained"):
                raise ArgumentError(
                    f"`generation_config` is a path, but {type(self.run.model).__name__} has no `generation_config` "
                    "whose class can load it. Pass the config itself."
                )
            path = Path(gen_config_arg).expanduser()
            try:
                if path.is_file():
                    config = cls.from_pretrained(path.parent, path.name)
                else:
                    config = cls.from_pretrained(path if path.is_dir() else gen_config_arg)
            except (OSError, ValueError) as error:
                raise ArgumentError(f"`generation_config={gen_config_arg!r}` cannot be loaded: {error}") from error
        try:
            if hasattr(config, "validate"):
                config.validate(strict=True)
        except ValueError as error:
            raise ArgumentError(
                f"The generation config is not valid, so it could not be saved with the model: {error}"
            ) from error
        return config

    def _use_model(self, model: nn.Module) -> None:
        super()._use_model(model)
        if self.args.generation_config is not None:
            model.generation_config = self.load_generation_config(self.args.generation_config)

    def _with_arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the given options of `generate`, with defaults from the training arguments.

        If the options set neither `max_length` nor `max_new_tokens`, `max_length` is `generation_max_length`. If the
        options do not set `num_beams`, `num_beams` is `generation_num_beams`. An option that is None counts as not set.
        """
        options = dict(given)
        lengths = (options.get("max_length"), options.get("max_new_tokens"), self.args.generation_max_length)
        if lengths[:2] == (None, None) and lengths[2] is not None:
            options["max_length"] = lengths[2]
        if options.get("num_beams") is None and self.args.generation_num_beams is not None:
            options["num_beams"] = self.args.generation_num_beams
        return options

    def _padded(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return tokens of shape (rows, length), with padding tokens at the end of each row.

        The method reads `max_length` and `max_new_tokens` from the model's generation config. The default of
        `max_length` is `DEFAULT_MAX_LENGTH`. Rows shorter than `max_length` are padded to `max_length`. Other rows are
        padded to `max_new_tokens + 1`, if the config sets `max_new_tokens`. No row is shortened.
        """
        config = getattr(self.run.model, "generation_config", None)
        max_length, new_tokens = getattr(config, "max_length", None), getattr(config, "max_new_tokens", None)
        width = DEFAULT_MAX_LENGTH if max_length is None else max_length
        if tokens.shape[-1] >= width and new_tokens is not None:
            width = new_tokens + 1  # decoding starts with one token more
        return tokens if tokens.shape[-1] >= width else self._pad_tensors_to_max_len(tokens, width)

    def _pad_tensors_to_max_len(self, tensor: torch.Tensor, max_length: int) -> torch.Tensor:
        """Return tokens of shape (rows, length), with padding tokens at the end of each row, up to `max_length`.

        Override this method to pad in another way. Longer rows are not shortened.
        """
        missing = max(0, max_length - tensor.shape[-1])
        return nn.functional.pad(tensor, (0, missing), value=self._padding_token())

    def _padding_token(self) -> int:
        """Read the id of the token that pads generated sequences, from the processing class or the model's config.

        Raises:
            ArgumentError: if there is no such token.
        """
        processor, config = self.run.processing_class, getattr(self.run.model, "config", None)
        candidates = [(config, "pad_token_id")]
        if hasattr(processor, "pad_token_id"):
            candidates = [(processor, "pad_token_id"), (processor, "eos_token_id")]
        for owner, name in candidates:
            token = getattr(owner, name, None)
            if token is not None:
                return int(token)
        raise ArgumentError(
            "Generated sequences need padding, but there is no padding token. Set `pad_token_id` in the model's "
            "config, or pass a `processing_class` that has one."
        )


def _is_unset(name: str, value: Any) -> bool:
    """Return whether an option of `generate` is not set: it is None, and None is not a valid value of this option."""
    return name in ("max_length", "num_beams") and value is None


def _complete_config(config: Any) -> None:
    """Set the unset values of a model's generation config to their defaults, as transformers does after each batch.

    The effect is visible if the user sets no maximum length. In the first batch of an evaluation, `generate` makes up
    to 20 new tokens. After the first batch, `max_length` is 20. This limit includes the start token, so `generate`
    makes up to 19 new tokens in later batches.
    """
    if hasattr(config, "_get_default_generation_params"):
        config.update(**config._get_default_generation_params(), defaults_only=True)


def _inputs_for_generation(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch without its labels, and without decoder inputs that were made from the labels.

    With such decoder inputs, the model would see the labels that it must predict. The function assumes that decoder
    inputs with the shape of the labels were made from the labels.
    """
    labels, decoder_inputs = inputs.get("labels"), inputs.get("decoder_input_ids")
    dropped = {"labels"}
    if labels is not None and decoder_inputs is not None and labels.shape == decoder_inputs.shape:
        dropped |= {"decoder_input_ids", "decoder_attention_mask"}
    return {name: value for name, value in inputs.items() if name not in dropped}

"""Fine-tune a model on translation or summarisation: `examples/seq2seq/finetune_trainer.py` of transformers 4.1.

README.md has the command line. A split of the data is two files with one text per line: `train.source` and
`train.target`, and so on.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from local_data import lines, word_tokenizer
from torch import nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from trainbus import DataCollatorForSeq2Seq, HfArgumentParser, Seq2SeqTrainer, Seq2SeqTrainingArguments, set_seed


@dataclass
class ModelArguments:
    """The model, and which of its parts are frozen."""

    model_name_or_path: str = field(metadata={"help": "Pretrained model, or a folder with a config.json."})
    freeze_encoder: bool = field(default=False, metadata={"help": "Whether to freeze the encoder."})
    freeze_embeds: bool = field(default=False, metadata={"help": "Whether to freeze the embeddings."})


@dataclass
class DataTrainingArguments:
    """The data, and how much of it is used."""

    data_dir: Path = field(metadata={"help": "Folder with train.source, train.target, val.source and so on."})
    task: str = field(default="summarization", metadata={"help": "Task name: summarization or translation."})
    max_source_length: int = field(default=1024, metadata={"help": "Longest input, in tokens."})
    max_target_length: int = field(default=128, metadata={"help": "Longest target, in tokens."})
    n_train: int = field(default=-1, metadata={"help": "Number of training samples; -1 uses all."})
    n_val: int = field(default=-1, metadata={"help": "Number of validation samples; -1 uses all."})
    n_test: int = field(default=-1, metadata={"help": "Number of test samples; -1 uses all."})
    src_lang: str | None = field(default=None, metadata={"help": "Code of the source language, such as en_XX."})
    tgt_lang: str | None = field(default=None, metadata={"help": "Code of the target language, such as ro_RO."})


def freeze(*modules: nn.Module) -> None:
    """Exclude the weights of modules from training."""
    for module in modules:
        module.requires_grad_(False)


def samples(data: DataTrainingArguments, split: str, count: int, tokenizer) -> list[dict]:
    """Return the tokenised samples of a split. mBART ends each text with </s> and the code of its language."""
    texts = [lines(data.data_dir / f"{split}.{side}") for side in ("source", "target")]
    ends = [tokenizer.convert_tokens_to_ids(["[SEP]", code or "[SEP]"]) for code in (data.src_lang, data.tgt_lang)]
    longest = data.max_source_length, data.max_target_length
    made = []
    for pair in list(zip(*texts, strict=True))[: None if count < 0 else count]:
        source, target = (
            tokenizer(text, add_special_tokens=False)["input_ids"][: limit - 2] + end
            for text, limit, end in zip(pair, longest, ends, strict=True)
        )
        made.append({"input_ids": source, "attention_mask": [1] * len(source), "labels": target})
    return made


def main() -> None:
    """Train, evaluate and predict, as the command line says."""
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, Seq2SeqTrainingArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        model_args, data_args, training_args = parser.parse_json_file(json_file=sys.argv[1])
    else:
        model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)

    folder = Path(model_args.model_name_or_path)
    if folder.is_dir() and not any(folder.glob("*.safetensors")):  # a config without weights: start from random ones
        texts = [text for side in ("source", "target") for text in lines(data_args.data_dir / f"train.{side}")]
        tokenizer = word_tokenizer(texts, [code for code in (data_args.src_lang, data_args.tgt_lang) if code])
        config = AutoConfig.from_pretrained(folder, vocab_size=len(tokenizer))
        model = AutoModelForSeq2SeqLM.from_config(config)
    else:
        tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
        model = AutoModelForSeq2SeqLM.from_pretrained(model_args.model_name_or_path)
    if data_args.task == "translation" and data_args.tgt_lang is not None:
        start = tokenizer.convert_tokens_to_ids(data_args.tgt_lang)
        model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = start
    if model_args.freeze_embeds:
        stacks = (model.model.encoder, model.model.decoder)
        freeze(model.model.shared, *(part for stack in stacks for part in (stack.embed_positions, stack.embed_tokens)))
    if model_args.freeze_encoder:
        freeze(model.get_encoder())

    train = samples(data_args, "train", data_args.n_train, tokenizer) if training_args.do_train else None
    val = samples(data_args, "val", data_args.n_val, tokenizer) if training_args.do_eval else None
    test = samples(data_args, "test", data_args.n_test, tokenizer) if training_args.do_predict else None

    def exact(prediction) -> dict[str, float]:
        generated, expected = (
            tokenizer.batch_decode(tokens.clip(min=0), skip_special_tokens=True)
            for tokens in (prediction.predictions, prediction.label_ids)
        )
        return {"exact": sum(one == other for one, other in zip(generated, expected, strict=True)) / len(expected)}

    trainer = Seq2SeqTrainer(
        model=model,
        args=training_args,
        train_dataset=train,
        eval_dataset=val,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        tokenizer=tokenizer,
        compute_metrics=exact if training_args.predict_with_generate else None,
    )
    if training_args.do_train:
        result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
        trainer.save_model()
        trainer.log_metrics("train", result.metrics)
        trainer.save_metrics("train", result.metrics)
        trainer.save_state()
    if training_args.do_eval:
        metrics = trainer.evaluate(metric_key_prefix="val")
        trainer.log_metrics("val", metrics)
        trainer.save_metrics("val", metrics)
    if training_args.do_predict:
        prediction = trainer.predict(test, metric_key_prefix="test")
        trainer.log_metrics("test", prediction.metrics)
        trainer.save_metrics("test", prediction.metrics)
        if trainer.is_world_process_zero() and training_args.predict_with_generate:
            texts = tokenizer.batch_decode(prediction.predictions.clip(min=0), skip_special_tokens=True)
            written = "".join(f"{text}\n" for text in texts)
            (Path(training_args.output_dir) / "test_generations.txt").write_text(written, encoding="utf-8")
    trainer.end()


if __name__ == "__main__":
    main()

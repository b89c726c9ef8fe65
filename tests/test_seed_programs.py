"""The programs of examples/seeds run with the command lines of their README, and write what they should."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from support.processes import HUGGING_FACE, TORCHRUN, run_program

pytest.importorskip("transformers")

SEEDS = Path(__file__).resolve().parent.parent / "examples" / "seeds"
BLOCKS = re.findall(r"```bash\n(.*?)```", (SEEDS / "README.md").read_text(encoding="utf-8"), re.DOTALL)
COMMANDS = [shlex.split(line) for block in BLOCKS for line in block.replace("\\\n", " ").splitlines()]


def command(program: str, start: str = "python") -> list[str]:
    """Return the options of a program in the README, behind its name."""
    found = next(words for words in COMMANDS if words[0] == start and program in words)
    return found[found.index(program) + 1 :]


def run(program: str, folder: Path, *options: str, processes: int = 1) -> str:
    """Run a program in an empty folder that links to the data, on one thread, and return its output."""
    for data in ("wmt_en_ro", "imdb", "chnsenticorp", "tiny-mbart", "ds_config.json"):
        (folder / data).symlink_to(SEEDS / data)
    variables = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache"), "DS_ACCELERATOR": "cpu"}
    words = [SEEDS / program, *options]
    if processes == 1:
        done = run_program(*words, imported=HUGGING_FACE, folder=folder, timeout=200, **variables)
    else:
        done = run_program(*TORCHRUN, *words, folder=folder, timeout=200, **variables)
    return done.stdout


def entries(folder: Path, key: str) -> list[float]:
    """Return the logged values of a name."""
    state: dict[str, Any] = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    return [entry[key] for entry in state["log_history"] if key in entry]


TRANSLATION = command("finetune_trainer.py")
FEWER = ("--n_train", "40", "--use_cpu")
"""Overrides the same option of the command line."""


def test_every_program_has_a_command_line() -> None:
    programs = {path.name for path in SEEDS.glob("*.py")} - {"local_data.py"}
    assert programs == {word for words in COMMANDS for word in words if word.endswith(".py")}


def test_finetune_trainer_translates_and_keeps_the_embeddings(tmp_path: Path) -> None:
    measured = ("--do_eval", "--do_predict", "--predict_with_generate", "--n_val", "4", "--n_test", "3")
    printed = run("finetune_trainer.py", tmp_path, *TRANSLATION, *FEWER, *measured, "--generation_max_length", "12")
    assert "***** train metrics *****" in printed
    out = tmp_path / "output_dir"
    assert json.loads((out / "trainer_state.json").read_text(encoding="utf-8"))["global_step"] == 40
    assert {"val_loss", "val_exact"} <= json.loads((out / "val_results.json").read_text(encoding="utf-8")).keys()
    assert len((out / "test_generations.txt").read_text(encoding="utf-8").splitlines()) == 3
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert tokenizer.convert_ids_to_tokens(model.config.decoder_start_token_id) == "ro_RO"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", ["sharded_ddp", "deepspeed"])
def test_finetune_trainer_trains_on_two_processes(tmp_path: Path, way: str) -> None:
    pytest.importorskip("fairscale" if way == "sharded_ddp" else "deepspeed")
    line = [*TRANSLATION, "--sharded_ddp"] if way == "sharded_ddp" else command("finetune_trainer.py", "torchrun")
    printed = run("finetune_trainer.py", tmp_path, *line, *FEWER, processes=2)
    assert "Training stopped at step 20 by StopAtMaxSteps" in printed
    assert (tmp_path / "output_dir" / "model.safetensors").is_file()


def test_run_pretrain_trainer_learns_evaluates_and_exports(tmp_path: Path) -> None:
    printed = run("run_pretrain_trainer.py", tmp_path, *command("run_pretrain_trainer.py"))
    losses = entries(tmp_path / "output" / "ernie", "eval_loss")
    assert losses[-1] < losses[0]
    assert "***** test metrics *****" in printed
    assert re.search(r"test_loss +=", printed)
    rates = entries(tmp_path / "output" / "ernie", "learning_rate")
    assert rates == sorted(rates, reverse=True)
    program = torch.export.load(tmp_path / "output" / "ernie" / "export" / "model.pt2").module()
    row = {name: torch.ones(3, 32, dtype=torch.long) for name in ("input_ids", "attention_mask")}
    assert program(**row).logits.shape[:2] == (3, 32)


def test_run_classifier_trainer_learns(tmp_path: Path) -> None:
    run("run_classifier_trainer.py", tmp_path, *command("run_classifier_trainer.py"))
    out = tmp_path / "output" / "classifier"
    assert entries(out, "train_loss")[-1] < 0.65  # guessing has 0.69
    assert {"model.safetensors", "tokenizer.json"} <= {path.name for path in out.iterdir()}


def test_the_program_of_mindnlp_0_4_trains_and_evaluates(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    run("mindnlp_use_trainer.py", folder)
    saved = {path.name for path in (tmp_path / "output").glob("checkpoint-*")}
    assert saved == {"checkpoint-8", "checkpoint-16", "checkpoint-24"}
    assert len(entries(tmp_path / "output" / "checkpoint-24", "eval_accuracy")) == 3  # at steps 10, 20 and 24


@pytest.mark.parametrize("program", ["mindnlp_imdb.py", "transformers_workflow.py"])
def test_a_whole_program_trains_and_saves(program: str, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    run(program, tmp_path)
    last = max((tmp_path / "results").glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    losses = entries(last, "eval_loss")
    assert losses[-1] < losses[0]
    assert program != "transformers_workflow.py" or (tmp_path / "final_model" / "model.safetensors").is_file()

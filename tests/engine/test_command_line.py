"""The command `trainbus checkpoints`: list, verify, prune and export."""

from __future__ import annotations

import configparser
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

import trainbus
from support.checkpoints import GONE, commit, flip, names_in, of_the_first_format, rewrite, saving
from support.data import points, sentences
from support.models import bert
from support.outcomes import same_weights, weights
from support.trainers import regression_trainer
from trainbus import KeepBest
from trainbus.engine.checkpoint.format.files import Hidden
from trainbus.engine.checkpoint.format.hashing import digest_of
from trainbus.engine.checkpoint.read.saved import SavedCheckpoint
from trainbus.engine.commands.main import main


@pytest.fixture
def said(capsys):
    """Runs the command; returns its exit status and the lines it printed."""

    def run(*words: object) -> tuple[int, list[str]]:
        capsys.readouterr()  # what was printed before
        status = main(["checkpoints", *map(str, words)])
        printed = capsys.readouterr()
        return status, (printed.out + printed.err).splitlines()

    return run


def measured(folder: Path) -> None:
    """Four checkpoints with losses, of which the second is the best."""
    for step, loss in enumerate((3.0, 1.0, 2.0, 4.0), 1):
        commit(folder, step, metrics={"eval_loss": loss})


def row(lines: list[str], step: int) -> list[str]:
    """The cells of a step's row in a table."""
    [line] = [line for line in lines if line.split()[0] == str(step)]
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


# List.


def test_lists_the_state_of_each_checkpoint(tmp_path, said):
    losses = [2.0, 1.0, 3.0]
    run = regression_trainer(
        *(tmp_path,),
        args={"max_steps": 3, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1},
        callbacks=[KeepBest("loss")],
        eval_dataset=points(4),
    )
    run.on("on_evaluate_dataset", lambda metrics: metrics.update(eval_loss=losses.pop(0)))
    run.train()
    flip(tmp_path / "checkpoint-1" / "manifest.json", 0)
    (tmp_path / str(Hidden(4, "a", GONE))).mkdir()
    status, lines = said(tmp_path)
    assert status == 0
    assert [cell.strip() for cell in lines[0].split("  ") if cell] == [
        "step",
        "time",
        "size",
        "metrics",
        "pins",
        "state",
    ]
    assert row(lines, 2)[3] == "eval_loss=1"  # and not how fast it was measured
    assert row(lines, 2)[-2:] == ["best", "good"]
    assert row(lines, 3)[-2:] == ["newest", "good"]
    assert row(lines, 1)[-1].startswith("damaged: manifest.json cannot be read")
    assert lines[-1].startswith(f"{Hidden(4, 'a', GONE)} was not finished")
    size = sum(path.stat().st_size for path in (tmp_path / "checkpoint-3").iterdir())
    assert row(lines, 3)[2] == f"{size / 1000:.4g} kB"
    assert said("list", tmp_path) == (status, lines)


def test_a_single_checkpoint_is_listed_too(tmp_path, said):
    measured(tmp_path)
    status, lines = said(tmp_path / "checkpoint-2")
    assert status == 0
    assert row(lines, 2)[3:] == ["eval_loss=1", "newest", "good"]
    assert len(lines) == 2


def test_a_closed_output_pipe_is_no_error(tmp_path):
    measured(tmp_path)
    words = [sys.executable, "-m", "trainbus.engine.commands.main", "checkpoints", str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        program.stdout.close()
        assert program.stderr.read() == ""
    assert program.returncode == 0


def test_listing_an_empty_or_missing_folder_says_so(tmp_path, said, capsys):
    assert said(tmp_path) == (0, [f"There are no checkpoints in {tmp_path}."])
    with pytest.raises(SystemExit) as ended:
        main(["checkpoints", "list", str(tmp_path / "nowhere")])
    assert ended.value.code == 2
    assert "there is no folder" in capsys.readouterr().err


# Verify.


def test_verifies_every_file_of_a_folder_or_of_one(tmp_path, said):
    measured(tmp_path)
    assert said("verify", tmp_path) == (0, [f"checkpoint-{step}: good" for step in (1, 2, 3, 4)])
    flip(tmp_path / "checkpoint-2" / "model.json")
    (tmp_path / str(Hidden(5, "run", GONE))).mkdir()
    status, lines = said("verify", tmp_path)
    assert status == 1
    assert lines[1].startswith("checkpoint-2: model.json has changed since it was written")
    assert lines[4] == f"{Hidden(5, 'run', GONE)}: its write was not finished"
    assert said("verify", tmp_path / "checkpoint-2") == (1, [lines[1]])
    assert said("verify", tmp_path / "checkpoint-1") == (0, ["checkpoint-1: good"])


def without_manifest(folder: Path) -> None:
    """Leave only files that other libraries write too."""
    for path in folder.iterdir():
        if path.name not in ("model.safetensors", "trainer_state.json"):
            path.unlink()


@pytest.mark.parametrize("unhash", [without_manifest, of_the_first_format], ids=["no manifest", "format 1"])
def test_verify_says_what_it_checks_without_hashes(tmp_path, said, unhash):
    saving(tmp_path, 1).train()
    folder = tmp_path / "checkpoint-1"
    unhash(folder)
    good = (
        "checkpoint-1: good (it has no hashes: its trainer state and the headers of its tensor files can be read, but "
        "changed values are not found)"
    )
    assert not SavedCheckpoint.open(folder).is_listed
    assert said("verify", tmp_path) == (0, [good])
    whole = (folder / "model.safetensors").read_bytes()
    flip(folder / "model.safetensors")
    assert said("verify", tmp_path) == (0, [good])
    (folder / "model.safetensors").write_bytes(whole[:-1])
    status, [line] = said("verify", tmp_path)
    assert status == 1
    assert line.startswith("checkpoint-1: model.safetensors is damaged: ")
    (folder / "model.safetensors").write_bytes(whole)
    (folder / "trainer_state.json").write_text("{")
    status, [line] = said("verify", tmp_path)
    assert status == 1
    assert line.startswith("checkpoint-1: trainer_state.json cannot be read: ")


def test_a_manifest_that_cannot_be_read_lists_nothing(tmp_path):
    measured(tmp_path)
    assert SavedCheckpoint.open(tmp_path / "checkpoint-1").is_listed
    (tmp_path / "checkpoint-1" / "manifest.json").write_text("{")
    assert not SavedCheckpoint.open(tmp_path / "checkpoint-1").is_listed


# Prune.


def test_prunes_superfluous_checkpoints(tmp_path, said):
    measured(tmp_path)
    words = ("prune", tmp_path, "--keep-last", 1, "--keep-best", 1, "--metric", "eval_loss")
    status, lines = said(*words, "--dry-run")
    assert (status, lines) == (
        0,
        [
            "would delete checkpoint-1 (eval_loss=3): not among the newest 1 or the best 1 by eval_loss",
            "would delete checkpoint-3 (eval_loss=2): not among the newest 1 or the best 1 by eval_loss",
            "would keep checkpoint-2, checkpoint-4",
        ],
    )
    assert len(names_in(tmp_path)) == 4
    status, lines = said(*words)
    assert (status, lines) == (
        0,
        [
            "to delete: checkpoint-1 (eval_loss=3): not among the newest 1 or the best 1 by eval_loss",
            "to delete: checkpoint-3 (eval_loss=2): not among the newest 1 or the best 1 by eval_loss",
            *("deleted checkpoint-1", "deleted checkpoint-3", "kept checkpoint-2, checkpoint-4"),
        ],
    )
    assert names_in(tmp_path) == ["checkpoint-2", "checkpoint-4"]


@pytest.mark.parametrize(
    ("metric", "mode", "best"),
    [("wer", None, 2), ("rmse", None, 2), ("answer", None, 1), ("wer", "max", 1)],
)
def test_prune_keeps_the_best_by_the_direction_of_the_metric(tmp_path, said, metric, mode, best):
    for step, value in ((1, 0.9), (2, 0.1), (3, 0.5), (4, 0.5)):
        commit(tmp_path, step, metrics={f"eval_{metric}": value})
    words = ("prune", tmp_path, "--keep-last", 1, "--keep-best", 1, "--metric", metric)
    assert said(*words, *(() if mode is None else ("--mode", mode)))[0] == 0
    assert names_in(tmp_path) == [f"checkpoint-{best}", "checkpoint-4"]


@pytest.mark.parametrize("best", [["--keep-best", 1], []])
def test_prune_refuses_a_metric_that_no_checkpoint_has(tmp_path, said, best):
    measured(tmp_path)
    status, lines = said("prune", tmp_path, "--keep-last", 1, *best, "--metric", "eval_los")
    assert status == 2
    assert "eval_los: no checkpoint of the run has this metric" in lines[-1]
    assert "They have eval_loss." in lines[-1]
    assert len(names_in(tmp_path)) == 4


def test_prune_by_the_best_refuses_checkpoints_without_metrics(tmp_path, said):
    for step in (1, 2, 3):
        commit(tmp_path, step)
    status, lines = said("prune", tmp_path, "--keep-last", 1, "--keep-best", 1)
    assert status == 2
    assert "They have no metrics, so leave out --keep-best." in lines[-1]
    assert len(names_in(tmp_path)) == 3


def test_prune_finds_a_metric_without_its_prefix(tmp_path, said):
    measured(tmp_path)
    assert said("prune", tmp_path, "--keep-last", 1, "--keep-best", 1, "--metric", "loss")[0] == 0
    assert names_in(tmp_path) == ["checkpoint-2", "checkpoint-4"]


@pytest.mark.parametrize(("answer", "options", "left"), [("", [], 4), ("n", [], 4), ("y", [], 2), ("", ["--yes"], 2)])
def test_prune_asks_on_a_terminal(tmp_path, answer, options, left):
    measured(tmp_path)
    program = "import sys; from trainbus.engine.commands.main import main; sys.exit(main())"
    words = ["checkpoints", "prune", str(tmp_path), "--keep-last", "1", "--keep-best", "1", *options]
    terminal, end = os.openpty()
    os.write(terminal, f"{answer}\n".encode())
    subprocess.run([sys.executable, "-c", program, *words], stdin=end, stdout=end, stderr=end, check=True, timeout=240)
    said = os.read(terminal, 10_000).decode()
    os.close(terminal)
    os.close(end)
    assert ("Delete 2 checkpoints? [y/N]" in said) is (options == [])
    assert said.index("to delete: checkpoint-1") < said.find("deleted checkpoint-1") or left == 4
    assert len(names_in(tmp_path)) == left


@pytest.mark.parametrize(
    ("metric", "mode", "kept"), [("eval_loss", [], 2), ("eval_loss", ["--mode", "max"], 1), ("eval_f1", [], 1)]
)
def test_the_best_goes_by_the_name_or_the_mode(tmp_path, said, metric, mode, kept):
    for step, value in enumerate((3.0, 1.0, 2.0), 1):
        commit(tmp_path, step, metrics={metric: value})
    said("prune", tmp_path, "--keep-last", 1, "--keep-best", 1, "--metric", metric, *mode)
    assert names_in(tmp_path) == [f"checkpoint-{kept}", "checkpoint-3"]


def test_the_best_that_the_run_will_load_stays(tmp_path, said):
    for step in (1, 2, 3):
        commit(tmp_path, step)
    state = {"best_model_checkpoint": str(tmp_path / "checkpoint-1")}
    path = tmp_path / "checkpoint-3" / "trainer_state.json"
    path.write_text(json.dumps(state))
    rewrite(tmp_path / "checkpoint-3", files={path.name: asdict(digest_of(path))})
    said("prune", tmp_path, "--keep-last", 1)
    assert names_in(tmp_path) == ["checkpoint-1", "checkpoint-3"]


def test_prune_does_not_touch_damaged_or_other_runs(tmp_path, said):
    commit(tmp_path, 1, "another", time=0.0)
    for step in (2, 3, 4, 5):
        commit(tmp_path, step)
    (tmp_path / "checkpoint-2" / "model.json").unlink()
    flip(tmp_path / "checkpoint-5" / "model.json")  # which only the full check finds
    (tmp_path / "checkpoint-9").mkdir()
    _, lines = said("prune", tmp_path, "--keep-last", 1)
    assert names_in(tmp_path) == [f"checkpoint-{step}" for step in (1, 2, 4, 5, 9)]
    assert lines == [
        "to delete: checkpoint-3: not among the newest 1",
        *("deleted checkpoint-3", "kept checkpoint-4"),
        "not touched, because damaged or of another run: checkpoint-1, checkpoint-2, checkpoint-5, checkpoint-9",
    ]


def test_no_checkpoint_is_deleted_if_none_names_its_run(tmp_path, said):
    rewrite(commit(tmp_path, 1), run_id="")
    status, [line] = said("prune", tmp_path, "--keep-last", 1)
    assert status == 2
    assert "none is deleted" in line
    assert said("prune", tmp_path, "--keep-last", 0)[0] == 2
    assert names_in(tmp_path) == ["checkpoint-1"]


# Export.


def test_exports_a_model_that_others_load(tmp_path, said):
    transformers = pytest.importorskip("transformers")
    run = regression_trainer(
        *(tmp_path / "run", bert()),
        train_dataset=sentences(8),
        args={"max_steps": 1, "save_strategy": "steps", "save_steps": 1},
    )
    run.train()
    status, [line] = said("export", tmp_path / "run" / "checkpoint-1", tmp_path / "out")
    assert (status, line) == (0, f"exported to {tmp_path / 'out'}: config.json, model.safetensors")
    assert names_in(tmp_path / "out") == ["config.json", "model.safetensors"]
    assert names_in(tmp_path) == ["out", "run"]
    loaded = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "out")
    assert same_weights(weights(loaded), weights(run.model))


def test_export_takes_the_best_checkpoint_of_a_run(tmp_path, said):
    for step in (1, 2):
        commit(tmp_path, step)
    state = {"best_model_checkpoint": str(tmp_path / "checkpoint-1")}
    path = tmp_path / "checkpoint-2" / "trainer_state.json"
    path.write_text(json.dumps(state))
    rewrite(tmp_path / "checkpoint-2", files={path.name: asdict(digest_of(path))})
    status, [line] = said("export", "--best", tmp_path, tmp_path / "out")
    assert (status, line.startswith(f"exported checkpoint-1 to {tmp_path / 'out'}: ")) == (0, True)
    status, [line] = said("export", tmp_path, tmp_path / "new")
    assert (status, "Add --best" in line) == (2, True)


def test_export_of_the_best_needs_a_best(tmp_path, said):
    commit(tmp_path, 1)
    status, [line] = said("export", "--best", tmp_path, tmp_path / "out")
    assert (status, "is marked as the best" in line) == (2, True)


def test_export_refuses_damaged_checkpoints_and_existing_targets(tmp_path, said):
    commit(tmp_path, 1)
    (tmp_path / "out").mkdir()
    status, [line] = said("export", tmp_path / "checkpoint-1", tmp_path / "out")
    assert (status, "out exists. Give a folder that does not exist." in line) == (2, True)
    flip(tmp_path / "checkpoint-1" / "model.json")
    status, [line] = said("export", tmp_path / "checkpoint-1", tmp_path / "new")
    assert (status, "model.json has changed since it was written" in line) == (2, True)
    assert not (tmp_path / "new").exists()


# The program.


def test_the_program_is_the_one_that_is_installed_and_needs_no_torch(root, tmp_path):
    setup = configparser.ConfigParser()
    setup.read(root / "setup.cfg")
    assert setup["options.entry_points"]["console_scripts"].strip() == "trainbus = trainbus.engine.commands.main:main"
    commit(tmp_path, 1)
    program = (
        "import sys; from trainbus.engine.commands.main import main; "
        "status = main(['checkpoints', sys.argv[1]]); assert 'torch' not in sys.modules; sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "newest" in done.stdout


# Words that are wrong.


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("chekpoints", "out"), "unknown command 'chekpoints'; did you mean 'checkpoints'?"),
        (("plan", "--parms", "7b"), "unknown argument '--parms'; did you mean '--params'?"),
        (("checkpoints", "prune", "out", "--keep-lst", "2"), "did you mean '--keep-last'?"),
        (("checkpoints", "prune", "out", "--keep-last", "2", "--mode", "mn"), "unknown mode 'mn'; did you mean 'min'?"),
        (("plan", "--params", "7b", "--gpu", "2"), "did you mean '--gpus'?"),
    ],
)
def test_an_unknown_word_of_the_command_line_names_the_nearest(words, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"trainbus {trainbus.__version__}\n"

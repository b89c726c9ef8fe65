"""`trainbus profile`: measured gains of changed arguments, each in a fresh process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainbus.engine.commands.main import main
from trainbus.engine.commands.profile import Change, changes_for, chosen, compare
from trainbus.events import ArgumentError

PROGRAM = """
import sys
from support.data import net_samples
from support.models import Net
from trainbus import EarlyStopping, Trainer, TrainingArguments

args = TrainingArguments(sys.argv[1], eval_strategy="steps", eval_steps=5, save_steps=5, use_cpu=True, max_steps=900,
                         load_best_model_at_end=True, report_to="none")
stopping = [EarlyStopping(patience=1)]  # it refuses a run without evaluations
trainer = Trainer(
    Net(), args, train_dataset=net_samples(64), eval_dataset=net_samples(8), callbacks=stopping,
    compute_metrics=lambda predictions: 1 / 0,
)
print("this goes nowhere")
trainer.train()
raise SystemExit("a measured program ends after its first training")
"""

DESCRIBED = {
    "args": {
        **{"dataloader_num_workers": 0, "dataloader_pin_memory": True, "train_sampling_strategy": "random"},
        **{"bf16": False, "fp16": False, "optim": "adamw_torch", "torch_compile": False},
        **{"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4},
    },
    "cuda": False,
    "bf16": True,
    "processors": 8,
    "has_lengths": False,
}


def test_runs_alternate_and_gains_are_of_the_same_round() -> None:
    order: list[str] = []
    speeds = iter([100.0, 150.0, 200.0, 330.0, 100.0, 140.0])

    def measure(arguments: dict[str, Any]) -> dict[str, Any]:
        if "bf16" in arguments:
            order.append("bf16")
            return {"error": "no bf16 here"}
        order.append("batch" if arguments else "none")
        return {"rows_per_second": next(speeds)}

    batch = Change("batch", {"per_device_train_batch_size": 16})
    found = compare([batch, Change("bf16", {"bf16": True})], measure, 3)
    assert order == ["none", "batch", "bf16", "none", "batch", "none", "batch"]
    gain, failed = found.gains
    assert (gain.gain, gain.lowest, gain.highest) == (1.5, 1.4, 1.65)
    assert failed.error == "no bf16 here"
    assert found.to_dict()["set"] == {"per_device_train_batch_size": 16}
    assert "Set per_device_train_batch_size=16." in str(found)
    assert "no bf16 here" in str(found)


def test_a_gain_within_noise_is_not_advised() -> None:
    speeds = iter([100.0, 130.0, 100.0, 99.0, 100.0, 120.0])
    found = compare([Change("fused", {"optim": "x"})], lambda arguments: {"rows_per_second": next(speeds)}, 3)
    assert found.gains[0].gain == 1.2
    assert found.to_dict()["set"] == {}
    assert "No change was faster in all rounds." in str(found)


@pytest.mark.parametrize(
    ("speeds", "said"),
    [
        ([103.0, 101.0], "No change was at least 5 % faster in the median. Faster in all rounds: fused."),
        ([130.0, 99.0], "No change was faster in all rounds."),
        ([104.0, 106.0], "Set optim='x'."),
        ([], "No change could be measured."),
    ],
)
def test_the_last_line_gives_the_reason_if_no_change_is_advised(speeds: list[float], said: str) -> None:
    left = iter(speeds)

    def measure(arguments: dict[str, Any]) -> dict[str, Any]:
        found = next(left, None) if arguments else 100.0
        return {"error": "no"} if found is None else {"rows_per_second": found}

    assert str(compare([Change("fused", {"optim": "x"})], measure, 2)).splitlines()[-1] == said


def test_changes_fit_the_training() -> None:
    assert [change.name for change in changes_for(DESCRIBED)] == ["workers", "bf16", "compile", "fused", "batch"]
    batch = changes_for(DESCRIBED)[-1]
    assert batch.arguments == {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2}
    args = {**DESCRIBED["args"], "dataloader_pin_memory": False}  # type: ignore[dict-item]
    on_gpu = {**DESCRIBED, "cuda": True, "has_lengths": True, "args": args}
    assert {"pin", "lengths"} <= {change.name for change in changes_for(on_gpu)}
    with pytest.raises(ArgumentError, match="batch"):
        chosen(changes_for(DESCRIBED), "bach")


def test_a_program_is_measured_without_its_evaluations_and_files(tmp_path: Path, capfd: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[1]))
    program, output = tmp_path / "program.py", tmp_path / "output"
    program.write_text(PROGRAM)
    options = ["--rounds", "1", "--steps", "4", "--warmup", "1", "--only", "batch", "--json"]
    assert main(["profile", *options, str(program), str(output)]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["rows_per_second"] > 0
    assert found["changes"][0]["rows_per_second"] > 0
    assert not output.exists()


def test_a_program_that_fails_is_an_error(tmp_path: Path, capfd: Any) -> None:
    program = tmp_path / "program.py"
    program.write_text("raise ValueError('no data here')")
    assert main(["profile", str(program)]) == 2
    assert "no data here" in capfd.readouterr().err
    assert main(["profile", str(tmp_path / "none.py")]) == 2
    assert main(["profile", "--rounds", "0", str(program)]) == 2

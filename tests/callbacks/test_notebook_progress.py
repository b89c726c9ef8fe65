"""The progress of a run in a notebook: the view as HTML, and a notebook that is executed."""

from __future__ import annotations

import re
import sys
import types

import pytest

from trainbus.callbacks.monitor import progress
from trainbus.callbacks.monitor.notebook_progress import NotebookView, columns_of
from trainbus.callbacks.monitor.pace import Pace
from trainbus.engine.api.console import in_notebook

PROGRAM = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from trainbus import Evaluate, Log, Trainer, TrainingArguments, every

torch.manual_seed(0)
x = torch.randn(32, 4)
data = TensorDataset(x, (x.sum(1) > 0).long())
args = TrainingArguments("out", max_steps=8, use_cpu=True, save_strategy="no")
trainer = Trainer(
    nn.Linear(4, 2), args, train_dataset=data, eval_dataset=data, criterion=nn.CrossEntropyLoss(),
    callbacks=[Log(every(2)), Evaluate(every(4))],
)
trainer.train()
print([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
"""


def test_a_plain_program_is_no_notebook():
    assert not in_notebook()


def test_a_shell_without_a_kernel_is_no_notebook(monkeypatch):
    shell = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython", shell)
    assert not in_notebook()


def test_values_of_one_step_share_a_row_and_names_are_those_of_transformers():
    view = NotebookView(10)
    view.add(5, columns_of({"loss": 0.5, "learning_rate": 1e-3, "epoch": 1.0}))
    view.add(5, columns_of({"eval_loss": 0.25, "eval_macro_f1": 0.75, "eval_runtime": 1.0, "epoch": 1.0}))
    view.add(10, columns_of({"loss": 0.125}))
    cells = re.findall(r"<t[hd](?: [^>]*)?>(.*?)</t[hd]>", view.html())
    assert cells[:4] == ["Step", "Training Loss", "Validation Loss", "Macro F1"]
    assert cells[4:] == ["5", "0.500000", "0.250000", "0.750000", "10", "0.125000", "No log", "No log"]


def test_text_in_a_table_is_escaped():
    view = NotebookView(2)
    view.add(1, columns_of({"<b>": "<script>"}))
    assert "<script>" not in view.html()
    assert "&lt;script&gt;" in view.html()


def test_the_time_that_is_left_includes_the_evaluations_to_come():
    view = NotebookView(1000, 100, pace=Pace(steps=100, remaining=900, seconds=30.0, evaluating=20.0, evaluations=2))
    assert "[100/1000 00:30 &lt; 04:30, 10.00 it/s, " in view.html()
    assert "it/s" not in NotebookView(1000).html()


def test_the_summary_of_a_training_is_no_row():
    assert columns_of({"train_runtime": 3.0, "train_loss": 0.5}) == {}


def test_a_log_of_the_loss_is_a_row_with_counted_tokens_too():
    logs = {"loss": 0.5, "num_input_tokens_seen": 8, "train_runtime": 3.0, "train_tokens_per_second": 2.7}
    assert columns_of(logs) == {"Training Loss": 0.5, "Num Input Tokens Seen": 8}


def test_bars_can_be_turned_off_in_a_notebook(monkeypatch):
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    assert progress.Progress().draws
    assert not progress.Progress(bar=False).draws
    assert progress.Progress(bar=False)._table() is None


def test_an_executed_notebook_shows_the_table_and_a_full_bar(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(PROGRAM)])
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = notebook.cells[0].outputs
    [shown] = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    printed = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", shown)[1:]]
    assert [row[0] for row in rows] == ["2", "4", "6", "8"]
    losses = [float(value) for value in re.search(r"\[(.*)\]", printed)[1].split(",")]
    assert [row[1] for row in rows] == [f"{loss:.6f}" for loss in losses]
    assert [row[2] == "No log" for row in rows] == [True, False, True, False]
    assert '<progress value="8" max="8"' in shown
    assert re.search(r"\[8/8 00:0\d &lt; 00:00, \d+\.\d\d it/s, Epoch 2.00/2\]", shown)
    assert "Evaluation" not in shown
    assert "step 2/8" not in printed

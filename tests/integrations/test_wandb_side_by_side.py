"""The same training, tracked by transformers, Lightning and trainbus, and read back with the client's own messages."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from trainbus import Trainer, TrainingArguments

wandb = pytest.importorskip("wandb")
transformers = pytest.importorskip("transformers")

from wandb_files import segments  # noqa: E402
from wandb_fixtures import QUIET, rows_of  # noqa: E402
from wandb_fixtures import environment as environment  # noqa: E402
from wandb_fixtures import service as service  # noqa: E402

STEPS, LOG, EVALUATE = 8, 2, 4
SPEED = ("runtime", "per_second")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 2)

    def forward(self, x, labels):
        logits = self.linear(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def samples():
    return [{"x": x, "labels": y} for x, y in rows_of()]


def train(library, folder, monkeypatch):
    """Train with transformers or trainbus, from the same arguments. Return what the file of the run holds."""
    folder.mkdir()
    monkeypatch.setenv("WANDB_DIR", str(folder))
    arguments = {"max_steps": STEPS, "logging_steps": LOG, "eval_strategy": "steps", "eval_steps": EVALUATE}
    arguments |= {"use_cpu": True, "disable_tqdm": True, "report_to": "wandb", "run_name": "side", "seed": 3}
    arguments |= {"output_dir": str(folder / "out"), "save_strategy": "no"}
    if library is transformers:  # its callback passes no folder, and the client reads the environment once
        wandb.init(mode="offline", dir=str(folder), name="side", settings=wandb.Settings(**QUIET))
        theirs = transformers.TrainingArguments(**arguments)
        trainer = transformers.Trainer(Model(), theirs, train_dataset=samples(), eval_dataset=samples())
        trainer.train()
        trainer.predict(samples())
        wandb.finish()
    else:
        trainer = Trainer(Model(), TrainingArguments(**arguments), train_dataset=samples(), eval_dataset=samples())
        trainer.train()
        trainer.predict(samples())
        trainer.end()
    [found] = segments(folder)
    return found


def train_with_lightning(folder):
    import lightning.pytorch as lightning
    from lightning.pytorch.loggers import WandbLogger

    class Module(lightning.LightningModule):
        def __init__(self, learning_rate):
            super().__init__()
            self.save_hyperparameters()
            self.model = Model()

        def training_step(self, batch):
            loss = self.model(**batch)["loss"]
            self.log("train/loss", loss)
            self.log("train/learning_rate", self.trainer.optimizers[0].param_groups[0]["lr"])
            return loss

        def validation_step(self, batch):
            self.log("eval/loss", self.model(**batch)["loss"])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate)

    folder.mkdir()
    logger = WandbLogger(name="side", save_dir=str(folder), offline=True, settings=wandb.Settings(**QUIET))
    trainer = lightning.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        logger=logger,
        log_every_n_steps=LOG,
        val_check_interval=EVALUATE,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        default_root_dir=str(folder),
    )
    loader = torch.utils.data.DataLoader(samples(), batch_size=8)
    trainer.fit(Module(5e-5), loader, loader)
    logger.experiment.finish()
    [found] = segments(folder)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The runs of transformers and trainbus."""
    folder = tmp_path_factory.mktemp("side")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"MODE": "offline", "SILENT": "true", "CONSOLE": "off"}.items():
            patch.setenv(f"WANDB_{name}", value)
        wandb.teardown()  # the client reads the environment once
        theirs = train(transformers, folder / "transformers", patch)
        return SimpleNamespace(theirs=theirs, ours=train(None, folder / "trainbus", patch))


def names(values, prefix=""):
    """Return the paths of the leaves of a nested dict, without those of the client itself."""
    found = set()
    for name, value in values.items():
        if not name.startswith("_"):
            found |= names(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}"}
    return found


def columns(segment):
    return set().union(*(names(row) for row in segment.rows))


def by_step(segment):
    """Return step -> values of all rows of the step."""
    found = {step: {} for step in segment.steps}
    for row in segment.rows:
        found[row["train/global_step"]] |= {name: value for name, value in row.items() if not name.startswith("_")}
    return found


def test_each_value_of_transformers_is_here_under_the_same_step_and_name(found):
    theirs, ours = by_step(found.theirs), by_step(found.ours)
    assert ours.keys() == theirs.keys()
    assert "test/loss" in theirs[STEPS]
    for step, expected in theirs.items():
        assert expected.keys() <= ours[step].keys()
        assert all(ours[step][name] == value for name, value in expected.items() if not name.endswith(SPEED))
    assert [*dict.fromkeys(found.ours.steps)] == sorted(theirs)
    assert len(found.ours.rows) == len(theirs) + 1, "a row for each step, and a row for the prediction"


def test_the_summary_and_the_config_of_transformers_are_here(found):
    assert names(found.theirs.summary) <= names(found.ours.summary)
    named = {name.split(".")[0] for name in found.theirs.config if not name.startswith("_")}
    absent = {"activation_checkpointing", "activation_checkpointing_kwargs", "parallelism_config"}
    assert not absent & set(TrainingArguments.__dataclass_fields__)  # trainbus has no such arguments
    assert named - found.ours.config["arguments"].keys() <= absent


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="Lightning is not installed")
def test_nothing_that_lightning_records_is_missing(found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    theirs = train_with_lightning(tmp_path / "lightning")
    renamed = {"trainer/global_step": "train/global_step", "epoch": "train/epoch"}
    assert {renamed.get(name, name) for name in columns(theirs)} <= columns(found.ours)
    assert {renamed.get(name, name) for name in names(theirs.summary)} <= names(found.ours.summary)
    assert names(theirs.config) <= {name.rpartition(".")[2] for name in names(found.ours.config)}
    versions = {library: importlib.metadata.version(library) for library in ("wandb", "transformers", "lightning")}
    print(versions)
    print(table({"transformers": found.theirs, "Lightning": theirs, "trainbus": found.ours}))


def table(runs):
    """Return the columns, the summary and the config of each run, side by side."""
    lines = [f"| | {' | '.join(runs)} |"]
    lines.append("| Rows | " + " | ".join(str(len(run.rows)) for run in runs.values()) + " |")
    for title, of in (("Column", columns), ("Summary", lambda run: names(run.summary))):
        for name in sorted(set().union(*map(of, runs.values()))):
            lines.append(f"| {title} {name} | " + " | ".join("yes" * (name in of(run)) for run in runs.values()) + " |")
    lines.append("| Config names | " + " | ".join(str(len(names(run.config))) for run in runs.values()) + " |")
    return "\n".join(lines)

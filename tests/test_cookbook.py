"""The cookbook: each recipe is short and complete, and the trainings of the page do what its sentences say."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from test_docs import ROOT, blocks
from torch import nn

from trainbus.testing import check_callback, tiny_run, tiny_trainer

PAGE = ROOT / "docs" / "plugins" / "cookbook.md"
RECIPES = 25
LINES = 20
"""The most lines of code of a recipe, without empty lines."""

CLOCK = "it logs a time"


def recipes() -> dict[str, str]:
    """Return the recipes of the page: title -> text."""
    _, *parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in parts}


def code_of(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_there_are_25_recipes_and_the_table_links_each_once() -> None:
    page = PAGE.read_text(encoding="utf-8").partition("\n## ")[0]
    linked = re.findall(r"\]\(#([\w-]+)\)", page)
    anchors = [title.lower().replace(" ", "-") for title in recipes()]
    assert len(anchors) == RECIPES
    assert sorted(linked) == sorted(anchors)


@pytest.mark.parametrize("title", recipes())
def test_a_recipe_says_when_to_use_it_shows_short_code_and_says_what_to_watch(title: str) -> None:
    text = recipes()[title]
    [code] = code_of(text)
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= LINES
    assert text.strip().startswith("Use it ")
    assert re.search(r"^Watch ", text.rpartition("```")[2], re.MULTILINE)


TRAININGS = re.compile(r"^(?=trainer = |make\(|check_callback\(|metrics = |show = |print\(|sample = )", re.MULTILINE)
"""Where the definitions of a block end."""


@pytest.fixture(scope="module")
def page() -> Iterator[dict[str, Any]]:
    """The names that the code of the page defines, without its trainings. Its module is in `sys.modules` for pickle."""
    module = ModuleType("cookbook")
    sys.modules["cookbook"] = module
    for block in blocks(PAGE):
        if block.info == "python":
            exec(compile(TRAININGS.split(block.code)[0], str(PAGE), "exec", dont_inherit=True), vars(module))
    yield vars(module)
    del sys.modules["cookbook"]


class Channel:
    """A webhook on this machine, and the messages that it received."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        messages = self.messages

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                messages.append(json.loads(body)["text"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def channel() -> Iterator[Channel]:
    opened = Channel()
    yield opened
    opened.close()


def test_the_webhook_receives_the_reason_of_the_stop_and_the_error(
    page: dict[str, Any], channel: Channel, tmp_path: Path
) -> None:
    tiny_run(page["Webhook"](channel.url), folder=tmp_path)
    trainer = tiny_trainer(tmp_path, page["Webhook"](channel.url))
    trainer.on("on_gradients", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    assert channel.messages[0] == "stopped at step 6 by StopAtMaxSteps: all 6 steps are done"
    assert channel.messages[1:] == ["failed after step 0: ZeroDivisionError('division by zero')"]


def test_the_norms_of_layers_are_those_of_torch(page: dict[str, Any]) -> None:
    trainer = page["make"](page["LayerNorms"](), logging_steps=1, max_steps=2)
    expected = []
    trainer.on(
        "on_gradients",
        lambda model: expected.append({f"grad_norm/{n}": float(w.grad.norm()) for n, w in model.named_parameters()}),
    )
    trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert [{name: row[name] for name in norms} for row, norms in zip(rows, expected)] == expected


def test_the_rates_of_layers_train_them_at_these_rates(page: dict[str, Any]) -> None:
    options = {"max_steps": 1, "optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0.0}

    def moved(*callbacks: Any) -> list[torch.Tensor]:
        torch.manual_seed(1)
        trainer = page["make"](*callbacks, **options)
        before = [weight.detach().clone() for weight in trainer.model.parameters()]
        trainer.train()
        return [weight.detach() - old for weight, old in zip(trainer.model.parameters(), before)]

    plain, decayed = moved(), moved(page["DecayByLayer"](0.5))
    for number, share in enumerate((0.5, 0.5, 1.0, 1.0)):
        assert torch.allclose(decayed[number], share * plain[number], atol=1e-7)
        assert plain[number].abs().max() > 0


def test_the_confusion_matrix_is_that_of_the_predictions(page: dict[str, Any]) -> None:
    trainer = page["make"](page["Confusion"]())
    metrics = trainer.evaluate()
    predicted = trainer.predict(trainer.eval_dataset)
    pairs = list(zip(predicted.label_ids.tolist(), predicted.predictions.argmax(-1).tolist()))
    for label in (0, 1):
        for guess in (0, 1):
            assert metrics[f"eval_{label}_as_{guess}"] == pairs.count((label, guess))
    assert trainer.evaluate()["eval_0_as_0"] == metrics["eval_0_as_0"], "the counts of an evaluation are its own"


def test_both_optimizers_train_their_part(page: dict[str, Any]) -> None:
    trainer = page["make"](page["SecondOptimizer"](rate=0.0), max_steps=3)
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    trainer.train()
    same = [torch.equal(weight, old) for weight, old in zip(trainer.model.parameters(), before)]
    assert same == [False, False, True, True]
    trainer = page["make"](page["SecondOptimizer"](rate=0.1), max_steps=3)
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    trainer.train()
    assert not any(torch.equal(weight, old) for weight, old in zip(trainer.model.parameters(), before))


def test_the_mixed_labels_are_probabilities_of_the_mixed_samples(page: dict[str, Any]) -> None:
    trainer, seen = page["make"](page["Mixup"](), max_steps=1), []
    trainer.on("on_loss", lambda batch: seen.append(batch))
    trainer.train()
    [(inputs, targets)] = seen
    assert torch.allclose(targets.sum(dim=1), torch.ones(len(targets)))
    points = page["points"]
    assert not any((points == sample).all(dim=1).any() for sample in inputs), "no sample is an unchanged one"


def test_the_curriculum_begins_with_the_easiest_samples(page: dict[str, Any]) -> None:
    easy = list(page["EasyFirst"](page["points"].norm(dim=1)))
    norms = page["points"].norm(dim=1)[easy].tolist()
    assert norms == sorted(norms)


def test_the_counted_accuracy_is_that_of_the_batches(page: dict[str, Any]) -> None:
    trainer, hits = page["make"](page["Accuracy"](), logging_steps=5, max_steps=5), []
    trainer.on("on_loss", lambda batch, outputs: hits.append((outputs.argmax(-1) == batch[1]).float().mean().item()))
    trainer.train()
    [row] = [row for row in trainer.state.log_history if "loss" in row]
    assert row["train_accuracy"] == pytest.approx(sum(hits) / len(hits))


def test_each_recipe_begins_with_the_same_weights(page: dict[str, Any]) -> None:
    """`StopAtTime` takes another number of steps on a busy machine, and may not change the outputs below it."""
    made = []
    for drawn in (1, 2):
        torch.rand(drawn)
        made.append([weight.detach().clone() for weight in page["make"]().model.parameters()])
    assert all(map(torch.equal, *made))


PROMISES: dict[str, dict[str, Any]] = {
    "LayerNorms": {},
    "DecayByLayer": {},
    "Mixup": {},
    "SaveBelow": {},
    "Webhook": {},
    "Confusion": {},
    "GradientNoise": {},
    "SecondOptimizer": {},
    "Timed": {"prints": True, "expected_failed": {"repeats": CLOCK, "any_order": CLOCK, "trains_twice": CLOCK}},
    "SeenSamples": {},
    "KeepBadBatch": {},
    "Accuracy": {"expected_failed": {"resumes": "its counts since the last log are not saved"}},
    "SaveVocabulary": {"prints": True},
}
"""Recipe -> what the kit is told about it."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PROMISES)
def test_a_recipe_passes_the_checks_of_the_kit(page: dict[str, Any], name: str) -> None:
    rows = page["rows"]
    arguments = {
        "model_init": lambda: page["make"]().model,
        "train_dataset": rows,
        "eval_dataset": rows,
        "criterion": nn.functional.cross_entropy,
    }
    check_callback(page[name], arguments=arguments, two_processes=True, **PROMISES[name])

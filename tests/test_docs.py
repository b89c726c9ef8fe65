"""The documentation: what is generated is up to date, what it shows runs, and what it prints is what is printed."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXTRAS = ("fairscale", "tensorboard", "wandb")
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://|#)([^)\s#]+)")
NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?|\bnan\b")


class Block(NamedTuple):
    """A fenced block of a page."""

    info: str
    code: str
    line: int
    comes_before: str


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 2
        yield Block(match["info"], match["code"], line, text[: match.start()].rstrip().rpartition("\n")[2])


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in an empty folder, from a known seed, and on one thread: the examples are small, the machine may be busy."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.skipif(any(importlib.util.find_spec(extra) is None for extra in EXTRAS), reason="needs all extras")
def test_generated_parts_are_up_to_date(one_thread: None) -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    stale = [named(path) for path, text in generate.rendered().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, f"run `make docs`: {', '.join(stale)}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_example_runs_and_prints_what_it_shows(
    page: Path, one_thread: None, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace: dict[str, Any] = {"__name__": "docs"}
    printed = ""
    for block in blocks(page):
        if block.info.startswith("python"):
            # Empty lines above it, so that a traceback names the line of the page.
            code = compile("\n" * (block.line - 1) + block.code, str(page), "exec", dont_inherit=True)
            if block.info == "python no-run":
                assert block.comes_before.startswith("<!--"), f"{named(page)}:{block.line}: say why it is not run"
                continue
            exec(code, namespace)
            printed = capsys.readouterr().out
        elif block.info == "text" and block.comes_before == "```":
            check_output(block, printed, f"{named(page)}:{block.line}")


def check_output(block: Block, printed: str, where: str) -> None:
    """See that each line shown was printed, in that order; numbers may be others on another machine."""
    lines = iter(NUMBER.sub("#", printed).splitlines())
    for shown in block.code.splitlines():
        assert NUMBER.sub("#", shown) in lines, f"{where} shows {shown!r}, which is not printed:\n{printed}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_to_files_of_the_project(page: Path) -> None:
    broken = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()]
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_block_says_what_it_is(page: Path) -> None:
    known = {"python", "python no-run", "bash", "text", "toml", "mermaid"}
    assert {block.info for block in blocks(page)} <= known


def test_readme_names_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make (\w+)", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"the README names `make {target}`"


def test_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200

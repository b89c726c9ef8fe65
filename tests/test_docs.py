"""Tests of the documentation: generated parts are up to date, examples run, and links lead to files."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]
EXTRAS = ("fairscale", "tensorboard", "wandb")
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)\s#]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?|\bnan\b")
README_LINES = 144
"""Three screens of 48 lines."""


class Block(NamedTuple):
    """A fenced block of a page."""

    info: str
    code: str
    line: int
    previous_line: str


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 2
        yield Block(match["info"], match["code"], line, text[: match.start()].rstrip().rpartition("\n")[2])


def relative(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings of a page."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


@pytest.fixture
def one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in an empty folder with a fixed seed and one thread. The examples are small, and the machine may be busy."""
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
    stale = [relative(path) for path, text in generate.rendered().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, f"run `make docs`: {', '.join(stale)}"


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_examples_run_and_print_the_output_they_show(
    page: Path, one_thread: None, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace: dict[str, Any] = {"__name__": "docs"}
    printed, last = "", ""
    for block in blocks(page):
        before, last = last, block.info
        if block.info.startswith("python"):
            # The empty lines make a traceback name the line of the page.
            code = compile("\n" * (block.line - 1) + block.code, str(page), "exec", dont_inherit=True)
            if block.info == "python no-run":
                where = f"{relative(page)}:{block.line}"
                assert block.previous_line.startswith("<!--"), f"{where}: say in a comment above why it is not run"
                continue
            exec(code, namespace)
            printed = capsys.readouterr().out
        elif block.info == "text" and block.previous_line == "```" and before != "bash":
            check_output(block, printed, f"{relative(page)}:{block.line}")


def check_output(block: Block, printed: str, where: str) -> None:
    """Assert that each shown line was printed, in the same order. Numbers may differ between machines."""
    lines = iter(NUMBER.sub("#", printed).splitlines())
    for shown in block.code.splitlines():
        assert NUMBER.sub("#", shown) in lines, f"{where} shows {shown!r}, which is not printed:\n{printed}"


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_to_files_and_headings_of_the_project(page: Path) -> None:
    broken = []
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        path = page.parent / target if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(f"{target}#{anchor}")
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_block_names_its_language(page: Path) -> None:
    known = {"python", "python no-run", "bash", "text", "toml", "mermaid", "yaml"}
    assert {block.info for block in blocks(page)} <= known


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_table_begins_with_a_header(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert [table for table in tables if not re.match(r".*\n\|[ :|-]+\n", table)] == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_make_targets_named_in_a_page_exist(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make (\w+)", "\n".join(block.code for block in blocks(ROOT / name))):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{name} names `make {target}`"


def test_every_page_is_reachable_from_the_readme() -> None:
    linked, ahead = set(), {ROOT / "README.md"}
    while ahead:
        linked |= ahead
        targets = {
            (page.parent / target).resolve()
            for page in ahead
            if page.suffix == ".md"
            for target, _ in LINK.findall(page.read_text(encoding="utf-8"))
            if target
        }
        ahead = targets - linked
    assert {relative(page) for page in PAGES} <= {relative(page) for page in linked}


def test_readme_fits_three_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES

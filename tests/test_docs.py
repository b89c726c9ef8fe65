"""Tests of the documentation: generated parts are up to date, examples run, and links lead to files.

A `text` block directly below a `python` block shows what the program prints. `support/shown.py` has the rules: numbers
must be equal, and `...` stands for what differs between two runs.
"""

from __future__ import annotations

import importlib.util
import random
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch

from support.shown import first_missing

ROOT = Path(__file__).resolve().parent.parent
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]
EXTRAS = ("fairscale", "tensorboard", "wandb")
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)\s#]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
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
    seed_all(0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def seed_all(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


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
    # Each edit of the page changes this seed. So a shown number that depends on a seed fails, unless the page sets the
    # seed itself, as a reader needs it.
    seed_all(zlib.crc32(page.read_bytes()))
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
    """Assert that the program printed what the block shows."""
    missing = first_missing(block.code, printed)
    assert missing is None, f"{where} shows {missing!r}, which is not printed:\n{printed}"


LOGGED = "step 50/100  loss 0.48312  grad_norm 0.67  time 0.35 s\nlearning rate 0.005\nsaved checkpoint-50\n"


@pytest.mark.parametrize(
    "shown",
    [
        LOGGED,
        "step 50/100  loss 0.48315  grad_norm 0.67  time ... s\n",
        "step 50/100  loss 0.48312...\n...\nsaved ...-50\n",
        "learning rate 0.005\nsaved checkpoint-50\n",
    ],
    ids=["equal", "another kernel", "omitted", "fewer lines"],
)
def test_the_check_accepts_an_output(shown: str) -> None:
    assert first_missing(shown, LOGGED) is None


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("step 50", "step 51"),
        ("50/100", "50/101"),
        ("0.48312", "0.48401"),
        ("0.48312", "-0.48312"),
        ("0.48312", "nan"),
        ("0.67", "0.68"),
        ("0.005", "0.006"),
        ("0.35 s", "0.36 s"),
        ("checkpoint-50", "checkpoint-5"),
        ("0.35 s\n", "0.35 s\nevaluated\n"),
    ],
)
def test_the_check_finds_a_wrong_output(right: str, wrong: str) -> None:
    shown = LOGGED.replace(right, wrong)
    block = Block("text", shown, 7, "```")
    with pytest.raises(AssertionError, match=r"^page\.md:7 shows .*, which is not printed") as raised:
        check_output(block, LOGGED, "page.md:7")
    assert wrong.split()[-1] in str(raised.value)


def test_the_check_finds_lines_in_another_order() -> None:
    first, second, third = LOGGED.splitlines()
    assert first_missing(f"{first}\n{third}\n{second}\n", LOGGED) == second


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

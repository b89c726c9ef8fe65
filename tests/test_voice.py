"""Tests of tools/check_voice.py: it finds refused words in prose, and only there."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "check_voice.py"

MODULE = '''"""{docstring}"""

LIMIT = 3
"""{attribute}"""


def anew(hears: int, whose_is: int = LIMIT) -> str:
    """{function}"""
    nobody = hears + whose_is  # {comment}
    if nobody > LIMIT:
        raise ValueError(f"{nobody} is too much. {message}")
    return "none"
'''
PLAIN = dict.fromkeys(("docstring", "attribute", "function", "comment", "message"), "Start again.")
PAGE = """# A page

{text}

```python
anew = "the old state is read anew"
```
"""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_voice", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def repository(tmp_path: Path, tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository that the tool checks."""
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    return tmp_path


def write(repository: Path, name: str, text: str) -> Path:
    """Write a file and add it to the repository. Return its path relative to the repository."""
    path = repository / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    subprocess.run(["git", "add", name], cwd=repository, check=True)
    return Path(name)


def module(**texts: str) -> str:
    """Return the source of a module with these texts in its docstrings, comment and message."""
    source = MODULE
    for name, text in {**PLAIN, **texts}.items():
        source = source.replace(f"{{{name}}}", text)
    return source


def test_identifiers_of_a_plain_module_give_no_finding(repository: Path, tool: ModuleType) -> None:
    path = write(repository, "engine/plain.py", module())
    assert [*tool.findings(path)] == []


@pytest.mark.parametrize(
    ("where", "line"), [("docstring", 1), ("attribute", 4), ("function", 8), ("comment", 9), ("message", 11)]
)
def test_planted_sentence_in_a_module_is_found_with_its_line(
    repository: Path, tool: ModuleType, where: str, line: int
) -> None:
    path = write(repository, "engine/planted.py", module(**{where: "It begins anew."}))
    (found,) = tool.findings(path)
    assert found.startswith(f"engine/planted.py:{line}: 'anew': ")


def test_planted_sentence_in_a_page_is_found_and_code_blocks_are_not(repository: Path, tool: ModuleType) -> None:
    plain = write(repository, "docs/plain.md", PAGE.format(text="The run resumes."))
    planted = write(repository, "docs/planted.md", PAGE.format(text="The run is gone on with."))
    assert [*tool.findings(plain)] == []
    assert [*tool.findings(planted)] == ["docs/planted.md:3: 'gone on': The run is gone on with."]


@pytest.mark.parametrize(
    "sentence",
    [
        "It begins anew.",
        "It is gone on with.",
        "It goes on from there.",
        "The files, of which two are missing.",
        "The end thereof.",
        "The rank whose is the part.",
        "Any number, or none but one.",
        "The loss is that of the batch.",
        "Every end, be it early or late.",
        "It waits in vain.",
        "It stops for want of memory.",
        "Nobody listens.",
        "A metric of one's own.",
        "A callback hears an event.",
        "The last hearer.",
        "A list is no dict.",
        "Labels are no classes.",
        "The rule is the one of torch.",
        "It counts from then on.",
        "Call it wherever it helps.",
        "Set an argument, or list `Log()`.",
        "`fp16=True` builds it, or the list.",
        "The setting changes, as told.",
        "Other runs are not among them.",
        "Return what is wrong.",
    ],
)
def test_each_refused_phrase_is_found(repository: Path, tool: ModuleType, sentence: str) -> None:
    path = write(repository, "docs/page.md", PAGE.format(text=sentence))
    assert len([*tool.findings(path)]) == 1


@pytest.mark.parametrize(
    "sentence",
    [
        "Checkpoints resume on any number of processes, including one.",
        "The heart of the engine is shared.",
        "Say so if that often fails.",
        "The renewed run is none the worse.",
        "If there is no checkpoint, the run is no longer resumable.",
    ],
)
def test_similar_words_are_not_found(repository: Path, tool: ModuleType, sentence: str) -> None:
    path = write(repository, "docs/page.md", PAGE.format(text=sentence))
    assert [*tool.findings(path)] == []


def test_phrase_that_is_wrapped_over_two_lines_is_found(repository: Path, tool: ModuleType) -> None:
    page = write(repository, "docs/page.md", PAGE.format(text="It is gone\non with."))
    assert [*tool.findings(page)] == ["docs/page.md:3: 'gone on': It is gone"]
    docstring = write(repository, "engine/docstring.py", module(function="It is gone\n    on with."))
    assert len([*tool.findings(docstring)]) == 1
    comment = write(repository, "engine/comment.py", "# Any number, or none\n# but one.\nLIMIT = 3\n")
    assert [*tool.findings(comment)] == ["engine/comment.py:1: 'none but': # Any number, or none"]


def test_phrase_is_not_joined_from_two_paragraphs_or_comments(repository: Path, tool: ModuleType) -> None:
    page = write(repository, "docs/page.md", PAGE.format(text="The steps are gone\n\non to the next."))
    comments = write(repository, "engine/comments.py", "# All are gone\nLIMIT = 3\n# on purpose\n")
    assert [*tool.findings(page), *tool.findings(comments)] == []


def test_files_that_list_the_words_are_not_checked(repository: Path, tool: ModuleType) -> None:
    text = "It begins anew."
    write(repository, "docs/glossary.md", PAGE.format(text=text))
    write(repository, "tools/check_voice.py", module(docstring=text))
    checked = write(repository, "engine/it.py", module(docstring=text))
    assert tool.checked_files([]) == [checked]


def test_names_of_tests_are_checked_and_their_texts_are_not(repository: Path, tool: ModuleType) -> None:
    plain = "def test_a_run_resumes(anew: int) -> None:\n    assert 'anew'\n\n"
    path = write(repository, "tests/test_it.py", f"{plain}async def test_what_is_kept() -> None: ...\n")
    assert tool.checked_files([]) == [path]
    assert [*tool.findings(path)] == ["tests/test_it.py:4: name of a test: test_what_is_kept"]


def test_status_and_output_say_whether_there_are_findings(
    repository: Path, tool: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    write(repository, "docs/plain.md", PAGE.format(text="The run resumes."))
    assert tool.main([]) == 0
    write(repository, "engine/planted.py", module(comment="It begins anew."))
    assert tool.main([]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 findings"
    assert tool.main(["docs"]) == 0


def test_tool_runs_from_the_command_line() -> None:
    done = subprocess.run([sys.executable, str(TOOL), "docs/tour.md"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_make_lint_runs_the_tool() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lint = makefile.split("\nlint:")[1].split("\n\n")[0]
    assert "tools/check_voice.py" in lint


def test_finds_a_table_cell_with_too_many_words(tool: ModuleType, repository: Path) -> None:
    fits = "word " * (tool.CELL_WORDS - 2) + "[two words](page.md)"
    table = f"| Key | Value |\n| --- | --- |\n| `a` | {fits} |\n| `b` | {fits} more |\n"
    table += f"| `x \\| y` | {fits} `some code` |\n"
    path = write(repository, "docs/page.md", table)
    (found,) = tool.findings(path)
    assert found.startswith(f"docs/page.md:4: cell of more than {tool.CELL_WORDS} words")

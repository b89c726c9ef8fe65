"""Refuse the words that the writing rules forbid in docs, docstrings, comments and messages.

    python tools/check_voice.py            # every tracked file
    python tools/check_voice.py engine/    # the files below a folder

Prints one line per finding, `file:line: word: text`, and exits 1 if there is any. The rules are in `docs/glossary.md`.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

WORDS = re.compile(
    r"\b(anew|gone on|go(?:es|ing)? on (?:with|from)|of which|thereof|therein|whose is|none but|that of|be it|in vain"
    r"|for want of|nobody|one's own|hears?|hearers?)\b",
    re.IGNORECASE,
)
"""The forbidden words."""

EXEMPT = {Path("docs/glossary.md"), Path("tools/check_voice.py")}
"""The files that list the words."""

CODE = ("engine", "events", "callbacks", "integrations", "examples", "benchmarks", "tools")


def texts_of_python(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string and comment of a module."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for number, line in enumerate(node.value.splitlines()):
                yield node.lineno + number, line


def texts_of_markdown(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of a page, code blocks excluded."""
    fenced = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def findings(path: Path) -> Iterator[str]:
    """Yield the findings in one file, relative to the repository."""
    source = (ROOT / path).read_text(encoding="utf-8")
    texts = texts_of_python(source) if path.suffix == ".py" else texts_of_markdown(source)
    for number, text in texts:
        for match in WORDS.finditer(text):
            yield f"{path}:{number}: {match.group(0)!r}: {text.strip()[:100]}"


def checked_files(places: list[str]) -> list[Path]:
    """Return the files to check: Python in the code folders, Markdown anywhere. `places` restricts them."""
    listed = subprocess.run(["git", "ls-files", *places], cwd=ROOT, check=True, capture_output=True, text=True)
    paths = [Path(name) for name in listed.stdout.splitlines()]
    kept = [path for path in paths if path.suffix == ".md" or (path.suffix == ".py" and path.parts[0] in CODE)]
    return [path for path in kept if path not in EXEMPT and (ROOT / path).is_file()]


def main(places: list[str]) -> int:
    """Print all findings and return the exit status."""
    found = [finding for path in checked_files(places) for finding in findings(path)]
    print(*found, sep="\n")
    print(f"{len(found)} findings" if found else "plain")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

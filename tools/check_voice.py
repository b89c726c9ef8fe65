"""Refuse certain words in docs, docstrings, comments, messages and names of tests. Refuse long cells of tables.

    python tools/check_voice.py            # every tracked file
    python tools/check_voice.py engine/    # the files below a folder

Prints one line per finding, `file:line: word: text`, and exits 1 if there is any. `docs/glossary.md` has the rules.
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

PHRASES = (
    *("anew", "gone on", "go(?:es|ing)? on (?:with|from)", "of which", "thereof", "therein", "whose is", "none but"),
    *("that of", "be it", "in vain", "for want of", "nobody", "one's own", "hears?", "hearers?"),
    *(r"(?<!there\s)(?:is|are) no (?!longer|more|less|fewer|better|new|other)\w+", "the one of", "from then on"),
    *("wherever(?! such)", "whoever", "hence", "thus", "upon", "so many"),
    *("or list `", "builds it, or", "as told", r"(?:is|are) not among (?:them|these)", "what is (?:wrong|due|left)"),
)
"""The refused words, as regular expressions. A blank in an expression also matches a line break."""

WORDS = re.compile(
    rf"\b({'|'.join(PHRASES)})\b".replace(" ", r"[^\S\n]*(?:[^\S\n]|\n(?:\s*#)?)[^\S\n]*"), re.IGNORECASE
)
"""Matches any of the phrases, also across a line break. In a comment, `#` may follow the line break."""

NAMES = re.compile(
    r"^[ \t]*(?:async )?def (test(?:_\w+)?_(?:anew|goes_on|gone_on|whoever|whatever|whichever|wherever|nobody|none_but"
    r"|beside|is_told|are_told|asked_for|asks_for|what_is|what_was|who)(?:_\w+)?|test_(?:what|who)_\w+)\(",
    re.MULTILINE,
)
"""Matches refused names of tests."""

CELL_WORDS = 25
"""The most words of a table cell of a page in `docs/`. Code spans do not count."""

EXEMPT = {Path("docs/glossary.md"), Path("tools/check_voice.py")}
"""Files that are not checked, because they list the words."""

CODE = ("engine", "events", "callbacks", "integrations", "examples", "benchmarks", "tools")


def texts_of_python(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of every string and of every block of comments of a module."""
    block: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if token.start[0] != last + 1 and block:
            yield last - len(block) + 1, "\n".join(block)
            block = []
        block.append(token.string)
        last = token.start[0]
    yield last - len(block) + 1, "\n".join(block)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def texts_of_markdown(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of a page. Code blocks are replaced by empty lines."""
    lines, fenced = [], False
    for line in source.splitlines():
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        lines.append("" if fence or fenced else line)
    yield 1, "\n".join(lines)


def long_cells(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each table cell of a page that has more than `CELL_WORDS` words."""
    for number, line in enumerate(next(texts_of_markdown(source))[1].splitlines(), 1):
        # An escaped bar does not end a cell. In a link, only the text counts.
        plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "", line.replace("\\|", "")))
        if plain.startswith("|"):
            for cell in plain.split("|"):
                if len(re.findall(r"\S*\w\S*", cell)) > CELL_WORDS:
                    yield number, cell.strip()


def findings(path: Path) -> Iterator[str]:
    """Yield the findings in one file, with its path relative to the repository."""
    source = (ROOT / path).read_text(encoding="utf-8")
    if path.parts[0] == "tests":
        for match in NAMES.finditer(source):
            yield f"{path}:{source.count(chr(10), 0, match.start(1)) + 1}: name of a test: {match.group(1)}"
        return
    if path.suffix == ".md" and path.parts[0] == "docs":
        for number, cell in long_cells(source):
            yield f"{path}:{number}: cell of more than {CELL_WORDS} words: {cell[:100]}"
    texts = texts_of_python(source) if path.suffix == ".py" else texts_of_markdown(source)
    for first, text in texts:
        for match in WORDS.finditer(text):
            above = text.count("\n", 0, match.start())
            word = " ".join(match.group(0).replace("#", " ").split())
            yield f"{path}:{first + above}: {word!r}: {text.splitlines()[above].strip()[:100]}"


def checked_files(places: list[str]) -> list[Path]:
    """Return the files to check, below `places` if given: Markdown, and Python of the code folders and of `tests`."""
    listed = subprocess.run(["git", "ls-files", *places], cwd=ROOT, check=True, capture_output=True, text=True)
    paths = [Path(name) for name in listed.stdout.splitlines()]
    kept = [
        path for path in paths if path.suffix == ".md" or (path.suffix == ".py" and path.parts[0] in (*CODE, "tests"))
    ]
    return [path for path in kept if path not in EXEMPT and (ROOT / path).is_file()]


def main(places: list[str]) -> int:
    """Print all findings and return the exit status."""
    found = [finding for path in checked_files(places) for finding in findings(path)]
    print(*found, sep="\n")
    print(f"{len(found)} findings" if found else "plain")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Pages of the documentation that tests compare with the code."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def text_of(*pages: str) -> str:
    """Return the text of the pages, one after the other. A pattern such as `json/*.md` names several pages."""
    return "\n".join(path.read_text(encoding="utf-8") for page in pages for path in sorted(DOCS.glob(page)))


def differences_text() -> str:
    """Return the text of all pages that list differences from transformers."""
    return text_of("differences.md", "differences/*.md")

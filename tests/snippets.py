"""The code blocks of the documents, and how a test runs one as it stands there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.docs.site import documents

ROOT = Path(__file__).parents[1]

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """``document``: relative to the checkout. ``line``: of its first line."""

    document: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks(document: str | None = None, language: str | None = None) -> list[Block]:
    """Return the code blocks of a document, or of all, in a language, or in any."""
    paths = documents() if document is None else [ROOT / document]
    found = [
        Block(path.relative_to(ROOT).as_posix(), text.count("\n", 0, match.start()) + 2, match[2], match[3])
        for path in paths
        for text in [path.read_text(encoding="utf-8")]
        for match in _BLOCK.finditer(text)
    ]
    return [block for block in found if language in (None, block.language)]


def programs(document: str) -> list[str]:
    """Return the programs in Python of a document."""
    return [block.text for block in blocks(document, "python")]


def changed(text: str, changes: dict[str, str]) -> str:
    """Return a program with some of its texts changed, each of which it has."""
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    return text


def play(text: str, changes: dict[str, str], names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run a program with some of its texts changed; return its names."""
    names = names if names is not None else {}
    exec(compile(changed(text, changes), "README.md", "exec", dont_inherit=True), names)
    return names

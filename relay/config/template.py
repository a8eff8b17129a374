"""Templates such as ``"order:{order_id}"``: text with column names in braces.

Not ``str.format``: a column name may hold dots, colons, spaces or brackets, and nothing but its name may
stand in the braces. ``{{`` and ``}}`` are literal braces. Change the syntax only together with the
templates in the documentation, since cache keys and topic names are made from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template: literals and column names in turn.

    ``pieces``: pairs of (literal text, the column that follows it, None after the last literal).
    """

    text: str
    pieces: tuple[tuple[str, str | None], ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """Parse ``text``. ValueError, with the position counted from 1, on a brace without its partner."""
        pieces: list[tuple[str, str | None]] = []
        literal, end = "", 0
        for match in _TOKEN.finditer(text):
            literal += text[end : match.start()]
            end = match.end()
            column = match.group(1)
            if column is not None:
                pieces.append((literal, column))
                literal = ""
            elif len(match.group()) == 2:
                literal += match.group()[0]
            else:
                raise ValueError(
                    f"the template {text!r} has a {match.group()!r} at position {match.start() + 1} without "
                    "its partner or without a name in it (a literal brace is written twice)"
                )
        pieces.append((literal + text[end:], None))
        return cls(text, tuple(pieces))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns named, in order of appearance, each once."""
        return tuple(dict.fromkeys(column for _, column in self.pieces if column is not None))

    def render(self, values: Mapping[str, str]) -> str:
        """Fill in ``values``. KeyError names a column without one."""
        return "".join(literal if column is None else literal + values[column] for literal, column in self.pieces)

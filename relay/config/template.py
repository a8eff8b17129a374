"""Templates such as ``"order:{order_id}"``: text with column names in braces.

Unlike in ``str.format``, a column name may contain dots, colons, spaces or brackets, and braces contain only the name.
``{{`` and ``}}`` are literal braces.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template. ``pieces``: pairs of literal text and the column after it, or None after the last."""

    text: str
    pieces: tuple[tuple[str, str | None], ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``text``. Raises ValueError with the position, from 1, of an unmatched or empty brace."""
        pieces: list[tuple[str, str | None]] = []
        literal, end = "", 0
        for match in _TOKEN.finditer(text):
            literal += text[end : match.start()]
            end = match.end()
            if (column := match[1]) is not None:
                pieces.append((literal, column))
                literal = ""
            elif len(match[0]) == 2:
                literal += match[0][0]
            else:
                raise ValueError(
                    f"the template {text!r} has an unmatched or empty {match[0]!r} at position "
                    f"{match.start() + 1} (write a literal brace twice)"
                )
        pieces.append((literal + text[end:], None))
        return cls(text, tuple(pieces))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns in the template, each once, in order of appearance."""
        return tuple(dict.fromkeys(column for _, column in self.pieces if column is not None))

    def render(self, values: Mapping[str, str]) -> str:
        """Fill in ``values``. Raises KeyError with the name of a column that has no value."""
        return "".join(literal if column is None else literal + values[column] for literal, column in self.pieces)

    def matches(self, text: str) -> Iterator[dict[str, str]]:
        """Yield all column values that ``render`` turns into ``text``: ``{a}:{b}`` returns x:y:z in two ways."""
        literal, column = self.pieces[0]
        if text.startswith(literal):
            yield from self._matches(text, len(literal), column, 1, {})

    def _matches(
        self, text: str, start: int, column: str | None, number: int, values: dict[str, str]
    ) -> Iterator[dict[str, str]]:
        """Continue at ``start`` with the value of ``column``, followed by the literal of the piece ``number``."""
        if column is None:
            if start == len(text):
                yield values
            return
        literal, following = self.pieces[number]
        end = text.find(literal, start)
        while end >= 0:
            value = text[start:end]
            if values.get(column, value) == value:
                yield from self._matches(text, end + len(literal), following, number + 1, {**values, column: value})
            end = text.find(literal, end + 1) if end < len(text) else -1

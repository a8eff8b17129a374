"""A record as JSON: an object with the fields of a frozen dataclass, except defaults. Unknown fields are ignored.

A field is a text, a number, a boolean, an enum of texts, a dataclass, or a tuple or a mapping of these. ``Any`` is JSON
that the source reads.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

_MOST_ERRORS = 3  # problems shown in one message
_SHOWN = 80  # characters shown of the value found


class StoredRecord:
    """A record that is stored by itself, such as by a key of ``<name>.checkpoints``: a base for frozen dataclasses."""

    __slots__ = ()

    def to_json(self) -> bytes:
        kind: Any = type(self)
        return _adapter(kind).dump_json(self, exclude_defaults=True)

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Read what `to_json` wrote. Raises ValueError, which names the field, for anything else."""
        kind: Any = cls
        try:
            read: Self = _adapter(kind).validate_json(text, strict=True)
        except ValidationError as error:
            raise ValueError("; ".join(map(_said, error.errors(include_url=False)[:_MOST_ERRORS]))) from None
        return read


def _said(error: Any) -> str:
    """Return the place of an error, the problem, and the value found."""
    place = "".join(f"{part}: " for part in error["loc"])
    found = "" if error["type"] in ("missing", "json_invalid") else f", not {str(error['input'])[:_SHOWN]!r}"
    return f"{place}{error['msg']}{found}"


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)

"""A record as JSON: an object with the fields of a frozen dataclass, except fields that have their default.

A field is a text, a number, a boolean, an enum of texts, a dataclass, or a tuple or a mapping of these. ``Any`` is JSON
that its source reads. The types of the fields say what is read: another value is refused, another field ignored.
"""

from functools import cache
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

_MOST_ERRORS = 3  # in a message
_SHOWN = 80  # characters of what was found


class StoredRecord:
    """What has a key of its own in ``<name>.checkpoints``: a base of frozen dataclasses."""

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
    """Return where an error is, what is wrong, and what was found."""
    place = "".join(f"{part}: " for part in error["loc"])
    found = "" if error["type"] in ("missing", "json_invalid") else f", not {str(error['input'])[:_SHOWN]!r}"
    return f"{place}{error['msg']}{found}"


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)

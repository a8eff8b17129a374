"""Schemas in memory, for tests that need no broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Known:
    """Schemas by header, and the headers that were looked up."""

    def __init__(self, schemas: Mapping[bytes, Mapping[str, Any]] | None = None) -> None:
        self.schemas = dict(schemas or {})
        self.lookups: list[bytes] = []

    def lookup(self, header: bytes) -> Mapping[str, Any] | None:
        self.lookups.append(header)
        return self.schemas.get(header)

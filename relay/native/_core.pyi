from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relay.change import Change

INTERFACE: int

Field = tuple[str, str, tuple[int, int], Callable[[Any], bytes]]
Record = tuple[bytes, bytes, int, list[tuple[str, str | bytes | None]]]

class RecordWriter:
    def __init__(
        self,
        *,
        header: bytes,
        key: Sequence[Field],
        row: Sequence[Field] | None,
        operations: Sequence[str],
        images: Sequence[str],
        hashed: Sequence[tuple[str, str]] | None,
        codec: Callable[[Mapping[str, Any]], tuple[bytes, bytes]],
        partitions: int,
        largest: int,
    ) -> None: ...
    def records(self, changes: list[Change], resume_timestamp: int, relayed_at: int) -> list[Record | None]: ...

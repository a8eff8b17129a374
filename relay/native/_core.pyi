from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relay.change import Change

INTERFACE: int

Field = tuple[str, str, tuple[int, int], Callable[[Any], bytes]]
Stored = tuple[str, int, int, int, Sequence[str]]
Record = tuple[bytes, bytes, int, list[tuple[str, str | bytes | None]]]

class ChangeBlock(Sequence[Change]):
    source: str
    table: str
    def __len__(self) -> int: ...
    def __getitem__(self, at: int) -> Change: ...  # type: ignore[override]
    def deletes(self, at: int) -> bool: ...

class ScannedTransactions:
    tables: list[Any]
    buffer: bytes
    end: int
    position: int
    size: int
    last: int
    gtids: str
    latest: int
    def __len__(self) -> int: ...
    def pop(self) -> tuple[str, str, int, int | None, list[tuple[Any, str, int, int, int]]]: ...

class BinlogScanner:
    def know(self, map: bytes, table: tuple[Any, int] | None) -> None: ...
    def forget(self) -> None: ...
    def scan(
        self, buffer: bytes, is_checked: bool, server: bytes, last: int, gtid: str, front: str, back: str
    ) -> ScannedTransactions | None: ...

class BlockBuilder:
    def __init__(self, shard: str) -> None: ...
    def begin(self, gtid: str, position: str, timestamp: int, committed_at: int) -> bool: ...
    def rows(
        self, table: CompiledRows, operation: str, buffer: bytes, start: int, end: int
    ) -> tuple[int, int] | None: ...
    def whole(
        self, scanned: ScannedTransactions, tables: Sequence[CompiledRows | None], floor: int, room: int
    ) -> tuple[str, int, str, int, int, int, str | None] | None: ...
    def end(self) -> None: ...
    def leave(self) -> list[tuple[str, bytes, int]]: ...
    def take(self) -> list[ChangeBlock]: ...

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
    def block_records(self, block: ChangeBlock, resume_timestamp: int, relayed_at: int) -> list[Record | None]: ...

class CompiledItems:
    def __init__(
        self,
        *,
        shard: str,
        source: str,
        table: str,
        key: Sequence[tuple[str, Field]],
        change: Callable[..., Change],
        key_value: Callable[[Mapping[str, Any]], str | bytes],
        attributes: Callable[[Any], dict[str, str]],
    ) -> None: ...
    def block(self, records: list[Any], floor: int) -> tuple[ChangeBlock, int, int, int, int] | None: ...

class CompiledRows:
    table: str
    def __init__(
        self,
        *,
        shard: str,
        source: str,
        table: str,
        columns: Sequence[tuple[str | Stored, Callable[[bytes], Any], bool, bool, Field]],
        key: Sequence[tuple[int, Field]],
        change: Callable[..., Change],
        keyspace_id: Callable[[Sequence[Any]], bytes | None] | None,
    ) -> None: ...

def copied_parts(answer: bytes) -> list[tuple[int, bytes]] | None: ...
def read_rows(
    rows: CompiledRows, form: str, pages: Sequence[bytes], snapshot: str, as_of: int, committed_at: int
) -> ChangeBlock | None: ...

class WholeTransactions:
    consumed: int
    executed: str | None
    timestamp: int
    position: str | None
    floor: int
    rows: int
    size: int
    behind: int
    has_empty: bool
    def take(self) -> list[ChangeBlock]: ...

class VStreamReader:
    def __init__(self, keyspace: bytes, name: bytes, qualified: str, canonical: Callable[[str], str]) -> None: ...
    def set_table(self, table: bytes, rows: CompiledRows | None) -> None: ...
    def read(self, answers: bytes, floor: int, room: int, latest: int) -> WholeTransactions: ...

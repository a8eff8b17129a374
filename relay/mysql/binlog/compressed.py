"""Decompresses MySQL's compressed transactions in parts, so that one of any size takes little memory (I11)."""

import importlib
import struct
from collections.abc import Iterator
from typing import Any

from relay.mysql.binlog import events
from relay.mysql.binlog.dump import RawEvent
from relay.mysql.errors import NotCarried

_INFLATED = 1 << 20
_HEADER = struct.Struct("<IBII")  # its beginning


def unpacked(body: bytes, position: int, place: events.BinlogPlace) -> Iterator[tuple[bytes, list[RawEvent]]]:
    """Yield the events of a TRANSACTION_PAYLOAD, about a megabyte at a time: a buffer and the events in it.

    ``position``: the end of the payload in the file, for all of them. ``place``: for errors. Raises ``NotCarried``.
    """
    compression, data = events.payload(body)
    if compression == 255:
        chunks: Any = (data[at : at + _INFLATED] for at in range(0, len(data), _INFLATED))
    elif compression == 0:
        try:
            zstandard = importlib.import_module("zstandard")
        except ImportError:
            raise NotCarried(
                f"{place}: reading a compressed transaction needs zstandard: `pip install 'change-relay[zstd]'`, or "
                "`SET GLOBAL binlog_transaction_compression = OFF` and start after this position"
            ) from None
        chunks = zstandard.ZstdDecompressor().read_to_iter(data, write_size=_INFLATED)
    else:
        raise NotCarried(f"{place}: a transaction has the unknown compression {compression}")
    rest = b""
    for chunk in chunks:
        buffer = rest + chunk
        at = 0
        found: list[RawEvent] = []
        while at + 19 <= len(buffer):
            timestamp, kind, server_id, size = _HEADER.unpack_from(buffer, at)
            if at + size > len(buffer):
                break
            found.append((kind, timestamp, server_id, position, 0, at + 19, at + size))
            at += size
        rest = buffer[at:]
        yield buffer, found
    if rest:
        raise NotCarried(f"{place}: a compressed transaction is truncated")

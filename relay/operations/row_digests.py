"""Brings the rows of two tables together by their keys, in bounded memory: SQLite sorts them on disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import NamedTuple

import orjson

from relay.errors import RelayError
from relay.operations.compared_rows import ComparedKey, ComparedRow

_MEMORY = 8 << 10
"""KiB for the pages of SQLite, and as many for the rows that it sorts at once."""


class DigestPair(NamedTuple):
    """The digests of one key: None where there is no row."""

    key: ComparedKey
    kept: str | None
    truth: str | None


def digest_pairs(kept: Iterable[ComparedRow], truth: Iterable[ComparedRow]) -> Iterator[DigestPair]:
    """Read both sides to their ends, and yield each key that one of them has. The last row of a key counts.

    Raises ``RelayError`` if there is no room for them on the disk.
    """
    with (
        TemporaryDirectory(prefix="relay-verify-") as folder,
        closing(sqlite3.connect(Path(folder, "rows"), isolation_level=None)) as rows,  # I11
    ):
        try:
            spare = gettempdir().replace("'", "''")
            rows.executescript(
                "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA temp_store = FILE;"
                f"PRAGMA temp_store_directory = '{spare}'; PRAGMA cache_size = -{_MEMORY};"
                "CREATE TABLE digests (key BLOB, side INTEGER, digest TEXT); BEGIN;"
            )
            for side, of_side in enumerate((kept, truth)):
                lines = ((orjson.dumps(row.key), side, row.digest) for row in of_side)
                rows.executemany("INSERT INTO digests VALUES (?, ?, ?)", lines)
            found = rows.execute("SELECT key, side, digest FROM digests ORDER BY key, rowid")
            for key, of_key in groupby(found, itemgetter(0)):
                sides = {side: digest for _, side, digest in of_key}
                yield DigestPair(tuple(orjson.loads(key)), sides.get(0), sides.get(1))
        except sqlite3.OperationalError as error:
            raise RelayError(
                f"cannot sort the rows of both sides in {folder}: {error}: set TMPDIR to a folder with more room"
            ) from error

"""Brings the rows of two tables together by their keys, in bounded memory.

Their keys and digests go to files by the hash of the key, and one file after another is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, NamedTuple

import orjson

from relay.operations.compared_rows import ComparedKey, ComparedRow

_FILES = 64
_DEEPEST = 6  # of a hash of 64 bits
_LARGEST = 16 << 20  # bytes of a file that is compared in memory; about five times as much is used


class DigestPair(NamedTuple):
    """The digests of one key: None where there is no row."""

    key: ComparedKey
    kept: str | None
    truth: str | None


def digest_pairs(kept: Iterable[ComparedRow], truth: Iterable[ComparedRow]) -> Iterator[DigestPair]:
    """Read both sides to their ends, and yield each key that one of them has. The last row of a key counts."""
    with TemporaryDirectory(prefix="relay-verify-") as folder:
        with ExitStack() as stack:
            files = _open(stack, Path(folder))
            for side, rows in enumerate((kept, truth)):
                for row in rows:
                    line = [side, row.key, row.digest]
                    files[_number(row.key, 0)].write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        for path in sorted(Path(folder).iterdir()):
            yield from _pairs(path, 1)


def _pairs(path: Path, depth: int) -> Iterator[DigestPair]:
    if path.stat().st_size > _LARGEST and depth < _DEEPEST:  # I11
        parts = path.with_suffix(".parts")
        parts.mkdir()
        with ExitStack() as stack:
            files = _open(stack, parts)
            with path.open("rb") as lines:
                for line in lines:
                    files[_number(orjson.loads(line)[1], depth)].write(line)
        path.unlink()
        for part in sorted(parts.iterdir()):
            yield from _pairs(part, depth + 1)
        return
    yield from _of_file(path)


def _of_file(path: Path) -> Iterator[DigestPair]:
    sides: tuple[dict[ComparedKey, str | None], dict[ComparedKey, str | None]] = ({}, {})
    with path.open("rb") as lines:
        for line in lines:
            side, key, digest = orjson.loads(line)
            sides[side][tuple(key)] = digest
    path.unlink()
    kept, truth = sides
    for key in kept.keys() | truth.keys():
        yield DigestPair(key, kept.get(key), truth.get(key))


def _open(stack: ExitStack, folder: Path) -> list[BinaryIO]:
    return [stack.enter_context((folder / f"{number:02}").open("wb")) for number in range(_FILES)]


def _number(key: Sequence[str], depth: int) -> int:
    return blake2b(orjson.dumps(key), digest_size=8).digest()[depth] % _FILES

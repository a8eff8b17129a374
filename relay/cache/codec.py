"""How the values of an application become the bytes in the cache, and values again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Codec(Generic[V]):
    """Two functions. ``decode`` raises, whatever it likes, for bytes that are not of ``encode``.

    Such bytes are loaded again, so a new version of an application may have another codec.
    """

    encode: Callable[[V], bytes]
    decode: Callable[[bytes], V]


JSON: Codec[Any] = Codec(orjson.dumps, orjson.loads)
"""Values of JSON, and what orjson writes as JSON: datetimes, UUIDs and dataclasses come back as text and dicts."""

TEXT: Codec[str] = Codec(str.encode, bytes.decode)

BYTES: Codec[bytes] = Codec(bytes, bytes)

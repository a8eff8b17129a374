"""Keyspace ids as Vitess' vindexes compute them (go/vt/vtgate/vindexes of Vitess v0.23.0).

A keyspace id determines the shard of a row, so Vitess never changes how it is computed.
"""

import hashlib
import threading
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from relay.extras import needs
from relay.vitess.loose import primary_key

with needs("vitess", "relay.vitess.vindex"):
    import xxhash
    from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
    from cryptography.hazmat.primitives.ciphers import Cipher, modes

Value = int | str | bytes | Decimal | None
"""A column's value: text as ``str`` or as its stored bytes, DECIMAL with its stored digits."""

_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_LOOKUPS = ("lookup", "lookup_hash", "lookup_unicodeloosemd5_hash", "consistent_lookup")
# Vindex types that look up keyspace ids in a table. A value may have several, unless the type is ``_unique``.
LOOKUPS = frozenset([*_LOOKUPS, *(f"{name}_unique" for name in _LOOKUPS)])
_BY_PARAMETERS = {"cfc", "multicol", "numeric_static_map", "region_experimental", "region_json"}


class _PerThread(threading.local):
    """The DES encryptor: expensive to make, and not thread-safe."""

    def __init__(self) -> None:
        # Triple DES with three equal keys is plain DES. In ECB mode, blocks are independent.
        self.encryptor = Cipher(TripleDES(bytes(24)), modes.ECB()).encryptor()


_per_thread = _PerThread()


class VindexError(ValueError):
    """There is no keyspace id, or it cannot be computed."""


class UncomputableVindex(VindexError):
    """The keyspace ids of this vindex cannot be computed from a column's value alone."""


class NoKeyspaceId(VindexError):
    """The vindex has no keyspace id for the value, or it is uncertain."""


def keyspace_id(vindex_name: str, value: Value) -> bytes:
    """Return the keyspace id of a column's value under a vindex, named by its type: ``hash``, ``xxhash`` and so on.

    Raises `UncomputableVindex` for lookup vindexes, vindexes with parameters and unknown ones, `NoKeyspaceId` for a
    value that Vitess has no keyspace id for, such as NULL under hash, numeric and reverse_bits, and TypeError for other
    Python types.
    """
    require_computable(vindex_name)
    if value is not None and (not isinstance(value, int | str | bytes | Decimal) or isinstance(value, bool)):
        raise TypeError(f"vindex {vindex_name} takes int, str, bytes, Decimal or None, not {type(value).__name__}")
    return COMPUTED[vindex_name](vindex_name, value)


def of_rows(vindex_name: str, at: int) -> Callable[[Sequence[Any]], bytes | None]:
    """Return a function that computes the keyspace id of a row from its column ``at``, or None if it has none."""

    def compute(row: Sequence[Any]) -> bytes | None:
        try:
            return keyspace_id(vindex_name, row[at])
        except (VindexError, TypeError):
            return None

    return compute


def require_computable(vindex_name: str) -> None:
    """Raise `UncomputableVindex` if ``keyspace_id`` cannot compute the keyspace ids of a vindex of this type."""
    if vindex_name in COMPUTED:
        return
    if vindex_name in LOOKUPS:
        raise UncomputableVindex(
            f"vindex {vindex_name} looks up keyspace ids in a table, where they may change under a row: they cannot be "
            "computed without a query; `relay.vitess.LookupVindex` makes such queries"
        )
    if vindex_name in _BY_PARAMETERS:
        raise UncomputableVindex(
            f"vindex {vindex_name} depends on several columns or on VSchema parameters: its keyspace ids cannot be "
            "computed from a value alone, without a query"
        )
    raise UncomputableVindex(
        f"vindex {vindex_name!r} is unknown, so its keyspace ids cannot be computed without a query; known vindexes: "
        f"{', '.join(sorted(COMPUTED))}"
    )


def _hash(vindex: str, value: Value) -> bytes:
    # Unlike the other numeric vindexes, hash accepts negative numbers: as their two's complement.
    if isinstance(value, int) and -(2**63) <= value < 0:
        value %= 2**64
    return _per_thread.encryptor.update(_number(vindex, value))


def _number(vindex: str, value: Value) -> bytes:
    """Parse an unsigned 64-bit number as Vitess does: spaces around it, but no sign. Raises `NoKeyspaceId`."""
    if isinstance(value, int):
        number = value
    else:
        digits = b"" if value is None else printed(vindex, value).strip(b" \t")
        if not digits.isdigit():
            shown = "NULL" if value is None else f"{str(value)[:40]!r}"
            raise NoKeyspaceId(f"vindex {vindex} has no keyspace id for {shown}: it takes whole numbers")
        number = int(digits) if len(digits.lstrip(b"0")) <= 20 else 2**64
    if not 0 <= number < 2**64:
        raise NoKeyspaceId(f"vindex {vindex} has no keyspace id for {str(value)[:40]}: it takes 0 to 2^64-1")
    return number.to_bytes(8, "big")


def printed(vindex: str, value: Value) -> bytes:
    """Return the value as MySQL prints it; NULL is the empty text."""
    match value:
        case None:
            return b""
        case bytes():
            return value
        case str():
            try:
                return value.encode()
            except UnicodeEncodeError as error:
                raise NoKeyspaceId(
                    f"vindex {vindex}: {value[:40]!r} cannot be encoded in UTF-8: {error.reason}"
                ) from None
        case Decimal():
            if not value.is_finite():
                raise NoKeyspaceId(f"vindex {vindex}: {value} is not a DECIMAL that MySQL can store")
            text = format(value, "f")
            return (text.removeprefix("-") if value.is_zero() else text).encode()
        case _:
            return b"%d" % value


def _weights(vindex: str, value: Value) -> bytes:
    stored = printed(vindex, value)
    try:
        return primary_key(stored.decode())
    except UnicodeDecodeError as error:
        raise NoKeyspaceId(
            f"vindex {vindex}: {stored[:40]!r} is not UTF-8 (byte {error.start}), so it has no collation weights"
        ) from None
    except ValueError as error:
        raise NoKeyspaceId(f"vindex {vindex}: {error}") from None


def _md5(raw: bytes) -> bytes:
    return hashlib.md5(raw, usedforsecurity=False).digest()


def _xxhash(raw: bytes) -> bytes:
    return xxhash.xxh64_digest(raw)[::-1]


COMPUTED: dict[str, Callable[[str, Value], bytes]] = {
    "binary": printed,
    "binary_md5": lambda vindex, value: _md5(printed(vindex, value)),
    "hash": _hash,
    "null": lambda vindex, value: b"\0",
    "numeric": _number,
    "reverse_bits": lambda vindex, value: _number(vindex, value)[::-1].translate(_REVERSED),
    "unicode_loose_md5": lambda vindex, value: _md5(_weights(vindex, value)),
    "unicode_loose_xxhash": lambda vindex, value: _xxhash(_weights(vindex, value)),
    "xxhash": lambda vindex, value: _xxhash(printed(vindex, value)),
}
"""By the type of a vindex, the function that computes a keyspace id from the type and a value."""

"""Keyspace ids as Vitess' vindexes compute them (go/vt/vtgate/vindexes of Vitess v0.23.0).

An id says on which shard a row lies. It may only change with Vitess, which never changes it either.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from decimal import Decimal

import xxhash
from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
from cryptography.hazmat.primitives.ciphers import Cipher, modes

from relay.vitess.loose import primary_key

Value = int | str | bytes | Decimal | None
"""A column's value: text as ``str`` or as the bytes that are stored, DECIMAL with the digits that are stored."""

_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_BY_TABLE = {
    "lookup",
    "lookup_unique",
    "lookup_hash",
    "lookup_hash_unique",
    "lookup_unicodeloosemd5_hash",
    "lookup_unicodeloosemd5_hash_unique",
    "consistent_lookup",
    "consistent_lookup_unique",
}
_BY_PARAMETERS = {"cfc", "multicol", "numeric_static_map", "region_experimental", "region_json"}


class _PerThread(threading.local):
    """What costs several times a keyspace id to make, and is not for two threads at once."""

    def __init__(self) -> None:
        # One key three times over is plain DES. In this mode each block stands for itself.
        self.encryptor = Cipher(TripleDES(bytes(24)), modes.ECB()).encryptor()


_here = _PerThread()


class VindexError(ValueError):
    """No keyspace id can be told."""


class UncomputableVindex(VindexError):
    """A vindex whose keyspace ids cannot be computed from a column's value alone."""


class NoKeyspaceId(VindexError):
    """A value to which the vindex gives no keyspace id, or none that is certain."""


def keyspace_id(vindex_name: str, value: Value) -> bytes:
    """Return the keyspace id of a column's value under a vindex, named by its type: ``hash``, ``xxhash`` and so on.

    UncomputableVindex for lookup vindexes, those with parameters and unknown ones; NoKeyspaceId for a value that Vitess
    takes no keyspace id from, and NULL is one for hash, numeric and reverse_bits. TypeError for other Python types.
    """
    compute = _COMPUTED.get(vindex_name)
    if compute is None:
        raise UncomputableVindex(_why_not(vindex_name))
    if value is not None and (not isinstance(value, int | str | bytes | Decimal) or isinstance(value, bool)):
        raise TypeError(f"vindex {vindex_name} takes int, str, bytes, Decimal or None, not {type(value).__name__}")
    return compute(value)


def _hash(value: Value) -> bytes:
    # Numbers of signed columns are taken as they lie in memory, which the other vindexes of numbers do not do.
    if isinstance(value, int) and -(2**63) <= value < 0:
        value %= 2**64
    number = _number("hash", value)
    return _here.encryptor.update(number.to_bytes(8, "big"))


def _numeric(value: Value) -> bytes:
    return _number("numeric", value).to_bytes(8, "big")


def _reverse_bits(value: Value) -> bytes:
    return _number("reverse_bits", value).to_bytes(8, "little").translate(_REVERSED)


def _xxhash(value: Value) -> bytes:
    return xxhash.xxh64_digest(_bytes("xxhash", value))[::-1]


def _binary(value: Value) -> bytes:
    return _bytes("binary", value)


def _binary_md5(value: Value) -> bytes:
    return hashlib.md5(_bytes("binary_md5", value), usedforsecurity=False).digest()


def _unicode_loose_md5(value: Value) -> bytes:
    return hashlib.md5(_weights("unicode_loose_md5", value), usedforsecurity=False).digest()


def _unicode_loose_xxhash(value: Value) -> bytes:
    return xxhash.xxh64_digest(_weights("unicode_loose_xxhash", value))[::-1]


def _null(value: Value) -> bytes:
    return b"\0"


_COMPUTED: dict[str, Callable[[Value], bytes]] = {
    "binary": _binary,
    "binary_md5": _binary_md5,
    "hash": _hash,
    "null": _null,
    "numeric": _numeric,
    "reverse_bits": _reverse_bits,
    "unicode_loose_md5": _unicode_loose_md5,
    "unicode_loose_xxhash": _unicode_loose_xxhash,
    "xxhash": _xxhash,
}

COMPUTABLE = frozenset(_COMPUTED)
"""The types of vindexes that ``keyspace_id`` knows."""


def _number(vindex: str, value: Value) -> int:
    """Read an unsigned 64-bit number as Vitess does, which allows spaces around it and no sign. NoKeyspaceId."""
    if isinstance(value, int):
        number = value
    else:
        digits = b"" if value is None else _bytes(vindex, value).strip(b" \t")
        if not digits.isdigit():
            shown = "NULL" if value is None else f"{str(value)[:40]!r}"
            raise NoKeyspaceId(f"vindex {vindex} has no keyspace id for {shown}: it takes whole numbers")
        number = int(digits) if len(digits.lstrip(b"0")) <= 20 else 2**64
    if not 0 <= number < 2**64:
        raise NoKeyspaceId(f"vindex {vindex} has no keyspace id for {str(value)[:40]}: it takes 0 to 2^64-1")
    return number


def _bytes(vindex: str, value: Value) -> bytes:
    """Return the text form of a value, in which MySQL stores and sends it; NULL is the empty text."""
    match value:
        case None:
            return b""
        case bytes():
            return value
        case str():
            try:
                return value.encode()
            except UnicodeEncodeError as error:
                raise NoKeyspaceId(f"vindex {vindex}: {value[:40]!r} is no text in UTF-8: {error.reason}") from None
        case Decimal():
            if not value.is_finite():
                raise NoKeyspaceId(f"vindex {vindex}: {value} is no DECIMAL of MySQL")
            text = format(value, "f")
            return (text.removeprefix("-") if value.is_zero() else text).encode()
        case _:
            return b"%d" % value


def _weights(vindex: str, value: Value) -> bytes:
    stored = _bytes(vindex, value)
    try:
        return primary_key(stored.decode())
    except UnicodeDecodeError as error:
        raise NoKeyspaceId(
            f"vindex {vindex}: {stored[:40]!r} is no text in UTF-8 (byte {error.start}), and only such has weights"
        ) from None
    except ValueError as error:
        raise NoKeyspaceId(f"vindex {vindex}: {error}") from None


def _why_not(vindex: str) -> str:
    if vindex in _BY_TABLE:
        return f"vindex {vindex} looks keyspace ids up in a table: they cannot be computed without a query"
    if vindex in _BY_PARAMETERS:
        return (
            f"vindex {vindex} takes several columns or parameters of the VSchema: its keyspace ids cannot be computed "
            "from a value alone, without a query"
        )
    return (
        f"vindex {vindex!r} is not known, so its keyspace ids cannot be computed without a query; known are "
        f"{', '.join(sorted(_COMPUTED))}"
    )

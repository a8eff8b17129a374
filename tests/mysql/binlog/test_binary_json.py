"""MySQL's binary JSON is decoded to the text that MySQL prints."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.mysql.binlog.binary_json import text

SMALL = {"object": 0, "array": 2, "width": 2, "number": "<H"}
LARGE = {"object": 1, "array": 3, "width": 4, "number": "<I"}


def length(number: int) -> bytes:
    out = bytearray()
    while True:
        number, low = number >> 7, number & 0x7F
        out.append(low | (0x80 if number else 0))
        if not number:
            return bytes(out)


def value(document: Any, form: Any) -> tuple[int, bytes]:
    """Return type and bytes of a document, as ``json_binary.h`` describes them."""
    if document is None or isinstance(document, bool):
        return 4, bytes([0 if document is None else 1 if document else 2])
    if isinstance(document, int):
        for kind, code, low, high in (
            (5, "<h", -(2**15), 2**15),
            (6, "<H", 0, 2**16),
            (7, "<i", -(2**31), 2**31),
            (8, "<I", 0, 2**32),
            (9, "<q", -(2**63), 2**63),
            (10, "<Q", 0, 2**64),
        ):
            if low <= document < high:
                return kind, struct.pack(code, document)
    if isinstance(document, float):
        return 11, struct.pack("<d", document)
    if isinstance(document, str):
        raw = document.encode()
        return 12, length(len(raw)) + raw
    members = list(document.items()) if isinstance(document, dict) else [(None, each) for each in document]
    if isinstance(document, dict):
        members.sort(key=lambda member: (len((member[0] or "").encode()), (member[0] or "").encode()))
    width, number = form["width"], form["number"]
    keys = b"".join(key.encode() for key, _ in members if key is not None)
    entry = (width + 2) * (isinstance(document, dict)) + 1 + width
    at = 2 * width + entry * len(members)
    key_entries, value_entries, tail = b"", b"", b""
    key_at, value_at = at, at + len(keys)
    for key, each in members:
        if key is not None:
            key_entries += struct.pack(number, key_at) + struct.pack("<H", len(key.encode()))
            key_at += len(key.encode())
        kind, raw = value(each, form)
        if kind in (4, 5, 6) or (width == 4 and kind in (7, 8)):
            value_entries += bytes([kind]) + raw.ljust(width, b"\0")
        else:
            value_entries += bytes([kind]) + struct.pack(number, value_at + len(tail))
            tail += raw
    body = key_entries + value_entries + keys + tail
    kind = form["object"] if isinstance(document, dict) else form["array"]
    return kind, struct.pack(number, len(members)) + struct.pack(number, 2 * width + len(body)) + body


def stored(document: Any, form: Any = SMALL) -> bytes:
    kind, raw = value(document, form)
    return bytes([kind]) + raw


def opaque(kind: int, raw: bytes) -> bytes:
    return bytes([15, kind]) + length(len(raw)) + raw


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXT
SCALARS |= st.floats(allow_nan=False, allow_infinity=False)
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5), max_leaves=25
)


@given(DOCUMENTS, st.sampled_from((SMALL, LARGE)))
@settings(deadline=None)
def test_any_document_is_decoded_to_the_same_document(document: Any, form: Any) -> None:
    """I8."""
    printed = text(stored(document, form))
    again = json.loads(printed)
    assert again == document
    assert repr(again) == repr(json.loads(json.dumps(document))) or isinstance(document, dict | list)


@pytest.mark.parametrize(
    ("document", "printed"),
    [
        ({"b": 1, "a": [True, None, "x"]}, '{"a": [true, null, "x"], "b": 1}'),
        ({"bb": 1, "c": {}}, '{"c": {}, "bb": 1}'),  # keys by length, then bytes, as MySQL sorts them
        ([], "[]"),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (1.5, "1.5"),
        (1e14, "100000000000000.0"),
        (123456789012345.0, "123456789012345.0"),
        (1e15, "1e15"),
        (1e300, "1e300"),
        (-1.25e-7, "-0.000000125"),
        (1e-15, "0.000000000000001"),
        (1e-16, "1e-16"),
        (1.7976931348623157e308, "1.7976931348623157e308"),
        (18446744073709551615, "18446744073709551615"),
        ('a"\\\b\f\n\r\t\x01é\x7f/', '"a\\"\\\\\\b\\f\\n\\r\\t\\u0001é\x7f/"'),
    ],
)
def test_it_is_printed_as_mysql_does(document: Any, printed: str) -> None:
    assert text(stored(document)) == printed


@pytest.mark.parametrize(
    ("raw", "printed"),
    [
        (opaque(246, bytes([3, 2]) + b"\x81\x32"), "1.50"),
        (opaque(246, bytes([2, 2]) + b"\xb2"), "0.50"),
        (opaque(246, bytes([3, 1]) + b"\x7e\xfa"), "-1.5"),
        (
            opaque(12, (((2024 * 13 + 2) << 22 | 29 << 17 | 23 << 12 | 59 << 6 | 58) << 24 | 5).to_bytes(8, "little")),
            '"2024-02-29 23:59:58.000005"',
        ),
        (opaque(7, (((2024 * 13 + 2) << 22 | 29 << 17) << 24).to_bytes(8, "little")), '"2024-02-29 00:00:00.000000"'),
        (opaque(10, (((2024 * 13 + 2) << 22 | 29 << 17) << 24).to_bytes(8, "little")), '"2024-02-29"'),
        (
            opaque(11, (-((838 << 12 | 59 << 6 | 59) << 24 | 1)).to_bytes(8, "little", signed=True)),
            '"-838:59:59.000001"',
        ),
        (opaque(15, b"\x01"), '"base64:type15:AQ=="'),
        (opaque(252, b"x" * 60), '"base64:type252:' + "eHh4" * 19 + '\\neHh4"'),
        (opaque(253, b"MySQL"), '"base64:type253:TXlTUUw="'),
        (opaque(253, b"\x00\xff"), '"base64:type253:AP8="'),
        (b"", "null"),
    ],
)
def test_values_of_sql_types_are_printed_as_mysql_does(raw: bytes, printed: str) -> None:
    assert text(raw) == printed


@given(DOCUMENTS, st.data())
@settings(deadline=None)
def test_a_truncated_document_is_refused_unless_the_rest_is_not_needed(document: Any, data: st.DataObject) -> None:
    raw = stored(document)
    cut = raw[: data.draw(st.integers(1, len(raw)))]
    try:
        assert text(cut) == text(raw)
    except (ValueError, AssertionError):
        assert cut != raw


@given(st.binary(max_size=60))
@settings(deadline=None)
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        text(raw)
    except ValueError:
        return


def test_a_document_that_contains_itself_is_refused() -> None:
    """The offset of a value may point to the value's container."""
    looped = b"\x02" + struct.pack("<HH", 1, 7) + b"\x02" + struct.pack("<H", 0)
    with pytest.raises(ValueError, match="levels"):
        text(looped)

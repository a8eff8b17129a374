"""Keyspace ids agree with the tests of Vitess and with what its code computes."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from relay.vitess import loose
from relay.vitess.vindex import COMPUTED, NoKeyspaceId, UncomputableVindex, Value, keyspace_id
from tests.examples import is_quick

VECTORS = json.loads((Path(__file__).parent / "loose_vectors.json").read_text())
TEST_MD5, TEST_XXHASH = "0b5edbb401fd7524393690491d64f1f5", "42d21361087a4c07"


@pytest.mark.parametrize(
    ("vindex", "value", "expected"),
    [
        ("hash", 0, "8ca64de9c1b123a7"),
        ("hash", 1, "166b40b44aba4bd6"),
        ("hash", 2, "06e7ea22ce92708f"),
        ("hash", 3, "4eb190c9a2fa169c"),
        ("hash", 4, "d2fd8867d50d2dfe"),
        ("hash", 5, "70bb023c810ca87a"),
        ("hash", 6, "f098480ac4c4be71"),
        ("hash", -1, "355550b2150e2451"),
        ("hash", 2**64 - 1, "355550b2150e2451"),
        ("hash", 2**63 - 1, "f77d48aadda1f1bb"),
        ("hash", -(2**63), "95f8a5e5dd31d900"),
        ("hash", "1", "166b40b44aba4bd6"),
        ("hash", b" 1\t", "166b40b44aba4bd6"),
        ("hash", Decimal(2**64 - 1), "355550b2150e2451"),
        ("xxhash", "test1", "d01ab7e4d6978f0b"),
        ("xxhash", b"test2", "87eb11714c0a0e89"),
        ("xxhash", "testaverylongvaluetomakesurethisworks", "81d8c38e0d850e6a"),
        ("xxhash", 1, "d46405367612b4b7"),
        ("xxhash", "1", "d46405367612b4b7"),
        ("xxhash", None, "99e9d85137db46ef"),
        ("xxhash", "", "99e9d85137db46ef"),
        ("xxhash", -1, "d8e2a6a7c8c7623d"),
        ("xxhash", 2**64 - 1, "477cfa8d6d8f1f8d"),
        ("xxhash", Decimal(2**64 - 1), "477cfa8d6d8f1f8d"),
        ("xxhash", 2**63 - 1, "b37eb01f7bffafd8"),
        ("xxhash", -(2**63), "102c27ddb26a609e"),
        ("numeric", 1, "0000000000000001"),
        ("numeric", "8", "0000000000000008"),
        ("numeric", 2**64 - 1, "ffffffffffffffff"),
        ("reverse_bits", 1, "8000000000000000"),
        ("reverse_bits", 2, "4000000000000000"),
        ("reverse_bits", 3, "c000000000000000"),
        ("reverse_bits", 4, "2000000000000000"),
        ("reverse_bits", 5, "a000000000000000"),
        ("reverse_bits", 6, "6000000000000000"),
        ("reverse_bits", 2**63, "0000000000000001"),
        ("binary", b"\x00\x01", "0001"),
        ("binary", "test1", b"test1".hex()),
        ("binary", 12, b"12".hex()),
        ("binary", Decimal("-1.50"), b"-1.50".hex()),
        ("binary", None, ""),
        ("binary_md5", "Test", "0cbc6611f5540bd0809a388dc95a615b"),
        ("binary_md5", b"TEST", "033bd94b1168d7e4f0d644c3c95e35bf"),
        ("binary_md5", None, "d41d8cd98f00b204e9800998ecf8427e"),
        ("null", None, "00"),
        ("null", 7, "00"),
        ("unicode_loose_md5", "Test", TEST_MD5),
        ("unicode_loose_md5", "TEST", TEST_MD5),
        ("unicode_loose_md5", "Te\u0301st", TEST_MD5),
        ("unicode_loose_md5", "Tést".encode(), TEST_MD5),
        ("unicode_loose_md5", "Test ", TEST_MD5),
        ("unicode_loose_md5", "Bést", "c2b2332e4f73d00741026249706f2fb6"),
        ("unicode_loose_md5", " Test", "a2e3515c7e8df1ffd2ccfc11c6b19dd1"),
        ("unicode_loose_md5", "Test\t", "82456dd87a9c7a02b1c2056b5abaa272"),
        ("unicode_loose_md5", "TéstLooong", "9683e12b80430cd453f5dfdfba81c9a5"),
        ("unicode_loose_md5", "T", "ac0f9179f51db87fe8ecc0cf40cab97a"),
        ("unicode_loose_md5", None, "d41d8cd98f00b204e9800998ecf8427e"),
        ("unicode_loose_xxhash", "Test", TEST_XXHASH),
        ("unicode_loose_xxhash", "TEst", TEST_XXHASH),
        ("unicode_loose_xxhash", "Te\u0301st", TEST_XXHASH),
        ("unicode_loose_xxhash", "Tést", TEST_XXHASH),
        ("unicode_loose_xxhash", "Test ", TEST_XXHASH),
        ("unicode_loose_xxhash", "Bést", "926975b9ce2ec316"),
        ("unicode_loose_xxhash", " Test", "4fcb8be34ec05775"),
        ("unicode_loose_xxhash", "Test\t", "20af87fc36e3fd51"),
        ("unicode_loose_xxhash", "TéstLooong", "d3ea873942b484a7"),
        ("unicode_loose_xxhash", "T", "f81c3be2d501fe18"),
        ("unicode_loose_xxhash", None, "99e9d85137db46ef"),
    ],
)
def test_keyspace_ids_are_those_of_vitess(vindex: str, value: Value, expected: str) -> None:
    assert keyspace_id(vindex, value).hex() == expected


@pytest.mark.parametrize("vindex", ["hash", "numeric", "reverse_bits"])
@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        " ",
        "aa",
        "1.1",
        "-1",
        "+1",
        "1 2",
        "1\n",
        "0x1",
        "١",
        b"\xff",
        Decimal("1.0"),
        2**64,
        str(2**64),
        "9" * 5000,
    ],
)
def test_a_value_that_is_not_an_unsigned_number_has_no_keyspace_id(vindex: str, value: Value) -> None:
    """Vitess finds no destination for these (I8)."""
    with pytest.raises(NoKeyspaceId, match=vindex):
        keyspace_id(vindex, value)


def test_only_hash_takes_negative_numbers() -> None:
    for vindex in ("numeric", "reverse_bits"):
        with pytest.raises(NoKeyspaceId, match=r"0 to 2\^64-1"):
            keyspace_id(vindex, -1)
    with pytest.raises(NoKeyspaceId, match=r"0 to 2\^64-1"):
        keyspace_id("hash", -(2**63) - 1)


@pytest.mark.parametrize(
    ("vindex", "reason"),
    [
        ("lookup_unique", "looks up keyspace ids in a table"),
        ("consistent_lookup", "looks up keyspace ids in a table"),
        ("multicol", "several columns"),
        ("region_json", "several columns or on VSchema parameters"),
        ("hsah", "is unknown.*hash"),
        ("", "is unknown"),
    ],
)
def test_vindexes_that_need_a_query_are_refused(vindex: str, reason: str) -> None:
    with pytest.raises(UncomputableVindex, match=f"{reason}.*"):
        keyspace_id(vindex, 1)
    with pytest.raises(ValueError, match="without a query"):
        keyspace_id(vindex, 1)


@pytest.mark.parametrize("vindex", sorted(COMPUTED))
@pytest.mark.parametrize("value", [1.5, True, [1], bytearray(b"1")])
def test_other_types_of_value_are_refused(vindex: str, value: object) -> None:
    with pytest.raises(TypeError, match=vindex):
        keyspace_id(vindex, value)  # type: ignore[arg-type]


@pytest.mark.parametrize("vindex", ["unicode_loose_md5", "unicode_loose_xxhash"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"caf\xe9", "UTF-8"),
        ("\ud800", "UTF-8"),
        ("a\U0003fffd", "U\\+3FFFD is not assigned"),
        ("\u0438" + "\u0327" * 17 + "\u0306", "combining marks"),
    ],
)
def test_text_with_uncertain_weights_is_refused(vindex: str, value: str | bytes, reason: str) -> None:
    """I8: no keyspace id is better than a wrong one."""
    with pytest.raises(NoKeyspaceId, match=reason):
        keyspace_id(vindex, value)


@pytest.mark.parametrize("plane", range(17))
def test_every_character_has_the_weights_of_vitess(plane: int) -> None:
    """All code points, except those whose weights are uncertain."""
    # Of planes 4 to 16, only the first block of 14 has characters: ``make quick`` plays the first and the last of each.
    for first in range(plane << 16, plane + 1 << 16, 0xF000 if is_quick() and plane >= 4 else 0x1000):
        block = f"{first:x}"
        digest = hashlib.sha256()
        for code in range(first, first + 0x1000):
            if 0xD800 <= code < 0xE000:
                continue
            try:
                key = loose.primary_key(chr(code)) if code != 0x20 else b"\x01\x09"
            except ValueError:
                continue
            digest.update(len(key).to_bytes(2, "big") + key)
        assert digest.hexdigest()[:32] == VECTORS["Blocks"][block], block


def test_random_texts_of_twenty_scripts_have_the_weights_of_vitess() -> None:
    """Contractions, expansions, marks in and out of order, Hangul, and all of these in one text.

    The vectors weigh spaces at the end, which vindexes trim before.
    """
    assert VECTORS["Unicode"] == "15.0.0"
    for text, weights in VECTORS["Strings"]:
        if not text.endswith(" "):
            assert loose.primary_key(text).hex() == weights, [f"{ord(character):04x}" for character in text]


@given(st.text(max_size=20), st.text(st.characters(max_codepoint=127), max_size=20))
def test_a_text_has_the_same_weights_as_text_and_as_bytes(any_text: str, ascii_text: str) -> None:
    for text in (any_text, ascii_text, ascii_text + any_text):
        try:
            expected = loose.primary_key(text)
        except ValueError:
            continue
        assert keyspace_id("unicode_loose_md5", text.encode()) == hashlib.md5(expected).digest()
        assert keyspace_id("unicode_loose_xxhash", text + "  ") == xxhash.xxh64_digest(expected)[::-1]


@given(st.text(st.characters(max_codepoint=127), max_size=20))
def test_case_does_not_matter_to_loose_vindexes(text: str) -> None:
    assert keyspace_id("unicode_loose_md5", text) == keyspace_id("unicode_loose_md5", text.swapcase())


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_different_numbers_have_different_keyspace_ids(a: int, b: int) -> None:
    for vindex in ("hash", "numeric", "reverse_bits"):
        assert (keyspace_id(vindex, a) == keyspace_id(vindex, b)) is (a == b)
        assert keyspace_id(vindex, a) == keyspace_id(vindex, str(a)) == keyspace_id(vindex, Decimal(a))
    assert int(f"{int.from_bytes(keyspace_id('reverse_bits', a), 'big'):064b}"[::-1], 2) == a


def test_keyspace_ids_computed_by_many_threads_at_once_are_right() -> None:
    expected = {number: keyspace_id("hash", number) for number in range(500)}
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: (number % 500, keyspace_id("hash", number % 500)), range(20_000)))
    assert all(expected[number] == key for number, key in found)

"""Text in every character set becomes what the server itself converts it to, or is refused."""

from __future__ import annotations

from typing import Any

import pytest

from relay.mysql_dialect.charsets import NotText, charset, decoder, lowered, text_reader
from tests.mysql.reading import NUMBERS, session

UNICODE = {
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "utf8mb3": "utf-8",
    "utf8mb4": "utf-8",
}
THREE_BYTES = "concat(char(143), char(a.n), char(b.n)) from bytes a, bytes b where a.n >= 128"
FOUR_BYTES = """concat(char({}), char(a.n), char(b.n), char(c.n)) from bytes a, bytes b, bytes c
    where a.n between 0x30 and 0x39 and b.n between 0x81 and 0xfe and c.n between 0x30 and 0x39"""
LONGER = {
    "ujis": [THREE_BYTES],
    "eucjpms": [THREE_BYTES],
    "gb18030": [FOUR_BYTES.format(first) for first in range(0x81, 0xFF)],
}
"""Selects of the characters of more than two bytes."""


def compare_each(execute: Any, name: str, longest: int) -> int:
    """Compare all sequences of bytes that can be a character, and return how many are one."""
    read, found = decoder(name), 0
    wanted = ["char(a.n) from bytes a"]
    if longest > 1:
        wanted += ["concat(char(a.n), char(b.n)) from bytes a, bytes b where a.n >= 128", *LONGER.get(name, [])]
    for each in wanted:
        value, _, rest = each.partition(" from ")
        text = f"convert({value} using {name})"
        selected = f"hex({value}), hex(convert({text} using utf32)), length({text}) = length({value})"
        for raw, shown, is_whole in execute(f"select {selected} from {rest}"):
            theirs = bytes.fromhex(shown or "").decode("utf-32-be")
            # "?", U+FFFD and nothing are what servers give for bytes that have no character there.
            if is_whole and theirs and raw != "3F" and "?" not in theirs and "\ufffd" not in theirs:
                assert read(bytes.fromhex(raw)) == theirs, (name, raw)
                found += 1
    return found


def compare_unicode(execute: Any, name: str, longest: int) -> int:
    """Compare all code points, and return how many there are."""
    most = 0x10000 if name in ("ucs2", "utf8mb3") else 0x110000
    codes = [code for code in range(most) if not 0xD800 <= code < 0xE000]
    for at in range(0, len(codes), 4096):
        raw = "".join(map(chr, codes[at : at + 4096])).encode(UNICODE[name])
        ((shown,),) = execute(f"select hex(convert(convert(0x{raw.hex()} using {name}) using utf32))")
        assert decoder(name)(raw) == bytes.fromhex(shown).decode("utf-32-be"), (name, hex(codes[at]))
    return len(codes)


@pytest.mark.services
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_every_character_of_every_character_set_is_decoded_as_the_server_converts_it(
    kind: str, request: pytest.FixtureRequest, unique: str
) -> None:
    """I8: all sequences of bytes that can be a character, and all code points."""
    with session(request.getfixturevalue(kind), unique) as execute:
        execute("create table bytes (n int)")
        execute(f"insert bytes {NUMBERS[1:-1].format(256, '')}")
        execute("update bytes set n = n - 1")
        listed = execute("select character_set_name, maxlen from information_schema.character_sets")
        found = {
            name: (compare_unicode if name in UNICODE else compare_each)(execute, name, longest)
            for name, longest in listed
            if name != "binary"
        }
    assert len(found) >= 39
    assert min(found.values()) >= 126  # swe7
    assert sum(found.values()) > 4_700_000


def test_characters_that_python_lacks_stand_beside_others() -> None:
    assert decoder("eucjpms")(b"a\xad\xa1\x8f\xa2\xb7\xf5\xa1\x8f\xfe\xfe\xc6\xfc~") == "a①～\ue000\ue757日~"
    assert decoder("big5")(b"\xa4\xfd\xf9\xda!") == "王恒!"
    for name, cut_off in (("eucjpms", b"\xad"), ("eucjpms", b"\x8f\xf3"), ("big5", b"a\xf9"), ("ujis", b"\xad\xa1")):
        with pytest.raises(UnicodeDecodeError):
            decoder(name)(cut_off)


@pytest.mark.services
def test_every_collation_of_the_server_is_known(mariadb: Any) -> None:
    """I8."""
    listed = "select id, character_set_name from information_schema.collation_character_set_applicability"
    rows = mariadb.execute(listed)
    assert len(rows) > 300
    assert [(number, charset(number)) for number, _ in rows] == list(rows)


@pytest.mark.parametrize(
    ("collation", "name"),
    [
        (8, "latin1"),
        (63, "binary"),
        (255, "utf8mb4"),
        (76, "utf8mb3"),
        (248, "gb18030"),
        (1032, "latin1"),
        (2304, "utf8mb4"),
    ],
)
def test_a_collation_is_of_a_character_set(collation: int, name: str) -> None:
    assert charset(collation) == name


@pytest.mark.parametrize("collation", [0, 999, 100_000])
def test_an_unknown_collation_is_refused(collation: int) -> None:
    with pytest.raises(ValueError, match=str(collation)):
        charset(collation)


def test_latin1_is_the_windows_code_page_and_keeps_its_undefined_bytes() -> None:
    assert decoder("latin1")(b"caf\xe9 \x80 \x81\x8d\x8f\x90\x9d") == "café € \x81\x8d\x8f\x90\x9d"


@pytest.mark.parametrize(
    ("name", "raw"), [("utf8mb4", b"\xff"), ("ascii", b"\x80"), ("greek", b"\xaa"), ("sjis", b"\x81")]
)
def test_bytes_that_are_not_a_character_are_refused(name: str, raw: bytes) -> None:
    """I8: in a row they stay bytes."""
    with pytest.raises(UnicodeDecodeError):
        decoder(name)(raw)
    found = text_reader(name)(b"a" + raw)
    assert (found, type(found), text_reader(name)(b"a")) == (b"a" + raw, NotText, "a")


@pytest.mark.services
@pytest.mark.parametrize("flavour", ["mariadb", "mysql"])
def test_each_letter_of_a_name_has_the_lower_case_that_it_has_on_the_server(
    request: pytest.FixtureRequest, flavour: str
) -> None:
    """I1: names are folded as text of utf8mb3_general_ci is."""
    server = request.getfixturevalue(flavour)
    letters = [chr(code) for code in range(0x80, 0x10000) if not 0xD800 <= code < 0xE000]
    for at in range(0, len(letters), 500):
        some = letters[at : at + 500]
        asked = (f"hex(lower(convert('{letter}' using utf8mb3) collate utf8mb3_general_ci))" for letter in some)
        (found,) = server.execute("select " + ", ".join(asked))
        assert [bytes.fromhex(each).decode() for each in found] == [lowered(letter) for letter in some]

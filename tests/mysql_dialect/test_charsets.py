"""Text in every character set becomes what the server itself converts it to, or is refused."""

from __future__ import annotations

from typing import Any

import pytest

from relay.mysql_dialect.charsets import charset, decoder, lowered

NAMES = [
    "armscii8",
    "ascii",
    "big5",
    "cp1250",
    "cp1251",
    "cp1256",
    "cp1257",
    "cp850",
    "cp852",
    "cp866",
    "cp932",
    "dec8",
    "eucjpms",
    "euckr",
    "gb18030",
    "gb2312",
    "gbk",
    "geostd8",
    "greek",
    "hebrew",
    "hp8",
    "keybcs2",
    "koi8r",
    "koi8u",
    "latin1",
    "latin2",
    "latin5",
    "latin7",
    "macce",
    "macroman",
    "sjis",
    "swe7",
    "tis620",
    "ucs2",
    "ujis",
    "utf16",
    "utf16le",
    "utf32",
    "utf8mb3",
    "utf8mb4",
]
MULTIBYTE = {"big5", "cp932", "eucjpms", "euckr", "gb18030", "gb2312", "gbk", "sjis", "ujis"}


def samples(name: str) -> list[bytes]:
    ones = [bytes([each]) for each in range(256)]
    if name in MULTIBYTE:
        twos = [bytes([first, second]) for first in range(0x80, 256) for second in range(0x30, 256)]
        threes = [bytes([0x8F, first, second]) for first in range(0xA1, 0xFF) for second in range(0xA1, 0xFF)]
        fours = [chr(code).encode("gb18030") for code in (*range(0x1E00, 0x2000), 0xE7C7, 0xFFFD, 0x1F600, 0x10FFFF)]
        return ones + twos + {"ujis": threes, "eucjpms": threes, "gb18030": fours}.get(name, [])
    if name.startswith(("utf", "ucs")):
        points = [*range(0x20, 0x800, 7), *range(0x800, 0xD800, 997), 0xFFFD, 0x1F600, 0x10FFFF]
        python = {"utf16le": "utf-16-le", "utf32": "utf-32-be"}.get(name, "utf-8" if "utf8" in name else "utf-16-be")
        return [chr(each).encode(python) for each in points if each < 0x10000 or name not in ("ucs2", "utf8mb3")]
    return ones


OTHER_SERVER = pytest.mark.faults("the other server: the decoders do not know which, and this is tried on MariaDB")
# MariaDB does not know gb18030.
ON_SERVERS: list[Any] = [(name, "mysql" if name == "gb18030" else "mariadb") for name in NAMES]
ON_SERVERS += [pytest.param(name, "mysql", marks=OTHER_SERVER) for name in NAMES if name != "gb18030"]


@pytest.mark.services
@pytest.mark.parametrize(("name", "kind"), ON_SERVERS)
def test_every_character_of_the_server_is_decoded_as_there(
    name: str, kind: str, request: pytest.FixtureRequest
) -> None:
    """I8."""
    server = request.getfixturevalue(kind)
    read, refused = decoder(name), 0
    all_ = samples(name)
    for at in range(0, len(all_), 4000):
        part = all_[at : at + 4000]
        values = " union all ".join(f"select 0x{raw.hex()} as raw" for raw in part)
        rows = server.execute(f"select raw, hex(convert(convert(raw using {name}) using utf32)) from ({values}) as v")
        for raw, shown in rows:
            theirs = bytes.fromhex(shown or "").decode("utf-32-be")
            try:
                mine = read(raw)
            except UnicodeDecodeError:
                refused += theirs != "" and "?" not in theirs and "\ufffd" not in theirs
                continue
            # "?", U+FFFD and nothing are what servers give for bytes that have no character there.
            assert mine == theirs or "?" in theirs or "\ufffd" in theirs or not theirs, raw.hex()
    assert refused == 0


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
    """I8."""
    with pytest.raises(UnicodeDecodeError):
        decoder(name)(raw)


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

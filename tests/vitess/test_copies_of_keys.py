"""Copies of tables by keys of every type, interrupted after each batch: no row is left out (I1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from relay.services.vitess import Vitess
from relay.source import Page
from tests import needs
from tests.vitess.interrupted_copies import copy_of, numbers, started
from tests.vitess.reading import until

pytestmark = pytest.mark.services

ROWS = 120
TEXTS = ["'Zebra'", "'apfel'", "'Äpfel'", "'äther'", "'a b'", "'_x'", "'ß'", "'10'", "'9'", "''", "'it''s'"]
KEYS: dict[str, tuple[str, list[str]]] = {
    "enums": ("k enum('z','m','a')", ["'z'", "'m'", "'a'"]),
    "sorted_enums": ("k enum('a','m','z')", ["'z'", "'m'", "'a'"]),
    "texts": ("k varchar(20)", TEXTS[:2] + TEXTS[4:]),
    "exact_texts": ("k varchar(20) character set utf8mb4 collate utf8mb4_bin", TEXTS),
    "latin_texts": ("k varchar(20) character set latin1 collate latin1_general_cs", TEXTS),
    "wide_texts": ("k char(9) character set utf16", TEXTS[:2] + TEXTS[4:]),
    "chinese_texts": ("k varchar(20) character set gbk", ["'表'", "'啊'", "'a'", "'Z'"]),
    "bytes": ("k varbinary(9)", ["x'00'", "x'ff27'", "x'5c'", "x'0a'", "''"]),
    "padded_bytes": ("k binary(3)", ["x'00'", "x'ff27'", "x'5c'", "x'0a'"]),
    "bits": ("k bit(9)", ["b'101010101'", "b'1'", "b'0'", "b'111111111'"]),
    "decimals": ("k decimal(30,10)", ["-12345678901234567890.5", "0", "1.0000000001", "-1"]),
    "doubles": ("k double", ["1e300", "-0.1", "0.1", "5e-324", "0.30000000000000004"]),
    "large": ("k bigint unsigned", ["18446744073709551615", "0", "9223372036854775808"]),
    "days": ("k date", ["'0000-00-00'", "'2024-02-29'", "'9999-12-31'"]),
    "moments": ("k datetime(6)", ["'0000-00-00'", "'2024-02-29 23:59:59.123456'", "'2024-02-29 23:59:59'"]),
    "instants": ("k timestamp(3)", ["'2024-03-31 01:30:00.125'", "'2024-10-27 00:30:00'", "'2037-01-01'"]),
    "times": ("k time(2)", ["'-838:59:59'", "'-00:00:00.5'", "'838:59:59'", "'00:00:01'"]),
    "years": ("k year", ["2024", "0", "1901"]),
    "short_addresses": ("k inet4", ["'10.0.0.1'", "'9.0.0.0'", "'200.0.0.0'"]),
    "japanese_texts": ("k varchar(20) character set sjis", ["'表'", "'あ'", "'a'", "'Z'"]),
    "ids": ("k uuid", ["'123e4567-e89b-12d3-a456-426655440000'", "'6ccd780c-baba-1026-9564-5b8c656024db'"]),
    "addresses": ("k inet6", ["'::1'", "'fe80::1'", "'10.0.0.1'"]),
    "nothing": ("k int null, j varchar(9) null", ["1, null", "null, 'a'", "null, null", "2, 'b'"]),
}
UNKEYED = {"nothing"}
ONE_OF_EACH = [
    *("large", "decimals", "doubles", "bits", "moments", "instants", "bytes", "padded_bytes"),
    *("enums", "sorted_enums", "texts", "chinese_texts", "ids", "nothing"),
]
"""One key for each reason why vtgate finds a row by the text of its key, or does not."""

OTHERS = pytest.mark.faults("other keys of the same forms: the same test with ONE_OF_EACH")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Vitess]:
    needs.vitess()
    with started(500) as cluster:
        yield cluster


@pytest.mark.parametrize(
    "name", [*ONE_OF_EACH, *(pytest.param(name, marks=OTHERS) for name in KEYS if name not in ONE_OF_EACH)]
)
def test_every_row_is_copied_whatever_its_key_is_and_wherever_the_copy_is_interrupted(
    cluster: Vitess, name: str
) -> None:
    """I1, I7: a copy would delete at the end mark what was left out."""
    columns, values = KEYS[name]
    primary = "" if name in UNKEYED else ", primary key (k, n)"
    rows = ", ".join(f"({values[n % len(values)]}, {n}, 'xxxxxxxxxxxxxxxxxxxx')" for n in range(ROWS))
    made = (
        "set sql_mode = '', time_zone = '+00:00'",
        f"create table {name} ({columns}, n int not null, filler char(20){primary})",
        f"insert into {name} values {rows}",
    )
    pages: list[Page] = []
    with copy_of(cluster, name, *made) as opened:
        for _ in range(2):
            with closing(opened(pages[-1].position if pages else None)) as reader:
                pages += until(reader, lambda page: bool(page.changes) or page.finished)
        assert 0 < len(set(numbers(pages))) < ROWS
        with closing(opened(pages[-1].position)) as reader:
            pages += until(reader, lambda page: page.finished, most=400)
    assert set(numbers(pages)) == set(range(ROWS))

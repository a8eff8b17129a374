"""The output of `relay tail` for people."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Message

from relay.change import Images, Operation, Snapshot
from relay.commands.tail_text import printer
from relay.operations.tail import record_json
from relay.stream.topic_partitions import end_of_partitions
from tests.operations.tailed_records import TABLE, KnownSchemas, change, encoder, message


def test_the_text_names_the_snapshot_that_a_record_begins(capsys: pytest.CaptureFixture[str]) -> None:
    begin = change(
        operation=Operation.READ,
        key=None,
        old=None,
        new=None,
        images=Images.KEYS_ONLY,
        token=None,
        snapshot=Snapshot("17-ab", 1_800_000_000),
        attributes={"snapshot": "begin"},
    )
    printer()(record_json(message(encoder().encode(begin)), KnownSchemas(TABLE)))
    assert capsys.readouterr().out == (
        "shop.orders[3]@17  2027-01-15T08:00:00Z  READ     orders  begin of snapshot 17-ab\n"
    )


def test_the_text_shows_the_mark_that_ends_a_partition(capsys: pytest.CaptureFixture[str]) -> None:
    mark = end_of_partitions(TABLE, "label", 24, 1_800_000_000.0)
    printer()(record_json(message(encoder().encode(mark)), KnownSchemas(TABLE)))
    assert capsys.readouterr().out == "shop.orders[3]@17  2027-01-15T08:00:00Z  READ     orders  repartition\n"


def test_what_a_terminal_would_obey_is_shown_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """The values are those of an application's users."""
    show = printer()
    evil = "\x1b[2Jä\n\x9b1m"
    value = {"operation": "INSERT", "table": "t", "key": {"id": evil}, "old": None, "new": {"a": {"S": evil}, evil: 1}}
    place = {"topic": "t", "partition": 0, "offset": 5, "key": evil}
    show({**place, "value": {**value, "attributes": {}, "committed_at": "today"}})
    show({**place, "value": {"reason": evil}})
    show({**place, "value": "AA==", "error": evil})
    shown = capsys.readouterr().out
    assert all(line.isprintable() for line in shown.splitlines())
    assert len(shown.splitlines()) == 5
    assert "  + a: \\u001b[2Jä\\n\\u009b1m\n" in shown


def test_a_dead_letter_is_shown_by_what_it_is_of(capsys: pytest.CaptureFixture[str]) -> None:
    """Its value is a change in Avro, or one of its parts."""
    headers = {"reason": "too large", "detail": "11 MB", "table": "orders", "key": '{"id":7}', "chunk": "2/15"}
    letter: Message[Any, Any] = Message(
        topic="shop.dead_letters",
        partition=0,
        offset=1,
        key=b"abc/2",
        value=b"\xc3\x01",
        headers=[(name, text.encode()) for name, text in headers.items()],
    )
    shown = record_json(letter, None, is_letter=True)
    assert (shown["headers"], shown["value"], "error" in shown) == (headers, "wwE=", False)
    printer()(shown)
    line = 'shop.dead_letters[0]@1  abc/2  orders {"id":7}: too large: 11 MB, part 2/15\n'
    assert capsys.readouterr().out == line


def test_a_statement_is_shown_by_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    statement = {"kind": "ALTER", "statement": "ALTER TABLE t ADD c INT", "tables": [{"table": "t"}]}
    value = json.dumps({**statement, "committed_at": 1_800_000_000_000_000}).encode()
    printer()(record_json(message(value, topic="shop.ddl"), None))
    said = "shop.ddl[3]@17  2027-01-15T08:00:00.000000Z  ALTER    t  ALTER TABLE t ADD c INT\n"
    assert capsys.readouterr().out == said

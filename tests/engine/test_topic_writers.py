"""The writers of tables whose columns change."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from relay.engine.topic_writers import TopicWriters
from relay.table import Column, KeyColumn, TableSchema


class Writer:
    def __init__(self, table: TableSchema) -> None:
        self.table = table
        self.topic = f"shop.{table.table}"


def test_the_writers_of_old_schemas_are_forgotten() -> None:
    """I11"""
    made: WeakSet[Writer] = WeakSet()

    def make(table: TableSchema) -> Any:
        writer = Writer(table)
        made.add(writer)
        return writer

    writers = TopicWriters(make)
    for number in range(3000):
        table = TableSchema("s", "t", (KeyColumn("id", "S"),), 1, (Column(f"c{number}", "int"),))
        writers.use([table])
        assert writers["s", "t"].table is table
    assert len(made) <= 1002


def test_the_topics_include_those_of_tables_that_appear_later() -> None:
    """I10: a worker whose transactions are aborted again and again asks whether these exist."""

    def make(table: TableSchema) -> Any:
        return Writer(table)

    writers = TopicWriters(make, [TableSchema("s", "t", (KeyColumn("id", "S"),), 1)])
    assert writers.topics == {"shop.t"}
    writers.use([TableSchema("s", "later", (KeyColumn("id", "S"),), 1)])
    assert writers.topics == {"shop.t", "shop.later"}

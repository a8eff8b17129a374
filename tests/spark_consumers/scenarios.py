"""What becomes of a table of the copy, whatever the target. Each scenario takes a table that does not exist yet."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Protocol

import pytest

from relay.change import REDRIVEN, Images, Operation
from relay.errors import RelayError
from relay.operations.compared_rows import ComparedTable
from relay.table import Column, KeyColumn, TableSchema
from relay.token import EventToken
from spark_consumers.fold import StoredRow, VerdictCounts
from spark_consumers.kept_rows import KeptRow
from spark_consumers.records import Layout
from spark_consumers.sinks.target import Write
from tests.spark_consumers.batches import Published, change, layout, mark, read

ORDERS = layout({"id": "int"}, {"id": "int", "note": "string"})


class CopyInTest(Protocol):
    """A table of the copy at some target. ``widens``: whether it widens a column of numbers into any wider one."""

    widens: bool

    def play(self, layouts: Any, *changes: Published, partitions: int = 1) -> VerdictCounts:
        """Apply a batch."""

    def write(self, write: Write) -> None:
        """Write a row, from a batch that has no changes."""

    def rows(self, *columns: str, deleted: bool = False) -> list[tuple[Any, ...]]:
        """Return columns of the rows, ordered by the first one."""

    def kept(self, layout: Layout, wanted: Sequence[str | None], keys: Sequence[Sequence[str]] = ()) -> list[KeptRow]:
        """Return the rows of some keys, or all, as `relay verify` reads them, with the ``wanted`` columns."""


def order(number: int, id: int, note: str | None, **more: Any) -> Published:
    return change(number, [str(id)], None if note is None else {"id": id, "note": note}, **more)


def comparable(value: Any) -> Any:
    """Return a value of a row as every target returns it."""
    if isinstance(value, bytearray):
        return bytes(value)
    return json.dumps(value, separators=(",", ":")) if isinstance(value, dict) else value


def rows_are_inserted_updated_and_deleted_with_their_tokens(table: CopyInTest) -> None:
    counts = table.play(ORDERS, order(1, 1, "a"), order(2, 2, "b"), order(3, 1, "c"))
    assert counts == VerdictCounts(applied=3)
    assert table.rows("id", "note") == [(1, "c"), (2, "b")]
    assert table.play(ORDERS, order(4, 2, None), order(2, 2, "b")) == VerdictCounts(applied=1, ignored=1)
    columns = ("_relay_event_id", "_relay_token", "_relay_topic", "_relay_partition", "_relay_offset")
    token = '{"timestamp":1004,"shard":"shop/shop/-","position":"MariaDB/0-1-4","origin":null}'
    found = table.rows("id", "note", "_relay_deleted", "_relay_read_as_of", *columns, deleted=True)
    assert found[1] == (2, None, True, 0, "e4", token, "shop.orders", 0, 4)


MONEY = "-1234567890123456789012345678.0123456789"
TEXT = "naïve 'quoted' \\ \t\n \"€\" 😀"
VALUES: dict[str, tuple[str, Any, Any]] = {
    "text": ("string", TEXT, TEXT),
    "empty": ("string", "", ""),
    "zero date": ("string", "0000-00-00", "0000-00-00"),
    "long time": ("string", "-838:59:59", "-838:59:59"),
    "json": ("string", '{"a": 1.0, "a": "\\u0000"}', '{"a": 1.0, "a": "\\u0000"}'),
    "raw": ("bytes", "AP8gXA==", b"\x00\xff \\"),
    "no bytes": ("bytes", "", b""),
    "flag": ("boolean", True, True),
    "small": ("int", -(2**31), -(2**31)),
    "large": ("long", 2**63 - 1, 2**63 - 1),
    "unsigned": ("decimal(20,0)", "18446744073709551615", Decimal(2**64 - 1)),
    "money": ("decimal(38,10)", MONEY, Decimal(MONEY)),
    "double": ("double", 5e-324, 5e-324),
    "time": ("timestamp", "2024-01-31T09:00:00.000001Z", datetime.datetime(2024, 1, 31, 9, 0, 0, 1, datetime.UTC)),
    "first": ("timestamp", "0001-01-01T00:00:00.000000Z", datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)),
    "tags": ("set", ["b", "a", 'x"y,{}\\'], ["b", "a", 'x"y,{}\\']),
    "none": ("set", [], []),
    "any": ("json", '{"L":[{"N":"1.0"}]}', '{"L":[{"N":"1.0"}]}'),
}


def values_are_exact(table: CopyInTest) -> None:
    """I8"""
    row = {"id": "int", "single": "float", **{name: kind for name, (kind, _, _) in VALUES.items()}}
    image = {"id": 1, "single": 0.1, **{name: given for name, (_, given, _) in VALUES.items()}}
    made = layout({"id": "int"}, row)
    assert table.kept(made, list(VALUES)) == []  # there is no table yet
    table.play(made, change(1, ["1"], image), change(2, ["2"], {"id": 2, **dict.fromkeys(VALUES)}))
    (found, empty) = table.rows("id", "single", *VALUES)
    assert found[1] == pytest.approx(0.1, rel=1e-7)
    assert dict(zip(VALUES, found[2:], strict=True)) == {name: wanted for name, (_, _, wanted) in VALUES.items()}
    assert empty == (2, None, *(None for _ in VALUES))
    kinds = tuple(Column(name, kind) for name, kind in row.items())
    compared = ComparedTable(TableSchema("shop", "orders", (KeyColumn("id", "int"),), 1, kinds))
    read = {each.key: each.values for each in map(compared.of_kept, table.kept(made, compared.wanted))}
    assert read["1",] == compared.of_source({"id": 1}, image).values
    assert set(read["2",] or ()) == {None}


def keys_of_every_type_are_found_again(table: CopyInTest) -> None:
    kinds = {"i": "int", "d": "decimal(10,2)", "s": "string", "b": "bytes", "t": "timestamp", "n": "N"}
    key = ["-7", "1.50", "a b%s\"'", "AP8=", "2024-01-31T09:00:00.000001Z", "1" + "0" * 40]
    made = layout(kinds, {**{name: kind for name, kind in kinds.items() if name != "n"}, "note": "string"})
    image = {"i": -7, "d": "1.50", "s": key[2], "b": "AP8=", "t": key[4]}
    table.play(made, change(1, key, image | {"note": "a"}))
    assert table.play(made, change(1, key, image | {"note": "a"})) == VerdictCounts(ignored=1)
    table.play(made, change(2, key, image | {"note": "b"}))
    assert table.rows("note", "i", "b") == [("b", -7, b"\x00\xff")]
    compact = [*key[:1], "1.5", *key[2:]]
    (read,) = table.kept(made, ["note"], [compact, ["8", *compact[1:]]])
    assert (read.values, read.key[2:]) == (("b",), tuple(key[2:]))
    assert table.kept(made, ["note"], [["8", *compact[1:]]]) == []
    # Of rows at the source that are inserted there after their columns were widened, and not copied yet.
    absent = [[number, *compact[1:]] for number in (str(2**31), str(2**64 - 1), "-7.5")]
    absent.append(["-7", "123456789.5", *compact[2:]])
    assert table.kept(made, ["note"], absent) == []
    assert table.play(made, change(3, (), None, Operation.TRUNCATE)) == VerdictCounts(applied=1)
    assert table.rows("note", "_relay_deleted", deleted=True) == [(None, True)]


def rows_of_two_topics_of_the_table_have_their_own_values(table: CopyInTest) -> None:
    """I7: the topic of a table was changed before the one before was read to its end."""
    table.play(ORDERS, order(7, 1, "a", topic="shop.before"), order(7, 2, "b"), order(8, 3, "c", topic="shop.before"))
    assert table.rows("id", "note") == [(1, "a"), (2, "b"), (3, "c")]


def a_new_column_is_added_and_a_dropped_one_stays(table: CopyInTest) -> None:
    table.play(ORDERS, order(1, 1, "a"), order(2, 2, "b"))
    changed = layout({"id": "int"}, {"id": "int", "total (net)": "decimal(10,2)"})
    later = change(4, ["1"], {"id": 1, "total (net)": "1.5"}, layout=1)
    table.play({0: ORDERS, 1: changed}, order(3, 3, "c"), later)
    assert table.rows("id", "note", "total (net)") == [(1, None, Decimal("1.50")), (2, "b", None), (3, "c", None)]


WIDER: list[tuple[tuple[str, Any], tuple[str, Any]]] = [
    (("int", 1), ("long", 2**40)),
    (("long", 1), ("int", 2)),
    (("int", 1), ("decimal(12,2)", "0.25")),
    (("long", 2**62), ("decimal(20,0)", str(2**64 - 1))),
    (("long", 2**62), ("decimal(10,2)", "0.25")),
    (("decimal(10,2)", "12345678.12"), ("decimal(6,4)", "12.1234")),
    (("float", 0.5), ("double", 5e-324)),
    (("int", 2**31 - 1), ("double", 0.5)),
]


def a_wider_column_is_widened(table: CopyInTest) -> None:
    """I8"""
    names = [f"v{n}" for n in range(len(WIDER))]
    for id in (0, 1):
        kinds = {name: pair[id][0] for name, pair in zip(names, WIDER, strict=True)}
        image = {name: pair[id][1] for name, pair in zip(names, WIDER, strict=True)}
        table.play(layout({"id": "int"}, {"id": "int", **kinds}), change(id + 1, [str(id)], {"id": id, **image}))
    kinds = {name: pair[1][0] for name, pair in zip(names, WIDER, strict=True)}
    for row in table.kept(layout({"id": "int"}, {"id": "int", **kinds}), names):
        for found, pair in zip(row.values or (), WIDER, strict=True):
            _, wanted = pair[int(row.key[0])]
            assert (float(found) if isinstance(wanted, float) else Decimal(found)) == (
                wanted if isinstance(wanted, float) else Decimal(wanted)
            )
    if table.widens:
        for id, *found in table.rows("id", *names):
            assert [Decimal(value) for value in found] == [Decimal(pair[id][1]) for pair in WIDER]


def a_column_of_another_type_continues_beside_the_earlier_one(table: CopyInTest) -> None:
    """I8: no value is converted."""
    number = layout({"id": "int"}, {"id": "int", "note": "int"})
    table.play(ORDERS, order(1, 1, "7"))
    table.play({0: ORDERS, 1: number}, order(2, 2, "a"), change(3, ["1"], {"id": 1, "note": 8}, layout=1))
    assert table.rows("id", "note", "note__number") == [(1, None, 8), (2, "a", None)]
    table.play(ORDERS, order(4, 1, "again"))
    assert table.rows("id", "note", "note__number") == [(1, "again", None), (2, "a", None)]
    assert sorted(row.values or () for row in table.kept(number, ["note"])) == [("a",), ("again",)]


def two_columns_are_never_one(table: CopyInTest) -> None:
    """I8"""
    table.play(layout({"id": "int"}, {"total": "string"}), change(1, ["1"], {"total": "a"}))
    both = layout({"id": "int"}, {"total": "int", "total__number": "int"})
    with pytest.raises(RelayError, match="the columns total and total__number would be one column in the copy"):
        table.play(both, change(2, ["1"], {"total": 1, "total__number": 2}))


def columns_with_names_that_are_taken_have_others(table: CopyInTest) -> None:
    """By the copy itself, whatever the case of their letters, or by PostgreSQL in each of its tables."""
    names = ["_Relay_Token", "ITEM", "xmin", "ctid"]
    made = layout({"id": "int"}, {**dict.fromkeys(names, "string"), "rest": "rest"})
    table.play(made, change(1, ["1"], {**{name: f"of {name}" for name in names}, "rest": None}))
    assert [row.values for row in table.kept(made, names)] == [tuple(f"of {name}" for name in names)]


def a_key_called_item_is_beside_the_items(table: CopyInTest) -> None:
    made = layout({"Item": "string"}, None)
    table.play(made, change(1, ["a"], {"Item": {"S": "a"}}))
    ((key, values),) = [(row.key, row.values) for row in table.kept(made, [None], [["a"]])]
    assert (key, json.loads((values or ("",))[0])) == (("a",), {"Item": {"S": "a"}})


def a_wider_key_is_widened_and_another_one_is_refused(table: CopyInTest) -> None:
    table.play(ORDERS, order(1, 1, "a"))
    said = r"the key column id is {} at the source.*drop this table of the copy"
    double = layout({"id": "double"}, {"note": "string"})
    with pytest.raises(RelayError, match=said.format("double")):  # I7: 5.0 is another text of the key 5
        table.play({0: ORDERS, 1: double}, order(4, 5, "d"), change(5, ["5.0"], {"note": "e"}, layout=1))
    long = layout({"id": "long"}, {"id": "long", "note": "string"})
    table.play(long, order(2, 2**40, "b"), order(3, 1, "c"))
    assert table.rows("id", "note") == [(1, "c"), (2**40, "b")]
    with pytest.raises(RelayError, match=said.format("string")):
        table.play(layout({"id": "string"}, {"note": "string"}), change(4, ["x"], {"note": "d"}))


def changes_of_another_key_are_refused(table: CopyInTest) -> None:
    """I7: else one row is several, or several are one. Also in one batch with changes of the key that the table has."""
    columns = {"id": "long", "region": "string", "code": "string"}
    image = {"id": 1, "region": "eu", "code": "x"}
    first = layout({"id": "long", "region": "string"}, columns)
    others = [
        (layout({"id": "long"}, columns), ["1"]),
        (layout({"region": "string", "id": "long"}, columns), ["eu", "1"]),
        (layout({"code": "string"}, columns), ["x"]),
        (layout({"id": "long", "region": "string", "shop": "int"}, {**columns, "shop": "int"}), ["1", "eu", "7"]),
    ]
    of_first = change(1, ["1", "eu"], image)
    with pytest.raises(RelayError, match="its rows have the key id, region, but the changes have the key id: drop"):
        table.play({0: first, 1: others[0][0]}, of_first, change(2, ["1"], image, layout=1))
    assert table.kept(first, ["code"]) == []  # it made no table
    table.play(first, of_first, change(2, ["2", "us"], {**image, "id": 2, "region": "us"}))
    for other, key in others:
        names = ", ".join(field.name for field in other.key)
        said = f"its rows have the key id, region, but the changes have the key {names}: drop this table of the copy"
        of_other = change(3, key, {**image, "shop": 7}, layout=1)
        for layouts, changes in (
            ({1: other}, [of_other]),
            ({0: first, 1: other}, [change(4, ["1", "eu"], image), of_other]),
            ({0: other, 1: first}, [change(3, key, {**image, "shop": 7})]),
        ):
            with pytest.raises(RelayError, match=f"{said}.*`relay snapshot CONFIG SOURCE TABLE`"):
                table.play(layouts, *changes)
        with pytest.raises(RelayError, match=said):
            table.kept(other, ["code"])
    assert table.rows("id", "region", "code") == [(1, "eu", "x"), (2, "us", "x")]
    table.play(first, change(5, ["1", "eu"], None))
    assert table.rows("id") == [(2,)]


def rows_whose_image_is_gone_are_not_written(table: CopyInTest) -> None:
    """I8: they would have null in all columns. One is new, and one is there."""
    table.play(ORDERS, order(1, 1, "a"))
    place = order(9, 1, "gone").head.place
    (read,) = table.kept(ORDERS, ["note"])
    after = StoredRow((place.partition, place.offset), token_of("-", 9), "e9", place=place)
    stored = StoredRow(None, token_of("-", 1), read.event_id, place=order(1, 1, "a").head.place)
    for write in (Write(("1",), stored, after), Write(("2",), None, after)):
        with pytest.raises(Exception, match=r"orders.*a batch that was read again lacks row images"):
            table.write(write)
    assert table.rows("id", "note", deleted=True) == [(1, "a")]


def items_without_declared_columns_stay_json_when_columns_are_declared(table: CopyInTest) -> None:
    untyped = layout({"id": "string", "line": "N"}, None)
    item = {"id": {"S": "a"}, "line": {"N": "1"}, "total": {"N": "1.50"}}
    table.play(untyped, change(1, ["a", "1"], item), change(2, ["b", "1"], item))
    typed = layout({"id": "string", "line": "N"}, {"id": "string", "line": "long", "item": "string", "rest": "rest"})
    image = {"id": "b", "line": 1, "item": "mine", "rest": '{"total":{"N":"1.50"}}'}
    table.play({0: untyped, 1: typed}, change(3, ["b", "1"], image, layout=1))
    (a, b) = table.rows("id", "item", "column_item", "rest")
    assert (json.loads(a[1]), a[2:]) == (item, (None, None))
    assert b == ("b", None, "mine", '{"total":{"N":"1.50"}}')


def stubs_redrives_snapshots_and_truncations_are_applied(table: CopyInTest) -> None:
    """I7, I8"""
    stub = order(2, 1, None, operation=Operation.UPDATE, images=Images.OMITTED)
    assert table.play(ORDERS, order(1, 1, "a"), order(1, 2, "b", partition=1), stub).incomplete == 1
    assert table.rows("id", "note", "_relay_incomplete") == [(1, "a", True), (2, "b", False)]
    assert [(row.values, row.event_id) for row in table.kept(ORDERS, ["note"]) if row.incomplete] == [(("a",), "e2")]
    redriven = order(2, 1, "whole", attributes={REDRIVEN: "true"})
    assert table.play(ORDERS, redriven) == VerdictCounts(applied=1)
    assert table.play(ORDERS, redriven) == VerdictCounts(ignored=1)
    of_no_row = order(2, 7, "deleted since, and its tombstone collected", attributes={REDRIVEN: "true"})
    assert table.play(ORDERS, of_no_row) == VerdictCounts(ignored=1)
    assert table.rows("id", "note", "_relay_incomplete") == [(1, "whole", False), (2, "b", False)]
    begun = [mark(3, "begin", 5000), change(3, (), None, **vars_of_mark(5000))]
    table.play(ORDERS, *begun, read(4, ["3"], {"id": 3, "note": "c"}, 5001))
    table.play(ORDERS, mark(5, "end", 5000), partitions=2)
    assert table.rows("id", "note") == [(2, "b"), (3, "c")]  # the row of the other partition stays
    late = [
        read(number, [key], {"id": int(key), "note": "late"}, 4000, "abandoned") for number, key in ((6, "1"), (7, "9"))
    ]
    assert table.play(ORDERS, *late) == VerdictCounts(ignored=2)
    truncations = [change(9000, (), None, Operation.TRUNCATE, partition=partition) for partition in (0, 1)]
    table.play(ORDERS, *truncations)
    assert table.rows("id") == []


def a_table_that_is_truncated_shard_by_shard_is_empty(table: CopyInTest) -> None:
    """I7: of a row without a token, and of one from before a split, it is not known in which shard it is."""
    untold = [read(1, ["1"], {"id": 1, "note": "read"}, 1000), order(2, 2, "of the shard before a split")]
    table.play(ORDERS, *untold, order(3, 3, "of a shard", token=token_of("-80", 3)))
    for number, shard, left in ((500, "-80", [1, 2]), (600, "80-", [])):
        table.play(ORDERS, change(number, (), None, Operation.TRUNCATE, token=token_of(shard, number)))
        assert [row[0] for row in table.rows("id")] == left
    table.play(ORDERS, read(601, ["1"], {"id": 1, "note": "again"}, 1700), order(602, 2, "again"))
    table.play(ORDERS, change(603, (), None, Operation.TRUNCATE, token=token_of("80-", 900)))
    assert table.rows("id", "_relay_incomplete") == [(1, True), (2, True)]  # not truncated in the other shard since


def token_of(shard: str, number: int) -> EventToken:
    return EventToken(1000 + number, f"shop/shop/{shard}", f"MariaDB/0-1-{number}")


def vars_of_mark(as_of: int) -> dict[str, Any]:
    """Return what makes a change the beginning of the snapshot in the other partition."""
    begin = mark(3, "begin", as_of).head
    return {"operation": begin.operation, "token": None, "snapshot": begin.snapshot, "mark": "begin", "partition": 1}


def batches_of_any_size_applied_again_from_anywhere_end_as_one_pass(table: CopyInTest) -> None:
    """I7"""
    chance = random.Random(7)
    history = [order(n, chance.randint(1, 4), f"v{n}" if chance.random() < 0.7 else None) for n in range(1, 40)]
    reached = 0
    while reached < len(history):
        begin = chance.randint(0, reached)
        reached = chance.randint(reached + 1, min(len(history), reached + 15))
        table.play(ORDERS, *history[begin:reached])
    last = {each.head.key[0]: each.image for each in history}
    assert table.rows("id", "note") == sorted((int(key), image["note"]) for key, image in last.items() if image)


def items_are_taken_apart(table: CopyInTest, of_text: CopyInTest) -> None:
    """I8. ``table``: with ``items: variant``. ``of_text``: the same table with ``items: json``."""
    untyped = layout({"id": "string"}, None)
    item = {"id": {"S": "a"}, "total": {"N": "1.50"}, "deep": {"M": {"é": {"L": [{"B": "AP8="}, {"NULL": True}]}}}}
    table.play(untyped, change(1, ["a"], item), change(2, ["b"], item), change(3, ["c"], item))
    table.play(untyped, change(4, ["a"], item | {"total": {"N": "1E+100"}}), change(5, ["b"], None))
    table.play(untyped, change(6, ["c"], None, Operation.UPDATE, images=Images.OMITTED))
    read = {row.key: row for row in table.kept(untyped, [None])}
    assert {key[0]: row.incomplete for key, row in read.items()} == {"a": False, "c": True}
    assert json.loads((read["a",].values or ("",))[0]) == item | {"total": {"N": "1E+100"}}
    found = table.rows("id", "item")
    assert [json.loads(each) for _, each in found] == [item | {"total": {"N": "1E+100"}}, item]
    typed = layout({"id": "string"}, {"id": "string", "more": "json", "rest": "rest"})
    image = {"id": "d", "more": '{"SS":["b","a"]}', "rest": None}
    table.play({0: untyped, 1: typed}, change(7, ["d"], image, layout=1))
    assert table.rows("id", "item", "more", "rest")[2] == ("d", None, '{"SS":["b","a"]}', None)
    with pytest.raises(RelayError, match="change that back"):
        of_text.play(untyped, change(8, ["a"], item))


SCENARIOS: dict[str, Callable[[CopyInTest], None]] = {
    each.__name__: each
    for each in (
        rows_are_inserted_updated_and_deleted_with_their_tokens,
        values_are_exact,
        keys_of_every_type_are_found_again,
        rows_of_two_topics_of_the_table_have_their_own_values,
        a_new_column_is_added_and_a_dropped_one_stays,
        a_wider_column_is_widened,
        a_column_of_another_type_continues_beside_the_earlier_one,
        two_columns_are_never_one,
        columns_with_names_that_are_taken_have_others,
        a_key_called_item_is_beside_the_items,
        a_wider_key_is_widened_and_another_one_is_refused,
        changes_of_another_key_are_refused,
        rows_whose_image_is_gone_are_not_written,
        items_without_declared_columns_stay_json_when_columns_are_declared,
        stubs_redrives_snapshots_and_truncations_are_applied,
        a_table_that_is_truncated_shard_by_shard_is_empty,
        batches_of_any_size_applied_again_from_anywhere_end_as_one_pass,
    )
}

"""A row gives the same Avro bytes whether it is read through VStream or from the binlog below it (I8)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from relay.avro.encode import ChangeEncoder
from relay.avro.schema import change_schema
from relay.change import Change
from relay.gtid import parse
from relay.mysql.binlog.events import Commit, Rows, TransactionBegin
from relay.mysql_dialect.changes import TransactionChanges
from relay.services.vitess import Vitess, database
from relay.table import TableSchema
from tests import needs
from tests.mysql.reading import reading
from tests.vitess.reading import is_at_head, opened, until

pytestmark = pytest.mark.services

COLUMNS = {
    "tiny": ("tinyint unsigned", "255", "0"),
    "small": ("smallint", "-32768", "7"),
    "medium": ("mediumint unsigned", "16777215", "0"),
    "whole": ("int unsigned", "4294967295", "1"),
    "big": ("bigint", "-9223372036854775808", "0"),
    "biggest": ("bigint unsigned", "18446744073709551615", "5"),
    "filled": ("int(8) zerofill", "42", "0"),
    "exact": ("decimal(30,10)", "-12345678901234567890.0123456789", "0"),
    "finest": ("decimal(65,30)", "1.5", "-0.000000000000000000000000000001"),
    "single": ("float", "3.99", "-16777216"),
    "twice": ("double", "1e300", "0.1"),
    "day": ("date", "'0000-00-00'", "'2024-02-29'"),
    "instant": ("datetime(6)", "'2024-02-29 23:59:59.123456'", "'0000-00-00'"),
    "long_time": ("time(2)", "'-838:59:59'", "'00:00:00.01'"),
    "stamp": ("timestamp(3) null", "'2024-01-01 00:00:00.125'", "'0000-00-00'"),
    "in_year": ("year", "2024", "0"),
    "four": ("char(4)", "'a '", "''"),
    "name": ("varchar(300)", "'b  '", "repeat('é', 300)"),
    "prose": ("mediumtext", "'text 😀'", "''"),
    "western": ("varchar(20) character set latin1", "'café €'", "''"),
    "wide": ("text character set utf16", "'utf16 é'", "''"),
    "document": ("json", """'{"a": 1.50}'""", "'[]'"),
    "choice": ("enum('a','größer','x,y')", "'größer'", "'x,y'"),
    "several": ("set('x','y','z')", "'z,x'", "''"),
    "padded": ("binary(4)", "'ab'", "''"),
    "raw": ("varbinary(300)", "x'636400'", "''"),
    "blob": ("longblob", "x'00ff'", "''"),
    "bits": ("bit(9)", "b'101010101'", "b'0'"),
    "place": ("point", "point(1,2)", "point(0,0)"),
    "name_of": ("uuid", "'123e4567-e89b-12d3-a456-426655440000'", "'00000000-0000-0000-0000-000000000000'"),
    "address": ("inet6", "'::1'", "'ffff::'"),
    "nothing": ("varchar(5)", "null", "'some'"),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Vitess]:
    needs.vitess()
    columns = ", ".join(f"`{name}` {kind}" for name, (kind, _, _) in COLUMNS.items())
    table = f"create table types (a int, {columns}, b varchar(20), primary key (a, b))"
    unsharded = {"sharded": False, "tables": {"types": {}}}
    with Vitess(keyspaces={"one": ["0"]}, schemas={"one": (table, unsharded)}) as vitess:
        yield vitess


def encoded(table: TableSchema, change: Change) -> bytes:
    """Return the bytes of a change without the fields that say where it came from."""
    change.event_id, change.token, change.transaction = "", None, None
    change.source, change.committed_at = "s", 0
    return ChangeEncoder(change_schema(table), b"").encode(change)


def test_a_row_of_every_type_is_equal_in_every_byte(cluster: Vitess) -> None:
    below = database("one", "0")
    at = cluster.position
    firsts, seconds = (", ".join(column[n] for column in COLUMNS.values()) for n in (1, 2))
    with closing(cluster.mariadb.connect(database=below, autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute("set sql_mode = '', time_zone = '+00:00'")
        cursor.execute(f"insert into types values (1, {firsts}, 'k')")
        cursor.execute(f"insert into types values (2, {seconds}, 'k')")
        cursor.execute("update types set nothing = 'x' where a = 1")
        cursor.execute(f"insert into types values (3{', null' * len(COLUMNS)}, 'k')")
        cursor.execute("delete from types where a = 2")
    with opened(cluster.vtgate, {"gtid": at}, keyspace="one", tables=("types",)) as reader:
        pages = list(until(reader, is_at_head))
    streamed = [change for page in pages for change in page.changes]
    (table,) = {table for page in pages for table in page.tables}
    made = TransactionChanges("s", "s/k/0")
    with reading(cluster.mariadb, below, start=parse(at)) as stream:
        for event in stream.transactions():
            match event:
                case TransactionBegin():
                    made.begin(event.gtid, event.position, event.timestamp)
                case Rows():
                    assert (event.table.schema.row, event.table.schema.key) == (table.row, table.key)
                    for before, after in event.changes:
                        made.row_of(event.table)(event.table, before, after)
                case Commit():
                    made.end()
    logged = made.take()
    assert len(streamed) == len(logged) == 5
    for one, other in zip(streamed, logged, strict=True):
        assert (one.old, one.new) == (other.old, other.new)
        assert encoded(table, one) == encoded(table, other)

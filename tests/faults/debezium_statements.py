"""The statements that Debezium's connector and the relay read side by side: each type, and what is odd about it."""

from __future__ import annotations

TYPES = {
    "tiny": ("tinyint", "-5"),
    "tiny_unsigned": ("tinyint unsigned not null default 3", "250"),
    "bool": ("boolean", "1"),
    "small": ("smallint", "-300"),
    "small_unsigned": ("smallint unsigned", "60000"),
    "medium": ("mediumint", "-70000"),
    "medium_unsigned": ("mediumint unsigned", "16000000"),
    "whole": ("int not null", "-2000000000"),
    "whole_unsigned": ("int unsigned", "4000000000"),
    "big": ("bigint", "-9000000000000000000"),
    "big_unsigned": ("bigint unsigned", "9000000000000000000"),
    "amount": ("decimal(10,2)", "12.34"),
    "wide": ("decimal(50,10)", "1234567890123456789012345678901234567890.0123456789"),
    "single": ("float", "3.99"),
    "single_digits": ("float(7,3)", "1.234"),
    "ratio": ("double", "2.5"),
    "ratio_digits": ("double(10,3)", "12.345"),
    "day": ("date", "'2024-02-29'"),
    "datetime0": ("datetime", "'2024-02-29 12:13:14'"),
    "datetime3": ("datetime(3)", "'2024-02-29 12:13:14.123'"),
    "datetime6": ("datetime(6)", "'2024-02-29 12:13:14.123456'"),
    "timestamp0": ("timestamp null default null", "'2024-02-29 12:13:14'"),
    "timestamp3": ("timestamp(3) null default null", "'2024-02-29 12:13:14.120'"),
    "timestamp6": ("timestamp(6) null default null", "'2024-02-29 12:13:14.123456'"),
    "time0": ("time", "'12:13:14'"),
    "time3": ("time(3)", "'-12:13:14.123'"),
    "time6": ("time(6)", "'838:59:59.000001'"),
    "year": ("year", "2024"),
    "char": ("char(5)", "'ab'"),
    "varchar": ("varchar(20)", "'héllo'"),
    "varchar_default": ("varchar(20) default 'x'", "'y'"),
    "text": ("longtext", "'text'"),
    "json": ("json", "'{\"a\": [1, 2.50]}'"),
    "enum": ("enum('a','b','d\\'e')", "'b'"),
    "enum_comma": ("enum('a','b,c')", "'b,c'"),
    "set": ("set('x','y','z')", "'x,z'"),
    "binary": ("binary(4)", "'ab'"),
    "varbinary": ("varbinary(10)", "x'00ff'"),
    "blob": ("blob", "x'0102'"),
    "bit1": ("bit(1)", "b'1'"),
    "bit5": ("bit(5)", "b'10101'"),
    "bit16": ("bit(16)", "b'1010101000000001'"),
    "point": ("point", "ST_GeomFromText('POINT(1 2)', 4326)"),
    "line": ("linestring", "ST_GeomFromText('LINESTRING(0 0,1 1)')"),
    "uuid": ("uuid", "'123e4567-e89b-12d3-a456-426655440000'"),
}
"""By column, its definition and a value."""

_COLUMNS = ", ".join(f"`{name}` {defined}" for name, (defined, _) in TYPES.items())
_NAMES = ", ".join(f"`{name}`" for name in TYPES)
_VALUES = ", ".join(value for _, value in TYPES.values())
_INSERT = f"insert into types (id, {_NAMES}) values"

DEFINED = (
    f"create table types (id int not null, {_COLUMNS}, primary key (id))",
    "create table pairs (a varchar(10) not null, `b-c` decimal(6,2) not null, d datetime(3) not null, v int,"
    " primary key (a, `b-c`, d))",
)
BEFORE = f"{_INSERT} (1, {_VALUES})"
"""A row for Debezium's snapshot. The relay starts before it."""

AFTER = (
    f"{_INSERT} (2, {_VALUES})",
    "update types set whole = 7 where id = 2",
    "insert into types (id, day, datetime0, datetime6) values (3, '0000-00-00', '2024-00-10', '9999-12-31 23:59:59.5')",
    "insert into types (id, timestamp0, year, `enum`) values (4, '0000-00-00', 0, 'no member')",
    "insert into types (id, datetime6) values (5, '0001-01-01 00:00:00')",
    "insert into types (id, big_unsigned) values (6, 18446744073709551615)",
    "insert into pairs values ('k', 1.50, '2024-01-01 00:00:00.5', 1)",
    "update pairs set a = 'k2' where a = 'k'",
    "delete from pairs",
    "insert into pairs values ('z', 1.50, '2024-01-01 00:00:00.5', 1), ('y', 2, '2024-01-01 00:00:00.5', 1)",
    "truncate table pairs",
    "alter table pairs add column w smallint not null default 5",
    "insert into pairs values ('x', 1.50, '2024-01-01 00:00:00.5', 1, 8)",
)
"""Statements, each in a transaction of its own."""

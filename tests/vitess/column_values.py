"""Columns of every type that Vitess reads from MariaDB."""

from __future__ import annotations

from decimal import Decimal

COLUMNS = {
    "tiny": ("tinyint", "-128", -128),
    "small": ("smallint unsigned", "65535", 65535),
    "medium": ("mediumint", "-8388608", -8388608),
    "whole": ("int unsigned", "4294967295", 4294967295),
    "big": ("bigint unsigned", "18446744073709551615", 18446744073709551615),
    "filled": ("int(8) zerofill", "42", 42),
    "exact": ("decimal(30,10)", "-12345678901234567890.0123456789", Decimal("-12345678901234567890.0123456789")),
    "cents": ("decimal(12,2)", "0.05", Decimal("0.05")),
    "finest": ("decimal(65,30)", "1.5", Decimal("1.500000000000000000000000000000")),
    "twice": ("double", "1e300", 1e300),
    "tenth": ("double", "0.1", 0.1),
    "day": ("date", "'0000-00-00'", "0000-00-00"),
    "instant": ("datetime(6)", "'2024-02-29 23:59:59.123456'", "2024-02-29 23:59:59.123456"),
    "long_time": ("time(2)", "'-838:59:59'", "-838:59:59.00"),
    "stamp": ("timestamp(3) null", "'2024-01-01 00:00:00.125'", 1704067200125000),
    "no_stamp": ("timestamp null", "'0000-00-00'", 0),
    "in_year": ("year", "2024", 2024),
    "four": ("char(4)", "'a'", "a"),
    "binary_text": ("char(4) character set utf8mb4 collate utf8mb4_bin", "'a'", "a"),
    "name": ("varchar(20)", "'b  '", "b  "),
    "prose": ("text", "'text é'", "text é"),
    "western": ("varchar(20) character set latin1", "'café €'", "café €"),
    "wide": ("text character set utf16", "'utf16 é'", "utf16 é"),
    "eastern": ("varchar(20) character set sjis", "'表'", "表"),
    "document": ("json", """'{"a": 1.50}'""", '{"a": 1.50}'),
    "choice": (r"enum('a','b\\c','it''s','é')", r"'b\\c'", "b\\c"),
    "latin_choice": ("enum('café','b') character set latin1", "'café'", "café"),
    "several": ("set('x','y','z')", "'x,z'", ["x", "z"]),
    "padded": ("binary(4)", "'ab'", b"ab\0\0"),
    "raw": ("varbinary(10)", "x'636400'", b"cd\0"),
    "blob": ("longblob", "x'00ff'", b"\0\xff"),
    "bits": ("bit(9)", "b'101010101'", b"\x01\x55"),
    "place": ("point", "point(1,2)", bytes.fromhex("000000000101000000000000000000f03f0000000000000040")),
    "name_of": ("uuid", "'123e4567-e89b-12d3-a456-426655440000'", bytes.fromhex("123e4567e89b12d3a456426655440000")),
    "old_name": ("uuid", "'6ccd780c-baba-1026-9564-5b8c656024db'", bytes.fromhex("6ccd780cbaba102695645b8c656024db")),
    "address": ("inet6", "'::1'", bytes(15) + b"\x01"),
    "short_address": ("inet4", "'10.0.0.0'", b"\x0a\0\0\0"),
    "nothing": ("varchar(5)", "null", None),
}
"""By name: the type, a value as SQL, and what a change has for it."""

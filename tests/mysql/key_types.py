"""Primary keys of every type that rows are found by, with rows."""

from __future__ import annotations

KEYS = {
    "whole": ("a int", "(-5),(0),(7),(2147483647),(-2147483648)"),
    "unsigned": ("a bigint unsigned", "(0),(18446744073709551615),(9223372036854775808),(3)"),
    "exact": ("a decimal(30,10)", "(-12345678901234567890.0123456789),(0),(0.0000000001),(5)"),
    "double": ("a double", "(-1e300),(0.1),(0.30000000000000004),(0.3),(1e-300)"),
    "single": ("a float", "(3.99),(-16777217),(0.1),(1e-30)"),
    "text": ("a varchar(20)", "('a'),('B'),('c'),('é'),(''),('😀'),('it''s')"),
    "western": ("a varchar(20) character set latin1 collate latin1_german2_ci", "('z'),('ä'),('Z2'),('€'),('ß')"),
    "wide": ("a varchar(20) character set utf16", "('z'),('ä'),('😀'),('')"),
    "exact_text": ("a varchar(20) collate utf8mb4_bin", "('a'),('A'),('b'),('B'),(' a')"),
    "bytes": ("a varbinary(20)", "(''),(x'00'),(x'0000'),(x'ff27'),(x'5c')"),
    "padded": ("a binary(3)", "(''),(x'00ff'),('a')"),
    "bits": ("a bit(9)", "(b'0'),(b'111111111'),(b'100000000'),(b'1')"),
    "day": ("a date", "('0000-00-00'),('2024-02-29'),('9999-12-31')"),
    "moment": ("a datetime(6)", "('0000-00-00'),('2024-02-29 23:59:59.000001'),('2024-02-29 23:59:59')"),
    "clock": ("a time(2)", "('-838:59:58.5'),('-00:00:00.01'),('00:00:00'),('838:00:00')"),
    "instant": ("a timestamp(3)", "('0000-00-00'),('2024-01-01 00:00:00.125'),('2024-01-01 00:00:00')"),
    "in_year": ("a year", "(0),(1901),(2155)"),
    "choice": ("a enum('z','a','m')", "('z'),('a'),('m')"),
    "several": ("a set('z','a','m')", "(''),('z'),('a'),('z,m'),('z,a,m')"),
    "pair": ("a varchar(5), b int", "('x',1),('x',2),('X2',-1),('y',1),('y',5),('y',7)"),
    "mixed": ("a datetime, b binary(2), c int", "(1,'a',1),('2024-01-01','b',2),('2024-01-01','b',-3),(1,'a',9)"),
}
"""The columns of a key, and rows."""

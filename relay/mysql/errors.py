"""Errors of servers and binlogs, by what helps: waiting, another server, or a person; made of what PyMySQL raises."""

import struct

import pymysql

from relay.errors import RelayError, Unavailable


class Interrupted(Unavailable):
    """The connection was lost or could not be made. This may pass by itself."""


class Closed(Interrupted):
    """The reader was closed by another thread."""


class Denied(Unavailable):
    """The server refuses: a wrong password, a missing privilege, a setting that the relay cannot work with."""


class NoTable(Unavailable):
    """The server has no such table, or database."""


class BinlogPurged(Unavailable):
    """The server no longer has the binlogs after the position. Another server may have them."""


class Diverged(Unavailable):
    """The position contains transactions that the server lacks: it is behind, or its history is another one."""


class NotCarried(RelayError):
    """An event that cannot become changes without losing or inventing some (I8). Names table and position."""


_DENIED = frozenset(
    {1044, 1045, 1130, 1142, 1227, 1251, 1698, 1820, 1862, 1873, 2049, 2054, 2059, 2061, 3118, 3159, 4151}
)
_TRANSIENT = frozenset({1040, 1053, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1205, 1226, 1290, 1317, 1927})
_NO_TABLE = frozenset({1049, 1146})
_BINLOG = 1236
_NOT_LOGGING = 1381
# How servers refuse a position that is not in their history; the second one refuses a hole in it.
_DIVERGED = ("not in the master's binlog", "is missing the gtid", "more gtids than", "gtid_strict_mode")

FAULTS = (
    pymysql.err.MySQLError,
    OSError,
    RuntimeError,
    # What PyMySQL raises where an answer is damaged.
    AssertionError,
    LookupError,
    TypeError,
    ValueError,
    struct.error,
)
"""What PyMySQL raises. `translated` makes errors of the relay of them."""


def translated(fault: Exception, address: str) -> RelayError:
    """Return the error to raise for what PyMySQL raised."""
    if isinstance(fault, pymysql.err.MySQLError) and fault.args and isinstance(fault.args[0], int):
        return refusal(fault.args[0], str(fault.args[1]) if len(fault.args) > 1 else "", address)
    if isinstance(fault, RuntimeError):
        # PyMySQL raises it when an optional package is missing.
        return Denied(f"{address}: {fault}")
    if not isinstance(fault, (pymysql.err.MySQLError, OSError)):
        # Not its repr: a UnicodeError's shows what could not be decoded, which may be a protected value.
        what = f"{type(fault).__name__}: {fault}"
        return Interrupted(f"{address}: its answer is not in MySQL's protocol: check host and port ({what})")
    return Interrupted(f"{address}: {fault or type(fault).__name__}")


def refusal(code: int, text: str, address: str) -> RelayError:
    """Return the error to raise for an error of a server."""
    message = f"{address}: {text} ({code})"
    if code in _DENIED:
        needs = ": the user needs REPLICATION SLAVE and REPLICATION CLIENT, in MariaDB also SLAVE MONITOR"
        return Denied(message + (needs if code == 1227 else ""))
    if code in _TRANSIENT or 2000 <= code < 2049:
        return Interrupted(message)
    if code in _NO_TABLE:
        return NoTable(message)
    if code == _NOT_LOGGING:
        return Denied(f"{message}: set `log_bin` in the server's configuration file and restart it")
    if code != _BINLOG:
        return Unavailable(message)
    lower = text.lower()
    if "same server_uuid" in lower or "same server_id" in lower or "same server id" in lower:
        return Interrupted(message)
    if any(each in lower for each in _DIVERGED):
        return Diverged(message)
    if "purged" in lower or "could not find first log" in lower or "could not find gtid state" in lower:
        return BinlogPurged(message)
    return Unavailable(message)

"""Errors of servers and binlogs, by the remedy: waiting, another server, or a person. Made from PyMySQL's errors."""

import struct

import pymysql

from relay.errors import RelayError, Unavailable


class Interrupted(Unavailable):
    """The connection was lost or could not be made. This may pass by itself."""


class Closed(Interrupted):
    """The reader was closed by another thread."""


class Denied(Unavailable):
    """The server refuses: a wrong password, a missing privilege, or a setting with which the relay cannot work."""


class NoTable(Unavailable):
    """The server has no such table, or database."""


class BinlogPurged(Unavailable):
    """The server no longer has the binlogs after the position. Another server may have them."""


class Diverged(Unavailable):
    """The position contains transactions that the server lacks: it is behind, or its history differs."""


class NotCarried(RelayError):
    """An event that cannot become changes without losing or inventing some (I8). Names table and position."""


_NO_PRIVILEGE, _NOT_LOGGING, _BINLOG = 1227, 1381, 1236
_BY_CODE: dict[int, type[Unavailable]] = {
    **dict.fromkeys((1044, 1045, 1130, 1142, _NO_PRIVILEGE, 1251, _NOT_LOGGING, 1698, 1820, 1862, 1873), Denied),
    **dict.fromkeys((2049, 2054, 2059, 2061, 3118, 3159, 4151), Denied),
    **dict.fromkeys((1040, 1053, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1205, 1226, 1290, 1317, 1927), Interrupted),
    **dict.fromkeys((1049, 1146), NoTable),
}
# A server's messages about a position, with the code `_BINLOG`, in lower case.
_BY_TEXT: tuple[tuple[tuple[str, ...], type[Unavailable]], ...] = (
    (("same server_uuid", "same server_id", "same server id"), Interrupted),
    # The position is not in the server's history; the second message reports a hole in it.
    (("not in the master's binlog", "is missing the gtid", "more gtids than", "gtid_strict_mode"), Diverged),
    (("purged", "could not find first log", "could not find gtid state"), BinlogPurged),
)
_ADVICE = {
    _NO_PRIVILEGE: "the user needs REPLICATION SLAVE and REPLICATION CLIENT, in MariaDB also SLAVE MONITOR",
    _NOT_LOGGING: "set `log_bin` in the server's configuration file and restart it",
}

_DAMAGED = (AssertionError, LookupError, TypeError, ValueError, struct.error)  # what damaged answers raise in PyMySQL
FAULTS = (pymysql.err.MySQLError, OSError, RuntimeError, *_DAMAGED)
"""The errors that PyMySQL raises; `translated` turns them into the relay's."""


def translated(fault: Exception, address: str) -> RelayError:
    """Return the relay's error for one that PyMySQL raised."""
    if isinstance(fault, pymysql.err.MySQLError) and fault.args and isinstance(fault.args[0], int):
        return refusal(fault.args[0], str(fault.args[1]) if len(fault.args) > 1 else "", address)
    if isinstance(fault, RuntimeError):
        # PyMySQL raises it when an optional package is missing.
        return Denied(f"{address}: {fault}")
    if not isinstance(fault, (pymysql.err.MySQLError, OSError)):
        # Not its repr: a UnicodeError's shows the bytes that could not be decoded, which may be a protected value.
        what = f"{type(fault).__name__}: {fault}"
        return Interrupted(f"{address}: its answer is not in MySQL's protocol: check host and port ({what})")
    return Interrupted(f"{address}: {fault or type(fault).__name__}")


def refusal(code: int, text: str, address: str) -> RelayError:
    """Return the error to raise for a server's error."""
    message = f"{address}: {text} ({code})"
    if code in _ADVICE:
        message += f": {_ADVICE[code]}"
    if code == _BINLOG:
        lower = text.lower()
        found = (error for texts, error in _BY_TEXT if any(each in lower for each in texts))
        return next(found, Unavailable)(message)
    return _BY_CODE.get(code, Interrupted if 2000 <= code < 2049 else Unavailable)(message)

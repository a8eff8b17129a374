"""Errors of servers and binlogs, by what helps: waiting, another server, or a person."""

from __future__ import annotations

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

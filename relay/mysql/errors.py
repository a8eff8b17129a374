"""What goes wrong with a server and its binlog, told apart by what helps: waiting, another server, or a person."""

from __future__ import annotations

from relay.errors import RelayError, Unavailable


class Interrupted(Unavailable):
    """The connection was lost or could not be made. It may pass by itself."""


class Closed(Interrupted):
    """The reader was closed by another thread."""


class Denied(Unavailable):
    """The server answers and refuses: wrong password, a privilege that is missing, a setting that does not fit."""


class BinlogPurged(Unavailable):
    """The server does not have the binlogs any more that the position needs. Another server may have them."""


class Diverged(Unavailable):
    """The position holds transactions that the server has not: it is behind, or has gone another way."""


class NotCarried(RelayError):
    """An event that cannot be turned into changes without losing or inventing some: it names table and position."""


class IncidentEvent(NotCarried):
    """The server itself says that changes may be missing from its binlog at this place."""

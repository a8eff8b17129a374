"""Errors a user sees, each with the exit code of the command it ends.

Raise one of these with a message that names the file, line, key, shard or position and says what to do;
the command line prints the message without a traceback.
"""

from __future__ import annotations


class RelayError(Exception):
    """Failed while running. The message is for the user."""

    exit_code = 1


class ConfigError(RelayError):
    """Wrong arguments or configuration, found without a connection; or a changed ``start``."""

    exit_code = 2


class Unavailable(RelayError):
    """Something the command needs is unreachable, unauthorised, missing or disabled."""

    exit_code = 3


class StreamGone(Unavailable):
    """The source says that a stream it had does not exist, or not any more."""


class CheckFailed(RelayError):
    """A data check did not hold."""

    exit_code = 4


class NotDrained(RelayError):
    """A stop was asked for, and what was open could not be brought to an end. Nothing is lost by it."""

    exit_code = 143

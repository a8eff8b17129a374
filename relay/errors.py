"""Errors that users see, each with the exit code of the command that it ends.

The message says what is wrong, where and what to do. Commands in it say CONFIG for the file, whose name only the
command line knows.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Self


class RelayError(Exception):
    """The command failed while it was running."""

    exit_code = 1
    file = "CONFIG"
    source: str | None = None
    """The name of the source that has the fault, if it affects only this source."""

    def __str__(self) -> str:
        return with_file(super().__str__())

    def kept(self) -> Self:
        """Return this error without its traceback and causes: their frames hold Kafka clients and pages."""
        self.__traceback__ = self.__cause__ = self.__context__ = None  # I11
        return self


@contextmanager
def fault_of(source: str) -> Iterator[None]:
    """Limit an error that is raised inside to ``source``: it stops only this source (I12)."""
    try:
        yield
    except RelayError as error:
        error.source = source
        raise


def with_file(message: str) -> str:
    """Return a message whose commands name the config of this process."""
    return message.replace(" CONFIG", f" {RelayError.file}")


class ConfigError(RelayError):
    """The arguments or the config are wrong, or a setting changed that must not change while the relay has state."""

    exit_code = 2


class Unavailable(RelayError):
    """Something that the command needs cannot be reached, refuses access, is missing or is disabled."""

    exit_code = 3


class NoAnswer(Unavailable):
    """A service does not answer now, but may answer later."""


def group_refused(group: str) -> Unavailable:
    """Return the error to raise when a broker does not let this user read as a member of the consumer ``group``."""
    return Unavailable(
        f"this user may not use the consumer group {group}: allow Read on it, and on the other groups whose names "
        "begin with the relay's name"
    )


def checkpoints_deleted(topic: str) -> Unavailable:
    """Return the error to raise in a running relay whose topic of checkpoints was deleted."""
    return Unavailable(
        f"topic {topic} was deleted while the relay ran, and with it the record of how far each source is published. "
        "Restore it; or stop all workers and accept the loss with `relay reset CONFIG --lost-state`, which begins "
        "where `start` says and publishes a gap"
    )


class MissingExtra(Unavailable, ModuleNotFoundError):
    """A package that only an extra of the distribution installs is not installed."""


class StoreFull(Unavailable):
    """A cache server refuses some writes, but still answers reads and deletes.

    ``refused``: keys without room, which keep their old value or have none. ``conflicts``: keys that another program
    wrote.
    """

    def __init__(self, problem: str, refused: Collection[str], conflicts: Mapping[str, bytes | None]) -> None:
        super().__init__(problem)
        self.refused = refused
        self.conflicts = dict(conflicts)


class StreamGone(Unavailable):
    """The source reports that the stream does not exist or was deleted."""


class CheckFailed(RelayError):
    """A data check failed."""

    exit_code = 4


class NotDrained(RelayError):
    """SIGTERM ended `relay run` with transactions open, or ended `relay replay` early. No data is lost."""

    exit_code = 143

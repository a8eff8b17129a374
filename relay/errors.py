"""Errors that users see, each with the exit code of the command that it ends.

The message says what is wrong, where (file, line, key, shard, position) and what to do. The command line prints it
without a traceback. Commands in messages have CONFIG for the file, whose name only the command line knows.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Self


class RelayError(Exception):
    """The command failed while it was running."""

    exit_code = 1
    file = "CONFIG"
    source: str | None = None
    """The source that has the fault, if no other has it."""

    def __str__(self) -> str:
        return with_file(super().__str__())

    def kept(self) -> Self:
        """Return it without where it was raised: those frames have clients of Kafka, and pages."""
        self.__traceback__ = self.__cause__ = self.__context__ = None  # I11
        return self


@contextmanager
def fault_of(source: str) -> Iterator[None]:
    """What is raised here stops only ``source`` (I12)."""
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
    """Something does not answer now, and may later."""


def group_refused(group: str) -> Unavailable:
    """Return what to raise where a broker does not let this user read as a consumer ``group``."""
    return Unavailable(
        f"this user may not use the consumer group {group}: allow Read on it, and on the other groups whose names "
        "begin with the relay's name"
    )


def checkpoints_deleted(topic: str) -> Unavailable:
    """Return what to raise in a running relay whose topic of checkpoints is gone."""
    return Unavailable(
        f"topic {topic} was deleted while the relay ran, and with it how far each source is published. Restore it; or "
        "stop all workers and accept the loss with `relay reset CONFIG --lost-state`, which begins where `start` says "
        "and publishes a gap"
    )


class MissingExtra(Unavailable, ModuleNotFoundError):
    """A package that only an extra of the distribution installs is not installed."""


class StoreFull(Unavailable):
    """A server of a cache does not take some writes, and goes on answering reads and deleting.

    It has no room for them, or another program has written to their keys.

    ``refused``: the keys of those writes, which left what was there or nothing. ``conflicts``: the others'.
    """

    def __init__(self, problem: str, refused: Collection[str], conflicts: Mapping[str, bytes | None]) -> None:
        super().__init__(problem)
        self.refused = refused
        self.conflicts = dict(conflicts)


class StreamGone(Unavailable):
    """The source reports that the stream does not exist, or no longer does."""


class CheckFailed(RelayError):
    """A data check failed."""

    exit_code = 4


class NotDrained(RelayError):
    """SIGTERM before the end, of `relay run` with open transactions or of `relay replay`. No data is lost."""

    exit_code = 143

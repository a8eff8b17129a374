"""Where the copy and the log are; ``copy_target`` and ``log_target`` choose by the scheme in the config.

Targets import Spark where they need it: ``relay check`` runs without it, and ``relay verify`` may.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from relay.config import Config, CopyConfig, LogConfig
from relay.config.addresses import ICEBERG, POSTGRES
from spark_consumers.kept_rows import OpenKeptRows
from spark_consumers.locations import Lock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_consumers.sinks.log_table import LogTable
    from spark_consumers.sinks.target import TargetTable

NOTE = "_relay_applied.json"
"""The file, or the property, that says how much of the topics is applied (`spark_consumers.applied_notes`)."""

Renames = Sequence[tuple[str, str]]
"""What a swap renames, in its order, each from and to."""


class ReplayPlace(Protocol):
    """Where the tables of a replay are, and how they take the place of the ``present`` ones, at another location."""

    location: str | None = None
    """The location of the files of its tables, which are in Delta; None in a database."""

    def change_note(self, session: SparkSession, room: str, rule: Callable[[str], str]) -> str:
        """Replace the note of a source, or of the log (""), with what ``rule`` returns for it, and return that."""

    def content(self, session: SparkSession) -> str | None:
        """Say what is in the way at a place that a replay would write to; return None if nothing is."""

    def refuse_swap(self, present: str) -> None:
        """Raise ``ConfigError`` if they cannot change places safely."""

    def locks(self, present: str) -> list[Lock]:
        """Return what keeps other writers out while they change places."""
        return []

    def renames(self, present: str, stamp: str) -> Renames:
        """Return what a swap is to rename, to be written down before; empty if it is one transaction."""
        return ()

    def swap(self, stamp: str, renames: Renames) -> None:
        """Let the two change places. The call may be repeated if it was cut off. Raises ``Unavailable``."""

    def kept(self, stamp: str, renames: Renames) -> list[str]:
        """Return where the present tables are after a swap."""
        return []


class CopyTarget(ReplayPlace, Protocol):
    """The place of a copy, which is created from a config and its section ``copy``. Methods raise ``Unavailable``."""

    def open(self) -> Callable[[str, str], TargetTable]:
        """Connect, and return what opens the table of a source and table."""

    def check(self, *, offline: bool) -> str:
        """Say that a copy can be kept here, or that it may be, as far as that shows without a connection."""

    def kept_rows(self, config: Config) -> AbstractContextManager[OpenKeptRows]:
        """Open the rows of the copy, to be compared."""


class LogTarget(ReplayPlace, Protocol):
    """The place of a log, which is created from a config and its section ``log``."""

    def open(self, *, writes: bool = False) -> LogTable:
        """Return its table, which need not exist. ``writes``: whether it is a consumer that asks."""

    def check(self) -> str:
        """Say that a log can be kept here, or that it may be, as far as that shows without a connection."""


def copy_target(config: Config, copy: CopyConfig, prefix: str = "") -> CopyTarget:
    """Return the target at ``copy.url``. ``prefix``: begins schema names, for a replay into a database."""
    if copy.url.partition(":")[0] in POSTGRES:
        from spark_consumers.sinks.postgres_target import PostgresTarget

        return PostgresTarget(config, copy, prefix)
    if copy.url.startswith(f"{ICEBERG}:"):
        from spark_consumers.sinks.iceberg_target import IcebergTarget

        return IcebergTarget(config, copy)
    from spark_consumers.sinks.delta_target import DeltaTarget

    return DeltaTarget(copy)


def log_target(config: Config, log: LogConfig, keyrange: str = "") -> LogTarget:
    """Return the target at ``log.path``, for one ``keyrange`` if that is given. Raises ``ConfigError``."""
    if log.path.startswith(f"{ICEBERG}:"):
        from spark_consumers.sinks.iceberg_target import IcebergLogTarget

        return IcebergLogTarget(config, log, keyrange)
    from spark_consumers.sinks.delta_target import DeltaLogTarget

    return DeltaLogTarget(log, keyrange)

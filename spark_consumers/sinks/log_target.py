"""Where the change log is; ``log_target`` chooses by the scheme of ``log.path``. Imports Spark where it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from relay.config import Config, LogConfig
from relay.config.addresses import ICEBERG
from spark_consumers.sinks.copy_target import ReplayPlace

if TYPE_CHECKING:
    from spark_consumers.sinks.log_table import LogTable


class LogTarget(ReplayPlace, Protocol):
    """The place of a log, which is created from a config and its section ``log``."""

    def open(self, *, writes: bool = False) -> LogTable:
        """Return its table, which need not exist. ``writes``: whether it is a consumer that asks."""

    def check(self) -> str:
        """Say that a log can be kept here, or that it may be, as far as that shows without a connection."""


def log_target(config: Config, log: LogConfig, keyrange: str = "") -> LogTarget:
    """Return the target at ``log.path``, for one ``keyrange`` if that is given. Raises ``ConfigError``."""
    if log.path.startswith(f"{ICEBERG}:"):
        from spark_consumers.sinks.iceberg_target import IcebergLogTarget

        return IcebergLogTarget(config, log, keyrange)
    from spark_consumers.sinks.delta_target import DeltaLogTarget

    return DeltaLogTarget(log, keyrange)

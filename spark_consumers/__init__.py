"""The Spark consumers of the relay's topics: cache invalidation, change log, and a copy of the tables.

``run`` runs one, as ``relay consume`` does. PySpark is imported only then.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from relay.errors import ConfigError
from relay.extras import needs

if TYPE_CHECKING:
    from relay.config import Config
    from spark_consumers.runner import Consumer

__all__ = ["run"]


def run(
    kind: Literal["cache", "log", "copy"],
    config: Config,
    *,
    until_caught_up: bool = False,
    start: str | None = None,
    checkpoint: Path | None = None,
) -> None:
    """Run one consumer until SIGTERM (returns) or SIGINT (raises ``KeyboardInterrupt``).

    ``until_caught_up``: return once everything that was on Kafka at the start is applied. ``start``: where a new
    checkpoint starts: earliest (the default), latest, committed, an ISO time, or offsets as JSON. ``checkpoint``: the
    folder in which the consumer stores its progress. Raises ``RelayError``. Call it from the main thread.
    """
    with needs("spark", f"`relay consume {kind}`"):
        from spark_consumers import runner
    runner.run(_consumer(kind, config), config, until_caught_up=until_caught_up, start=start, checkpoint=checkpoint)


def _consumer(kind: str, config: Config) -> Consumer:
    if kind == "cache" and config.cache is not None:
        from spark_consumers.invalidate import CacheConsumer

        return CacheConsumer(config, config.cache)
    if kind == "log" and config.log is not None:
        from spark_consumers.change_log import log_consumer

        return log_consumer(config, config.log)
    if kind == "copy" and config.copy_ is not None:
        from spark_consumers.copy import copy_consumer

        return copy_consumer(config, config.copy_)
    raise ConfigError(f"the config has no `{kind}:` section: add one to run this consumer")

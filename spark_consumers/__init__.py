"""The consumers of the relay's topics, run by ``run`` as by ``relay consume``, and functions for your own Spark jobs.

PySpark is imported only when it is needed, so not for the cache without Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from relay.errors import ConfigError
from relay.extras import lazily, needs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from relay.config import Config
    from spark_consumers.change_stream import ChangeStream, changes
    from spark_consumers.consumer import Consumer
    from spark_consumers.frames import apply_in_order, read_changes
    from spark_consumers.log_sql import log_views
    from spark_consumers.session import close_session, open_session

__all__ = [
    "ChangeStream",
    "apply_in_order",
    "changes",
    "close_session",
    "log_views",
    "open_session",
    "read_changes",
    "run",
]

if not TYPE_CHECKING:  # without this check, a type checker would accept any name
    __getattr__ = lazily(
        __name__,
        {
            "spark_consumers.change_stream": "ChangeStream changes",
            "spark_consumers.frames": "apply_in_order read_changes",
            "spark_consumers.log_sql": "log_views",
            "spark_consumers.session": "close_session open_session",
        },
        extra="spark",
    )

T = TypeVar("T")

Kind = Literal["cache", "log", "copy"]


def run(
    kinds: Kind | Sequence[Kind],
    config: Config,
    *,
    until_caught_up: bool = False,
    start: str | None = None,
    checkpoint: Path | str | None = None,
    engine: Literal["spark", "python"] = "spark",
    spark: SparkSession | None = None,
    http: str | None = None,
    keyrange: str | None = None,
) -> None:
    """Run one consumer, or several in one Spark, until SIGTERM (returns) or SIGINT (raises ``KeyboardInterrupt``).

    ``until_caught_up``: return once everything that was on Kafka at the start is applied. ``start``: where a new
    checkpoint starts: earliest (the default), latest, committed, committed:GROUP, an ISO time, a relative time such
    as ``-2h``, or offsets as JSON. ``checkpoint``: the folder in which the consumer stores its progress, as a path or a
    URI; several consumers each use a folder inside it. ``engine``: ``python`` runs the cache in this process, with its
    progress in the Kafka group and without Spark. ``spark``: the session to use, unchanged; without it, the Spark of
    this process, or one started as ``spark:`` in the config says. ``http``: where to serve ``/metrics`` and
    ``/healthz``, such as ``127.0.0.1:9410``. ``keyrange``: only for the log, which then has only the changes whose
    keyspace id is in the range. Its folder, checkpoint and group have the range at the end of their names. Raises
    ``RelayError``. Call it from the main thread.
    """
    wanted: Sequence[Kind] = [kinds] if isinstance(kinds, str) else list(dict.fromkeys(kinds))
    check_arguments(wanted, start=start, checkpoint=checkpoint, engine=engine, http=http, keyrange=keyrange)
    for source in config.sources:
        if not source.names_tables:  # I1: none of its topics would be read
            raise ConfigError(
                f"source {source.name}: its tables are not known: list them in `tables`; or, once the database has "
                "tables, run `relay consume`, which looks them up"
            )
    if engine == "python":
        if spark is not None:
            raise ConfigError("engine='python' runs without Spark: omit `spark`")
        from spark_consumers import python_engine

        python_engine.run(
            config, _section(config.cache, "cache"), until_caught_up=until_caught_up, start=start, http=http
        )
        return
    with needs("spark", f"`relay consume {' '.join(wanted)}`"):
        from spark_consumers import launch
    consumers = [_consumer(kind, config, keyrange) for kind in wanted]
    launch.run(
        consumers, config, until_caught_up=until_caught_up, start=start, checkpoint=checkpoint, session=spark, http=http
    )


def check_arguments(
    kinds: Sequence[Kind],
    *,
    start: str | None,
    checkpoint: Path | str | None,
    engine: Literal["spark", "python"],
    http: str | None,
    keyrange: str | None,
) -> None:
    """Raise ``ConfigError`` for arguments of ``run`` that are wrong whatever is on Kafka. Connects to nothing."""
    wanted = list(dict.fromkeys(kinds))
    if engine == "python" and wanted != ["cache"]:
        raise ConfigError(f"--engine python: only the cache runs without Spark, not the {' and the '.join(wanted)}")
    if engine == "python" and checkpoint is not None:
        raise ConfigError(
            "--checkpoint: without Spark, progress is kept in the offsets of the Kafka group: omit this option"
        )
    for kind in wanted if keyrange is not None else ():
        if kind != "log":
            would = "serve the other rows as they were" if kind == "cache" else "lack the other rows of its tables"
            raise ConfigError(f"--keyrange: only the log can be limited to a key range: a {kind} would {would}")
    if start is not None:
        from relay.kafka.group_offsets import check_start

        check_start(start)
    if http is not None:
        from relay.config.addresses import host_port

        try:
            host_port(http)
        except ValueError as error:
            raise ConfigError(f"--http: {error}") from None


def _consumer(kind: str, config: Config, keyrange: str | None) -> Consumer:
    if kind == "cache":
        from spark_consumers.invalidate import CacheConsumer

        return CacheConsumer(config, _section(config.cache, kind))
    if kind == "log":
        from spark_consumers.change_log import log_consumer

        return log_consumer(config, _section(config.log, kind), keyrange)
    from spark_consumers.copy import copy_consumer

    return copy_consumer(config, _section(config.copy_, kind))


def _section(section: T | None, kind: str) -> T:
    if section is None:
        raise ConfigError(f"the config has no `{kind}:` section: add one to run this consumer")
    return section

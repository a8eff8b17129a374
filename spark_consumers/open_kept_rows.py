"""Opens the rows that the copy or the log has of tables, wherever they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from relay.config import Config
from relay.errors import ConfigError
from spark_consumers.kept_rows import OpenKeptRows
from spark_consumers.sinks import delta


@contextmanager
def kept_rows(config: Config, kind: str) -> Iterator[OpenKeptRows]:
    """Open the ``copy`` or the ``log`` of the config. Raises ``Unavailable``, and ``ConfigError`` if it has none."""
    if kind == "copy" and config.copy_ is not None and config.copy_.is_postgres:
        from spark_consumers.sinks.kept_postgres import KeptInPostgres  # without Spark
        from spark_consumers.sinks.postgres import PostgresDatabase

        items = config.copy_.items
        with closing(PostgresDatabase(config.copy_.url)) as database:
            database.connect()
            yield lambda layout, columns: KeptInPostgres(database, layout, columns, items=items)
        return
    if (config.copy_ if kind == "copy" else config.log) is None:
        raise ConfigError(f"the config has no `{kind}:` section: add one to verify the {kind}")
    from spark_consumers.log_rows import LoggedRows
    from spark_consumers.session import another_session, close_session, open_session
    from spark_consumers.sinks.kept_delta import KeptInDelta

    session = open_session("relay verify", delta=True, spark=config.spark)
    try:
        if kind == "log":
            # A session of its own, since the views are.
            own = another_session(session, delta=True)
            yield lambda layout, columns: LoggedRows(own, config, layout, columns)
        elif config.copy_ is not None:
            path, items = delta.spark_path(config.copy_.url), config.copy_.items
            yield lambda layout, columns: KeptInDelta(session, path, layout, columns, items=items)
    finally:
        close_session(session)

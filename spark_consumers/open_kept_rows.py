"""Opens the rows that the copy or the log has of tables, wherever they are."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from relay.config import Config
from spark_consumers.kept_rows import OpenKeptRows
from spark_consumers.sinks.copy_target import copy_target


@contextmanager
def kept_rows(config: Config, kind: str) -> Iterator[OpenKeptRows]:
    """Open the ``copy`` or the ``log`` of the config, which has it. Raises ``Unavailable``."""
    if kind == "copy":
        assert config.copy_ is not None
        with copy_target(config, config.copy_).kept_rows(config) as opened:
            yield opened
        return
    from spark_consumers.log_rows import LoggedRows
    from spark_consumers.session import another_session, delta_session

    with delta_session(config.spark) as session:
        # A session of its own, since the views are.
        yield partial(LoggedRows, another_session(session, delta=True), config)

"""A copy or a log in Iceberg, in a catalog that the settings of Spark name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

from relay.config import Config, CopyConfig, LogConfig
from relay.config.addresses import ICEBERG
from relay.config.locations import legal
from relay.errors import ConfigError
from spark_consumers.kept_rows import OpenKeptRows
from spark_consumers.running import log_event
from spark_consumers.sinks.places import NOTE, CopyTarget, Renames, ReplayPlace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_consumers.sinks.iceberg_copy import IcebergTable
    from spark_consumers.sinks.iceberg_log import IcebergLog

PREFIX = "_relay_"
"""Begins the names of tables that no source has."""

_URL = re.compile(r"iceberg://(\w+)(?:/([\w-]+))?/?")


@dataclass(frozen=True, slots=True)
class IcebergPlace:
    """The namespaces of a copy in ``catalog``, and names there, in SQL. ``prefix``: begins theirs."""

    catalog: str
    prefix: str = ""

    @classmethod
    def of(cls, url: str) -> Self:
        """Return the place that a URL names. Raises ``ConfigError``."""
        if (found := _URL.fullmatch(url)) is None:
            raise ConfigError(
                f"copy.url: {url} must name a Spark catalog, and may add a prefix for the namespaces there: "
                "iceberg://CATALOG or iceberg://CATALOG/PREFIX"
            )
        return cls(found[1], f"{found[2]}_" if found[2] else "")

    def namespace(self, source: str) -> str:
        return f"`{self.catalog}`.`{self.prefix}{plain(source)}`"

    def rows(self, source: str, table: str) -> str:
        return f"{self.namespace(source)}.`{PREFIX}rows_{plain(table)}`"

    def shown(self, source: str, table: str) -> str:
        return f"{self.namespace(source)}.`{plain(table)}`"

    def properties(self, source: str) -> str:
        return f"{self.namespace(source)}.`{PREFIX}properties`"


def plain(name: str) -> str:
    """Return a name as all catalogs have it; some take a dot for the end of a namespace. No two names become one."""
    return legal(name).replace(".", "_x002E_")


_CATALOGS = "org.apache.iceberg.spark."


class _Tables(ReplayPlace):
    """Tables in namespaces of a catalog. ``kind``, ``key``, ``url``: what they are, and where the config says so."""

    def __init__(self, kind: str, key: str, url: str, catalog: str, namespaces: Sequence[str], config: Config) -> None:
        self._kind, self._url, self._catalog, self._namespaces = kind, url, catalog, namespaces
        conf, name = config.spark.conf, f"spark.sql.catalog.{catalog}"
        if not conf.get(name, "").startswith(_CATALOGS):
            raise ConfigError(
                f"{key}: {url} is in a catalog that Spark does not know: set spark.conf, such as "
                f"{name}: {_CATALOGS}SparkCatalog and {name}.type: rest"
            )
        self._is_hadoop = conf.get(f"{name}.type") == "hadoop"

    def _say_alone(self) -> None:
        if self._is_hadoop:
            log_event("no lock", self._kind, location=self._url, error=_ALONE)

    def check(self, *, offline: bool = False) -> str:
        return f"not checked: Spark opens its catalog{f'; {_ALONE}' if self._is_hadoop else ''}"

    def content(self, session: SparkSession) -> str | None:
        for namespace in self._namespaces:
            if session.catalog.databaseExists(namespace) and session.sql(f"SHOW TABLES IN {namespace}").collect():
                return f"namespace {namespace} is not empty"
        return None

    def _change_note(
        self, session: SparkSession, name: str, rule: Callable[[str], str], create: Callable[[], None]
    ) -> str:
        """Replace the note that a table keeps as a property. ``create``: the table, if there is something to store."""
        from spark_consumers.sinks import iceberg_copy

        iceberg_copy.refuse_unready(session, self._catalog)
        while True:
            is_there = iceberg_copy.schema_of(session, name) is not None
            before = iceberg_copy.properties_of(session, name).get(NOTE) if is_there else None
            after = rule(before or "")
            if after == (before or ""):
                return after
            if not is_there:
                create()
            if iceberg_copy.replace_property(session, name, NOTE, before, after):
                return after

    def refuse_swap(self, present: str) -> None:
        raise ConfigError(
            f"--swap: Iceberg tables cannot be swapped in one step: omit --swap, set the config to "
            f"{self._url}, and start the consumer with a new --checkpoint and `--from` the offsets that the "
            "replay ends with"
        )

    def swap(self, stamp: str, renames: Renames) -> None:
        self.refuse_swap("")


class IcebergTarget(_Tables, CopyTarget):
    """The copy of ``copy``. Raises ``ConfigError`` for a wrong URL, and for names that may become the same."""

    def __init__(self, config: Config, copy: CopyConfig) -> None:
        self._place, self._copy = IcebergPlace.of(copy.url), copy
        sources = [source.name for source in config.sources]
        namespaces = [*map(self._place.namespace, sources)]
        super().__init__("copy", "copy.url", copy.url, self._place.catalog, namespaces, config)
        _refuse_same(sources)
        for name in sources:
            _refuse_same([table for table, source in config.tables.items() if source.name == name])

    def open(self) -> Callable[[str, str], IcebergTable]:
        self._say_alone()
        return self._tables()

    def _tables(self) -> Callable[[str, str], IcebergTable]:
        from spark_consumers.sinks.iceberg_copy import IcebergTable

        return partial(IcebergTable, self._place, self._copy)

    @contextmanager
    def kept_rows(self, config: Config) -> Iterator[OpenKeptRows]:
        from spark_consumers.session import delta_session
        from spark_consumers.sinks import iceberg_copy
        from spark_consumers.sinks.kept_in_spark import KeptInLake, KeptInSpark

        with delta_session(config.spark) as session:
            iceberg_copy.refuse_unready(session, self._place.catalog)
            yield partial(KeptInSpark, partial(KeptInLake, session, self._tables()))

    def change_note(self, session: SparkSession, room: str, rule: Callable[[str], str]) -> str:
        name = self._place.properties(room)

        def create() -> None:
            session.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._place.namespace(room)}")
            session.sql(
                f"CREATE TABLE IF NOT EXISTS {name} (nothing BOOLEAN) USING ICEBERG TBLPROPERTIES "
                "('write.metadata.delete-after-commit.enabled' = 'true')"
            )

        return self._change_note(session, name, rule, create)


_LOG_URL = re.compile(r"iceberg://(\w+)/([\w-]+)/?")


class IcebergLogTarget(_Tables):
    """The log of ``log``, or of one ``keyrange``. Raises ``ConfigError`` for a wrong URL."""

    def __init__(self, config: Config, log: LogConfig, keyrange: str = "") -> None:
        if (found := _LOG_URL.fullmatch(log.path)) is None:
            raise ConfigError(
                f"log.path: {log.path} must name a Spark catalog, and a namespace there for the log alone: "
                "iceberg://CATALOG/NAMESPACE"
            )
        self._log, self._namespace = log, f"`{found[1]}`.`{found[2]}`"
        super().__init__("log", "log.path", log.path, found[1], [self._namespace], config)
        self._table = f"log.{keyrange}" if keyrange else "log"
        if config.copy_ is not None and config.copy_.url.startswith(f"{ICEBERG}:"):
            of_copy = IcebergTarget(config, config.copy_)
            if self._namespace.lower() in map(str.lower, of_copy._namespaces):  # I1
                raise ConfigError(
                    f"log.path: {log.path} is where the copy keeps the tables of a source: name another namespace"
                )

    def open(self, *, writes: bool = False) -> IcebergLog:
        from spark_consumers.sinks.iceberg_log import IcebergLog

        if writes:
            self._say_alone()
        return IcebergLog(self._catalog, self._namespace, self._table, self._log.path, self._log)

    def change_note(self, session: SparkSession, room: str, rule: Callable[[str], str]) -> str:
        """A property of the table, so that it is lost with it."""
        table = self.open()
        return self._change_note(session, table.name, rule, partial(table.create, session))


_ALONE = "nothing in a catalog of type hadoop prevents a second driver: run only one"


def _refuse_same(names: list[str]) -> None:
    """Raise ``ConfigError`` for two names that a catalog may take for one (I1), and for one of ours."""
    seen: dict[str, str] = {}
    for name in names:
        if name.lower().startswith(PREFIX):
            raise ConfigError(
                f"copy.url: {name} is a name that the copy reserves for its own tables: give the source another name, "
                "or leave the table out of `tables`"
            )
        if (other := seen.setdefault(name.lower(), name)) != name:
            raise ConfigError(
                f"copy.url: an Iceberg catalog may treat {other} and {name} as the same name: keep them in separate "
                "copies"
            )

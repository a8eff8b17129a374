"""A copy in Iceberg, in a catalog that the settings of Spark name; each source has a namespace there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

from relay.config import Config, CopyConfig
from relay.config.locations import legal
from relay.errors import ConfigError
from spark_consumers.kept_rows import OpenKeptRows
from spark_consumers.running import log_event
from spark_consumers.sinks.copy_target import NOTE, CopyTarget, Renames

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_consumers.sinks.iceberg_copy import IcebergTable

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


class IcebergTarget(CopyTarget):
    """The copy of ``copy``. Raises ``ConfigError`` for a wrong URL, and for names that may become the same."""

    def __init__(self, config: Config, copy: CopyConfig) -> None:
        self._place, self._copy, self._conf = IcebergPlace.of(copy.url), copy, config.spark.conf
        self._sources = [source.name for source in config.sources]
        key = f"spark.sql.catalog.{self._place.catalog}"
        if not self._conf.get(key, "").startswith(_CATALOGS):
            raise ConfigError(
                f"copy.url: {copy.url} is in a catalog that Spark does not know: set spark.conf, such as "
                f"{key}: {_CATALOGS}SparkCatalog and {key}.type: rest"
            )
        _refuse_same(self._sources)
        for name in self._sources:
            _refuse_same([table for table, source in config.tables.items() if source.name == name])

    def open(self) -> Callable[[str, str], IcebergTable]:
        if self._is_hadoop:
            log_event("no lock", "copy", location=self._copy.url, error=_ALONE)
        return self._tables()

    def _tables(self) -> Callable[[str, str], IcebergTable]:
        from spark_consumers.sinks.iceberg_copy import IcebergTable
        from spark_consumers.sinks.upkeep import Schedule

        schedule = Schedule(self._copy.maintain_every, self._copy.keep_versions)
        return partial(IcebergTable, self._place, schedule)

    @property
    def _is_hadoop(self) -> bool:
        return self._conf.get(f"spark.sql.catalog.{self._place.catalog}.type") == "hadoop"

    def check(self, *, offline: bool) -> str:
        found = "not checked: Spark opens its catalog"
        return f"{found}; {_ALONE}" if self._is_hadoop else found

    @contextmanager
    def kept_rows(self, config: Config) -> Iterator[OpenKeptRows]:
        from spark_consumers.session import delta_session
        from spark_consumers.sinks import iceberg_copy
        from spark_consumers.sinks.kept_lake import KeptInLake

        with delta_session(config.spark) as session:
            iceberg_copy.refuse_unready(session, self._place.catalog)
            yield partial(KeptInLake, session, self._tables())

    def change_note(self, session: SparkSession, room: str, rule: Callable[[str], str]) -> str:
        from spark_consumers.sinks import iceberg_copy

        iceberg_copy.refuse_unready(session, self._place.catalog)
        name = self._place.properties(room)
        while True:
            is_there = iceberg_copy.schema_of(session, name) is not None
            before = iceberg_copy.properties_of(session, name).get(NOTE) if is_there else None
            after = rule(before or "")
            if after == (before or ""):
                return after
            if not is_there:
                session.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._place.namespace(room)}")
                session.sql(
                    f"CREATE TABLE IF NOT EXISTS {name} (nothing BOOLEAN) USING ICEBERG TBLPROPERTIES "
                    "('write.metadata.delete-after-commit.enabled' = 'true')"
                )
            if iceberg_copy.replace_property(session, name, NOTE, before, after):
                return after

    def content(self, session: SparkSession) -> str | None:
        for namespace in map(self._place.namespace, self._sources):
            if session.catalog.databaseExists(namespace) and session.sql(f"SHOW TABLES IN {namespace}").collect():
                return f"namespace {namespace} is not empty"
        return None

    def refuse_swap(self, present: str) -> None:
        raise ConfigError(
            f"--swap: Iceberg tables cannot change places in one step: leave --swap out, set the config to "
            f"{self._copy.url}, and start the consumer with a new --checkpoint and `--from` the offsets that the "
            "replay ends with"
        )

    def swap(self, stamp: str, renames: Renames) -> None:
        self.refuse_swap("")

    def kept(self, stamp: str, renames: Renames) -> list[str]:
        return []


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

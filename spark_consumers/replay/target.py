"""Where a replay writes: a new place in Delta, or in PostgreSQL another database, or other schemas of the same one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import ValidationError
from pyspark.sql import SparkSession

from relay.config import Config, CopyConfig, LogConfig, redacted
from relay.config.addresses import POSTGRES
from relay.config.locations import are_nested
from relay.config.sinks import DeltaConfig
from relay.errors import ConfigError
from spark_consumers.change_log import log_consumer
from spark_consumers.copy import copy_consumer
from spark_consumers.locations import HadoopFolder, local_folder, refuse_on_cluster
from spark_consumers.session import existing_session, is_cluster
from spark_consumers.sinks import delta
from spark_consumers.table_consumer import TableConsumer

_SCHEMA = "schema:"


class ReplayTarget:
    """The target ``into`` of a replay of ``kind``. Raises ``ConfigError`` if there cannot be one.

    ``prefix``: of the names of schemas, in a PostgreSQL. ``location``: of tables in Delta, else None.
    """

    def __init__(self, kind: Literal["copy", "log"], config: Config, into: str) -> None:
        self.kind = kind
        self.config = config
        self.prefix = ""
        self.location: str | None = None
        self._copy: CopyConfig | None = None
        self._log: LogConfig | None = None
        if kind == "log":
            if config.log is None:
                raise ConfigError("the config has no `log:` section: add one to replay it")
            self.present = config.log.path
            self._log = _changed(config.log, "path", into)
            self.location = self._log.path
        else:
            if config.copy_ is None:
                raise ConfigError("the config has no `copy:` section: add one to replay it")
            self.present = config.copy_.url
            self._copy = self._of_copy(config.copy_, into)
            self.location = None if self._copy.is_postgres else self._copy.url
        self.name = redacted(into)
        # Without the password, which may change before the replay goes on.
        self.identity = str(local_folder(into) or self.name)
        same = into == self.present or (
            self.location is not None and self._folder(self.location) == self._folder(self.present)
        )
        if same:
            raise ConfigError(f"--into {self.name} is the {kind} that the config names: give a new place")
        if self.location is not None:
            self._refuse_nested(self.location)

    def _refuse_nested(self, location: str) -> None:
        """Raise ``ConfigError`` for a place inside of one that the config names, which a swap would move along.

        Delta takes the files there for its own that no version needs, and deletes them in time.
        """
        copy, log = self.config.copy_, self.config.log
        taken = [*([log.path] if log else []), *([copy.url] if copy and not copy.is_postgres else [])]
        for other in taken:
            if are_nested(self._folder(location), self._folder(other)):
                raise ConfigError(
                    f"--into {self.name}: neither it nor {redacted(other)}, which the config names, may be inside "
                    "the other: give a place beside it"
                )

    def _of_copy(self, copy: CopyConfig, into: str) -> CopyConfig:
        if not into.startswith(_SCHEMA):
            return _changed(copy, "url", into)
        name = into.removeprefix(_SCHEMA)
        if not copy.is_postgres or not name:
            raise ConfigError(
                f"--into {into}: give schema:NAME for a copy in PostgreSQL, where the schemas are NAME_..."
            )
        self.prefix = f"{name}_"
        return copy

    def consumer(self) -> TableConsumer:
        """Return the consumer that writes there. Raises ``Unavailable``."""
        if self._log is not None:
            return log_consumer(self.config, self._log)
        assert self._copy is not None
        return copy_consumer(self.config, self._copy, schema_prefix=self.prefix)

    @property
    def database(self) -> str | None:
        """The URL of the PostgreSQL, None in Delta."""
        return self._copy.url if self._copy is not None and self._copy.is_postgres else None

    @property
    def folder(self) -> Path | None:
        """The folder on this machine, if there is one."""
        return None if self.location is None else local_folder(self.location)

    def refuse_cluster(self) -> None:
        """Raise ``ConfigError`` for a folder of this machine while Spark runs on others."""
        existing = existing_session()
        master = self.config.spark.master if existing is None else str(existing.sparkContext.master)
        if self.location is not None and is_cluster(master) and not self.config.spark.shared_folders:
            refuse_on_cluster("replay: --into", self.location, master)

    def refuse_lost(self, state: Path) -> None:
        """Raise ``ConfigError`` if the folder, which a replay has written to, is gone."""
        if self.folder is not None and not self.folder.exists():
            raise ConfigError(f"{self.folder} is gone, into which a replay has begun: remove {state} to begin again")

    def refuse_local_content(self) -> None:
        """Raise ``ConfigError`` if something is in the folder: without Spark, so that it is said at once."""
        if self.folder is not None and self.folder.exists() and any(os.scandir(self.folder)):
            raise ConfigError(f"--into {self.folder}: is not empty, and no replay into it has begun: give a new folder")

    def refuse_content(self, session: SparkSession) -> None:
        """Raise ``ConfigError`` if something else is there."""
        if self.database is not None:
            from spark_consumers.sinks.postgres import PostgresDatabase, used_schemas

            found = used_schemas(PostgresDatabase(self.database), self.schemas(self.prefix))
            if found:
                raise ConfigError(
                    f"--into {self.name}: schema {found[0]} is not empty, and no replay into it has begun"
                )
        elif self.location is not None and self.folder is None:
            names = HadoopFolder(delta.spark_path(self.location), session).names("")
            if names:
                raise ConfigError(f"--into {self.name}: is not empty, and no replay into it has begun")

    def schemas(self, prefix: str = "", suffix: str = "") -> list[str]:
        """Return the names of schemas in PostgreSQL, in the order of the sources."""
        from spark_consumers.sinks.postgres import identifier

        return [identifier(f"{prefix}{source.name}{suffix}") for source in self.config.sources]

    def _folder(self, location: str) -> str:
        folder = local_folder(location)
        return delta.spark_path(location) if folder is None else str(folder.resolve())


S = TypeVar("S", CopyConfig, LogConfig)


def _changed(section: S, key: str, into: str) -> S:
    """Return a section of the config with another place. Raises ``ConfigError``."""
    given = section.model_dump(exclude_unset=True)
    if into.partition(":")[0] in POSTGRES:
        given = {name: value for name, value in given.items() if name not in DeltaConfig.model_fields}
    try:
        return type(section).model_validate({**given, key: into})
    except ValidationError as error:
        raise ConfigError(f"--into {redacted(into)}: {error.errors()[0]['msg']}") from error

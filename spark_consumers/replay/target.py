"""Where a replay writes: a new place in Delta, or in PostgreSQL another database, or other schemas of the same one."""

import os
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import ValidationError
from pyspark.sql import SparkSession

from relay.config import Config, CopyConfig, LogConfig, redacted
from relay.config.errors import problems_in
from relay.config.locations import are_nested
from relay.config.sinks import TablesConfig, in_database
from relay.errors import ConfigError
from spark_consumers.change_log import log_consumer
from spark_consumers.copy import copy_consumer
from spark_consumers.locations import local_folder, refuse_on_cluster, spark_path
from spark_consumers.session import existing_session, is_cluster
from spark_consumers.sinks.copy_target import ReplayPlace, copy_target
from spark_consumers.sinks.delta_target import DeltaPlace
from spark_consumers.table_consumer import TableConsumer

_SCHEMA = "schema:"


class ReplayTarget:
    """The target ``into`` of a replay of ``kind``. Raises ``ConfigError`` if there cannot be one.

    ``present``: what the config names. ``place``: the target's. ``location``: where tables in Delta are, else None.
    """

    place: ReplayPlace

    def __init__(self, kind: Literal["copy", "log"], config: Config, into: str) -> None:
        self.kind = kind
        self.config = config
        if kind == "log":
            if config.log is None:
                raise ConfigError("the config has no `log:` section: add one to replay it")
            self.present = config.log.path
            log = _changed(config.log, "path", into)
            self.place = DeltaPlace(log.path, beside=["_gaps"])
            self._consumer = partial(log_consumer, config, log)
        else:
            if config.copy_ is None:
                raise ConfigError("the config has no `copy:` section: add one to replay it")
            self.present = config.copy_.url
            copy, prefix = _of_copy(config.copy_, into)
            self.place = target = copy_target(config, copy, prefix)
            self._consumer = partial(copy_consumer, config, copy, target)
        self.location = self.place.location
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
        for other in (log.path if log else None, copy.location if copy else None):
            if other is not None and are_nested(self._folder(location), self._folder(other)):
                raise ConfigError(
                    f"--into {self.name}: neither it nor {redacted(other)}, which the config names, may be inside "
                    "the other: give a place beside it"
                )

    def consumer(self) -> TableConsumer:
        """Return the consumer that writes there. Raises ``Unavailable``."""
        return self._consumer()

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
        if self.folder is None and (found := self.place.content(session)):
            raise ConfigError(f"--into {self.name}: {found}, and no replay into it has begun")

    def _folder(self, location: str) -> str:
        folder = local_folder(location)
        return spark_path(location) if folder is None else str(folder.resolve())


def _of_copy(copy: CopyConfig, into: str) -> tuple[CopyConfig, str]:
    """Return the section of the copy for ``into``, and the prefix of its schemas. Raises ``ConfigError``."""
    if not into.startswith(_SCHEMA):
        return _changed(copy, "url", into), ""
    name = into.removeprefix(_SCHEMA)
    if copy.location is not None or not name:
        raise ConfigError(f"--into {into}: give schema:NAME for a copy in PostgreSQL, where the schemas are NAME_...")
    return copy, f"{name}_"


S = TypeVar("S", CopyConfig, LogConfig)


def _changed(section: S, key: str, into: str) -> S:
    """Return a section of the config with another place. Raises ``ConfigError``."""
    given = section.model_dump(exclude_unset=True)
    if in_database(into):
        given = {name: value for name, value in given.items() if name not in TablesConfig.model_fields}
    try:
        return type(section).model_validate({**given, key: into})
    except ValidationError as error:
        raise ConfigError(f"--into {redacted(into)}: {problems_in(error.errors()[0])[0][1]}") from error

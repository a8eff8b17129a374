"""Where a replay writes, and how that takes the place of the present target, so that the consumer continues there.

The target and the consumer's checkpoint change together: a file in the checkpoint's folder describes the steps, before
the first and until the last, and no consumer starts from that checkpoint meanwhile. Each step may be repeated.
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, Literal, TypeVar

from pydantic import ValidationError
from pyspark.sql import SparkSession

from relay.config import Config, CopyConfig, LogConfig, redacted
from relay.config.errors import problems_in
from relay.config.locations import are_nested
from relay.config.sinks import TablesConfig, in_database
from relay.errors import ConfigError, Unavailable
from relay.kafka.group_offsets import GroupOffsets, Offsets
from spark_consumers.change_log import log_consumer
from spark_consumers.checkpoint import SWAP, ConsumerCheckpoint
from spark_consumers.copy import copy_consumer
from spark_consumers.locations import Lock, local_folder, refuse_on_cluster, rename, spark_path, sync
from spark_consumers.running import log_event
from spark_consumers.session import existing_session, is_cluster
from spark_consumers.sinks.places import ReplayPlace, copy_target, log_target
from spark_consumers.spark_internals import forget_delta_logs
from spark_consumers.table_consumer import TableConsumer

_SCHEMA = "schema:"


class ReplayTarget:
    """The target ``into`` for a replay of ``kind``. Raises ``ConfigError`` if it is not possible.

    ``present``: the place in the config. ``place``: the place of the target. ``location``: the location of tables in
    Delta, otherwise None; ``folder``: that location if it is on this machine. ``consumer``: opens the consumer that
    writes there; raises ``Unavailable``.
    """

    place: ReplayPlace

    def __init__(self, kind: Literal["copy", "log"], config: Config, into: str) -> None:
        self.kind = kind
        self.config = config
        section = config.log if kind == "log" else config.copy_
        if section is None:
            raise ConfigError(f"the config has no `{kind}:` section: add one to replay into the {kind}")
        if isinstance(section, LogConfig):
            self.present, log = section.path, _changed(section, "path", into)
            self.place = log_target(config, log)
            self.consumer: Callable[[], TableConsumer] = partial(log_consumer, config, log)
        else:
            self.present, (copy, prefix) = section.url, _of_copy(section, into)
            self.place = target = copy_target(config, copy, prefix)
            self.consumer = partial(copy_consumer, config, copy, target)
        self.location = self.place.location
        self.folder = None if self.location is None else local_folder(self.location)
        self.name = redacted(into)
        # Without the password, which may change before the replay continues.
        self.identity = str(local_folder(into) or self.name)
        same = into == self.present or (
            self.location is not None and self._folder(self.location) == self._folder(self.present)
        )
        if same:
            raise ConfigError(f"--into {self.name} is the {kind} that the config names: choose another location")
        if self.location is not None:
            self._refuse_nested(self.location)

    def _refuse_nested(self, location: str) -> None:
        """Raise ``ConfigError`` for a place inside one that the config names: Delta would delete its files in time."""
        copy, log = self.config.copy_, self.config.log
        for other in (log.path if log else None, copy.location if copy else None):
            if other is not None and are_nested(self._folder(location), self._folder(other)):
                raise ConfigError(
                    f"--into {self.name} and {redacted(other)} from the config must not be inside each other: choose "
                    "a location beside it"
                )

    def refuse_cluster(self) -> None:
        existing = existing_session()
        master = self.config.spark.master if existing is None else str(existing.sparkContext.master)
        if self.location is not None and is_cluster(master) and not self.config.spark.shared_folders:
            refuse_on_cluster("replay: --into", self.location, master)

    def refuse_local_content(self) -> None:
        """Raise ``ConfigError`` if the folder has content; checked without Spark, so that the error comes at once."""
        if self.folder is not None and self.folder.exists() and any(os.scandir(self.folder)):
            raise ConfigError(
                f"--into {self.folder} is not empty, and no replay into it has begun: choose an empty folder"
            )

    def refuse_content(self, session: SparkSession) -> None:
        if self.folder is None and (found := self.place.content(session)):
            raise ConfigError(f"--into {self.name}: {found}, and no replay into it has begun: choose an empty location")

    def _folder(self, location: str) -> str:
        folder = local_folder(location)
        return spark_path(location) if folder is None else str(folder.resolve())


def _of_copy(copy: CopyConfig, into: str) -> tuple[CopyConfig, str]:
    """Return the config section of the copy for ``into``, and the prefix of its schemas. Raises ``ConfigError``."""
    if not into.startswith(_SCHEMA):
        return _changed(copy, "url", into), ""
    name = into.removeprefix(_SCHEMA)
    if not in_database(copy.url) or not name:
        raise ConfigError(f"--into {into}: use schema:NAME for a copy in PostgreSQL: its schemas are then NAME_...")
    return copy, f"{name}_"


S = TypeVar("S", CopyConfig, LogConfig)


def _changed(section: S, key: str, into: str) -> S:
    """Return a config section with another location. Raises ``ConfigError``."""
    given = section.model_dump(exclude_unset=True)
    if in_database(into):
        given = {name: value for name, value in given.items() if name not in TablesConfig.model_fields}
    try:
        return type(section).model_validate({**given, key: into})
    except ValidationError as error:
        raise ConfigError(f"--into {redacted(into)}: {problems_in(error.errors()[0])[0][1]}") from error


_FORMER = re.compile(r"spark(-[0-9a-f]+)?|start\.json|query\.txt")


class Swap:
    """Swaps ``target`` with the config's. ``checkpoint``: the consumer's. Raises ``ConfigError`` if that is unsafe."""

    def __init__(self, target: ReplayTarget, checkpoint: str) -> None:
        self._target = target
        self._checkpoint = ConsumerCheckpoint(checkpoint)
        if self._checkpoint.local is None:
            raise ConfigError(f"--swap: the checkpoint {checkpoint} is not on this machine: see `relay replay --help`")
        self._folder = self._checkpoint.local
        self._plan: dict[str, Any] = json.loads(self._checkpoint.folder.read(SWAP) or "{}")
        if self._plan and self._plan["into"] != target.identity:
            raise ConfigError(
                f"--swap: an earlier swap, of {self._plan['into']}, is unfinished: finish it first, by running its "
                "command again"
            )
        target.place.refuse_swap(target.present)

    @property
    def is_pending(self) -> bool:
        return bool(self._plan)

    def begin(self, end: Offsets, topics: Mapping[str, str]) -> None:
        """Durably write down the steps. ``end``: where the consumer continues. Raises ``Unavailable``."""
        stamp = time.strftime("before-%Y%m%dT%H%M%SZ", time.gmtime())
        with self._locked():
            self._plan = {
                "into": self._target.identity,
                "end": end,
                "topics": dict(topics),
                "stamp": stamp,
                "renames": self._target.place.renames(self._target.present, stamp),
            }
            self._checkpoint.folder.write(SWAP, json.dumps(self._plan))

    def finish(self, forget: Callable[[], None]) -> tuple[Offsets, list[str]]:
        """Do all steps left, and ``forget`` the replay; return its end, and what is kept. Raises ``Unavailable``."""
        stamp, end, topics = self._plan["stamp"], self._plan["end"], self._plan["topics"]
        with self._locked():
            earlier = self._folder / stamp
            earlier.mkdir(exist_ok=True)
            # Spark's own checkpoint may be in a folder such as ``spark-5f``.
            former = [path for path in self._folder.iterdir() if _FORMER.fullmatch(path.name)]
            rename((str(path), str(earlier / path.name)) for path in former)
            self._target.place.swap(stamp, self._plan["renames"])
            self._checkpoint.begin(end)
            self._checkpoint.note_topics(topics)  # I1
            forget()
            (self._folder / SWAP).replace(earlier / SWAP)
            sync(self._folder)
        if (session := existing_session()) is not None:  # a Spark that continues in this process rereads the tables
            forget_delta_logs(session)
        consumer = self._target.consumer()
        group = GroupOffsets(self._target.config, consumer.name, consumer.topics)
        with closing(group), contextlib.suppress(Unavailable):  # it only reports the lag
            group.commit(end, ids=topics, wait=True)
        kept = self._target.place.kept(stamp, self._plan["renames"])
        log_event("swapped", consumer.name, target=self._target.name, kept=kept, checkpoint=str(earlier), offsets=end)
        return end, kept

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the locks of the consumer, so that it cannot run. Raises ``Unavailable``."""
        of_checkpoint = Lock(self._folder / "lock", f"the checkpoint {self._folder}")
        with ExitStack() as stack:
            for lock in (of_checkpoint, *self._target.place.locks(self._target.present)):
                stack.enter_context(lock)
            yield

"""A Spark consumer's checkpoint: where it started, and how far it has come. The Kafka group only reports that."""

import json
import secrets
from collections.abc import Collection, Mapping, Sequence

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from relay.config.locations import misread
from relay.errors import ConfigError, RelayError, Unavailable
from relay.kafka.created_again import created_again
from relay.kafka.group_offsets import Offsets
from spark_consumers.locations import HadoopFolder, LocalFolder, below, local_folder

_START = "start.json"
_TOPICS = "topics.json"
_QUERY = "query.txt"

SWAP = "swap.json"
"""The file of a swap that has begun but not ended, so that the checkpoint may not match the target."""


class ConsumerCheckpoint:
    """A consumer's checkpoint at ``location``, a local folder or a URI: Spark's own, and the offsets of the start.

    One that is not on this machine must be opened before it is used. Raises ``ConfigError``.
    """

    def __init__(self, location: str) -> None:
        if (problem := misread(location)) is not None:
            raise ConfigError(f"checkpoint {location}: {problem}")
        self.local = local_folder(location)
        self.location = location if self.local is None else str(self.local)
        self._folder: LocalFolder | HadoopFolder | None = None if self.local is None else LocalFolder(self.local)
        # The end offsets of the batch that was last requested.
        self._last: tuple[int, Offsets] | None = None

    def open(self, session: SparkSession) -> None:
        """Reach the file system of the checkpoint. Raises ``Unavailable``."""
        if self._folder is None:
            try:
                self._folder = HadoopFolder(self.location, session)
                self._folder.read(_START)
            except Py4JJavaError as error:
                raise Unavailable(f"cannot read checkpoint {self.location}: {error.java_exception}") from error

    @property
    def folder(self) -> LocalFolder | HadoopFolder:
        assert self._folder is not None, "a checkpoint that is not on this machine must be opened first"
        return self._folder

    @property
    def _query(self) -> str:
        """The folder of Spark's own checkpoint, which is renamed when it is started over."""
        return self.folder.read(_QUERY) or "spark"

    @property
    def spark(self) -> str:
        return below(self.folder.uri, self._query)

    @property
    def exists(self) -> bool:
        return self.folder.read(_START) is not None

    @property
    def is_new(self) -> bool:
        """Whether Spark has committed no batch."""
        return not self._numbers("commits")

    def resume(self) -> Offsets:
        """Return the offsets at which the consumer resumes: the end of the last batch that Spark has committed."""
        last = max(self._numbers("commits"), default=-1)
        newest = max(self._numbers("offsets"), default=-1)
        if newest > last:
            self._read_end(f"{self._query}/offsets/{newest}")  # Spark continues with this one
        if last >= 0 and not self.folder.read(name := f"{self._query}/commits/{last}"):
            raise self._unreadable(name, "it is empty")
        return self.end_offsets(last)

    def _numbers(self, files: str) -> list[int]:
        return [int(name) for name in self.folder.names(f"{self._query}/{files}") if name.isdecimal()]

    def topics(self, wanted: Sequence[str], there: Collection[str], *, makes_up: bool = False) -> list[str]:
        """Return the topics to read: those ``wanted``, and others in its offsets, which Spark would consider lost.

        A table may have left the config because it was dropped, with changes that are still to be read. ``there``: all
        topics on Kafka. ``makes_up``: whether the consumer continues without the unread records of a deleted topic.
        Raises ``ConfigError``.
        """
        left = [topic for topic in self.resume() if topic not in wanted]
        if makes_up:
            left = [topic for topic in left if topic in there]  # I12
        for topic in (topic for topic in left if topic not in there):
            raise ConfigError(
                f"topic {topic}, which is in the checkpoint {self.location}, is no longer in the config or on Kafka: "
                "name another folder with --checkpoint, and add --from committed to continue there"
            )
        return [*wanted, *left]  # I1

    def begin(self, start: Offsets) -> None:
        """Durably store the offsets at which the consumer starts."""
        self.folder.write(_TOPICS, "{}")
        self.folder.write(_START, json.dumps(start))

    def begin_anew(self, start: Offsets) -> None:
        """Continue at ``start``, where Spark's own checkpoint does not lead. May be repeated after a crash."""
        self.folder.write(_START, json.dumps(start))
        self.folder.write(_QUERY, f"spark-{secrets.token_hex(8)}")
        self._last = None

    def note_topics(self, ids: Mapping[str, str]) -> None:
        """Store the ids of the topics in its offsets. Raises ``ConfigError`` if the id of a topic has changed."""
        known = json.loads(self.folder.read(_TOPICS) or "{}")
        if again := created_again(known, ids):  # I1
            raise ConfigError(
                f"topic {next(iter(again))} was created again, so the offsets in the checkpoint {self.location} do not "
                "apply to its records: name another folder with --checkpoint"
            )
        if not ids.items() <= known.items():
            self.folder.write(_TOPICS, json.dumps({**known, **ids}))

    def end_offsets(self, batch: int) -> Offsets:
        """Return the end of a batch; for -1 the start. Raises ``RelayError`` if Spark's file cannot be read."""
        if batch < 0:
            start: Offsets = json.loads(self.folder.read(_START) or "{}")
            return start
        if self._last is None or self._last[0] != batch:
            self._last = batch, self._read_end(f"{self._query}/offsets/{batch}")
        return self._last[1]

    def _read_end(self, name: str) -> Offsets:
        try:
            # The file has a version, Spark's settings, and a line for each source.
            _, _, line = (self.folder.read(name) or "").splitlines()
            found: Offsets = json.loads(line)
        except (OSError, ValueError) as error:
            raise self._unreadable(name, error) from error
        return found

    def _unreadable(self, name: str, why: object) -> RelayError:
        return RelayError(
            f"cannot read {below(self.location, name)} as a file of Spark 4.0: {why}: a crash of the machine may have "
            "emptied it, or another program wrote it. Name another folder with --checkpoint, and add --from committed, "
            "which starts after the last applied record; whatever the target still lacks before that is recorded as a "
            "gap"
        )

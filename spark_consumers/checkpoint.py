"""A Spark consumer's checkpoint: where it started, and what it has reached.

It is the truth about progress. The Kafka group ``<name>.<consumer>`` only reports it, so that ordinary tools show the
lag and a new checkpoint can start exactly there (``--from committed``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import TopicPartition
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from relay.config.locations import misread
from relay.errors import ConfigError, RelayError, Unavailable
from relay.kafka.created_again import created_again
from relay.kafka.group_offsets import EARLIEST, Offsets
from spark_consumers.locations import Folder, HadoopFolder, LocalFolder, below, local_folder

_START = "start.json"
_TOPICS = "topics.json"
_PLACE = "place.json"
_SCHEMAS = "schemas.json"

SWAP = "swap.json"
"""The file of a swap that has begun and not ended: the checkpoint may not fit what is at the target."""


class ConsumerCheckpoint:
    """A consumer's checkpoint at ``location``, a local folder or a URI: Spark's own, and the offsets of the start.

    One that is not on this machine has to be opened before it is used. Raises ``ConfigError``.
    """

    def __init__(self, location: str) -> None:
        if (problem := misread(location)) is not None:
            raise ConfigError(f"checkpoint {location}: {problem}")
        local = local_folder(location)
        self.local = None if local is None else local.absolute()
        self.location = location if self.local is None else str(self.local)
        self._folder: Folder | None = None if self.local is None else LocalFolder(self.local)
        # The end offsets of the batch that was asked for last.
        self._last: tuple[int, Offsets] | None = None

    def open(self, session: SparkSession) -> None:
        """Reach the file system of the checkpoint. Raises ``Unavailable``."""
        if self._folder is None:
            try:
                self._folder = HadoopFolder(self.location, session)
                self._folder.read(_START)
            except Py4JJavaError as error:
                raise Unavailable(f"checkpoint {self.location}: cannot be read: {error.java_exception}") from error

    @property
    def folder(self) -> Folder:
        assert self._folder is not None, "a checkpoint that is not on this machine is opened first"
        return self._folder

    @property
    def spark(self) -> str:
        """The location of Spark's own checkpoint."""
        return below(self.folder.uri, "spark")

    @property
    def is_being_swapped(self) -> bool:
        return self.folder.read(SWAP) is not None

    @property
    def exists(self) -> bool:
        return self.folder.read(_START) is not None

    def start(self) -> Offsets:
        """Return the offsets at which the consumer started."""
        offsets: Offsets = json.loads(self.folder.read(_START) or "{}")
        return offsets

    def resume(self) -> Offsets:
        """Return the offsets at which the consumer resumes: the end of the last batch that Spark has committed."""
        done = [int(name) for name in self.folder.names("spark/commits") if name.isdecimal()]
        return self.end_offsets(max(done, default=-1))

    def topics(self, wanted: Sequence[str], there: Collection[str]) -> list[str]:
        """Return what to read: the topics ``wanted``, and others that it has offsets of, or Spark takes them for lost.

        A table may have left the config because it was dropped, with changes that are yet to be read. ``there``: all
        topics on Kafka. Raises ``ConfigError``.
        """
        left = [topic for topic in self.resume() if topic not in wanted]
        for topic in left:
            if topic not in there:
                raise ConfigError(
                    f"topic {topic}, of which the checkpoint {self.location} has offsets, is neither in the config nor "
                    "on Kafka any more: name another folder with --checkpoint, and add --from committed to go on there"
                )
        return [*wanted, *left]  # I1

    def starting(self, partitions: Iterable[TopicPartition]) -> str:
        """Return Spark's starting offsets, for all of its ``partitions``, also those that were added since."""
        offsets = self.start()
        for p in partitions:
            offsets.setdefault(p.topic, {}).setdefault(str(p.partition), EARLIEST)
        return json.dumps(offsets)

    def require(self, ends: Offsets) -> None:
        """Raise ``ConfigError`` if a topic ends before the checkpoint: what it gets until there would be missed."""
        for topic, partitions in self.resume().items():
            for partition, offset in partitions.items():
                if offset > (end := ends.get(topic, {}).get(partition, offset)):  # I6
                    raise ConfigError(
                        f"{topic}[{partition}] ends at offset {end}, before offset {offset} of the checkpoint "
                        f"{self.location}: it was created again, or has lost its last records. Name another folder "
                        "with --checkpoint"
                    )

    def begin(self, start: Offsets) -> None:
        """Store, durably, the offsets at which the consumer starts."""
        self.folder.write(_TOPICS, "{}")
        self.folder.write(_PLACE, "null")
        self.folder.write(_START, json.dumps(start))

    def note_topics(self, ids: Mapping[str, str]) -> None:
        """Store the ids of the topics that its offsets are of. Raises ``ConfigError`` if one is not what it was."""
        known = json.loads(self.folder.read(_TOPICS) or "{}")
        if again := created_again(known, ids):  # I1
            raise ConfigError(
                f"topic {next(iter(again))} was created again since it was read from the checkpoint {self.location}, "
                "whose offsets say nothing of its records: name another folder with --checkpoint"
            )
        if not ids.items() <= known.items():
            self.folder.write(_TOPICS, json.dumps({**known, **ids}))

    def note_place(self, place: str, consumer: str, setting: str) -> None:
        """Store the place of the tables that have what comes before its offsets.

        ``setting``: of the config, where ``consumer`` has it from. Raises ``ConfigError`` if it is not what it was.
        """
        known = json.loads(self.folder.read(_PLACE) or "null")
        if known is None:
            self.folder.write(_PLACE, json.dumps(place))
        elif known != place:  # I1
            raise ConfigError(
                f"`{setting}` is now {place}, but the checkpoint {self.location} goes on where the {consumer} at "
                f"{known} ends, and all before that would be missing: name another folder with --checkpoint to begin "
                f"at the beginning, or set `{setting}` back and fill the new place with `relay replay {consumer}`; if "
                "the tables were moved there, name another folder and add --from committed"
            )

    def note_schemas(self, registry: str, known: Mapping[bytes, Mapping[str, Any]]) -> None:
        """Store the schemas of a registry beside the earlier ones, so that they are known while it does not answer."""
        earlier = self.schemas(registry)
        if known.keys() <= earlier.keys():
            return
        schemas = {header.hex(): schema for header, schema in {**earlier, **known}.items()}
        self.folder.write(_SCHEMAS, json.dumps({"registry": registry, "schemas": schemas}))

    def schemas(self, registry: str) -> dict[bytes, dict[str, Any]]:
        """Return the schemas that were stored of this registry: in another one, their ids mean other schemas."""
        found = json.loads(self.folder.read(_SCHEMAS) or "{}")
        schemas = found["schemas"] if found.get("registry") == registry else {}  # I8
        return {bytes.fromhex(header): schema for header, schema in schemas.items()}

    def end_offsets(self, batch: int) -> Offsets:
        """Return the end offsets of a batch, which Spark stores before it runs the batch.

        Of batch -1, the offsets at which the consumer started. Raises ``RelayError`` if Spark's file cannot be read.
        """
        if batch < 0:
            return self.start()
        if self._last is None or self._last[0] != batch:
            self._last = batch, self._read_end(f"spark/offsets/{batch}")
        return self._last[1]

    def _read_end(self, name: str) -> Offsets:
        try:
            # The file has a version, Spark's settings, and a line for each source.
            _, _, line = (self.folder.read(name) or "").splitlines()
            found: Offsets = json.loads(line)
        except (OSError, ValueError) as error:
            where = below(self.location, name)
            raise RelayError(f"cannot read {where} as an offset file of Spark 4.0: {error}") from error
        return found

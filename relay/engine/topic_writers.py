"""The topic writers of all tables, one for each schema: shards may be on either side of a change of columns."""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

from confluent_kafka.admin import AdminClient

from relay import __version__
from relay.avro.debezium import SourceInfo
from relay.avro.evolution import refused_envelope
from relay.config import Config
from relay.config.sources import DynamoDBConfig
from relay.dynamodb.columns import typed_key
from relay.errors import ConfigError, RelayError
from relay.kafka import topics
from relay.kafka.checkpoints import requested_partitions
from relay.kafka.dead_letters import DeadLetterWriter
from relay.kafka.debezium_writer import DebeziumWriter, Subjects
from relay.kafka.limits import largest_records
from relay.kafka.partition_offsets import offset_bounds
from relay.kafka.settings import KafkaSettings
from relay.kafka.topic_writer import Schemas, TopicWriter
from relay.process.slow_call import call_all
from relay.table import TableSchema

log = logging.getLogger(__name__)

_KEPT = 1000
"""I11: writers kept for earlier schemas, which pages may still have."""

Make = Callable[[TableSchema], TopicWriter]
Claim = Callable[[str, str], object]


class TopicWriters(dict[tuple[str, str], TopicWriter]):
    """The writers by source and table, for the schema in use.

    ``make``: publishes a schema, creates its topic, and returns the writer for `add`, in any thread. ``claim``: takes a
    source and a table of another worker; raises ``ConfigError`` if the topic belongs to another table here.
    """

    def __init__(
        self, make: Make, tables: Iterable[TableSchema] = (), *, claim: Claim = lambda source, table: None
    ) -> None:
        super().__init__()
        self.make = make
        self.claim = claim
        # All writers, and the replaced ones, the earliest replaced first.
        self._made: dict[TableSchema, TopicWriter] = {}
        self._replaced: dict[TableSchema, None] = {}
        self.use(tables)

    @property
    def topics(self) -> set[str]:
        """The names of the topics of the tables in use, including tables that have appeared since the start."""
        return {writer.topic for writer in self.values()}

    def missing(self, tables: Iterable[TableSchema]) -> list[TableSchema]:
        """Return the ``tables`` whose schema has no writer yet."""
        return [table for table in tables if not self._is_used(table) and table not in self._made]

    def add(self, writers: Iterable[TopicWriter]) -> None:
        for writer in writers:
            place = writer.table.source, writer.table.table
            if place in self:
                log.info("source %s: table %s has a new schema", *place, extra={"event": "schema"})
            self._made[writer.table] = writer

    def use(self, tables: Iterable[TableSchema]) -> None:
        """Use the schemas of ``tables`` from here on. Raises ``RelayError`` if one cannot be published."""
        for table in tables:
            if self._is_used(table):
                continue
            if table not in self._made:
                self.add([self.make(table)])
            place = table.source, table.table
            if (before := self.get(place)) is not None:
                self._replaced[before.table] = None
            self._replaced.pop(table, None)
            self[place] = self._made[table]
            if len(self._replaced) > _KEPT:
                oldest = next(iter(self._replaced))
                del self._replaced[oldest], self._made[oldest]

    def _is_used(self, table: TableSchema) -> bool:
        now = self.get((table.source, table.table))
        return now is not None and now.table is table


def open_topic_writers(
    config: Config, admin: AdminClient, settings: KafkaSettings, schemas: Schemas, tables: Iterable[TableSchema]
) -> TopicWriters:
    """Return writers for ``tables``, whose topics exist, and for later ones. ``schemas`` has to stay open meanwhile."""
    entries = {entry.name: entry for entry in config.sources}
    dead_letters = config.internal("dead_letters")
    limits = dict(settings.limits)
    letters = DeadLetterWriter(dead_letters, limits[dead_letters])

    def claim(source: str, table: str) -> str:
        """Return a table's topic. Raises ``ConfigError`` if two workers have found the same topic for two tables."""
        if refusal := config.claims.refusal(source, table):  # I8: sources have left out those they know
            raise ConfigError(
                f"source {source}: the table {table} has appeared at the same time as another table: {refusal}. "
                "Nothing was skipped: name the tables to read in `tables`, without this one, and start again"
            )
        return config.topic(table)

    def has_records(table: str) -> bool:
        """Whether its topic has records, or has had some."""
        bounds = offset_bounds(admin, [(config.topic(table), number) for number in range(config.partitions(table))])
        return any(end for _, end in bounds.values())

    requested = partial(requested_partitions, config, admin)

    def make(table: TableSchema) -> TopicWriter:
        entry = entries[table.source]
        topic, number = claim(table.source, table.table), config.partitions(table.table)
        if topic not in limits:
            created = topics.create_missing(admin, config, [table.table], requested)
            limits.update(largest_records(created, settings.producer))
        name = table.table
        common = table, topic, number, entry.key_mode
        limited: dict[str, Any] = {"largest": limits[topic], "dead_letters": letters}
        limited["on_unencodable"] = entry.on_unencodable
        if entry.is_debezium:
            subjects = cast(Subjects, schemas)  # the config has a registry
            # I8: asked again, since another worker may have registered and published meanwhile
            if subjects.newest_envelope(topic) is None and has_records(name) and not subjects.newest_envelope(topic):
                raise RelayError(refused_envelope(topic))
            key = typed_key(table) if isinstance(entry, DynamoDBConfig) else dict
            says = SourceInfo.of(entry, __version__)
            return DebeziumWriter(*common, subjects, origin=says, typed_key=key, **limited)
        return TopicWriter(*common, schemas, tombstones=entry.tombstones, **limited)

    writers = TopicWriters(make, claim=claim)
    tables = list(tables)
    # Concurrently, because each new schema waits several times for the broker or the registry.
    writers.add(call_all("schemas", [partial(make, table) for table in tables]))
    writers.use(tables)
    return writers

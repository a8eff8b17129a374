"""The topic writers of all tables, even of tables that appear, or change their columns, while the relay runs.

A writer belongs to one schema of one table. Pages of several shards may be on either side of a change of columns, so
the writers of all schemas are kept, and each page says which schema it uses.
"""

from collections.abc import Callable, Iterable
from functools import partial

from confluent_kafka.admin import AdminClient

from relay.config import Config
from relay.errors import ConfigError
from relay.kafka import topics
from relay.kafka.dead_letters import DeadLetterWriter
from relay.kafka.limits import Limits
from relay.kafka.settings import KafkaSettings
from relay.kafka.topic_writer import Schemas, TopicWriter
from relay.process.slow_call import call_all
from relay.table import TableSchema

_KEPT = 1000
"""I11: writers of earlier schemas, which pages may still come with."""

Make = Callable[[TableSchema], TopicWriter]
Claim = Callable[[str, str], object]


class TopicWriters(dict[tuple[str, str], TopicWriter]):
    """By source and table, the writer for the schema in use.

    ``make``: makes the writer of a schema, which `add` takes: publishes the schema, and creates a topic. It waits for
    Kafka or for the schema registry, raises ``RelayError``, and may be called in any thread. ``claim``: called with a
    source and a table of it that another worker publishes; raises ``ConfigError`` if its topic belongs to another table
    here.
    """

    def __init__(
        self, make: Make, tables: Iterable[TableSchema] = (), *, claim: Claim = lambda source, table: None
    ) -> None:
        super().__init__()
        self.make = make
        self.claim = claim
        # Every writer, and the ones that another has replaced, the one replaced first at the beginning.
        self._made: dict[TableSchema, TopicWriter] = {}
        self._replaced: dict[TableSchema, None] = {}
        self.use(tables)

    @property
    def topics(self) -> set[str]:
        """The names of the topics of the tables in use, even of tables that have appeared since the start."""
        return {writer.topic for writer in self.values()}

    def missing(self, tables: Iterable[TableSchema]) -> list[TableSchema]:
        """Return the ``tables`` whose schema has no writer yet."""
        return [table for table in tables if not self._is_used(table) and table not in self._made]

    def add(self, writers: Iterable[TopicWriter]) -> None:
        self._made |= {writer.table: writer for writer in writers}

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
    config: Config,
    admin: AdminClient,
    limits: Limits,
    settings: KafkaSettings,
    schemas: Schemas,
    tables: Iterable[TableSchema],
) -> TopicWriters:
    """Return writers for ``tables``, whose topics exist, and for tables to come, whose topics are made then.

    ``schemas`` has to stay open for as long as the writers are used.
    """
    entries = {entry.name: entry for entry in config.sources}
    dead_letters = config.internal("dead_letters")
    letters = DeadLetterWriter(dead_letters, limits.records[dead_letters])
    records = dict(limits.records)

    def claim(source: str, table: str) -> str:
        """Return the topic of a table. Raises ``ConfigError`` if two workers have found one topic for two tables."""
        if refusal := config.claims.refusal(source, table):  # I8: the sources have left out all that they could know of
            raise ConfigError(
                f"source {source}: the table {table} has appeared at the same time as another: {refusal}. Nothing was "
                "skipped: name the tables to read in `tables`, without this one, and start again"
            )
        return config.topic(table)

    def make(table: TableSchema) -> TopicWriter:
        entry = entries[table.source]
        topic = claim(table.source, table.table)
        if topic not in records:
            created = topics.create_missing(admin, config, [table.table])
            records.update(Limits.from_topics(created, settings.producer).records)
        return TopicWriter(
            table,
            topic,
            config.kafka.partitions,
            entry.key_mode,
            schemas,
            tombstones=entry.tombstones,
            largest=records[topic],
            dead_letters=letters,
            on_unencodable=entry.on_unencodable,
        )

    writers = TopicWriters(make, claim=claim)
    tables = list(tables)
    # At once, because each new schema waits for the broker or the registry several times.
    writers.add(call_all("schemas", [partial(make, table) for table in tables]))
    writers.use(tables)
    return writers

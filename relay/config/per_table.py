"""The keys that sources of all types have for each of their tables, and the differences between their databases."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PlainValidator, PrivateAttr, WithJsonSchema, model_validator

from relay.config.errors import did_you_mean, invalid, mapping
from relay.config.model import ConfigModel
from relay.config.protection import ColumnRules, Protect
from relay.config.topic_routes import TopicClaims
from relay.config.value_types import Keys, Name, start_time
from relay.config.yaml_file import Location

Envelope = Literal["change", "debezium"]

NO_READS = (
    "does not fit `envelope: debezium`: its sinks write what comes last, and a row that is read beside the stream may "
    "come after a newer change of it, or after its deletion. Fill a sink from a dump, and let `start` name the dump's "
    "position"
)


Conditions = Mapping[str, str | int]
"""For one table, the value that each column must have in published rows."""

NOT_IN_KEY = "it is not part of the key, so an update could change it: `where` takes only key columns"
"""Why `where` takes only key columns: with others, only some changes of a row would be published."""


def _condition(value: Any) -> str | int:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError("must be text or an integer")
    return value


_Value = Annotated[
    str | int, PlainValidator(_condition), WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer"}]})
]
_Values = Annotated[
    dict[str, _Value], mapping("{column: value}", at_least=1), Field(json_schema_extra={"minProperties": 1})
]


@dataclass(frozen=True)
class Traits:
    """Properties of all sources of a type."""

    unit: str = "rows"  # the word for what their tables contain
    one_source_per_table: bool = False  # an entry with several tables becomes a source for each
    has_statements: bool = True  # the topic `ddl` has statements that change its tables
    has_complete_streams: bool = True  # its stream contains every change of rows that a snapshot reads beside it
    can_read_items: bool = False  # the values of a cache may be its items
    has_stream_tokens: bool = False  # a program without the relay can continue its stream from the relay's position


class PerTableConfig(ConfigModel):
    traits: ClassVar[Traits] = Traits()

    name: Name
    """The name of this source in tokens, metrics and commands."""

    start: Any
    """Where to start on the first run."""

    key: Keys = "hash"
    """The Kafka key."""

    tombstones: bool = False
    """Follow each DELETE with a null value, so that a compacted topic drops the item or row. Requires `key: item`."""

    on_gap: Literal["fail", "skip", "resnapshot"] = "fail"
    """What to do when changes were lost before they could be read: stop, continue, or continue and read the tables
    again."""

    on_unencodable: Literal["fail", "dead_letter"] = "fail"
    """What to do with a change that Avro cannot hold exactly, such as text that is not Unicode: stop, or publish it
    without its images and keep the complete change as a dead letter."""

    protect: Protect = Field(default_factory=dict)
    """For each table, the columns whose values do not leave the relay: `{customer: {ssn: exclude, phone: mask, email:
    {hash: {salt: "${SALT}"}}}}`. The values are left out, or replaced by `***`, or by a hash that is equal for equal
    values."""

    where: Annotated[dict[str, _Values], mapping("{table: {column: value}}")] = Field(default_factory=dict)
    """For each table, the values that a row must have in key columns to be published: `{customer: {region: eu}}`.
    Default: all rows are published."""

    envelope: Envelope | None = None
    """The form of this source's records, instead of `envelope` of the whole relay."""

    # The owners of the config's topics; None for an entry without a config.
    _claims: TopicClaims | None = PrivateAttr(None)

    def share(self, claims: TopicClaims) -> None:
        self._claims = claims

    def without_topic(self, table: str) -> str:
        """Claim the topic of ``table``. Return "" if that succeeds, otherwise why the table cannot have it."""
        return self._claims.refusal(self.name, table) if self._claims is not None else ""

    @model_validator(mode="after")
    def _tombstones_have_keys_of_items(self) -> Self:
        if self.tombstones and self.key != "item":
            problem = f"requires `key: item`: under a hash key, a tombstone would delete all of its {self.traits.unit}"
            raise invalid((("tombstones",), problem))  # I1
        return self

    @property
    def is_debezium(self) -> bool:
        return self.envelope == "debezium"

    def in_envelope(self, envelope: Envelope) -> Self:
        """Return this source with the envelope of the whole relay, unless it has one of its own."""
        is_given = self.envelope is not None or envelope == "change"
        return self if is_given else self.model_copy(update={"envelope": envelope})

    @property
    def key_mode(self) -> Literal["hash", "item"]:
        return "item" if self.key == "item" else "hash"

    @property
    def start_problem(self) -> str:
        """Why a first run could not begin at `start`, or "". Later runs never look at its positions."""
        return ""

    def start_time(self, now: float) -> float | None:
        """Return the seconds since the epoch to start at, or None if `start` is not a time."""
        if not isinstance(self.start, str) or self.start in ("current", "copy"):
            return None
        return start_time(self.start, now)

    @property
    def late_by(self) -> float | None:
        """How many seconds the server that is read may lag if there are others; None if it is the only one."""
        return None

    def rules(self, table: str) -> ColumnRules:
        return self.protect.get(table, {})

    def protects(self, table: str, column: str) -> bool:
        return column in self.rules(table)

    def conditions(self, table: str) -> Conditions:
        """The values that published rows of ``table`` have in key columns; empty if all rows are published."""
        return self.where.get(table, {})

    def _unknown_tables(self, tables: Iterable[str]) -> list[tuple[Location, str]]:
        """Return a problem for each table in these keys that is not among ``tables``, all of the source's tables."""
        known = list(tables)
        return [
            ((key, table), f"is not a table of this source; {did_you_mean(table, known, 'it reads ')}")
            for key, of_tables in (("protect", self.protect), ("where", self.where))
            for table in of_tables
            if table not in known
        ]

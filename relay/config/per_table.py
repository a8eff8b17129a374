"""What sources of all types have: keys for each of their tables, and what sets their databases apart."""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from relay.config.conditions import Conditions, Where
from relay.config.errors import invalid
from relay.config.fields import ConfigModel, Keys, Name, start_time
from relay.config.protection import ColumnRules, Protect
from relay.config.topic_claims import TopicClaims
from relay.config.yaml_file import Location


class PerTableConfig(ConfigModel):
    unit: ClassVar[str] = "rows"
    """What its tables have."""
    one_source_per_table: ClassVar[bool] = False
    """Whether an entry with several tables becomes a source for each."""
    has_statements: ClassVar[bool] = True
    """Whether statements, which the topic `ddl` has, change its tables."""
    has_complete_streams: ClassVar[bool] = True
    """Whether its stream has all changes of the rows that a snapshot reads beside it."""
    can_read_rows: ClassVar[bool] = True
    """Whether the rows of its tables can be compared with the log and the copy."""
    can_read_items: ClassVar[bool] = False
    """Whether the values of a cache may be its items."""
    has_stream_tokens: ClassVar[bool] = False
    """Whether a program without the relay can read its stream on from where the relay is."""

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
    """By table, columns whose values do not leave the relay: `{customer: {ssn: exclude, phone: mask, email: {hash:
    {salt: "${SALT}"}}}}`. Nothing is published in their place, or `***`, or a hash that is equal for equal values."""

    where: Where = Field(default_factory=dict)
    """By table, the values in columns of the key that its published rows have: `{customer: {region: eu}}`. Default: all
    rows are published."""

    # Whose each topic of the config is; None for an entry on its own.
    _claims: TopicClaims | None = PrivateAttr(None)

    def share(self, claims: TopicClaims) -> None:
        self._claims = claims

    def without_topic(self, table: str) -> str:
        """Take the topic of ``table``, or return why it cannot have it; "" if it can."""
        return self._claims.refusal(self.name, table) if self._claims is not None else ""

    @model_validator(mode="after")
    def _tombstones_have_keys_of_items(self) -> Self:
        if self.tombstones and self.key != "item":
            problem = f"requires `key: item`: under a hash key, a tombstone would delete all of its {self.unit}"
            raise invalid((("tombstones",), problem))  # I1
        return self

    @property
    def key_mode(self) -> Literal["hash", "item"]:
        return "item" if self.key == "item" else "hash"

    def start_time(self, now: float) -> float | None:
        """Return the seconds since the epoch to start at, or None if `start` is not a time."""
        if not isinstance(self.start, str) or self.start in ("current", "copy"):
            return None
        return start_time(self.start, now)

    @property
    def late_by(self) -> float | None:
        """How many seconds the server that is read may be behind, though another is not; None if there is no other."""
        return None

    def rules(self, table: str) -> ColumnRules:
        return self.protect.get(table, {})

    def protects(self, table: str, column: str) -> bool:
        return column in self.rules(table)

    def conditions(self, table: str) -> Conditions:
        """What the published rows of ``table`` have in columns of the key; empty if all rows are published."""
        return self.where.get(table, {})

    def _unknown_tables(self, tables: Iterable[str]) -> list[tuple[Location, str]]:
        """Return a problem for each table in these keys that is not one of ``tables``, which are all of the source."""
        known = list(tables)
        return [
            ((key, table), f"is not a table of this source, which reads {', '.join(known)}")
            for key, of_tables in (("protect", self.protect), ("where", self.where))
            for table in of_tables
            if table not in known
        ]

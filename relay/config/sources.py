"""The config of DynamoDB sources. Its keys are a contract with users."""

import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, cast

from pydantic import Field, field_validator, model_validator

from relay.config.addresses import Url
from relay.config.aws import AwsConfig
from relay.config.dynamodb_columns import DeclaredType
from relay.config.errors import invalid, refuse
from relay.config.model import TextForm, like
from relay.config.per_table import PerTableConfig, Traits
from relay.config.sql_sources import MySQLConfig, VitessConfig
from relay.config.value_types import Start, StartAtToken, start_time
from relay.errors import ConfigError, RelayError
from relay.types.columns import REST

_STREAM_ARN = re.compile(r"arn:[\w-]+:dynamodb:([\w-]+):\d*:table/([A-Za-z0-9._-]+)/stream/([\w.:-]+)")
_TABLE = TextForm(
    r"[A-Za-z0-9_.-]{3,255}", "{} is not a valid table name; use 3 to 255 letters, digits, dots, dashes and underscores"
)
_ARN = TextForm(
    _STREAM_ARN.pattern, "is not a stream ARN; write arn:aws:dynamodb:REGION:ACCOUNT:table/NAME/stream/LABEL"
)


class DeclaredTable(Protocol):
    """What the relay asks a class of ``relay.dynamodb.models``, which is not imported here, about its table."""

    def __columns__(self) -> Mapping[str, str]:
        """Return the types of its columns, as ``columns:`` has them, by attribute name."""

    def __differences__(self, table: Mapping[str, Any], ttl: str | None) -> Iterable[str]:
        """Return a message for each declaration that the described table does not meet."""


def declared_table(path: str) -> DeclaredTable:
    """Import the class at ``path``. Raises ValueError, saying what is wrong with it."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise ValueError(f"{path!r} is not the path of a class: write app.models:Order")
    try:
        found: Any = attrgetter(name)(import_module(module))
    except ModuleNotFoundError as error:
        raise ValueError(f"cannot import {path}: {error}: is its folder in PYTHONPATH?") from error
    except Exception as error:
        # The import runs foreign code, which may raise anything.
        raise ValueError(f"cannot import {path}: {error!r}") from error
    if not isinstance(found, type) or not hasattr(found, "__differences__"):
        raise ValueError(f"{path} is not a table's class: make it extend relay.dynamodb.models.Model")
    return cast(DeclaredTable, found)


class DynamoDBConfig(PerTableConfig, AwsConfig):
    traits: ClassVar[Traits] = Traits(
        "items", one_source_per_table=True, has_statements=False, can_read_items=True, has_stream_tokens=True
    )

    type: Literal["dynamodb"]
    """A DynamoDB table, read from its stream."""

    table: Annotated[str, _TABLE] | None = None
    """The table whose stream to read."""

    tables: list[Annotated[str, _TABLE]] | None = Field(default=None, min_length=1)
    """Several tables instead of one. Each becomes a separate source, called `<name>.<table>`."""

    tags: dict[str, str] | None = Field(default=None, min_length=1)
    """All tables of the region with these tags, instead of `tables`. The relay looks them up at each start."""

    stream_arn: Annotated[str, _ARN] | None = None
    """The ARN of one stream, instead of `table`."""

    region: str | None = None
    """The region of the table. Default: the one in `stream_arn`, or the AWS environment's."""

    endpoint_url: Annotated[str, Url(("http", "https"))] | None = None
    """The URL of DynamoDB, if it is not AWS's."""

    start: Start = "trim_horizon"
    """Where to start on the first run: `trim_horizon`, `latest`, an ISO time (UTC unless it has an offset; a future one
    is the same as `latest`), a relative time such as `-30s`, or `{token: path.json}`, a token of the stream."""

    snapshot: Literal["none", "initial"] = "none"
    """`initial` also reads the complete table once, alongside the stream, and publishes every item as READ."""

    on_alter: Literal["warn"] = "warn"
    """As in SQL sources, but only `warn`: DynamoDB has no statement that changes items without a change of each."""

    key: Literal["hash", "item"] = "hash"
    """The Kafka key: the hash key alone, or the full primary key."""

    columns: dict[str, DeclaredType] | None = Field(
        default=None, min_length=1, json_schema_extra={"propertyNames": {"not": {"const": REST}}}
    )
    """Types of attributes, including the key, for typed rows instead of JSON. Other attributes are in `rest`. Types:
    string, bytes, boolean, int, long, double, decimal(p,s), timestamp (seconds since the epoch), set (of strings), json
    (anything). `{absent: type}` is for an attribute that few items have: `relay check` does not take its name for a
    mistyped one."""

    model: Annotated[str, like(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")] | None = None
    """The class of `relay.dynamodb.models` that declares the table, instead of `columns`, such as `app.models:Order`.
    `relay check` also compares its key, indexes, view type and time to live with the table."""

    @model_validator(mode="before")
    @classmethod
    def _columns_of_model(cls, given: Any) -> Any:
        """Take `columns` from the class."""
        if not isinstance(given, dict) or not isinstance(path := given.get("model"), str):
            return given
        try:
            columns = dict(declared_table(path).__columns__())
        except (ValueError, RelayError) as error:
            raise invalid((("model",), str(error))) from error
        if given.get("columns") not in (None, columns):
            raise invalid((("columns",), "conflicts with `model`, which declares them: remove one of the two"))
        return {**given, "columns": columns}

    @field_validator("columns")
    @classmethod
    def _columns(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        if value and REST in value:
            raise invalid(((REST,), f"cannot be declared: `{REST}` holds the attributes without a column"))
        return value

    @model_validator(mode="after")
    def _one_table(self) -> Self:
        if [self.table, self.tables, self.tags, self.stream_arn].count(None) != 3:
            raise ValueError("set exactly one of `table`, `stream_arn`, `tables` and `tags`")
        if self.columns and (self.tables or self.tags):
            raise invalid((("columns",), "describe a single table: add a separate source for that table"))
        if isinstance(self.start, StartAtToken) and self.stream_arn != self.start.stream_arn and self.table is None:
            # With `table`, the stream is looked up and compared when it is opened.
            stream = self.start.stream_arn
            raise invalid((("start",), f"the token belongs to stream {stream}; set `stream_arn` to it, or set `table`"))
        arn = _STREAM_ARN.fullmatch(self.stream_arn or "")
        # DynamoDB Local has its own region in its ARNs.
        if arn and self.region and self.endpoint_url is None and arn[1] != self.region:
            raise invalid((("region",), f"is {self.region}, but the stream is in {arn[1]}"))
        return self

    @model_validator(mode="after")
    def _check_per_table(self) -> Self:
        problems = [] if self.tags else self._unknown_tables(self.tables or [self.table_name])
        for table, rules in self.protect.items():
            for name, rule in rules.items():
                if rule.kind == "exclude" and name in (self.columns or ()):
                    problems.append((("protect", table, name), "is also declared in `columns`: remove one of them"))
        refuse(problems)
        return self

    def split(self) -> list[Self]:
        return self.for_tables(self.tables) if self.tables else [self]

    def for_tables(self, tables: Iterable[str]) -> list[Self]:
        """Return a source per table, `<name>.<table>`. Raises ``ConfigError`` if `protect` or `where` names another."""
        tables = list(tables)
        for (key, table), problem in self._unknown_tables(tables):
            raise ConfigError(f"source {self.name}: `{key}.{table}` {problem}")
        return [
            self.model_copy(
                update={
                    "name": f"{self.name}.{table}",
                    "table": table,
                    "tables": None,
                    "tags": None,
                    "protect": {table: self.protect[table]} if table in self.protect else {},
                    "where": {table: self.where[table]} if table in self.where else {},
                }
            )
            for table in tables
        ]

    @property
    def names_tables(self) -> bool:
        return not self.tags

    @property
    def table_names(self) -> list[str]:
        return [] if self.tags else [self.table_name]

    @property
    def table_key(self) -> str:
        return "stream_arn" if self.stream_arn else "table"

    @property
    def table_name(self) -> str:
        arn = _STREAM_ARN.fullmatch(self.stream_arn or "")
        return arn[2] if arn else str(self.table)

    @property
    def region_name(self) -> str | None:
        """The region to connect to; None leaves it to the AWS environment."""
        arn = _STREAM_ARN.fullmatch(self.stream_arn or "")
        return self.region or (arn[1] if arn else None)

    @staticmethod
    def parse_start(to: Any) -> str | StartAtToken:
        """Parse ``relay reset --to``: a start, or ``token:PATH``. Raises ValueError for anything else."""
        if isinstance(to, dict) and set(to) == {"token"}:
            to = f"token:{to['token']}"
        if not isinstance(to, str):
            raise ValueError(f"{to!r} is not a start; in braces it must be {{token: PATH}}")
        if to.startswith("token:"):
            return StartAtToken.read(to.removeprefix("token:"), Path())
        start_time(to, 0.0)
        return to


SourceConfig = Annotated[DynamoDBConfig | VitessConfig | MySQLConfig, Field(discriminator="type")]

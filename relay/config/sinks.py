"""The keys ``cache``, ``log`` and ``copy`` of the config file: what the consumers keep up to date."""

import re
from hashlib import sha256
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from relay.config.addresses import ICEBERG, POSTGRES, Url, hosts_of
from relay.config.errors import invalid
from relay.config.locations import WITHOUT_COLON, misread, path_of
from relay.config.model import TEMPLATE, ConfigModel, TextForm, like
from relay.config.template import Template
from relay.config.value_types import Name, Seconds

REDIS = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
MEMCACHED = ("memcached", "memcacheds")
_LONGEST_PLACE = 1000  # bytes; Kafka stores up to 4096 with an offset
_VERSIONS_OF_ICEBERG = 3600.0  # seconds


def _template(text: str) -> str:
    if not Template.parse(text).text:
        raise ValueError("a template cannot be empty")
    return text


def _not_empty(templates: list[str]) -> list[str]:
    if not templates:
        raise ValueError("needs a template such as order:{order_id}")
    return templates


_KeyTemplate = Annotated[str, AfterValidator(_template), like(TEMPLATE)]


class CacheConfig(ConfigModel):
    url: Annotated[str, Url((*REDIS, *MEMCACHED))]
    """The store to invalidate in, such as `redis://127.0.0.1:6379/0` or `memcached://cache1:11211,cache2:11211`."""

    namespace: Annotated[str, TextForm(r"[^\s{}]+", "must be text without spaces or braces")]
    """The prefix of every key of this cache."""

    keys: dict[
        str, Annotated[list[_KeyTemplate], AfterValidator(_not_empty), Field(json_schema_extra={"minItems": 1})]
    ] = Field(min_length=1)
    """For each table, templates of the cache keys that a change of one of its items invalidates."""

    tombstone_ttl: Seconds = Field(default="1h", validate_default=True)
    """How long the cache remembers an invalidation. Must be longer than the application takes to load a value, and more
    than twice the usual lag of the consumer."""

    name: Name | None = None
    """The name of this cache if the relay has several, such as `second`. Its consumer then has the Kafka group `<name
    of the relay>.cache.<name>` and its own checkpoint. Leave it out if there is only one."""

    @property
    def place(self) -> str:
        """The namespace with its servers and database, without passwords and settings."""
        parts = urlsplit(self.url)
        hosts = ",".join(sorted(hosts_of(self.url.lower())))
        (database,) = parse_qs(parts.query).get("db", [""])[-1:]
        where = "/".join(filter(None, (f"{hosts}{parts.path.rstrip('/')}", database))).removesuffix("/0")
        place = f"{self.namespace}@{where}"
        if len(place.encode()) <= _LONGEST_PLACE:
            return place
        return f"{place[:100]}...{sha256(place.encode()).hexdigest()}"


class TablesConfig(ConfigModel):
    """The keys that the log and the copy share; a copy in PostgreSQL has no upkeep."""

    apply_every: Seconds = Field(default="2s", validate_default=True)
    """How long a change may wait to be written together with later ones. 50,000 waiting changes are written at once."""

    maintain_every: Seconds = Field(default="1d", validate_default=True)
    """How often the consumer merges small files, and deletes files that no kept version needs."""

    keep_versions: Seconds = Field(default="7d", validate_default=True)
    """For how long an earlier version can be read, also by a running query. For Iceberg the default is `1h`."""

    def _keep_fewer_in_iceberg(self, location: str) -> None:
        if location.startswith(f"{ICEBERG}:") and "keep_versions" not in self.model_fields_set:
            # Iceberg lists all versions of a table in a file that it writes with each of them. It does not count as
            # set, so that a replay into Delta has Delta's default.
            self.__dict__["keep_versions"] = _VERSIONS_OF_ICEBERG


_IN_FULL = re.compile(rf"/|[A-Za-z][A-Za-z0-9+.-]*:|{WITHOUT_COLON}")
_OF_LAKES = {"maintain_every", "keep_versions"}


def _in_delta(location: str) -> str:
    """Refuse a local folder that would be mistaken for another one, or for another store."""
    if location.startswith("~"):
        raise ValueError("~ does not stand for a home folder here: write the full path")
    if location and not _IN_FULL.match(location):
        raise ValueError("would depend on the folder in which a command runs: write the full path")  # I1
    bare = location.removeprefix("delta+")
    if (problem := misread(bare)) is not None:
        raise ValueError(problem)
    if bare != location and path_of(bare) is not None:
        raise ValueError(f"is a local folder: write delta://{bare.partition(':')[2].removeprefix('//')}")
    return location


class LogConfig(TablesConfig):
    path: Annotated[
        str,
        Field(min_length=1),
        AfterValidator(_in_delta),
        like(
            rf"(?={_IN_FULL.pattern})(?!(?:file|delta):(?!///|/(?!/))|~|delta\+(?:file|delta):|(?:delta\+)?{WITHOUT_COLON}).+"
        ),
    ]
    """Where to keep the change log, such as `file:///var/lib/relay/log`, `s3a://bucket/log` or
    `iceberg://CATALOG/NAMESPACE`."""

    @model_validator(mode="after")
    def _of_its_target(self) -> Self:
        self._keep_fewer_in_iceberg(self.path)
        return self


def in_database(url: str) -> bool:
    """Whether a copy with this URL is in a database, which keeps its tables small by itself."""
    return url.partition(":")[0] in POSTGRES


class CopyConfig(TablesConfig):
    url: Annotated[str, AfterValidator(_in_delta), Url(("delta", *POSTGRES, ICEBERG), prefix="delta+")]
    """Where to keep the copy, such as `delta:///var/lib/relay/copy`, `delta+s3a://bucket/copy`,
    `postgresql://user:password@host:5432/db` or `iceberg://CATALOG`."""

    tombstone_retention: Seconds = Field(default="30d", validate_default=True)
    """How long the copy remembers a deleted row. Applying an older change again may bring the row back."""

    items: Literal["json", "variant"] = "json"
    """How the copy stores DynamoDB items and other JSON: as text, or as VARIANT in Delta and `jsonb` in PostgreSQL."""

    @property
    def location(self) -> str | None:
        """The location of its Delta tables; None if the copy is in a database or a catalog."""
        return None if self.url.partition(":")[0] in (*POSTGRES, ICEBERG) else self.url

    @model_validator(mode="after")
    def _of_its_target(self) -> Self:
        given = sorted(self.model_fields_set & _OF_LAKES)
        if given and in_database(self.url):
            raise invalid(
                ((given[0],), "applies to a copy in Delta or Iceberg; PostgreSQL vacuums by itself: remove it")
            )
        if self.url.startswith(f"{ICEBERG}:") and self.items == "variant":
            raise invalid((("items",), "a copy in Iceberg stores JSON as text: remove it"))
        self._keep_fewer_in_iceberg(self.url)
        return self

    @model_serializer(mode="wrap", when_used="json")
    def _without_upkeep(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out keys that a file must not have."""
        found: dict[str, Any] = serialize(self)
        return {key: each for key, each in found.items() if not in_database(self.url) or key not in _OF_LAKES}

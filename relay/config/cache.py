"""The key ``cache`` of the config file."""

from hashlib import sha256
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

from pydantic import AfterValidator, Field

from relay.config.addresses import Url, hosts_of
from relay.config.schema_forms import TEMPLATE, TextForm, like
from relay.config.template import Template
from relay.config.value_types import ConfigModel, Name, Seconds

REDIS = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
MEMCACHED = ("memcached", "memcacheds")


_LONGEST_PLACE = 1000  # bytes; Kafka stores up to 4096 with an offset


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

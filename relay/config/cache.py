"""The key ``cache`` of the config file."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from relay.config.addresses import Url
from relay.config.fields import ConfigModel, Seconds
from relay.config.schema_forms import NO_LIST_IS_EMPTY, TEMPLATE, TextForm, like
from relay.config.template import Template

REDIS = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
MEMCACHED = ("memcached", "memcacheds")


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
        str, Annotated[list[_KeyTemplate], AfterValidator(_not_empty), Field(json_schema_extra=NO_LIST_IS_EMPTY)]
    ] = Field(min_length=1)
    """Per table, templates of the cache keys that a change of one of its items invalidates."""

    tombstone_ttl: Seconds = Field(default="1h", validate_default=True)
    """How long the cache remembers an invalidation: longer than a load of the application takes, and more than twice
    the usual lag of its consumer."""

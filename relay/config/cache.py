"""The key ``cache`` of the config file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from relay.config.addresses import Url
from relay.config.errors import invalid
from relay.config.fields import ConfigModel, Seconds
from relay.config.schema_forms import TEMPLATE, TextForm, texts
from relay.config.template import Template
from relay.config.yaml_file import Location

REDIS = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
MEMCACHED = ("memcached", "memcacheds")


class CacheConfig(ConfigModel):
    url: Annotated[str, Url((*REDIS, *MEMCACHED))]
    """The store to invalidate in, such as `redis://127.0.0.1:6379/0` or `memcached://cache1:11211,cache2:11211`."""

    namespace: Annotated[str, TextForm(r"[^\s{}]+", "must be text without spaces or braces")]
    """The prefix of every key of this cache."""

    keys: dict[str, list[str]] = Field(
        min_length=1,
        json_schema_extra={"additionalProperties": {"type": "array", "minItems": 1, "items": texts(TEMPLATE)}},
    )
    """Per table, templates of the cache keys that a change of one of its items invalidates."""

    tombstone_ttl: Seconds = Field(default="1h", validate_default=True)
    """How long the cache remembers an invalidation: longer than a load of the application takes, and more than twice
    the usual lag of its consumer."""

    @field_validator("keys")
    @classmethod
    def _templates(cls, value: dict[str, list[str]]) -> dict[str, list[str]]:
        problems: list[tuple[Location, str]] = []
        for table, templates in value.items():
            if not templates:
                problems.append(((table,), "needs a template such as order:{order_id}"))
            for i, template in enumerate(templates):
                try:
                    if not Template.parse(template).text:
                        problems.append(((table, i), "a template cannot be empty"))
                except ValueError as error:
                    problems.append(((table, i), str(error)))
        if problems:
            raise invalid(*problems)
        return value

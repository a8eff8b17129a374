"""Opens the place where the relay publishes schemas before use and readers look them up, as the config says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from relay.avro.topic_schemas import TopicSchemas
from relay.extras import needs

if TYPE_CHECKING:
    from relay.avro.schema_registry import RegistrySchemas
    from relay.config import Config

    PublishedSchemas = TopicSchemas | RegistrySchemas


def open_schemas(config: Config, kept: Callable[[], Mapping[bytes, dict[str, Any]]] = dict) -> PublishedSchemas:
    """Open the schema registry if the config has one, otherwise the schemas topic. ``kept``: see `RegistrySchemas`."""
    in_topic = partial(TopicSchemas, config.client("schemas"), config.internal("schemas"))
    if config.schema_registry is None:
        return in_topic()
    with needs("registry", "`schema_registry`"):
        from relay.avro.schema_registry import RegistrySchemas
    registry = config.schema_registry
    return RegistrySchemas(
        registry.url,
        registry.on_incompatible,
        access=registry.access(),
        shared=config.shared_topics,
        common=config.common_topics,
        earlier=in_topic,
        kept=kept,
    )

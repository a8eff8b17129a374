"""Opens the place where the relay publishes schemas before use and readers look them up, as the config says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from relay.avro.topic_schemas import TopicSchemas
from relay.extras import needs

if TYPE_CHECKING:
    from relay.avro.schema_registry import RegistrySchemas
    from relay.config import Config, SchemaRegistryConfig

    PublishedSchemas = TopicSchemas | RegistrySchemas


def open_schemas(config: Config, kept: Callable[[], Mapping[bytes, dict[str, Any]]] = dict) -> PublishedSchemas:
    """Open the schema registry if the config has one, otherwise the schemas topic. ``kept``: see `RegistrySchemas`."""
    in_topic = partial(TopicSchemas, config.client("schemas"), config.internal("schemas"))
    if config.schema_registry is None:
        return in_topic()
    return open_registry(config, config.schema_registry, earlier=in_topic, kept=kept)


def open_registry(config: Config, registry: SchemaRegistryConfig, **options: Any) -> RegistrySchemas:
    """Open the schema registry of the config. ``options``: more arguments of `RegistrySchemas`."""
    with needs("registry", "`schema_registry`"):
        from relay.avro.schema_registry import RegistrySchemas
    return RegistrySchemas(
        registry.url,
        registry.on_incompatible,
        access=registry.access(),
        shared=config.shared_topics,
        common=config.common_topics,
        **options,
    )

"""``relay check --offline``: what can be said of a config without a connection: of the file, and of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from relay.cache import open_store
from relay.config import Config, SchemaRegistryConfig, SourceConfig, redacted
from relay.engine.kinds import open_source
from relay.errors import Unavailable
from relay.kafka.settings import unusable_security
from relay.operations.check import Check, checks_of_places, open_registry, run_check
from relay.operations.check_machine import checks_of_machine
from relay.source import Finding


def run(config: Config, file: Path) -> Iterator[Finding]:
    """Yield what is found. ``file``: that of ``config``, which is right, or there would be no config."""
    yield Finding(f"config {file}", "valid; nothing was connected to")
    checks: list[tuple[str, Check]] = [("kafka.producer", partial(_check_security, config))]
    checks += [(f"source {source.name}", partial(_check_source, source)) for source in config.sources]
    if config.schema_registry:
        checks.append(("schema registry", partial(_check_registry, config.schema_registry)))
    if config.cache:
        checks.append((f"cache {redacted(config.cache.url)}", partial(_check_cache, config.cache.url)))
    for name, check in (*checks, *checks_of_places(config, offline=True), *checks_of_machine(config)):
        yield from run_check(name, check)


def _check_security(config: Config) -> str:
    if problem := unusable_security(config):
        raise Unavailable(f"a client cannot begin to connect: {problem}")
    return "accepted by librdkafka"


def _check_source(source: SourceConfig) -> str:
    """Open a source, for which its packages are needed, and the files that it names."""
    open_source(source).close()
    named = ", ".join(source.table_names) or "all tables that it finds"
    return f"{source.type}, {named}; its packages are installed"


def _check_registry(registry: SchemaRegistryConfig) -> str:
    """Open it, for which its packages are needed, and the files that it names."""
    open_registry(registry).close()
    return "its packages are installed"


def _check_cache(url: str) -> str:
    open_store(url).close()
    return "its packages are installed"

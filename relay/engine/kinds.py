"""The kinds of sources, by the ``type`` of an entry of ``sources:``: ``relay.config.sources`` lists them.

Each is imported when one is asked for: its packages are extras, and take their time to import.
"""

from collections.abc import Sequence
from importlib import import_module

from relay.config import Config, SourceConfig
from relay.extras import needs
from relay.source import Source, SourceKind


def kind_of(entry: SourceConfig) -> SourceKind:
    """Return the kind of ``entry``. Raises ``MissingExtra``."""
    with needs(entry.type, f'the source "{entry.name}"'):
        kind: SourceKind = import_module(f"relay.{entry.type}.kind").KIND
    return kind


def open_source(entry: SourceConfig) -> Source:
    """Return the source of ``entry``. ``connect`` comes first."""
    return kind_of(entry).open(entry)


def open_sources(config: Config) -> Sequence[Source]:
    return [open_source(entry) for entry in config.sources]

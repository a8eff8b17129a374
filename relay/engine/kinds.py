"""The kinds of sources by their ``type``, each imported on first use: their packages are extras, and slow to import."""

from importlib import import_module

from relay.config import SourceConfig
from relay.extras import needs
from relay.source import Source, SourceKind


def kind_of(entry: SourceConfig) -> SourceKind:
    """Return the kind of ``entry``. Raises ``MissingExtra``."""
    with needs(entry.type, f'the source "{entry.name}"'):
        kind: SourceKind = import_module(f"relay.{entry.type}.kind").KIND
    return kind


def open_source(entry: SourceConfig) -> Source:
    """Return the source of ``entry``, which has to ``connect`` before anything else."""
    return kind_of(entry).open(entry)

"""How often the tables of a lake are tidied up, without the rest of a config."""

from __future__ import annotations

from relay.config.sinks import TablesConfig


def lake_config(every: float, kept: float) -> TablesConfig:
    """Return the section of tables that are tidied ``every`` so many seconds, with versions ``kept`` for so many."""
    return TablesConfig(maintain_every=every, keep_versions=kept)

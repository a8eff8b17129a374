"""Exports ``relay.keyrange`` under the name that users import."""

from relay.keyrange import KeyRange, shards_covering

__all__ = ["KeyRange", "shards_covering"]

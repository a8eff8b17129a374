"""Key ranges under the name that users import them by; see ``relay.keyrange``."""

from relay.keyrange import KeyRange, shards_covering

__all__ = ["KeyRange", "shards_covering"]

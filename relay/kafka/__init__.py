"""Transactions, checkpoints, ownership of shards, topics, keys and dead letters. See ``README.md``."""

"""Reads the shards that a worker owns and publishes their changes and checkpoints in transactions."""

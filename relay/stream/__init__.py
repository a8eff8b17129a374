"""One stream of a source: its plan, its shards, their checkpoints, and its progress."""

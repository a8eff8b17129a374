"""One stream of a source: its plan, its shards and their checkpoints, and how far it is."""

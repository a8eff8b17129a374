"""A worker of the relay: its loop, its transactions, and their upkeep."""

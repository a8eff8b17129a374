"""Snapshots of tables beside their stream: when one begins, what it reads, when it ends."""

"""Reads open shards in threads, bounded in memory."""

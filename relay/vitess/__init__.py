"""Vitess: key ranges, shard names and keyspace ids, computed as Vitess does."""

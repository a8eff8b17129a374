"""Vitess: the change streams of a keyspace's shards, read through vtgate."""

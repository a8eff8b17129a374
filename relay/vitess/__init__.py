"""The shards of a Vitess keyspace as a source, and keyspace ids computed as Vitess does."""

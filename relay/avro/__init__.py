"""Rows to Avro and back: schemas and their evolution, framing, registries, encoding and decoding."""

"""Relay database changes to Kafka exactly once, and keep caches and copies honest."""

__version__ = "0.1.0"

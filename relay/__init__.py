"""Relay database changes to Kafka exactly once, and keep caches and copies honest."""

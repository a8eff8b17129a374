"""Metrics, health and the status page of a running relay. See ``README.md``."""

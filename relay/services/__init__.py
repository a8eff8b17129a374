"""Embedded services for the demo, the tests and ``relay services up``. See ``README.md``."""

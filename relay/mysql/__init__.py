"""Reads the binlogs of MySQL and MariaDB servers. See README.md."""

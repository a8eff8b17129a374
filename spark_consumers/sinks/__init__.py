"""The tables that the consumers write, in Delta and PostgreSQL."""

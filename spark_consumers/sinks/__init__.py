"""The Delta tables that the consumers write."""

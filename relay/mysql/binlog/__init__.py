"""The wire format of binlogs: events, rows and values."""

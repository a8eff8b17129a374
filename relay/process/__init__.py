"""Child processes, signals, and the supervisor of ``relay run --workers N``."""

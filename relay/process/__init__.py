"""Child processes, signals, the supervisor of ``relay run --workers N``, and calls in separate threads."""

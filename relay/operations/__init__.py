"""What the operating commands do: check, status, tail, gaps, reset, dead letters."""

"""The commands of ``relay``: their options and their output."""

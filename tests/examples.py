"""How many examples a test plays that asks for another number than the default of its Hypothesis profile."""

from __future__ import annotations

from hypothesis import settings


def examples(number: int) -> int:
    """Return ``number``, or less by as much as the profile plays less than 100: in ``make quick``."""
    return max(1, number * settings().max_examples // 100)

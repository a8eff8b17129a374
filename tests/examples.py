"""How much of a test ``make quick`` plays: by its Hypothesis profile."""

from __future__ import annotations

from hypothesis import settings


def examples(number: int) -> int:
    """Return how many examples, or seeds, to play of ``number``: fewer in ``make quick``."""
    return max(1, number * settings().max_examples // 100)


def is_quick() -> bool:
    """Whether a test that goes through all cases leaves some out."""
    return settings().max_examples < 100

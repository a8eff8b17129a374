"""How much of a test ``make quick`` plays: by its Hypothesis profile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy


def examples(number: int) -> int:
    """Return how many examples, or seeds, to play of ``number``: fewer in ``make quick``."""
    return max(1, number * settings().max_examples // 100)


def draw(number: int, *values: SearchStrategy[Any], play: Callable[..., None]) -> None:
    """Call ``play`` with ``number`` draws of the values: fewer in ``make quick``."""
    settings(max_examples=examples(number), deadline=None)(given(*values)(play))()


def is_quick() -> bool:
    """Whether a test that goes through all cases leaves some out."""
    return settings().max_examples < 100

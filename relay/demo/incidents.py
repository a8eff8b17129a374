"""What happens to the database while the writers write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

_PAUSE = 0.25  # seconds between two calls


class Incident(NamedTuple):
    """A change to the database itself, such as a new column, during the load.

    ``at``: when, as a fraction of the load's duration. ``do``: makes the change and returns a description of it.
    """

    at: float
    do: Callable[[], str]


def run_all(
    incidents: Iterable[Incident],
    seconds: float,
    say: Callable[[str], None],
    show: Callable[[float], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return after a load of ``seconds`` and after all ``incidents``, which begin when they are due.

    On a slow host one may take longer than the rest of the load, and those after it begin late. ``show`` is called
    meanwhile, with the seconds that are left.
    """
    start = clock()
    waiting = list(incidents)
    while (left := seconds - (clock() - start)) > 0 or waiting:
        if waiting and left <= seconds * (1 - waiting[0].at):
            say(f"after {seconds - left:.0f} s: {waiting.pop(0).do()}")
        else:
            show(left)
            sleep(min(_PAUSE, left))

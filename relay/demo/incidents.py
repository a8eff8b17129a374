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

    One that begins late, after another that took long on a slow host, makes the load longer: the writers go on after it
    for as long as they should. ``show`` is called meanwhile, with the seconds that are left.
    """
    start = clock()
    end = start + seconds
    waiting = list(incidents)
    while (left := end - clock()) > 0 or waiting:
        if waiting and left <= (after := seconds * (1 - waiting[0].at)):
            end += after - left
            say(f"after {clock() - start:.0f} s: {waiting.pop(0).do()}")
        else:
            show(left)
            sleep(min(_PAUSE, left))

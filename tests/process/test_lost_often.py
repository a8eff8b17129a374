"""When a connection counts as one that is ended all the time."""

from __future__ import annotations

import random

from relay.process.lost_often import LostOften


def test_losses_are_told_once_when_they_become_frequent_and_again_after_a_quiet_time() -> None:
    """I10: a log full of one warning hides the others."""
    losses, now, told = LostOften(), 0.0, []
    for period in range(3):
        for _ in range(40):
            now += random.uniform(1.0, 3.0)
            if losses.note(now):
                told.append(period)
            assert losses.is_often == (told[-1:] == [period])
        now += 3600.0
    assert told == [0, 1, 2]


def test_rare_losses_are_never_frequent() -> None:
    losses = LostOften()
    assert not any(losses.note(number * 7.0) or losses.is_often for number in range(1000))

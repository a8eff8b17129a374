"""Plays every order of the moves of a scenario, the shortest first and each state once, or many at random."""

from __future__ import annotations

import random
from collections import deque
from typing import NamedTuple

from tests.snapshots.model.moves import moves
from tests.snapshots.model.world import Scenario, first, normal


class Played(NamedTuple):
    """``trace``: the moves that led to the ``problem``."""

    states: int
    problem: str | None
    trace: list[str]


def explore(scenario: Scenario) -> Played:
    """Play all orders, up to one that breaks something."""
    start = normal(first(scenario))
    numbers, worlds = {start: 0}, deque([start])
    before = [(0, "")]
    after: list[list[int]] = []
    while worlds:
        world, number = worlds.popleft(), len(after)
        found, problem = moves(world, scenario)
        if problem is not None:
            return Played(len(numbers), problem, _trace(before, number))
        after.append([])
        for name, each in found:
            known = numbers.setdefault(each, len(numbers))
            after[-1].append(known)
            if known == len(before):
                before.append((number, name))
                worlds.append(each)
    if (endless := _endless(after)) is not None:
        return Played(len(numbers), "this comes again for ever", _trace(before, endless))
    return Played(len(numbers), None, [])


def _trace(before: list[tuple[int, str]], number: int) -> list[str]:
    told = []
    while number:
        number, name = before[number]
        told.append(name)
    return told[::-1]


def _endless(after: list[list[int]]) -> int | None:
    """Return a state that the moves lead back to; None if all come to an end."""
    left = list(map(len, after))
    before: list[list[int]] = [[] for _ in after]
    for number, found in enumerate(after):
        for each in found:
            before[each].append(number)
    ended = [number for number, count in enumerate(left) if not count]
    for number in ended:
        for each in before[number]:
            left[each] -= 1
            if not left[each]:
                ended.append(each)
    return next((number for number, count in enumerate(left) if count), None)


def walk(scenario: Scenario, seed: int, most: int = 1000) -> Played:
    """Play one order at random, until nothing is left to do."""
    chosen, world, told = random.Random(seed), normal(first(scenario)), list[str]()
    while len(told) < most:
        found, problem = moves(world, scenario)
        if problem is not None or not found:
            return Played(len(told), problem, told)
        own = [move for move in found if move[0] not in scenario.faults]
        # The relay does most of them, or nothing would happen in the middle of its work.
        name, world = chosen.choice(own if own and chosen.random() < 0.8 else found)
        told.append(name)
    return Played(len(told), "it does not end", told)

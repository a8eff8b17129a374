"""Plays every interleaving of a model, the shortest first, and each state once."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from relay.cache import Store
from spark_consumers.running import no_garbage_collection
from tests.cache.model.moves import Model, nonces_of
from tests.cache.model.scenario import Scenario
from tests.cache.model.states import State


class Explored(NamedTuple):
    """``executions``: interleavings from the first state to where nothing is left to do. ``trace``: see ``explore``."""

    states: int
    moves: int
    executions: int
    problem: str | None
    trace: list[Any]


def explore(scenario: Scenario, around: Callable[[Store], Store] | None = None) -> Explored:
    """Play all interleavings of a scenario, up to one that breaks I6.

    ``trace`` is how that one came about, in as few moves as possible. ``around``: what stands around the store.
    """
    model = Model(scenario, around)
    # None of its many states is garbage.
    with nonces_of(model), no_garbage_collection():
        try:
            return _explore(model)
        finally:
            model.forget()


def _explore(model: Model) -> Explored:
    first = model.first()
    numbers: dict[State, int] = {first: 0}
    before = array("q", [-1])
    queue = deque([first])
    starts, successors = array("q"), array("q")
    while queue:
        state = queue.popleft()
        number = len(starts)
        starts.append(len(successors))
        for after, _ in model.moves(state):
            known = numbers.get(after)
            if known is None:
                known = numbers[after] = len(numbers)
                before.append(number)
                problem = model.problem(after)
                if problem is not None:
                    return Explored(len(numbers), len(successors), 0, problem, _trace(model, list(numbers), before))
                queue.append(after)
            successors.append(known)
    starts.append(len(successors))
    return Explored(len(numbers), len(successors), _executions(starts, successors), None, [])


def _trace(model: Model, states: list[State], before: array[int]) -> list[Any]:
    """Return the moves that led to the last state."""
    number, told = len(states) - 1, []
    while number:
        parent = states[before[number]]
        told.append(next(move for after, move in model.moves(parent) if after == states[number]))
        number = before[number]
    return told[::-1]


def _executions(starts: array[int], successors: array[int]) -> int:
    """Count the paths from the first state to the last ones. Every move leaves less to do, so none leads back."""
    states = len(starts) - 1
    open_ = array("q", bytes(8 * states))
    for after in successors:
        open_[after] += 1
    ways: dict[int, int] = {0: 1}
    ready, found = [0], 0
    while ready:
        number = ready.pop()
        count = ways.pop(number)
        if starts[number] == starts[number + 1]:
            found += count
        for after in successors[starts[number] : starts[number + 1]]:
            ways[after] = ways.get(after, 0) + count
            open_[after] -= 1
            if not open_[after]:
                ready.append(after)
    return found

"""The states of a scenario: which of them are the same, and which break I6."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

from relay.cache import Store
from tests.cache.model.memory import Memory, decoded, find, nonce_of
from tests.cache.model.programs import Programs
from tests.cache.model.scenario import ENTRY, Scenario

NOBODY = -1  # in place of an actor that has nothing to do
_FIRST_NAME = "c0"  # of an entry whose nonce was replaced


class Around(NamedTuple):
    """Everything but the store and what actors are in the middle of.

    ``commits``: by shard, the second of each change. ``topic``: the shard and position of each record. ``offset``: what
    the invalidator has applied. ``replicas``: by filler and shard, what it has. ``applied``: by shard. ``left``: by
    writer, the commits to come. ``reads``: by filler, those to come.
    """

    now: float
    commits: tuple[tuple[int, ...], ...]
    topic: tuple[tuple[int, int], ...]
    offset: int
    replicas: tuple[tuple[int, ...], ...]
    applied: tuple[int, ...]
    left: tuple[int, ...]
    reads: tuple[int, ...]
    lost: int
    ticked: int
    replays: int
    republished: int
    gaps: int
    outages: int
    full: int


class State(NamedTuple):
    """``memory``, ``around`` and each of ``actors``: numbers that stand for them in a ``Model``."""

    memory: int
    around: int
    actors: tuple[int, ...]


Move = tuple[State, Any]
"""The state that follows, and what tells the move."""


class States:
    """The states of a scenario, each part of them once."""

    def __init__(self, scenario: Scenario, around: Callable[[Store], Store] | None) -> None:
        self.scenario = scenario
        self.programs = Programs(scenario, around)
        self._memories: list[Memory] = []
        self._memory_numbers: dict[Memory, int] = {}
        self._entries: list[bytes | None] = []  # by number of a memory
        self._arounds: list[Around] = []
        self._around_numbers: dict[Around, int] = {}
        self._remembered = lru_cache(1 << 16)(self._found_remembered)

    # -- states -----------------------------------------------------------------------------------------

    def parts(self, state: State) -> tuple[Memory, Around]:
        return self._memories[state.memory], self._arounds[state.around]

    def _memory(self, memory: Memory) -> int:
        number = self._memory_numbers.setdefault(memory, len(self._memories))
        if number == len(self._memories):
            self._memories.append(memory)
            stored = find(memory, ENTRY)
            self._entries.append(stored and stored.meta)
        return number

    def _around(self, around: Around) -> int:
        number = self._around_numbers.setdefault(around, len(self._arounds))
        if number == len(self._arounds):
            self._arounds.append(around)
        return number

    def _state(self, memory: int, around: int, actors: list[int], told: Any = None) -> State:
        """Return the state. ``told``: for the invalidator, to begin its next batch with."""
        if self.programs.is_plain:
            entry = self._entries[memory]
            for who in range(self.scenario.fillers):
                if self._is_hopeless(entry, actors[who]):
                    actors[who], around = self._after_fill(who, around)
        memory = self._renamed(memory, actors)
        if told is not None:
            actors[self.scenario.fillers] = self._next_batch(self._memories[memory], actors, told)
        return State(memory, around, tuple(actors))

    def _after_fill(self, who: int, around: int) -> tuple[int, int]:
        before = self._arounds[around].reads
        if not before[who]:
            return NOBODY, around
        reads = (*before[:who], before[who] - 1, *before[who + 1 :])
        around = self._around(self._arounds[around]._replace(reads=reads))
        return self.programs.begin("fill", f"r{who}.{before[who]}", who), around

    def _is_hopeless(self, entry: bytes | None, actor: int) -> bool:
        """Whether a filler has only to find out that its entry was replaced, which nobody else can notice."""
        if actor == NOBODY:
            return False
        expects = self.programs.expects[actor]
        if expects is None or expects == entry:
            return False
        return self.programs.pending[actor][0] in ("now", "write", "primary", "replica")

    def _renamed(self, number: int, actors: Sequence[int]) -> int:
        """Give the entry a nonce as good as its own: whoever has not seen it, cannot tell.

        So two states that differ in nothing but who wrote last are one.
        """
        memory, entry = self._memories[number], self._entries[number]
        if entry is None or (nonce := nonce_of(entry)) == _FIRST_NAME:
            return number
        for actor in actors:
            if actor != NOBODY and (
                nonce in self.programs.remembers[actor] or nonce.startswith(self.programs.names[actor])
            ):
                return number
        remembered = self._remembered(tuple(actors))
        new = next(name for name in map("c{}".format, count()) if name not in remembered)
        meta = entry.replace(f'"n":"{nonce}"'.encode(), f'"n":"{new}"'.encode())
        items = [(k, each._replace(meta=meta) if k == ENTRY else each, ends) for k, each, ends in memory.items]
        return self._memory(memory._replace(items=tuple(items)))

    def _found_remembered(self, actors: Sequence[int]) -> frozenset[str]:
        """Return the nonces that actors have seen."""
        return frozenset().union(*(self.programs.remembers[actor] for actor in actors if actor != NOBODY))

    def _next_batch(self, memory: Memory, actors: Sequence[int], told: tuple[Any, ...]) -> int:
        """Return the invalidator before its next batch, with a name that is not part of any nonce."""
        texts = [*(stored.meta for _, stored, _ in memory.items), told[0] or b"", f'"{told[2]}"'.encode()]
        texts += [f'"{nonce}"'.encode() for nonce in self._remembered(tuple(actors))]
        name = next(n for n in map("i{}".format, count()) if not any(f'"{n}.'.encode() in text for text in texts))
        return self.programs.begin("invalidate", name, told)

    def problem(self, state: State) -> str | None:
        """Return how the state breaks I6; None if it does not."""
        memory, around = self.parts(state)
        stored = find(memory, ENTRY)
        if stored is None or stored.value is None or memory.generation is None:
            return None
        if not decoded(stored.meta).serves(f"g{memory.generation}", around.now):
            return None
        for at, applied in zip(map(int, stored.value.split()), around.applied, strict=True):
            if at < applied:
                return f"the value as of {at} is served, older than {applied}, which is invalidated"
        return None

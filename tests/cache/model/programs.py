"""The actors of the model: they run the code of ``relay.cache``, one outside call at a time.

An actor is what it runs and the answers it has got so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from relay.cache import Invalidator, LoadedValue, Store, TokenCache, is_fresher
from relay.cache.continuity import Continuity
from relay.cache.entry import Tokens
from relay.cache.store import ConditionalWrite, StoredEntry
from relay.errors import Unavailable
from relay.token import EventToken
from tests.cache.model.memory import nonce_of
from tests.cache.model.scenario import CANONICAL, ENTRY, KEY, LEASE_TTL, NAMESPACE, SHARDS, TOMBSTONE_TTL, Scenario


class Call(NamedTuple):
    """What an actor asks of the world."""

    kind: str
    of: Any = None


class Ended(NamedTuple):
    """``result``: what the actor returned."""

    result: Any


class Paused(BaseException):
    """Ends a run at the first call that has no answer yet. BaseException, as nothing may take it for a failure."""

    def __init__(self, call: Call) -> None:
        self.call = call


class Replay:
    """Gives a run the answers that it got before. ``name``: part of its nonces, no two runs have the same."""

    def __init__(self, name: str, answers: Sequence[Any]) -> None:
        self._name = name
        self._answers = answers
        self._next = 0
        self._nonces = 0
        self.expects: bytes | None = None  # the entry that the next write replaces

    def call(self, kind: str, of: Any = None) -> Any:
        if self._next == len(self._answers):
            raise Paused(Call(kind, of))
        answer = self._answers[self._next]
        self._next += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    def nonce(self, _: int = 0) -> str:
        self._nonces += 1
        return f"{self._name}.{self._nonces}"


class ReplayedStore:
    """A store whose calls are those of a run. ``conflicted``: the last write was refused."""

    def __init__(self, replay: Replay) -> None:
        self._call = replay.call
        self._replay = replay
        self.conflicted = False

    def read(self, keys: Sequence[str], generation_key: str) -> tuple[list[StoredEntry | None], str]:
        found = self._call("read", tuple(keys))
        if ENTRY in keys:
            self._replay.expects = found[0].meta if found[0] else None
        return list(found), self.generation(generation_key)

    def compare_and_set(self, writes: Sequence[ConditionalWrite]) -> dict[str, bytes | None]:
        conflicts = dict(self._call("write", tuple(writes)) if writes else ())
        if writes and writes[0].key == ENTRY:
            self.conflicted = bool(conflicts)
            self._replay.expects = self._replay.expects if conflicts else writes[0].meta
        return conflicts

    def generation(self, generation_key: str) -> str:
        return str(self._call("generation"))

    def renew(self, generation_key: str) -> str:
        raise AssertionError("no program of the model begins a generation: its gaps do")

    def losses(self) -> str:
        return str(self._call("losses"))


class Programs:
    """What the actors run. An actor is a number here; it stands for a program and the answers so far.

    ``around``: what stands around the store of each, None for nothing. Then, what cannot matter is forgotten.
    """

    def __init__(self, scenario: Scenario, around: Callable[[Store], Store] | None) -> None:
        self._scenario = scenario
        self._around = around or (lambda store: store)
        self.is_plain = around is None
        self._actors: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = []
        self._numbers: dict[tuple[Any, Any], int] = {}
        self.pending: list[Call | Ended] = []
        self.expects: list[bytes | None] = []
        self.remembers: list[frozenset[str]] = []  # the nonces of entries that an actor has seen
        self.names: list[str] = []  # what an actor's own nonces begin with
        self.running = Replay("", ())  # whose nonces an Invalidator takes

    def begin(self, *program: Any) -> int:
        """Return the actor that is about to run ``program``: its kind, and what it is told."""
        return self._actor(program, (), (program, ()))

    def answered(self, actor: int, answer: Any) -> int:
        """Return the actor after its call got this answer."""
        number = self._numbers.get((actor, answer))
        if number is None:
            program, answers = self._actors[actor]
            answers = self._remembered(program, (*answers, answer))
            number = self._numbers[actor, answer] = self._actor(program, answers, (program, answers))
        return number

    def _remembered(self, program: tuple[Any, ...], answers: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return what matters of the answers: an attempt that another writer was faster than leaves no trace."""
        if program[0] == "fill" or not self.is_plain or not _is_conflict(answers[-1]):
            return answers
        if program[0] == "drop" and program[-1] is None:
            return ()
        return (*answers[:-2], answers[-1]) if _is_conflict(answers[-2]) and answers[-1][0][1] else answers

    def _actor(self, program: tuple[Any, ...], answers: tuple[Any, ...], name: tuple[Any, Any]) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._actors)
            self._actors.append((program, answers))
            self.pending.append(self._run(program, answers))
            self.expects.append(self.running.expects)
            self.remembers.append(frozenset(_nonces_in(answers)))
            self.names.append(f"{program[1]}.")
        return number

    def _run(self, program: tuple[Any, ...], answers: tuple[Any, ...]) -> Call | Ended:
        kind, name, *told = program
        self.running = replay = Replay(name, answers)
        try:
            return Ended(getattr(self, f"_{kind}")(replay, *told))
        except Paused as paused:
            return paused.call

    def _invalidate(self, replay: Replay, told: tuple[Any, ...]) -> Any:
        """Apply a batch. ``told``: what the process remembers of those before; returns what it does after this one."""
        store = self._around(ReplayedStore(replay))
        clock = partial(replay.call, "now")
        invalidator = Invalidator(store, NAMESPACE, tombstone_ttl=TOMBSTONE_TTL, clock=clock)
        continuity = Continuity(invalidator, "relay", "keys")
        invalidator._floors, invalidator._mostly_cached, continuity._since, end = told
        continuity._ends = offsets(end)
        begin, changes = replay.call("take")
        try:
            if self._scenario.replicas:
                continuity.start_at(offsets(begin), lambda: offsets(replay.call("end")))
            key = CANONICAL if self._scenario.spelled else KEY
            invalidator.apply([(key, token) for token in changes], published_since=continuity.published_since)
            is_applied = True
        except Unavailable:
            is_applied = False
        end = continuity._ends.get("t", {}).get("0", 0)
        return (
            is_applied,
            begin,
            len(changes),
            (invalidator._floors, invalidator._mostly_cached, continuity._since, end),
        )

    def _fill(self, replay: Replay, number: int) -> None:
        store = ReplayedStore(replay)
        cache = self._cache(replay, store, number)
        try:
            cache.get_many([KEY], partial(self._load, replay, store))
        except Unavailable:
            return  # from the loader

    def _drop(self, replay: Replay, at: tuple[int, ...], token: EventToken | None) -> Any:
        """Drop the key from the cache after a commit. Returns up to where it is invalidated then."""
        is_invalid = self._cache(replay, ReplayedStore(replay), 0).invalidate(KEY, token=token)
        return at if is_invalid else None

    def _cache(self, replay: Replay, store: ReplayedStore, number: int) -> TokenCache:
        return TokenCache(
            self._around(store),
            NAMESPACE,
            tombstone_ttl=self._scenario.fillers_ttl[number],
            value_ttl=self._scenario.value_ttl,
            lease_ttl=LEASE_TTL,
            lease_wait=0,
            clock=partial(replay.call, "now"),
        )

    def _load(
        self, replay: Replay, store: ReplayedStore, wanted: Mapping[str, Tokens | None]
    ) -> dict[str, LoadedValue]:
        if store.conflicted:
            return {KEY: LoadedValue(b"", {}, fresher=True)}  # it will not be stored
        shards, held = range(self._scenario.shards), wanted[KEY]
        if self._scenario.replicas:
            read = [replay.call("replica", shard) for shard in shards]
            tokens = {SHARDS[shard]: token for shard, (token, _) in enumerate(read)}
            loaded = self._loaded(value_of(at for _, at in read), tokens, is_fresher(tokens, held))
            if loaded.fresher or not self._scenario.primary:
                return {KEY: loaded}
        return {KEY: self._loaded(value_of(replay.call("primary", shard) for shard in shards), {}, True)}

    def _loaded(self, value: bytes, tokens: Mapping[str, EventToken], is_fresher: bool) -> LoadedValue:
        return LoadedValue(value, tokens, is_fresher, canonical=not self._scenario.spelled)


def _nonces_in(answers: Sequence[Any]) -> Iterator[str]:
    """The nonces of the entries among the answers to reads and writes."""
    for answer in answers:
        for each in answer if _is_found(answer) or _is_conflict(answer) else ():
            meta = each.meta if isinstance(each, StoredEntry) else each[1] if type(each) is tuple else None
            if isinstance(meta, bytes) and meta.startswith(b'{"n":'):
                yield nonce_of(meta)


def _is_found(answer: Any) -> bool:
    return isinstance(answer, tuple) and bool(answer) and isinstance(answer[0], StoredEntry)


def _is_conflict(answer: Any) -> bool:
    """Whether it is the answer to a write of the entry that was refused."""
    return isinstance(answer, tuple) and bool(answer) and isinstance(answer[0], tuple) and answer[0][0] == ENTRY


def offsets(offset: int) -> dict[str, dict[str, int]]:
    return {"t": {"0": offset}}


def value_of(positions: Iterator[int] | Any) -> bytes:
    return " ".join(map(str, positions)).encode()

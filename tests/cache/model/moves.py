"""A small cache with everything around it as a finite state machine, to play every interleaving of it.

Fillers, invalidators and applications run the code of ``relay.cache``, one outside call at a time. A state is plain
data: it can be compared with others, and gone on from in each direction. In each, the model checks I6: no value is
served that is older than an invalidation applied before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import combinations_with_replacement
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from relay.cache import Store
from relay.errors import StoreFull, Unavailable
from relay.token import EventToken
from tests.cache.model.memory import Memory, alive, find, without, written
from tests.cache.model.programs import Call, Ended
from tests.cache.model.scenario import ENTRY, FLOORS, SHARDS, Scenario, Writer
from tests.cache.model.states import NOBODY, Around, Move, State, States

_SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
_FIRST = 3  # changes of each shard that begin its floor before a scenario does
_START = 1_000_000.0  # seconds since the epoch
_RESTARTED = None, False, "", 0  # what an invalidator remembers that has just begun
_ENTRY, _FLOORS, _GENERATION, _LOSSES, _NOW, _LOG = (1 << bit for bit in range(6))  # what a call may read
_STORED = _ENTRY | _FLOORS
_TAKE = Call("take")
_READ_BY = {"generation": _GENERATION, "losses": _LOSSES, "now": _NOW}  # others read the log


class Step(NamedTuple):
    """What comes of one actor's call, whatever the others are in the middle of. ``told``: for the next batch."""

    memory: int
    around: int
    actor: int
    told: Any
    move: Any


class Model(States):
    """The states of a scenario and the moves between them."""

    def __init__(self, scenario: Scenario, around: Callable[[Store], Store] | None) -> None:
        super().__init__(scenario, around)
        # Most states differ from another one in what somebody else does.
        self._steps = lru_cache(1 << 17)(self._found_steps)
        self._changed_around = lru_cache(1 << 17)(self._found_changed_around)
        self._new_fillers = [self._new_filler(who) for who in range(scenario.fillers)]
        self._are_alike = len(set(scenario.fillers_ttl)) == 1

    def forget(self) -> None:
        """Forget what is cached, by functions that refer to the model, so that it is not garbage in a circle."""
        del self._steps, self._changed_around, self._remembered

    def _new_filler(self, who: int) -> int:
        return self.programs.begin("fill", f"r{who}.{self.scenario.reads}", who)

    def first(self) -> State:
        """Return the state in which floors have begun, if there are replicas, and nothing is cached."""
        shards, before = range(self.scenario.shards), _FIRST if self.scenario.replicas else 0
        if self.scenario.flushed:
            before = 1  # which is lost as well
        memory = Memory((), 0, 1, 0)
        around = Around(
            now=_START,
            commits=((),) * len(shards),
            topic=(),
            offset=0,
            replicas=((0,) * len(shards),) * self.scenario.fillers,
            applied=(0,) * len(shards),
            left=tuple(writer.commits for writer in self.scenario.writers),
            reads=(self.scenario.reads - 1,) * self.scenario.fillers,
            lost=self.scenario.lost,
            ticked=self.scenario.ticked,
            replays=self.scenario.replays,
            republished=self.scenario.republished,
            gaps=self.scenario.gaps,
            outages=self.scenario.outages,
            full=self.scenario.full,
        )
        actors = [*self._new_fillers, *[NOBODY] * (1 + len(self.scenario.writers))]
        state = self._state(self._memory(memory), self._around(around), actors, _RESTARTED)
        for _ in range(before):
            for shard in shards:
                state = self._applied_in_peace(state, shard)
        replicas = (tuple(map(len, self.parts(state)[1].commits)),) * self.scenario.fillers
        if self.scenario.flushed:
            for shard in shards:
                state = self._applied_in_peace(state, shard)
        memory, around = self.parts(state)
        items = tuple(item for item in memory.items if item[0] != ENTRY)
        memory = without(memory, "everything") if self.scenario.flushed else memory._replace(items=items)
        then = self._around(around._replace(replicas=replicas))
        return self._state(self._memory(memory), then, list(state.actors))

    def _applied_in_peace(self, state: State, shard: int) -> State:
        """Return the state after a change and its invalidation, while nobody else does anything."""
        _, around = self.parts(state)
        then = self._around(self._committed(around._replace(now=around.now + 2.0), shard))
        state = self._state(state.memory, then, list(state.actors))
        while self.parts(state)[1].offset < len(self.parts(state)[1].topic):
            state = next(self._actor_moves(state, self.scenario.fillers))[0]
        return state

    # -- moves ------------------------------------------------------------------------------------------

    def moves(self, state: State) -> list[Move]:
        """Return all moves from a state, or those of one actor if it is all the same when it makes them."""
        ready = [who for who, actor in enumerate(state.actors) if actor != NOBODY and self._is_ready(state, who)]
        changed = self._changed_around(state.around)
        storing = self._storing(state)
        for who in ready:
            by_others = changed | _STORED if len(storing) > (who in storing) else changed
            if self._is_private(state, who, by_others):
                return list(self._actor_moves(state, who))
        found = [move for who in ready for move in self._actor_moves(state, who)]
        return [*found, *self._faults(state), *self._commits(state)]

    def _is_ready(self, state: State, who: int) -> bool:
        fillers = self.scenario.fillers
        if who == fillers:
            return self._has_records(state) or self.programs.pending[state.actors[who]] != _TAKE
        # Fillers are alike, so the first to begin may as well be the first.
        return not (
            0 < who < fillers
            and self._are_alike
            and state.actors[who] == self._new_fillers[who]
            and state.actors[who - 1] == self._new_fillers[who - 1]
        )

    def _has_records(self, state: State) -> bool:
        around = self._arounds[state.around]
        return around.offset < len(around.topic)

    def _actor_moves(self, state: State, who: int) -> Iterator[Move]:
        for step in self._steps(who, state.actors[who], state.memory, state.around):
            actors = list(state.actors)
            actors[who] = step.actor
            yield self._state(step.memory, step.around, actors, step.told), step.move

    def _found_steps(self, who: int, actor: int, memory: int, around: int) -> list[Step]:
        return list(self._outcomes(who, actor, self._memories[memory], self._arounds[around]))

    def _outcomes(self, who: int, actor: int, memory: Memory, around: Around) -> Iterator[Step]:
        yield from self._answers(who, actor, memory, around)
        call = self.programs.pending[actor]
        assert isinstance(call, Call)
        if around.outages and call.kind not in ("now", "take", "end"):
            lost = around._replace(outages=around.outages - 1)
            error = _lost_call(call)
            yield self._step(who, actor, error, memory, lost, "unsent")
            if call.kind == "write":
                after, _ = written(memory, call.of, around.now)
                yield self._step(who, actor, error, after, lost, "unanswered")

        if around.full and call.kind == "write":
            [write] = call.of
            _, conflicts = written(memory, call.of, around.now)
            if write.meta is not None and not conflicts:
                then = around._replace(full=around.full - 1)
                yield self._step(who, actor, _FULL[write.key], memory, then, "refused")

    def _answers(self, who: int, actor: int, memory: Memory, around: Around) -> Iterator[Step]:
        call = self.programs.pending[actor]
        assert isinstance(call, Call)
        if call.kind == "read":
            answer: Any = tuple(find(memory, key) for key in call.of)
        elif call.kind == "write":
            memory, answer = written(memory, call.of, around.now)
        elif call.kind == "generation":
            if memory.generation is None:
                memory = memory._replace(generation=memory.born, born=memory.born + 1)
            answer = f"g{memory.generation}"
        elif call.kind == "losses":
            answer = memory.lost
        elif call.kind == "now":
            answer = around.now
        elif call.kind == "end":
            answer = len(around.topic)
        elif call.kind == "primary":
            answer = len(around.commits[call.of])
        else:
            choices = self._replica_reads if call.kind == "replica" else self._batches
            for answer, then in choices(around, who, call.of):
                yield self._step(who, actor, answer, memory, then, answer)
            return
        yield self._step(who, actor, answer, memory, around, answer)

    def _replica_reads(self, around: Around, who: int, shard: int) -> Iterator[tuple[Any, Around]]:
        """The replica is anywhere between where it was and its primary, and the rows may be newer than the token."""
        had = around.replicas[who]
        for token, rows in combinations_with_replacement(range(had[shard], len(around.commits[shard]) + 1), 2):
            # Where it was does not matter after the last read.
            has = (*had[:shard], rows, *had[shard + 1 :]) if around.reads[who] else had
            replicas = (*around.replicas[:who], has, *around.replicas[who + 1 :])
            yield (self._token(around, shard, token), rows), around._replace(replicas=replicas)

    def _batches(self, around: Around, who: int, _: Any) -> Iterator[tuple[Any, Around]]:
        for taken in range(1, min(self.scenario.batch, len(around.topic) - around.offset) + 1):
            records = around.topic[around.offset : around.offset + taken]
            yield (around.offset, tuple(self._published(around, *record) for record in records)), around

    def _published(self, around: Around, shard: int, position: int) -> EventToken:
        token = self._token(around, shard, position)
        is_renamed = self.scenario.renamed and position > _FIRST
        return replace(token, shard=f"{token.shard}@2") if is_renamed else token

    def _token(self, around: Around, shard: int, position: int) -> EventToken:
        seconds = around.commits[shard][position - 1] if position else 0
        what = f"MySQL56/{_SERVER}:1-{position + 1}" if self.scenario.replicas else f"DynamoDB/{position}"
        return EventToken(seconds, SHARDS[shard], what)

    def _step(self, who: int, actor: int, answer: Any, memory: Memory, around: Around, shown: Any) -> Step:
        """Give an actor its answer; it goes on up to its next call."""
        move = who, self.programs.pending[actor], shown
        after, told = self.programs.answered(actor, answer), None
        ended = self.programs.pending[after]
        if isinstance(ended, Ended):
            after = NOBODY
            if who < self.scenario.fillers:
                after, then = self._after_fill(who, self._around(around))
                return Step(self._memory(memory), then, after, None, move)
            if who > self.scenario.fillers:
                around = around if ended.result is None else self._marked(around, ended.result)
            else:
                is_applied, begin, taken, told = ended.result
                if is_applied:
                    applied = list(around.applied)
                    for shard, position in around.topic[begin : begin + taken]:
                        applied[shard] = max(applied[shard], position)
                    around = self._marked(around, applied)._replace(offset=begin + taken)
        return Step(self._memory(memory), self._around(around), after, told, move)

    @staticmethod
    def _marked(around: Around, at: Sequence[int]) -> Around:
        return around._replace(applied=tuple(map(max, around.applied, at)))

    # -- writers and faults -----------------------------------------------------------------------------

    def _commits(self, state: State) -> Iterator[Move]:
        around = self._arounds[state.around]
        for number, writer in enumerate(self.scenario.writers):
            who = self.scenario.fillers + 1 + number
            if not around.left[number] or state.actors[who] != NOBODY:
                continue
            left = (*around.left[:number], around.left[number] - 1, *around.left[number + 1 :])
            then = self._committed(around._replace(left=left), writer.shard)
            actors = list(state.actors)
            if writer.drops:
                actors[who] = self._drop_of(writer, then, f"w{number}.{left[number]}")
                if isinstance(ended := self.programs.pending[actors[who]], Ended):  # without its guard
                    actors[who], then = NOBODY, self._marked(then, ended.result)
            yield self._state(state.memory, self._around(then), actors), ("commit", number)

    def _drop_of(self, writer: Writer, around: Around, name: str) -> int:
        position = len(around.commits[writer.shard])
        token = self._token(around, writer.shard, position) if writer.told else None
        at = tuple(position if shard == writer.shard else 0 for shard in range(self.scenario.shards))
        if token is None and self.scenario.replicas:
            at = (0,) * self.scenario.shards  # a replica that lags may fill it again
        return self.programs.begin("drop", name, at, token)

    def _committed(self, around: Around, shard: int) -> Around:
        now = around.now + self.scenario.counts_seconds
        commits = (*around.commits[:shard], (*around.commits[shard], int(now)), *around.commits[shard + 1 :])
        return around._replace(now=now, commits=commits, topic=(*around.topic, (shard, len(commits[shard]))))

    def _faults(self, state: State) -> Iterator[Move]:
        memory, around = self.parts(state)
        if around.lost:
            for what in self.scenario.losses:
                less = around._replace(lost=around.lost - 1)
                yield self._changed(state, without(memory, what), less), ("lose", what)
        if around.ticked:
            for seconds in self.scenario.ticks:
                later = around._replace(ticked=around.ticked - 1, now=around.now + seconds)
                yield self._changed(state, alive(memory, later.now), later), ("pass", seconds)
        if around.gaps:
            yield self._gap(state), ("gap",)
        if around.replays:
            for offset in range(around.offset + 1):
                again = around._replace(replays=around.replays - 1, offset=offset)
                yield self._restarted(state, memory, again), ("restart at", offset)
        if around.republished:
            for begin in range(len(around.topic)):
                topic = (*around.topic, *around.topic[begin:])
                again = around._replace(republished=around.republished - 1, topic=topic)
                yield self._changed(state, memory, again), ("republish from", begin)

    def _changed(self, state: State, memory: Memory, around: Around) -> State:
        return self._state(self._memory(memory), self._around(around), list(state.actors))

    def _gap(self, state: State) -> State:
        """All invalidations up to now are lost for good, and a new generation replaces them."""
        memory, around = self.parts(state)
        new = memory._replace(generation=memory.born, born=memory.born + 1)
        around = self._marked(around, tuple(map(len, around.commits)))
        around = around._replace(gaps=around.gaps - 1, offset=len(around.topic))
        return self._restarted(state, new, around)

    def _restarted(self, state: State, memory: Memory, around: Around) -> State:
        actors = list(state.actors)
        actors[self.scenario.fillers] = NOBODY
        return self._state(self._memory(memory), self._around(around), actors, _RESTARTED)

    # -- what others can notice -------------------------------------------------------------------------

    def _storing(self, state: State) -> list[int]:
        """Return the actors that may still change what is stored."""
        fillers = self.scenario.fillers
        return [
            who
            for who, actor in enumerate(state.actors)
            if actor != NOBODY and (who != fillers or self._has_batches(state))
        ]

    def _found_changed_around(self, number: int) -> int:
        """Return what faults and writers may still change: bits such as ``_ENTRY``."""
        around = self._arounds[number]
        found = _STORED | _GENERATION | _LOSSES if around.lost else 0
        found |= _NOW | _ENTRY if around.ticked else 0
        found |= _GENERATION if around.gaps else 0
        if any(around.left):
            found |= _LOG | (_NOW if self.scenario.counts_seconds else 0)
            if any(self.scenario.writers[number].drops for number, left in enumerate(around.left) if left):
                found |= _STORED
        return found | (_LOG if around.republished else 0)

    def _has_batches(self, state: State) -> bool:
        around = self._arounds[state.around]
        is_idle = (
            around.offset == len(around.topic) and self.programs.pending[state.actors[self.scenario.fillers]] == _TAKE
        )
        return not is_idle or any(around.left) or bool(around.replays or around.republished or around.gaps)

    def _is_private(self, state: State, who: int, changed: int) -> bool:
        """Whether the actor's next call reads what nobody else may still change (``changed``), and changes nothing.

        Such a call may come first in every interleaving: it is the same later, and no other call sees it. A crash after
        it and one before it leave the same.
        """
        call = self.programs.pending[state.actors[who]]
        assert isinstance(call, Call)
        if call.kind == "read":
            return not any(changed & (_FLOORS if key == FLOORS else _ENTRY) for key in call.of)
        if call.kind in ("write", "take"):
            return False
        if call.kind == "generation" and self._memories[state.memory].generation is None:
            return False
        return not changed & _READ_BY.get(call.kind, _LOG)


def _lost_call(call: Call) -> Unavailable:
    return _NO_ANSWER if call.kind not in ("primary", "replica") else _NO_ROWS


_FULL = {key: StoreFull("the store is full", {key}, {}) for key in (ENTRY, FLOORS)}
_NO_ANSWER, _NO_ROWS = Unavailable("no answer of the store"), Unavailable("no answer of the database")


@contextmanager
def nonces_of(model: Model) -> Iterator[None]:
    """Let invalidators and readers take their nonces from their run."""
    with pytest.MonkeyPatch.context() as patch:
        secrets = SimpleNamespace(token_hex=lambda size: model.programs.running.nonce(size))
        patch.setattr("relay.cache.invalidator.secrets", secrets)
        patch.setattr("relay.cache.token_cache.secrets", secrets)
        patch.setattr("relay.cache.token_cache._log.disabled", True)
        yield

"""The moves of the model: those of the relay, which takes the steps of ``next_step``, and those of everything else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

from relay.change import AlteredTable, Operation, SchemaChange, StatementText
from relay.records import CommittedStream, Gap, Plan, Shard, ShardState, SnapshotControl, SnapshotRequest, StreamId
from relay.snapshots.control import (
    Measure,
    Wait,
    WriteControl,
    fulfilled,
    fulfilled_by,
    has_marks,
    is_running,
    is_settled,
    is_stopped,
    next_step,
    repaired_by,
    restarted,
)
from relay.snapshots.emptied_tables import forget_before, noted
from relay.source import Page
from relay.token import EventToken
from tests.snapshots.model import copy
from tests.snapshots.model.world import (
    MARGIN,
    TABLES,
    TICK,
    Asked,
    Event,
    PageRead,
    Scenario,
    Times,
    World,
    facts_of,
    normal,
    put,
    token,
)

Move = tuple[str, World]
STREAM = StreamId("shop", "shop")


def relay_moves(world: World, scenario: Scenario) -> Iterator[Move]:
    """Yield what the relay may do next. Where it does nothing more, everything is at rest."""
    yield from _next_step(world, scenario)
    if world.asked is not None and world.asked.tables is None:
        control = world.control
        wanted = control.tables if control is not None else None
        tables = tuple(sorted(name for name in world.there if wanted is None or name in wanted))
        yield "measured", world._replace(asked=world.asked._replace(tables=tables))
    yield from _reads(world, scenario)
    if world.pending:
        yield "published", _published(world)
    elif world.reached < world.awaited:
        yield "reached", world._replace(reached=world.now)


def _next_step(world: World, scenario: Scenario) -> Iterator[Move]:
    facts = facts_of(world, scenario)
    step = next_step(world.control, facts)
    waits = world._replace(awaited=step.published_to if isinstance(step, Wait) else 0.0)
    if isinstance(step, WriteControl):
        yield f"step: {step.control.state} {step.mark or ''}", _advanced(waits, step, scenario)
    elif isinstance(step, Measure):
        yield "step: measure", waits._replace(asked=Asked(step.as_of, Times(step.emptied), None))
    elif step.begins_in:
        if not world.pending:  # the clock goes on in any case, once nothing else happens
            yield "step: time passes", waits._replace(now=world.now + TICK)
    elif waits != world:
        yield "step: waits", waits
    elif done := fulfilled(world.control, world.requests):
        yield "request removed", world._replace(requests=tuple(r for r in world.requests if r not in done))


def _advanced(world: World, step: WriteControl, scenario: Scenario) -> World:
    begun = replace(step.control.begun, emptied=Times(step.control.begun.emptied))
    before, control = world.control, replace(step.control, begun=begun)
    if before is None or before.id != control.id:
        world = world._replace(segments=(), pages=(), asked=None)
    if step.mark == "begin":
        world = world._replace(asked=None)
    world = world._replace(control=control)
    tables = [name for name in sorted(world.known) if has_marks(control, name, is_dropped=False)]
    tables += [name for name in sorted(world.dropped) if has_marks(control, name, is_dropped=True)]
    if step.mark == "begin" and (scenario.repairs or world.gaps <= repaired_by(control)):
        return world._replace(doubtful=world.doubtful.difference(tables, (part.table for part in control.begun.parts)))
    if step.mark == "end":
        for name in tables:
            if name not in control.left_out:
                world = _swept(world, name, control.begun.as_of)
    return world


def _swept(world: World, table: str, as_of: int) -> World:
    after, there = copy.ended(world.copy, table, as_of), dict(dict(world.rows).get(table, ()))
    shown = copy.live(after, table)
    for key, item in copy.live(world.copy, table).items():
        if key not in shown and there.get(key) == item and table not in world.doubtful:
            return world._replace(copy=after, wrong=f"the end of table {table} deletes row {key}, which lives")
    return world._replace(copy=after)


def _reads(world: World, scenario: Scenario) -> Iterator[Move]:
    control = world.control
    if control is None or control.state is not ShardState.READING or is_stopped(control, world.requests):
        return
    begun = {*dict(world.segments), *(page.segment for page in world.pages)}
    for number, part in enumerate(control.begun.parts):
        if number not in begun:
            rows = dict(world.rows).get(part.table, ())
            promised, read_at = min((each.at for each in world.pending), default=world.now), world.now + scenario.skew
            as_of = max(control.begun.as_of, min(promised, read_at - MARGIN))
            yield f"read {part.table}", world._replace(pages=(*world.pages, PageRead(number, rows, as_of, read_at)))
            break  # the others later: in which order makes no difference to what each one shows
    for page in world.pages:
        name = control.begun.parts[page.segment].table
        yield (
            f"rows of {name}",
            world._replace(
                pages=tuple(each for each in world.pages if each != page),
                segments=put(world.segments, page.segment, float(page.read_at)),
                copy=copy.with_read(world.copy, name, page.rows, page.as_of),
                known=world.known | ({name} & world.there),
                relayed=world.relayed | ({name} & world.there),
            ),
        )


# ---------------------------------------------------------------------- the stream


def _published(world: World) -> World:
    event, *pending = world.pending
    world = world._replace(pending=tuple(pending), token=event.at)
    if not pending:
        world = world._replace(reached=world.now)
    if event.kind in ("truncate", "drop", "rename"):
        oldest = forget_before(world.control, world.now)
        renamed_to = event.other if event.kind == "rename" else None
        page = _page(event.kind.upper(), event.table, renamed_to)
        world = world._replace(emptied=Times(noted(world.emptied, page, world.now, oldest)))
    if not world.wants(event.table):
        control = world.control
        is_noticed = control is None or event.table not in (*(control.covered or ()), *(control.tables or ()))
        return world if is_noticed else world._replace(doubtful=world.doubtful | {event.table})
    if event.kind in ("truncate", "drop"):
        return world._replace(copy=copy.emptied(world.copy, event.table, event.at))
    if event.kind == "rename":
        return world
    key, item = event.other if event.kind == "insert" else (event.other, None)
    operation = Operation.DELETE if item is None else Operation.INSERT
    change = copy.published(operation, item, token(event.at), event_id=str(event.at))
    return world._replace(
        copy=copy.with_row(world.copy, event.table, key, change),
        known=world.known | {event.table},
        relayed=world.relayed | {event.table},
    )


@lru_cache
def _page(kind: str, table: str, renamed_to: str | None) -> Page:
    altered = AlteredTable(table, None, None, None, None, renamed_to)
    text = SchemaChange(
        "", kind, "shop", "shop", "", StatementText.COMPLETE, (altered,), EventToken(0, "-", "DynamoDB/0"), "", 0
    )
    return Page(Shard("-"), (), {}, None, None, 0.0, schema_changes=(text,))


# ---------------------------------------------------------------------- everything else


def faults(world: World, scenario: Scenario) -> Iterator[Move]:
    """Yield what may happen around the relay at any time."""
    if sum(scenario.faults.values()) - sum(left for _, left in world.left) >= scenario.most:
        return
    for kind, left in world.left:
        if left:
            less = world._replace(left=put(world.left, kind, left - 1))
            what, _, of = kind.partition(" ")
            after = FAULTS[what](less, of, scenario)
            if after is not None:
                yield kind, after


Fault = Callable[[World, str, Scenario], World | None]


def _committed(world: World, kind: str, table: str, other: object = None) -> World:
    return world._replace(pending=(*world.pending, Event(kind, table, other, world.now)))


def _later(world: World) -> World:
    return world._replace(now=world.now + TICK)


def truncate(world: World, table: str, _: Scenario) -> World | None:
    if table not in dict(world.rows):
        return None
    return _committed(_later(world)._replace(rows=_set_rows(world, table, ())), "truncate", table)


def drop(world: World, table: str, _: Scenario) -> World | None:
    if table not in dict(world.rows):
        return None
    return _committed(_later(world)._replace(rows=_set_rows(world, table, None)), "drop", table)


def rename(world: World, of: str, _: Scenario) -> World | None:
    before, after = of.split(" to ")
    rows = dict(world.rows)
    if before not in rows or after in rows:
        return None
    world = _later(world)
    doubtful = world.doubtful | {each for each in (before, after) if not _is_still_read(world, each)}
    moved = put(put(world.rows, before, None), after, rows[before])
    return _committed(world._replace(rows=moved, doubtful=doubtful), "rename", before, after)


def _is_still_read(world: World, table: str) -> bool:
    """Whether a snapshot of ``table`` is planned, or under way and not read to its end."""
    control = world.control
    if control is None or (control.tables is not None and table not in control.tables):
        return False
    if control.state is ShardState.FINISHED:
        return bool(control.again) and table in (*control.again, table if "" in control.again else "")
    begun = {*dict(world.segments), *(page.segment for page in world.pages)}
    return control.state is ShardState.PLANNED or len(begun) < control.begun.segments


def insert(world: World, table: str, _: Scenario) -> World | None:
    if table not in dict(world.rows):
        return None
    world = _later(world)
    row = 2, world.now
    rows = put(dict(world.rows)[table], *row)
    return _committed(world._replace(rows=_set_rows(world, table, rows)), "insert", table, row)


def delete(world: World, table: str, _: Scenario) -> World | None:
    if 1 not in dict(dict(world.rows).get(table, ())):
        return None
    rows = put(dict(world.rows)[table], 1, None)
    return _committed(_later(world)._replace(rows=_set_rows(world, table, rows)), "delete", table, 1)


def _set_rows(world: World, table: str, rows: object) -> tuple[tuple[str, tuple[tuple[int, int], ...]], ...]:
    found = {**dict(world.rows), table: rows}
    return tuple(sorted((name, each) for name, each in found.items() if each is not None))  # type: ignore[misc]


def gap(world: World, table: str, scenario: Scenario) -> World | None:
    """A table is emptied, and that is lost together with all that is not published.

    In the second of the last change; later if copies have rows that were read in that second, and would keep them.
    """
    if world.token != world.now or any(row.read_as_of >= world.now - MARGIN for _, row in world.copy):
        world = _later(world)
    rows = _set_rows(world, table, ()) if table in dict(world.rows) else world.rows
    return _lost(world._replace(rows=rows), f"gap {len(world.gaps)}", scenario)


def _lost(world: World, name: str, scenario: Scenario) -> World:
    everything = frozenset() if scenario.repairs else frozenset(TABLES)
    return world._replace(pending=(), gaps=world.gaps | {name}, doubtful=world.doubtful | everything)


def kill(world: World, _: str, __: Scenario) -> World:
    return world._replace(pages=(), asked=None, awaited=0.0, known=world.there, relayed=world.relayed | world.there)


def reset(world: World, _: str, scenario: Scenario) -> World:
    """See ``relay.operations.reset``: the stream begins anew, and what was not published of it is lost."""
    committed = CommittedStream(STREAM)
    committed.plan, committed.control = Plan("latest", 0.0, {}, {}), world.control
    found = Gap("shop", "shop", None, "reset", None, None, world.now)
    control = restarted(committed, world.requests, found, world.token)
    after = _lost(kill(_later(world), "", scenario), found.id, scenario)
    # The gap is that of the new plan. Those before are gone with their checkpoints.
    gaps = frozenset({"reset"})
    if control is not None:
        repaired = tuple("reset" if each == found.id else each for each in control.gaps)
        control = replace(control, gaps=repaired, begun=replace(control.begun, emptied=Times()))
    return after._replace(gaps=gaps, control=control, segments=(), emptied=Times(), reached=0.0)


def ask(world: World, of: str, _: Scenario) -> World | None:
    """``relay snapshot``: see ``relay.operations.snapshot``."""
    wanted = () if of == "all" else (of,)
    control, waiting = world.control, world.requests
    same = [each for each in waiting if each.stopped and each.tables == wanted]
    others = [each for each in waiting if each.stopped and each.id in fulfilled_by(control)]
    if same:
        goes_on = any(each in others for each in same)
        resumed = {*same, *others} if goes_on else set(same)
        return _stopping(world, resumed, stopped=False)
    if wanted and others and is_running(control):
        return None
    numbers = {each.id for each in waiting} | set(fulfilled_by(control))
    free = next(f"r{number}" for number in range(len(numbers) + 1) if f"r{number}" not in numbers)
    return world._replace(requests=(*waiting, SnapshotRequest("shop", free, wanted, 0.0)))


def stop(world: World, _: str, __: Scenario) -> World | None:
    control = world.control
    ids = fulfilled_by(control) if is_running(control) else set()
    mine = {each for each in world.requests if each.id in ids}
    if len(mine) == len(world.requests) and all(each.stopped for each in mine):
        return None
    world = world._replace(requests=tuple(each for each in world.requests if each in mine))
    after = _stopping(world, mine, stopped=True)
    return after._replace(pages=()) if is_stopped(control, after.requests) else after


def _stopping(world: World, which: set[SnapshotRequest], *, stopped: bool) -> World:
    return world._replace(
        requests=tuple(replace(each, stopped=stopped) if each in which else each for each in world.requests)
    )


def config(world: World, of: str, scenario: Scenario) -> World | None:
    """The relay begins again with a config that names a table, or no longer does."""
    assert world.named is not None
    named = world.named - {of[1:]} if of[0] == "-" else world.named | {of[1:]}
    if named == world.named:
        return None
    is_read = scenario.initial and of[1:] in dict(world.rows)
    doubtful = world.doubtful if is_read else world.doubtful | {of[1:]}
    return kill(world._replace(named=named, doubtful=doubtful), "", scenario)


FAULTS: dict[str, Fault] = {
    each.__name__: each for each in (truncate, drop, rename, insert, delete, gap, kill, reset, ask, stop, config)
}


# ---------------------------------------------------------------------- what has to hold


def problem_at_rest(world: World, scenario: Scenario) -> str | None:
    """Return what is wrong when the relay has nothing to do any more."""
    control, facts = world.control, facts_of(world, scenario)
    if not is_settled(control, facts):
        return "a snapshot waits for ever"
    stopped = is_stopped(control, world.requests)
    if scenario.repairs and not world.gaps <= repaired_by(control):
        return "a gap is not repaired"
    for request in world.requests:
        if not (stopped or request.stopped or set(request.tables) - world.known):
            return f"request {request.id} waits for ever"
    for name in sorted({name for name, _ in world.rows} | {name for (name, _), _ in world.copy}):
        if name in world.doubtful or not world.wants(name) or (stopped and _is_read(control, name)):
            continue
        if (shown := copy.live(world.copy, name)) != (there := dict(dict(world.rows).get(name, ()))):
            return f"the copy of table {name} has {shown}, and not {there}"
    return None


def _is_read(control: SnapshotControl | None, table: str) -> bool:
    return control is not None and (control.tables is None or table in control.tables)


def moves(world: World, scenario: Scenario) -> tuple[list[Move], str | None]:
    """Return all moves, and what is wrong with this state."""
    own = [(name, normal(after)) for name, after in relay_moves(world, scenario)]
    problem = world.wrong or (problem_at_rest(world, scenario) if not own else None)
    return own + [(name, normal(after)) for name, after in faults(world, scenario)], problem

"""States of a relay that are hard to bring about, served by the real HTTP code, for the tests of the status page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from relay.config import Config
from relay.errors import Unavailable
from relay.observe.access import Access
from relay.observe.consumers import ConsumersObserver, ConsumerWatch, WatchedStore
from relay.observe.health import Uncommitted
from relay.observe.history import Event, Recent, Totals
from relay.observe.observer import Observer
from relay.observe.server import serve, serve_observer
from relay.observe.status import SourceView, WorkerStatus
from relay.process.managed import free_port
from relay.process.store_memory import ServerMemory
from relay.records import Gap, Shard, StreamId
from tests.listening import NOBODY
from tests.observe.known import NOW, WALL, finished, listed, polled, reading, source, status

EVIL = "<img src=x onerror=alert(1)>\"'&{{7*7}}</script>"
LABEL = "2026-11-23T09:14:07.301"
GAP = {
    "id": "5f3a9c0d21e88b47", "source": "orders", "stream": LABEL, "shard": "shardId-00000001763888-6a1c09e4",
    "reason": "trimmed", "from": {"sequence": "100"}, "to": None, "found_at": WALL - 60,
}  # fmt: skip


@dataclass
class State:
    """What two workers know; ``lags``: seconds, of the consumers, or the error with which one has stopped.

    ``failing``: the errors of consumers that try again. ``silent``: peers that do not answer. ``uncommitted``: what the
    workers cannot commit. ``outside_since``: since when they have not been in the group. ``tables_aside``: by consumer,
    tables that take no changes, and why. ``store``: the cache's. ``unread``: what Kafka knows of the consumers.
    """

    workers: list[WorkerStatus]
    lags: Mapping[str, float | str] = field(default_factory=lambda: {"cache": 0.4, "log": 3.0, "copy": 4.2})
    rate: Callable[[float], float] = lambda minute: 840 + 300 * math.sin(minute)
    lag: Callable[[float], float] = lambda minute: 0.9 + 0.4 * math.sin(3 * minute)
    dead_letters: int = 0
    failing: Mapping[str, str] = field(default_factory=dict)
    silent: Sequence[str] = ()
    uncommitted: Uncommitted | None = None
    outside_since: float | None = None
    tables_aside: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    store: Sequence[ServerMemory] | Exception = ()
    unread: Sequence[Mapping[str, Any]] = ({"consumer": "cache", "offsets": 9, "is_late": True},)
    name: str = "shop"
    events: Sequence[Event] = (
        Event(WALL - 259_200, "restart", "worker 0 begins, version 0.1.0"),
        Event(WALL - 7_300, "rebalance", "took over 32 partitions"),
        Event(WALL - 3_600, "failover", "source legacy: shard -80: switching from db-1:3306 to db-2:3306"),
        Event(WALL - 600, "DDL", "source legacy: ALTER of table legacy at 0-101-48213377"),
        Event(WALL - 90, "warning", "source orders: shard shardId-1 cannot be read, failure 3 in a row: throttled"),
    )


def shard(number: int) -> str:
    return f"shardId-{1763888 + number * 131:014d}-{number * 2654435761 % 2**32:08x}"


def orders(**known: Any) -> SourceView:
    """Return a table whose two shards have split, and whose halves were replaced since."""
    roots, halves, leaves = (
        [shard(n) for n in (0, 1)],
        [shard(n) for n in range(2, 6)],
        [shard(n) for n in range(6, 10)],
    )
    parents = {half: (roots[n // 2],) for n, half in enumerate(halves)}
    parents |= {leaf: (halves[n],) for n, leaf in enumerate(leaves)}
    ended = {each: finished(parents=parents.get(each, ()), progress=WALL - 9000) for each in [*roots, *halves]}
    read = {
        leaf: reading(
            WALL - 1 - n, parents=parents[leaf], position={"sequence": f"{4_700_000_000_000_000_000_000 + n:021d}"}
        )
        for n, leaf in enumerate(leaves)
    }
    return replace(
        source(
            stream=StreamId("orders", LABEL),
            listed=listed(*(Shard(each, parents.get(each, ())) for each in [*roots, *halves, *leaves])),
            checkpoints={**ended, **read},
            low_watermark=WALL - 4,
            open={leaf: polled(0.3) for leaf in leaves[:2]},
        ),
        **known,
    )


def legacy(**known: Any) -> SourceView:
    """Return two shards of MariaDB."""
    gtids = "MariaDB/" + ",".join(f"{domain}-{domain}01-{48_213_377 * domain}" for domain in range(1, 9))
    return replace(
        source(
            "legacy",
            stream=StreamId("legacy", "legacy"),
            listed=listed(Shard("-80"), Shard("80-")),
            checkpoints={each: reading(WALL - 0.6, position={"gtid": gtids}) for each in ("-80", "80-")},
            low_watermark=WALL - 1,
            open={"80-": polled(0.1)},
        ),
        **known,
    )


_TOPICS = {("orders", "orders"): "shop.orders", ("legacy", "legacy.customers"): "shop.customers"}


def _workers(*sources: SourceView) -> list[WorkerStatus]:
    """Return two workers that share the partitions; the second one has open what the first one has not."""
    second = [
        replace(
            each, open={name: polled(0.2) for name in each.unfinished() - each.open.keys() if not each.waits_for(name)}
        )
        for each in sources
    ]
    return [
        status(*sources, owned=frozenset(range(32)), group="shop.relay", topics=_TOPICS),
        status(*second, owned=frozenset(range(32, 64)), group="shop.relay", topics=_TOPICS),
    ]


def healthy() -> State:
    return State(_workers(orders(), legacy()))


def snapshotting() -> State:
    view = orders()
    behind = {
        name: replace(each, progress=WALL - 5400) if not each.state.ended else each
        for name, each in view.checkpoints.items()
    }
    view = replace(
        view,
        checkpoints=behind,
        low_watermark=WALL - 5400,
        rows=(1_204_500, 3_010_000),
        segments={"segment-0": polled(0.1), "segment-1": polled(0.1)},
    )
    lags: dict[str, float | str] = {"cache": 1.0, "log": 410.0, "copy": 395.0}
    return State(_workers(view, legacy()), lags, lambda m: 5200 + 900 * math.sin(2 * m), lambda m: 5400 + 300 * m)


def stalled() -> State:
    view = orders()
    name = sorted(view.open)[0]
    error = "ProvisionedThroughputExceededException: Rate exceeded for shard; asked http://me:hunter2@dynamodb:8000/"
    late = {name: reading(WALL - 312, parents=view.parents(name), position={"sequence": "47"})}
    view = replace(view, open={**view.open, name: polled(312, 71, error)}, checkpoints={**view.checkpoints, **late})
    return State(_workers(view, legacy()), lag=lambda m: 1 + max(0.0, 5.2 - m) * 60)


def gap_and_dead_letters() -> State:
    view = orders()
    seen = {**view.checkpoints, shard(2): finished(parents=(shard(0),), gap="0b1d7a86c2f4e591", progress=WALL - 9000)}
    lost = {**GAP, "shard": shard(6)}
    view = replace(view, pending_gaps=(lost,), checkpoints=seen, open={})
    return State(_workers(view, legacy()), dead_letters=3)


def table_left_out() -> State:
    view = legacy()
    assert view.plan is not None
    plan = replace(view.plan, keys={"orders": (("id", "int"),)})
    return State(_workers(orders(), replace(view, plan=plan, left_out={"orders": "has no primary key"})))


def altered_table() -> State:
    def altered(number: int, table: str) -> dict[str, Any]:
        statement = f"ALTER TABLE {table} MODIFY total DECIMAL(10,{number})"
        gap = Gap("legacy", "legacy", None, "altered", {"gtid": f"0-1-{number}"}, None, WALL, table, statement)
        return gap.published()

    return State(_workers(orders(), legacy(altered=(altered(1, "orders"), altered(2, "items"), altered(3, "orders")))))


def failing_consumer() -> State:
    return replace(healthy(), failing={"cache": "no server answers at redis://me:hunter2@redis:6379/0"})


def silent_process() -> State:
    return replace(healthy(), silent=[NOBODY])


def published_gap() -> State:
    view = orders()
    seen = {**view.checkpoints, shard(2): finished(parents=(shard(0),), gap="0b1d7a86c2f4e591", progress=WALL - 9000)}
    return State(_workers(replace(view, checkpoints=seen), legacy()), dead_letters=2)


def repaired_gap() -> State:
    view = published_gap().workers[0].sources[0]
    return State(_workers(replace(view, repaired=frozenset({"0b1d7a86c2f4e591"})), legacy()))


def unmet_gap() -> State:
    """A gap that waits on the topic, and that no worker has met since it started."""
    return State(_workers(replace(orders(), pending_gaps=(GAP,)), legacy()))


def set_aside() -> State:
    refused = (("-80", NOW - 90, "the server has purged what comes next at mysql://me:hunter2@db/"),)
    return State(_workers(orders(), legacy(set_aside=refused)))


def source_away() -> State:
    absent = (("billing", NOW - 90, "no server answers at mysql://me:hunter2@db/"),)
    return State([replace(each, absent=absent) for each in _workers(orders(), legacy())])


def fenced_worker() -> State:
    return replace(healthy(), uncommitted=Uncommitted(NOW - 300, 7, NOW - 1, "fenced: another worker has this name"))


def copy_without_a_table() -> State:
    return replace(healthy(), tables_aside={"copy": {"orders": "column note has another type at redis://me:hunter2@x"}})


def store_away() -> State:
    return replace(healthy(), store=Unavailable("no server answers at redis://me:hunter2@redis:6379/0"))


def store_full() -> State:
    return replace(healthy(), store=[ServerMemory("redis:6379", 9_000_000, 9_000_000, "noeviction")])


def starting() -> State:
    return State(_workers(orders(plan=None), legacy()))


def without_coordinator() -> State:
    workers = _workers(orders(plan=None), legacy())
    return State([replace(each, joined=False, owned=frozenset()) for each in workers], outside_since=NOW - 300)


def late_consumer() -> State:
    return replace(healthy(), lags={"cache": 0.4, "log": 3.0, "copy": 1300.0})


def absent_copy() -> State:
    """Nobody runs the copy, which has not read everything."""
    behind = {"consumer": "copy", "offsets": 14, "is_late": True}
    return replace(healthy(), lags={"cache": 0.4, "log.-80": 1.0}, unread=[*healthy().unread, behind])


def absent_for_a_moment() -> State:
    cache, copy = absent_copy().unread
    return replace(absent_copy(), unread=[cache, {**copy, "is_late": False}])


def hostile() -> State:
    error = f"{EVIL} at http://me:hunter2@db/"
    view = source(
        f"orders {EVIL}",
        stream=StreamId(f"orders {EVIL}", EVIL),
        listed=listed(Shard(EVIL), Shard("child", (EVIL,)), Shard("loop", ("pool",)), Shard("pool", ("loop",))),
        checkpoints={EVIL: reading(WALL - 500, position={"sequence": EVIL})},
        open={EVIL: polled(99, 1, error)},
        pending_gaps=({**GAP, "id": f"$(reboot) {EVIL}", "shard": EVIL, "reason": EVIL},),
        left_out={EVIL: EVIL},
    )
    return State([status(view)], {"cache": EVIL}, name="shop")


STATES = {
    "healthy": healthy, "snapshotting": snapshotting, "stalled": stalled, "gap": gap_and_dead_letters,
    "failing consumer": failing_consumer, "silent process": silent_process, "late consumer": late_consumer,
    "published gap": published_gap, "repaired gap": repaired_gap, "unmet gap": unmet_gap, "set aside": set_aside,
    "left out": table_left_out, "altered": altered_table, "source away": source_away,
    "fenced": fenced_worker, "copy": copy_without_a_table,
    "store away": store_away, "store full": store_full,
    "absent copy": absent_copy, "absent for a moment": absent_for_a_moment,
    "starting": starting, "without coordinator": without_coordinator, "hostile": hostile,
}  # fmt: skip


def _config(address: str, **http: Any) -> Config:
    tables = [{"name": "orders", "type": "dynamodb", "table": "orders"}]
    kafka = {"bootstrap_servers": "127.0.0.1:1"}
    return Config.model_validate(
        {"name": "shop", "kafka": kafka, "sources": tables, "http": {"address": address, **http}}
    )


def _show(observer: Observer, known: WorkerStatus, state: State) -> None:
    observer.clock, observer.wall = lambda: NOW, lambda: WALL
    observer._status, observer.liveness.turned = known, NOW
    observer.unread = lambda: state.unread
    observer.liveness.started = NOW - 86_400 * 3
    observer.liveness.uncommitted, observer.liveness.outside_since = state.uncommitted, state.outside_since
    observer.recent = Recent()  # without what another test has left for this port
    observer.recent.add(state.events if observer.worker == 0 else ())
    totals = Totals(0, 0, 0)
    for sample in range(181):
        minute = (180 - sample) / 12
        pages = totals.pages + 10
        totals = Totals(totals.changes + 5 * state.rate(minute), totals.latency + 2 + math.cos(minute * 4), pages)
        observer.recent.history.add(NOW - 60 * minute, WALL - 60 * minute, totals, state.lag(minute))
    for _ in range(state.dead_letters):
        observer.metrics.count_dead_letter("orders")
    observer.metrics.tables = {("orders", "orders"): 1_234_567, ("legacy", "legacy.customers"): 89}
    observer.metrics.count_commit(0.01)


def _set_aside(tables: Mapping[str, str]) -> dict[str, tuple[float, str]]:
    return {table: (WALL, why) for table, why in tables.items()}


def _consumers(state: State) -> ConsumersObserver:
    found = ConsumersObserver("shop")
    for name, lag in state.lags.items():
        watch = ConsumerWatch(name, ["shop.orders"], found.counted, clock=lambda: NOW)
        found.watches.append(watch)
        watch.set_aside = partial(_set_aside, state.tables_aside.get(name, {}))
        watch.store = WatchedStore(lambda: NOW - 20)
        watch.store.look(state.store if name == "cache" else ())
        watch.store._clock = watch.clock
        watch.start_at({"shop.orders": {"0": 0}})
        if isinstance(lag, str):
            watch.fail(lag, for_good=True)
            continue
        for sample in reversed(range(181)):
            seen = Totals(60 * (180 - sample), 0, 0)
            watch._progress.history.add(
                NOW - 5 * sample, WALL - 5 * sample, seen, max(0.0, lag * (1 + math.sin(sample / 9) / 2))
            )
        watch._progress.complete = NOW - lag
        watch.look({"shop.orders": {"0": 0}}, {"shop.orders": {"0": int(lag * 900)}}, NOW)
        if name in state.failing:
            watch.fail(state.failing[name])
    return found


@dataclass
class Served:
    """``port``: that of the first worker."""

    port: int
    workers: list[Observer]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


@contextmanager
def served(state: State, **http: Any) -> Iterator[Served]:
    """Serve a state at three ports, one for each worker and one for the consumers."""
    with ExitStack() as opened:
        consumers = _consumers(state)
        ports = [free_port() for _ in state.workers]
        access = Access(_config("127.0.0.1:1", **http).http)
        peers = [opened.enter_context(serve(consumers, "127.0.0.1", 0, "--http", access))]
        peers += [*(f"127.0.0.1:{port}" for port in ports), *state.silent]
        observers = []
        for number, (port, known) in enumerate(zip(ports, state.workers, strict=True)):
            observer = opened.enter_context(serve_observer(_config(f"127.0.0.1:{port}", **{"peers": peers, **http})))
            observer.worker, observer.process = number, f"relay-{number}/4711"
            _show(observer, known, state)
            observers.append(observer)
        yield Served(ports[0], observers)

"""What the demo shows while it runs, and what it compares and prints at the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Group
from rich.table import Table

from relay.cache import RedisStore, entry_key, generation_key
from relay.cache.entry import decode
from relay.config import Config
from relay.demo import truth
from relay.demo.application import Read, stale_reads, version_of
from relay.demo.orders import TABLE, Orders
from relay.demo.truth import PublishedChange
from relay.demo.watching import BatchLog, TopicWatch
from relay.demo.workload import Item, RecordedWrite, Workload, cache_key

_SHOWN = 8


class View:
    """The live table."""

    def __init__(self, title: str, workload: Workload, watch: TopicWatch, batches: Mapping[str, BatchLog]) -> None:
        self.title = title
        self.workload = workload
        self.watch = watch
        self.batches = batches

    def table(self, left: float | None = None) -> Table:
        written, published = self.workload.count(), len(self.watch.events)
        table = Table(title=f"writing, {left:.0f} s to go" if left is not None else None, min_width=60)
        table.add_column("")
        table.add_column("changes", justify="right")
        table.add_column("behind", justify="right")
        table.add_row(f"written to {self.title}", str(written), "")
        table.add_row("published on Kafka", str(published), str(max(0, written - published)))
        names = {"cache": "invalidated in Redis", "log": "recorded in the log", "copy": "applied to the copy"}
        for name, log in self.batches.items():
            table.add_row(names[name], str(log.rows), str(max(0, published - log.rows)))
        return table


@dataclass
class Result:
    """What was compared. ``problems``: empty if every check held."""

    counts: dict[str, int] = field(default_factory=dict)
    checks: dict[str, list[str]] = field(default_factory=dict)
    latencies: dict[str, list[float]] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        return [f"{name}: {problem}" for name, problems in self.checks.items() for problem in problems[:_SHOWN]]

    def tables(self, seconds: float) -> Group:
        counts = Table(title="counts", min_width=60)
        counts.add_column("")
        counts.add_column("number", justify="right")
        for name, number in self.counts.items():
            counts.add_row(name, f"{number:,}")
        checks = Table(title="checks against the writers' record", min_width=60)
        checks.add_column("")
        checks.add_column("held")
        for name, problems in self.checks.items():
            checks.add_row(name, "[green]yes[/]" if not problems else f"[red]NO, {len(problems)} times[/]")
        latencies = Table(title="latency, from the acknowledged write", min_width=60)
        for column in ("", "p50", "p99", "changes"):
            latencies.add_column(column, justify="right" if column else "left")
        for name, values in self.latencies.items():
            latencies.add_row(
                name, f"{percentile(values, 50):.0f} ms", f"{percentile(values, 99):.0f} ms", f"{len(values):,}"
            )
        return Group(counts, checks, latencies, f"done in {seconds:.0f} s")


def compare(
    config: Config,
    orders: Orders,
    history: Mapping[Item, Sequence[RecordedWrite]],
    watch: TopicWatch,
    batches: Mapping[str, BatchLog],
    reads: Sequence[Read],
) -> Result:
    """Compare topic, cache, log and copy with what the writers did."""
    from relay.demo.tables import read_copy, read_log, spark

    result = Result()
    events = sorted(watch.events, key=lambda event: (event.partition, event.offset))
    by_item: dict[Item, list[PublishedChange]] = defaultdict(list)
    for event in events:
        by_item[event.item].append(event)
    final = truth.final_versions(history)
    cached = _cached(config, history.keys())
    with spark() as session:
        copied, logged = read_copy(session, config, TABLE), read_log(session, config)

    result.checks = {
        "every change on the topic exactly once, in order per item, one partition per hash key": [
            *truth.check_topic(history, events),
            *orders.problems(events),
        ],
        "no read older than an invalidation applied before it": stale_reads(
            reads, by_item, batches["cache"].applied_at
        ),
        "every cached value is the table's": truth.check_versions(
            "cache", {item: v for item, v in final.items() if item in cached}, _living(cached)
        ),
        "the table holds what the writers wrote": truth.check_versions("table", final, orders.versions()),
        "the copy equals the table": truth.check_versions("copy", final, copied),
        "the log holds every change exactly once": _check_log(logged, events),
    }
    result.counts = {
        "writes acknowledged": sum(map(len, history.values())),
        "changes on the topic": len(events),
        **_by_shard(events),
        "items": len(history),
        "items alive at the end": len(final),
        "changes applied to the cache": batches["cache"].rows,
        "rows in the log": len(logged),
        "rows in the copy": len(copied),
        "reads by the application": len(reads),
        "of them from the cache": sum(read.hit for read in reads),
        "values in the cache at the end": len(cached),
    }
    written = acknowledged(history, by_item)
    result.latencies = {
        "commit → topic": _latencies(written, events, lambda event: watch.arrived.get(event.event_id)),
        "commit → invalidated": _latencies(written, events, batches["cache"].applied_at),
    }
    return result


def _by_shard(events: Iterable[PublishedChange]) -> dict[str, int]:
    """Return how many changes came from each shard; nothing if there is only one."""
    counts = Counter(event.shard.partition("/")[2] for event in events)
    return {f"  from shard {shard}": n for shard, n in sorted(counts.items())} if len(counts) > 1 else {}


def ends(events: Iterable[PublishedChange]) -> dict[int, int]:
    """Return, per partition, the offset after its last change."""
    found: dict[int, int] = {}
    for event in events:
        found[event.partition] = max(found.get(event.partition, 0), event.offset + 1)
    return found


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile of ``values`` by nearest rank; not a number if there are none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def _latencies(
    written: Mapping[str, float], events: Sequence[PublishedChange], reached: Callable[[PublishedChange], float | None]
) -> list[float]:
    times = ((written.get(event.event_id), reached(event)) for event in events)
    return [(end - begin) * 1000 for begin, end in times if begin is not None and end is not None]


def acknowledged(
    history: Mapping[Item, Sequence[RecordedWrite]], by_item: Mapping[Item, Sequence[PublishedChange]]
) -> dict[str, float]:
    """Return when the write of each change was acknowledged. The warm-up is left out: nothing ran yet."""
    return {
        event.event_id: write.acknowledged
        for item, writes in history.items()
        for write, event in zip(writes, by_item.get(item, ()), strict=False)
        if not write.warm_up
    }


def _cached(config: Config, items: Iterable[Item]) -> dict[Item, int | None]:
    """Return what the cache would serve now; None is "no such item"."""
    assert config.cache is not None
    store = RedisStore(config.cache.url)
    wanted = list(items)
    names = [entry_key(config.cache.namespace, cache_key(item)) for item in wanted]
    found, generation = store.read(names, generation_key(config.cache.namespace))
    return {
        item: version_of(stored.value)
        for item, stored in zip(wanted, found, strict=True)
        if stored and (entry := decode(stored.meta)) and entry.serves(generation, 0.0)
    }


def _living(cached: Mapping[Item, int | None]) -> dict[Item, int]:
    return {item: version for item, version in cached.items() if version is not None}


def _check_log(logged: Sequence[str], events: Sequence[PublishedChange]) -> list[str]:
    times, wanted = Counter(logged), {event.event_id for event in events}
    return [
        *(f"event {name} stands in it {n} times" for name, n in times.items() if n > 1),
        *(f"event {name} is missing" for name in wanted - times.keys()),
        *(f"event {name} was never on the topic" for name in times.keys() - wanted),
    ]

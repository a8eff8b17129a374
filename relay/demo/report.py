"""The demo's live table, and the comparison that it prints at the end."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import SparkSession
from rich.console import Group
from rich.table import Table

from relay.cache import RedisStore, entry_key, generation_key
from relay.cache.entry import decode
from relay.config import Config
from relay.demo import truth
from relay.demo.orders import TABLE, Orders
from relay.demo.watching import BatchLog, TopicWatch
from relay.demo.workload import HASH_KEY, RANGE_KEY, Item, Read, RecordedWrite, cache_key, version_of
from relay.kafka.changes import ReceivedChange
from spark_consumers.locations import spark_path, table_folder

_SHOWN = 8


def progress(
    database: str, page: str, written: int, published: int, batches: Mapping[str, BatchLog], left: float
) -> Table:
    """Return the live table. ``page``: the address of the status page. ``left``: seconds."""
    table = _table(f"writing, {left:.0f} s to go", "changes", "behind")
    table.caption = f"status page: {page}"
    table.add_row(f"written to {database}", str(written), "")
    table.add_row("published on Kafka", str(published), str(max(0, written - published)))
    names = {"cache": "invalidated in Redis", "log": "recorded in the log", "copy": "applied to the copy"}
    for name, log in batches.items():
        table.add_row(names[name], str(log.rows), str(max(0, published - log.rows)))
    return table


@dataclass
class Result:
    """The result of the comparison. ``problems`` is empty if every check held."""

    counts: dict[str, int]
    checks: dict[str, list[str]]
    latencies: dict[str, list[float]]

    @property
    def problems(self) -> list[str]:
        return [f"{name}: {problem}" for name, problems in self.checks.items() for problem in problems[:_SHOWN]]

    def to_json(self, seconds: float) -> dict[str, Any]:
        return {
            "seconds": round(seconds, 1),
            "counts": {name.strip(): number for name, number in self.counts.items()},
            "checks": {name: {"held": not problems, "problems": problems} for name, problems in self.checks.items()},
            "latencies": {
                name: {f"p{n}_ms": round(percentile(values, n), 1) for n in (50, 99)} | {"changes": len(values)}
                for name, values in self.latencies.items()
                if values
            },
        }

    def tables(self, seconds: float) -> Group:
        counts = _table("counts", "number")
        for name, number in self.counts.items():
            counts.add_row(name, f"{number:,}")
        checks = _table("checks against the writers' record", "held", justify="left")
        for name, problems in self.checks.items():
            checks.add_row(name, "[green]yes[/]" if not problems else f"[red]NO, {len(problems)} times[/]")
        latencies = _table("latency, from the acknowledged write", "p50", "p99", "changes")
        for name, values in self.latencies.items():
            p50, p99 = (f"{percentile(values, n):.0f} ms" for n in (50, 99))
            latencies.add_row(name, p50, p99, f"{len(values):,}")
        return Group(counts, checks, latencies, f"done in {seconds:.0f} s")


def _table(title: str, *columns: str, justify: Literal["left", "right"] = "right") -> Table:
    table = Table("", title=title, min_width=60)
    for column in columns:
        table.add_column(column, justify=justify)
    return table


def compare(
    config: Config,
    orders: Orders,
    history: Mapping[Item, Sequence[RecordedWrite]],
    watch: TopicWatch,
    batches: Mapping[str, BatchLog],
    reads: Sequence[Read],
    session: SparkSession,
) -> Result:
    copied, logged = read_copy(session, config, TABLE), _read_log(session, config)
    changes, by_item = watch.changes, truth.changes_by_item(watch.changes)
    before = truth.versions_before(history)
    final = truth.final_versions(history)
    cached = _cached(config, history.keys())
    existing = {item: version for item, version in cached.items() if version is not None}

    checks = {
        "every change on the topic exactly once, in order per item, one partition per key": [
            *truth.check_topic(history, changes, orders.record_key),
            *orders.problems(changes),
        ],
        "no read older than an invalidation applied before it": truth.stale_reads(
            reads, by_item, before, batches["cache"].applied_at
        ),
        "every cached value is the table's": truth.check_versions(
            "cache", {item: v for item, v in final.items() if item in cached}, existing
        ),
        "the table holds what the writers wrote": truth.check_versions("table", final, orders.versions()),
        "the copy equals the table": truth.check_versions("copy", final, copied),
        "the log holds every change exactly once": _check_log(logged, watch.arrived.keys()),
    }
    if orders.has_rows_before:
        checks["every row from before the relay is on the topic"] = truth.check_snapshot(history, watch.reads)
    counts = {
        "writes acknowledged": sum(write.streamed for writes in history.values() for write in writes),
        "changes on the topic": len(changes),
        **_by_shard(changes),
        **(_of_snapshot(before, history, watch) if orders.has_rows_before else {}),
        "items": len(history),
        "items alive at the end": len(final),
        "changes applied to the cache": batches["cache"].rows,
        "rows in the log": len(logged),
        "rows in the copy": len(copied),
        "reads by the application": len(reads),
        "  from the cache": sum(read.hit for read in reads),
        "values in the cache at the end": len(cached),
    }
    written = acknowledged(history, by_item)
    latencies = {
        "commit → topic": _latencies(written, changes, lambda change: watch.arrived.get(change.event_id)),
        "commit → invalidated": _latencies(written, changes, batches["cache"].applied_at),
    }
    return Result(counts, checks, latencies)


def _of_snapshot(
    before: Mapping[Item, int], history: Mapping[Item, Sequence[RecordedWrite]], watch: TopicWatch
) -> dict[str, int]:
    last = max(write.started for writes in history.values() for write in writes)
    return {
        "rows from before the relay": len(before),
        "rows read by the snapshot": len(watch.reads),
        "  while the writers went on": sum(watch.arrived[read.event_id] < last for read in watch.reads),
    }


def _by_shard(changes: Iterable[ReceivedChange]) -> dict[str, int]:
    """Return the number of changes from each shard; nothing if there is only one shard."""
    counts = Counter(change.token.shard.partition("/")[2] for change in changes if change.token)
    return {f"  from shard {shard}": n for shard, n in sorted(counts.items())} if len(counts) > 1 else {}


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile of ``values`` by nearest rank, NaN if there are none."""
    ordered = sorted(values) or [float("nan")]
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def _latencies(
    written: Mapping[str, float], changes: Sequence[ReceivedChange], reached: Callable[[ReceivedChange], float | None]
) -> list[float]:
    """Return, in milliseconds, how long after its write each change was ``reached``."""
    times = ((written.get(change.event_id), reached(change)) for change in changes)
    return [(end - begin) * 1000 for begin, end in times if begin is not None and end is not None]


def acknowledged(
    history: Mapping[Item, Sequence[RecordedWrite]], by_item: Mapping[Item, Sequence[ReceivedChange]]
) -> dict[str, float]:
    """Return when the write of each change was acknowledged, except in the warm-up, before anything ran."""
    return {
        change.event_id: write.acknowledged
        for item, writes in history.items()
        for write, change in zip((each for each in writes if each.streamed), by_item.get(item, ()), strict=False)
        if not write.warm_up
    }


def _cached(config: Config, items: Iterable[Item]) -> dict[Item, int | None]:
    """Return the versions that the cache would serve now, or None for a cached missing item."""
    assert config.cache is not None
    store = RedisStore(config.cache.url)
    names = {item: entry_key(config.cache.namespace, cache_key(item)) for item in items}
    found, generation = store.read([*names.values()], generation_key(config.cache.namespace))
    return {
        item: version_of(stored.value)
        for item, stored in zip(names, found, strict=True)
        if stored and (entry := decode(stored.meta)) and entry.serves(generation, 0.0)
    }


def read_copy(session: SparkSession, config: Config, table: str) -> dict[Item, int | None]:
    assert config.copy_ is not None
    path = table_folder(spark_path(config.copy_.url), config.sources[0].name, table)
    rows = session.read.format("delta").load(path)
    # Rows of SQL tables have their columns; DynamoDB's rows are items.
    image = "item" if "item" in rows.columns else "version"
    return {
        (row[HASH_KEY], str(row[RANGE_KEY])): version_of(row["item"] if image == "item" else row.asDict())
        for row in rows.select(HASH_KEY, RANGE_KEY, image).collect()
    }


def _read_log(session: SparkSession, config: Config) -> list[str]:
    assert config.log is not None
    rows = session.read.format("delta").load(spark_path(config.log.path))
    return [event_id for (event_id,) in rows.select("event_id").collect()]


def _check_log(logged: Sequence[str], published: Set[str]) -> list[str]:
    times = Counter(logged)
    return [
        *(f"the log has event {event_id} {n} times" for event_id, n in times.items() if n > 1),
        *(f"the log lacks event {event_id}" for event_id in published - times.keys()),
        *(f"the log has event {event_id}, which was never on the topic" for event_id in times.keys() - published),
    ]

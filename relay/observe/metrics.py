"""The catalogue of metrics: what each is called, what it counts, and what to do about it.

A metric is added here, once; ``README.md`` beside this file is checked against it. What is counted is counted once for
a page or a transaction, never for a change. What is measured, the gauges, is read from the status when somebody asks
(``relay.observe.gauges``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram

from relay.source import Page, ReadResult, Unreadable


@dataclass(frozen=True, slots=True)
class Metric:
    """``name``: as it is exposed, its unit included. ``act``: what an operator does about it."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    unit: str
    help: str
    act: str


CHANGES = Metric(
    "relay_changes_published_total",
    "counter",
    ("source",),
    "changes",
    "Changes that are on their topic, committed.",
    "No increase while the source is written to and the lag grows: look at reads failed and at the health.",
)
BYTES = Metric(
    "relay_published_bytes_total",
    "counter",
    ("source",),
    "bytes",
    "Bytes of the values of these changes.",
    "For sizing the topics. A jump without a jump in changes: items have become larger.",
)
RETRIED = Metric(
    "relay_pages_retried_total",
    "counter",
    ("source",),
    "pages",
    "Pages that were published again because the transaction they were in was aborted.",
    "Some at every rebalance are usual. Many without one: the broker aborts transactions, see its log.",
)
TRANSACTIONS = Metric(
    "relay_transactions_total",
    "counter",
    ("outcome",),
    "transactions",
    "Kafka transactions, by outcome: committed or aborted.",
    "Aborts that keep coming: workers come and go, or a broker is overloaded. Nothing is lost or doubled by them.",
)
FENCED = Metric(
    "relay_fenced_total",
    "counter",
    (),
    "times",
    "How often this worker started over from the committed checkpoints, because it could not know the fate of its "
    "last transaction. What that held is not counted as published.",
    "Rare. Often: pauses longer than transaction.timeout.ms (a machine that is short of CPU or memory).",
)
GAPS = Metric(
    "relay_gaps_total",
    "counter",
    ("source", "reason"),
    "gaps",
    "Losses that were reported: trimmed, shard lost, new stream.",
    "Any at all: the relay was down or behind for longer than the stream keeps records. See the topic of gaps; the "
    "copy needs a snapshot (on_gap: resnapshot).",
)
DEAD_LETTERS = Metric(
    "relay_dead_letters_total",
    "counter",
    ("source",),
    "changes",
    "Changes that are too big or cannot be encoded: on their topic without images, in full among the dead letters.",
    "Look at them, and send them again once what they met is mended.",
)
READS_FAILED = Metric(
    "relay_reads_failed_total",
    "counter",
    ("source",),
    "reads",
    "Reads of a shard that were throttled, or failed because of the service or the network.",
    "Each shard is tried again by itself. If they keep coming: another reader of the stream (two are its limit), a "
    "network in trouble; /status.json has the last error of each shard.",
)
RECORDS = Metric(
    "relay_records_read_total",
    "counter",
    ("source",),
    "records",
    "Records taken from the source, those included that `start` leaves out.",
    "More than what is published: an old part of the stream is being passed over, or pages wait for a transaction.",
)
CLOCKS = Metric(
    "relay_clock_disagreements_total",
    "counter",
    ("source",),
    "changes",
    "Changes whose time at the source is before that of a change they follow, in their shard or its parents. Their "
    "tokens were given the later time, so order by time and by position agree.",
    "Some are usual: times are approximate. A rise that lasts after a split: the clocks of the source's hosts differ, "
    "and committed_at is wrong by as much.",
)
COMMIT = Metric(
    "relay_commit_seconds",
    "histogram",
    (),
    "seconds",
    "How long the commit of a transaction took.",
    "Usually some milliseconds. Beyond 100 ms it bounds the throughput: look at the brokers.",
)
LATENCY = Metric(
    "relay_publish_latency_seconds",
    "histogram",
    ("source",),
    "seconds",
    "From the commit in the database to the publishing of a change (relayed_at - committed_at), for the oldest change "
    "of each page. DynamoDB gives whole seconds, rounded down.",
    "The figure that matters. A rise with little lag: the source itself is slow. With lag: more workers or machines.",
)
LAG = Metric(
    "relay_lag_seconds",
    "gauge",
    ("source",),
    "seconds",
    "How far back a restart would have to begin, all workers and shards: now minus `resume_timestamp`; while that is "
    "not known, since the source was planned. An idle DynamoDB source shows 60 to 75 s, as records may come late.",
    "Alert well below the retention of the stream (24 hours for DynamoDB): beyond it changes are lost.",
)
SHARD_LAG = Metric(
    "relay_shard_lag_max_seconds",
    "gauge",
    ("source",),
    "seconds",
    "The same of the shard that is furthest behind among those open in this worker.",
    "Far above the others' workers: this one is short of CPU, or has a hot shard; see /status.json.",
)
OPEN = Metric(
    "relay_open_shards",
    "gauge",
    ("source",),
    "shards",
    "Shards, and segments of a snapshot, that this worker reads now.",
    "0 in every worker while shards are unfinished: nothing is read; see /readyz and the log.",
)
UNFINISHED = Metric(
    "relay_unfinished_shards",
    "gauge",
    ("source",),
    "shards",
    "Shards that are listed or planned and not read to their end, all workers.",
    "A rise that stays: children wait for parents that are not read to their end; see /status.json.",
)
PARTITIONS = Metric(
    "relay_owned_partitions",
    "gauge",
    (),
    "partitions",
    "Partitions of the checkpoints that this worker owns, of 64.",
    "The sum over all workers stays 64, but for moments. Below that for long: a worker hangs in the fence.",
)
WATERMARK = Metric(
    "relay_low_watermark_timestamp_seconds",
    "gauge",
    ("source",),
    "seconds since the epoch",
    "Everything committed at the source before it is on the topic; absent while that is not known.",
    "If it stands still while the source is written to, find the shard with the least progress in /status.json.",
)
SNAPSHOT_READ = Metric(
    "relay_snapshot_rows_read",
    "gauge",
    ("source",),
    "rows",
    "Rows that the running snapshot has read, all workers; absent while none runs.",
    "If it stands still: the scan is throttled; see reads failed.",
)
SNAPSHOT_ROWS = Metric(
    "relay_snapshot_rows_estimated",
    "gauge",
    ("source",),
    "rows",
    "About how many rows the running snapshot will read.",
    "An estimate of the database, hours old.",
)
POLL_AGE = Metric(
    "relay_oldest_poll_seconds",
    "gauge",
    ("source",),
    "seconds",
    "Since the last successful poll of the shard, among those open here, that was not polled for longest.",
    "Above 60 s /healthz is red and names the shard.",
)
LISTING_AGE = Metric(
    "relay_listing_age_seconds",
    "gauge",
    ("source",),
    "seconds",
    "Since the shards of the source were last listed.",
    "Usually up to 60 s. Beyond 120 s /healthz is red: new shards are not found.",
)
TURN_AGE = Metric(
    "relay_turn_age_seconds",
    "gauge",
    (),
    "seconds",
    "Since the worker's main loop last turned.",
    "Above 60 s /healthz is red: Kafka does not answer, or the process is stuck.",
)

CATALOGUE = (
    CHANGES, BYTES, RECORDS, RETRIED, TRANSACTIONS, FENCED, GAPS, DEAD_LETTERS, READS_FAILED, CLOCKS, COMMIT,
    LATENCY, LAG,
    SHARD_LAG, WATERMARK, OPEN, UNFINISHED, PARTITIONS, SNAPSHOT_READ, SNAPSHOT_ROWS, POLL_AGE, LISTING_AGE, TURN_AGE,
)  # fmt: skip

_COMMIT_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_LATENCY_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 36000.0, 86400.0)


class Metrics:
    """What one worker counts, in a registry of its own. Used by the worker's thread; the registry by any.

    What is published counts once it is committed: ``page``, ``gap`` and ``dead_letter`` speak of the open transaction.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._changes, self._bytes, self._records = map(self._counter, (CHANGES, BYTES, RECORDS))
        self._retried, self._transactions, self._fenced = map(self._counter, (RETRIED, TRANSACTIONS, FENCED))
        self._gaps, self._dead_letters, self._failed = map(self._counter, (GAPS, DEAD_LETTERS, READS_FAILED))
        self._clocks = self._counter(CLOCKS)
        self._commit = self._histogram(COMMIT, _COMMIT_BUCKETS)
        self._latency = self._histogram(LATENCY, _LATENCY_BUCKETS)
        # What holds once the open transaction is committed.
        self._pending: list[Callable[[], None]] = []
        for outcome in ("committed", "aborted"):
            self._transactions.labels(outcome)

    def source(self, name: str) -> None:
        """Show the counters of a source from the start, so that the first increase is seen as one."""
        for counter in (
            self._changes, self._bytes, self._records, self._retried, self._dead_letters, self._failed, self._latency,
            self._clocks,
        ):  # fmt: skip
            counter.labels(name)

    def read(self, source: str, page: ReadResult) -> None:
        """Count a read of a shard, or of a segment of a snapshot."""
        if isinstance(page, Unreadable):
            self._failed.labels(source).inc()
        elif isinstance(page, Page) and page.records:
            self._records.labels(source).inc(page.records)

    def page(self, source: str, page: Page, size: int) -> None:
        """The changes of ``page`` are in the open transaction, with ``size`` bytes of values."""
        changes = len(page.changes)
        oldest = page.changes[0]
        latency = None
        if oldest.snapshot is None:
            latency = max(0.0, (oldest.relayed_at - oldest.committed_at) / 1_000_000)

        def count() -> None:
            self._changes.labels(source).inc(changes)
            self._bytes.labels(source).inc(size)
            self._clocks.labels(source).inc(page.behind)
            if latency is not None:
                self._latency.labels(source).observe(latency)

        self._pending.append(count)

    def gap(self, source: str, reason: str) -> None:
        """A gap record is in the open transaction."""
        self._pending.append(self._gaps.labels(source, reason).inc)

    def dead_letter(self, source: str) -> None:
        """A change is in the open transaction as a stub, and in full among the dead letters."""
        self._pending.append(self._dead_letters.labels(source).inc)

    def committed(self, seconds: float) -> None:
        """The open transaction was committed, which took ``seconds``."""
        self._transactions.labels("committed").inc()
        self._commit.observe(seconds)
        for count in self._pending:
            count()
        self._pending.clear()

    def aborted(self) -> None:
        """The open transaction was aborted: nothing of it counts."""
        self._transactions.labels("aborted").inc()
        self._pending.clear()

    def retried(self, source: str) -> None:
        """A page is published again after an abort."""
        self._retried.labels(source).inc()

    def fenced(self) -> None:
        """The worker starts over; nobody knows what became of the open transaction."""
        self._fenced.inc()
        self._pending.clear()

    def _counter(self, metric: Metric) -> Counter:
        return Counter(metric.name, metric.help, metric.labels, registry=self.registry)

    def _histogram(self, metric: Metric, buckets: Iterable[float]) -> Histogram:
        return Histogram(metric.name, metric.help, metric.labels, registry=self.registry, buckets=tuple(buckets))

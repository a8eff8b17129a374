"""The catalogue of metrics: names, meanings, and what an operator should do.

Add a metric here; a test compares ``README.md`` beside this file with the catalogue. Counters are incremented once per
page or transaction, never per change. Gauges are computed from the status at each scrape (``relay.observe.gauges``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram

from relay.observe.history import Totals
from relay.source import Page, ReadResult, Unreadable


@dataclass(frozen=True, slots=True)
class Metric:
    """``name``: as exposed, with its unit. ``act``: what an operator should do."""

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
    "Changes committed to their topics.",
    "No increase while the source receives writes and the lag grows: check the failed reads and /healthz.",
)
BYTES = Metric(
    "relay_published_bytes_total",
    "counter",
    ("source",),
    "bytes",
    "Bytes of the values of these changes.",
    "Use it to size the topics. A jump without a jump in changes: items have become larger.",
)
RETRIED = Metric(
    "relay_pages_retried_total",
    "counter",
    ("source",),
    "pages",
    "Pages published again because their transaction was aborted.",
    "A few at each rebalance are normal. Many without one: the broker aborts transactions; see its log.",
)
TRANSACTIONS = Metric(
    "relay_transactions_total",
    "counter",
    ("outcome",),
    "transactions",
    "Kafka transactions, by outcome: committed or aborted.",
    "Continuing aborts: workers come and go, or a broker is overloaded. Aborts lose and duplicate nothing.",
)
FENCED = Metric(
    "relay_fenced_total",
    "counter",
    (),
    "times",
    "How often this worker started over from the committed checkpoints because it could not know whether its last "
    "transaction was committed. The changes of that transaction are not counted as published.",
    "Normally rare. If frequent: the process pauses for longer than transaction.timeout.ms, for want of CPU or memory.",
)
GAPS = Metric(
    "relay_gaps_total",
    "counter",
    ("source", "reason"),
    "gaps",
    "Gaps reported: trimmed records, a lost shard, a new stream.",
    "Alert on any: the relay was down or behind for longer than the stream retains records. See the gaps topic; a copy "
    "needs a snapshot (on_gap: resnapshot).",
)
DEAD_LETTERS = Metric(
    "relay_dead_letters_total",
    "counter",
    ("source",),
    "changes",
    "Changes that are too large or cannot be encoded: published without images, and in full as dead letters.",
    "Inspect them with `relay dead-letters`, fix the cause, and redrive them.",
)
READS_FAILED = Metric(
    "relay_reads_failed_total",
    "counter",
    ("source",),
    "reads",
    "Reads of a shard that were throttled or failed because of the service or the network.",
    "The relay retries each shard. If they continue: another reader of the stream (its limit is two) or network "
    "problems; /status.json has the last error of each shard.",
)
RECORDS = Metric(
    "relay_records_read_total",
    "counter",
    ("source",),
    "records",
    "Records read from the source, including those before `start`.",
    "More than the published changes: the relay is skipping records before `start`, or pages wait for a transaction.",
)
CLOCKS = Metric(
    "relay_clock_disagreements_total",
    "counter",
    ("source",),
    "changes",
    "Changes with an earlier time at the source than a preceding change of their shard or its parents. Their tokens "
    "got the later time, so that order by time and by position agree.",
    "A few are normal, because times are approximate. A lasting rise after a split: the clocks of the source's hosts "
    "differ, and committed_at is wrong by that difference.",
)
COMMIT = Metric(
    "relay_commit_seconds",
    "histogram",
    (),
    "seconds",
    "Duration of a transaction's commit.",
    "Normally some milliseconds. Above 100 ms it limits the throughput: check the brokers.",
)
LATENCY = Metric(
    "relay_publish_latency_seconds",
    "histogram",
    ("source",),
    "seconds",
    "Time from the commit in the database to the publishing of a change (relayed_at - committed_at), for the oldest "
    "change of each page. DynamoDB reports full seconds, rounded down.",
    "The most important figure. A rise with little lag: the source itself is slow. With lag: add workers or machines.",
)
LAG = Metric(
    "relay_lag_seconds",
    "gauge",
    ("source",),
    "seconds",
    "How far back a restart would resume, over all workers and shards: now minus `resume_timestamp`, or the time since "
    "the source was planned while that is unknown. An idle DynamoDB source shows 60 to 75 s, because records may "
    "arrive late.",
    "Alert well below the retention of the stream (24 hours for DynamoDB): beyond it, changes are lost.",
)
SHARD_LAG = Metric(
    "relay_shard_lag_max_seconds",
    "gauge",
    ("source",),
    "seconds",
    "The lag of the shard that is furthest behind among those open in this worker.",
    "Far above the other workers: this one is short of CPU or has a hot shard; see /status.json.",
)
OPEN = Metric(
    "relay_open_shards",
    "gauge",
    ("source",),
    "shards",
    "Shards and snapshot segments that this worker is reading.",
    "0 in every worker while shards are unfinished: nothing is being read; see /readyz and the log.",
)
UNFINISHED = Metric(
    "relay_unfinished_shards",
    "gauge",
    ("source",),
    "shards",
    "Shards that are listed or planned and not read to their end, over all workers.",
    "A lasting rise: children wait for parents that have not been read to their end; see /status.json.",
)
PARTITIONS = Metric(
    "relay_owned_partitions",
    "gauge",
    (),
    "partitions",
    "Checkpoint partitions that this worker owns, of 64.",
    "The sum over all workers is 64, except briefly. Below that for long: a worker hangs in the fence.",
)
WATERMARK = Metric(
    "relay_low_watermark_timestamp_seconds",
    "gauge",
    ("source",),
    "seconds since the epoch",
    "Every change committed at the source before this time is on its topic. Absent while it is unknown.",
    "If it does not advance while the source receives writes, find the shard with the least progress in /status.json.",
)
SNAPSHOT_READ = Metric(
    "relay_snapshot_rows_read",
    "gauge",
    ("source",),
    "rows",
    "Rows that the running snapshot has read, over all workers. Absent while none is running.",
    "If it does not advance: the scan is throttled; check the failed reads.",
)
SNAPSHOT_ROWS = Metric(
    "relay_snapshot_rows_estimated",
    "gauge",
    ("source",),
    "rows",
    "Estimated number of rows that the running snapshot will read.",
    "The estimate is the database's own and may be hours old.",
)
POLL_AGE = Metric(
    "relay_oldest_poll_seconds",
    "gauge",
    ("source",),
    "seconds",
    "Time since the last successful poll of a shard; the maximum over the shards open in this worker.",
    "Above 60 s after a poll was due, /healthz is red and names the shard.",
)
LISTING_AGE = Metric(
    "relay_listing_age_seconds",
    "gauge",
    ("source",),
    "seconds",
    "Time since the shards of the source were last listed.",
    "Normally up to 60 s. Above 120 s and the time of two listings, /healthz is red: new shards are not found.",
)
TURN_AGE = Metric(
    "relay_turn_age_seconds",
    "gauge",
    (),
    "seconds",
    "Time since the last turn of the worker's main loop.",
    "Above 60 s, /healthz is red: Kafka does not answer, or the process hangs.",
)
PENDING_GAPS = Metric(
    "relay_pending_gaps",
    "gauge",
    ("source",),
    "gaps",
    "Gaps that a person has to decide about, over all workers. The relay stops at them.",
    "`relay gaps list CONFIG` shows them, and `relay gaps accept` continues after one.",
)
UPTIME = Metric(
    "relay_uptime_seconds",
    "gauge",
    (),
    "seconds",
    "Time since this worker started.",
    "If it stays small, the worker ends soon after each start, as at a gap under `on_gap: fail`; the end of its log "
    "says why.",
)

CATALOGUE = (
    CHANGES, BYTES, RECORDS, RETRIED, TRANSACTIONS, FENCED, GAPS, DEAD_LETTERS, READS_FAILED, CLOCKS, COMMIT,
    LATENCY, LAG,
    SHARD_LAG, WATERMARK, OPEN, UNFINISHED, PARTITIONS, PENDING_GAPS, SNAPSHOT_READ, SNAPSHOT_ROWS, POLL_AGE,
    LISTING_AGE, TURN_AGE, UPTIME,
)  # fmt: skip

_COMMIT_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_LATENCY_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 36000.0, 86400.0)


class Metrics:
    """The counters of one worker, in a registry of their own.

    The worker's thread calls the methods; any thread may read the registry, whose counters have their own locks.
    ``count_page``, ``count_gap`` and ``count_dead_letter`` take effect when the open transaction is committed.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._changes, self._bytes, self._records = map(self._counter, (CHANGES, BYTES, RECORDS))
        self._retried, self._transactions, self._fenced = map(self._counter, (RETRIED, TRANSACTIONS, FENCED))
        self._gaps, self._dead_letters, self._failed = map(self._counter, (GAPS, DEAD_LETTERS, READS_FAILED))
        self._clocks = self._counter(CLOCKS)
        self._commit = self._histogram(COMMIT, _COMMIT_BUCKETS)
        self._latency = self._histogram(LATENCY, _LATENCY_BUCKETS)
        # Increments to apply when the open transaction is committed. Only the worker's thread uses it.
        self._pending: list[Callable[[], None]] = []
        for outcome in ("committed", "aborted"):
            self._transactions.labels(outcome)

    def totals(self) -> Totals:
        """Return what was published since the start, over all sources."""
        latency = _by_suffix(self._latency)
        return Totals(_by_suffix(self._changes)["_total"], latency["_sum"], latency["_count"])

    def dead_letters(self) -> dict[str, int]:
        """Return how many there were since the start, by source."""
        [family] = self._dead_letters.collect()
        return {each.labels["source"]: int(each.value) for each in family.samples if each.name.endswith("_total")}

    def add_source(self, name: str) -> None:
        """Expose the counters of a source at 0 from the start, so that the first increase is visible as one."""
        for counter in (
            self._changes, self._bytes, self._records, self._retried, self._dead_letters, self._failed, self._latency,
            self._clocks,
        ):  # fmt: skip
            counter.labels(name)

    def count_read(self, source: str, page: ReadResult) -> None:
        """Count a read of a shard, or of a segment of a snapshot."""
        if isinstance(page, Unreadable):
            self._failed.labels(source).inc()
        elif isinstance(page, Page) and page.records:
            self._records.labels(source).inc(page.records)

    def count_page(self, source: str, page: Page, size: int) -> None:
        """Count the changes of ``page``, with ``size`` bytes of values, as part of the open transaction."""
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

    def count_gap(self, source: str, reason: str) -> None:
        """Count a gap record as part of the open transaction."""
        self._pending.append(self._gaps.labels(source, reason).inc)

    def count_dead_letter(self, source: str) -> None:
        """Count a dead letter as part of the open transaction."""
        self._pending.append(self._dead_letters.labels(source).inc)

    def count_commit(self, seconds: float) -> None:
        """Count the commit of the open transaction, which took ``seconds``, and everything in it."""
        self._transactions.labels("committed").inc()
        self._commit.observe(seconds)
        for count in self._pending:
            count()
        self._pending.clear()

    def count_abort(self) -> None:
        """Count the abort of the open transaction, and drop the counts of its content."""
        self._transactions.labels("aborted").inc()
        self._pending.clear()

    def count_retry(self, source: str) -> None:
        """Count a page that is published again after an abort."""
        self._retried.labels(source).inc()

    def count_fencing(self) -> None:
        """Count a start-over after a transaction of unknown outcome, and drop the counts of its content."""
        self._fenced.inc()
        self._pending.clear()

    def _counter(self, metric: Metric) -> Counter:
        return Counter(metric.name, metric.help, metric.labels, registry=self.registry)

    def _histogram(self, metric: Metric, buckets: Iterable[float]) -> Histogram:
        return Histogram(metric.name, metric.help, metric.labels, registry=self.registry, buckets=tuple(buckets))


def _by_suffix(metric: Counter | Histogram) -> dict[str, float]:
    """Return the sums of the samples of ``metric`` over all labels, by what their names add to its own."""
    sums = {"_total": 0.0, "_sum": 0.0, "_count": 0.0}
    for family in metric.collect():
        for sample in family.samples:
            suffix = sample.name.removeprefix(family.name)
            sums[suffix] = sums.get(suffix, 0.0) + sample.value
    return sums

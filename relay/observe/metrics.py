"""The catalogue of metrics; ``README.md`` says what an operator should do, and a test compares the two."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily

from relay.errors import RelayError
from relay.observe.history import Totals
from relay.source import Page, ReadResult, Unreadable

_COMMIT_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_LATENCY_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 36000.0, 86400.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. ``name``: its exposed name, with the unit (counters: ``_total``). ``buckets``: histogram buckets."""

    name: str
    help: str
    labels: tuple[str, ...] = ("source",)
    buckets: tuple[float, ...] = ()

    def counter(self, registry: CollectorRegistry) -> Counter:
        return Counter(self.name, self.help, self.labels, registry=registry)

    def histogram(self, registry: CollectorRegistry) -> Histogram:
        return Histogram(self.name, self.help, self.labels, registry=registry, buckets=self.buckets)

    def gauge(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(self.name, self.help, labels=self.labels)


CHANGES = Metric("relay_changes_published_total", "Changes committed to their topics.")
BYTES = Metric("relay_published_bytes_total", "Bytes of the values of these changes.")
RECORDS = Metric("relay_records_read_total", "Records read from the source, including those before `start`.")
RETRIED = Metric("relay_pages_retried_total", "Pages published again because their transaction was aborted.")
TRANSACTIONS = Metric("relay_transactions_total", "Kafka transactions, by outcome: committed or aborted.", ("outcome",))
FENCED = Metric(
    "relay_fenced_total",
    "How often this worker started over from the committed checkpoints because it could not know whether its last "
    "transaction was committed. The changes of that transaction are not counted as published.",
    (),
)
GAPS = Metric("relay_gaps_total", "Gaps reported: trimmed records, a lost shard, a new stream.", ("source", "reason"))
DEAD_LETTERS = Metric(
    "relay_dead_letters_total",
    "Changes that are too large or cannot be encoded: published without images, and in full as dead letters.",
)
READS_FAILED = Metric(
    "relay_reads_failed_total", "Reads of a shard that were throttled or failed because of the service or the network."
)
CLOCKS = Metric(
    "relay_clock_disagreements_total",
    "Changes with an earlier time at the source than a preceding change of their shard or its parents. Their tokens "
    "carry the later time, so that time and position give the same order.",
)
COMMIT = Metric("relay_commit_seconds", "Duration of a transaction's commit.", (), buckets=_COMMIT_BUCKETS)
LATENCY = Metric(
    "relay_publish_latency_seconds",
    "Time from the commit in the database to the publishing of a change (relayed_at - committed_at), for the oldest "
    "change of each page. DynamoDB reports full seconds, rounded down.",
    buckets=_LATENCY_BUCKETS,
)
LAG = Metric(
    "relay_lag_seconds",
    "How long ago everything that the source then showed was published, for the shard that is furthest behind over "
    "all workers; before anything is published, the time since the source was planned. An idle source shows up to 15 "
    "s, the time between two checkpoints.",
)
SHARD_LAG = Metric("relay_shard_lag_max_seconds", "The lag of the open shard in this worker that is furthest behind.")
WATERMARK = Metric(
    "relay_low_watermark_timestamp_seconds",
    "Every change committed at the source before this time is on its topic. Absent while it is unknown.",
)
OPEN = Metric("relay_open_shards", "Shards and snapshot segments that this worker is reading.")
UNFINISHED = Metric(
    "relay_unfinished_shards", "Shards, over all workers, that are listed or planned but not read to their end."
)
PARTITIONS = Metric("relay_owned_partitions", "Checkpoint partitions that this worker owns, of 64.", ())
PENDING_GAPS = Metric(
    "relay_pending_gaps", "Gaps, over all workers, that wait for a person's decision. Their shards wait, too."
)
ALTERED = Metric(
    "relay_altered_tables",
    "Tables whose rows a statement may have changed without a change, and that no snapshot has read since.",
)
SET_ASIDE = Metric(
    "relay_set_aside", "Sources, shards of this worker and snapshot segments that are not read; the others go on."
)
SNAPSHOT_READ = Metric(
    "relay_snapshot_rows_read",
    "Rows that the running snapshot has read, over all workers. Absent while none is running.",
)
SNAPSHOT_ROWS = Metric("relay_snapshot_rows_estimated", "Estimated number of rows that the running snapshot will read.")
POLL_AGE = Metric(
    "relay_oldest_poll_seconds",
    "Time since the last successful poll of a shard; the maximum over the shards open in this worker.",
)
LISTING_AGE = Metric("relay_listing_age_seconds", "Time since the shards of the source were last listed.")
TURN_AGE = Metric("relay_turn_age_seconds", "Time since the last turn of the worker's main loop.", ())
UPTIME = Metric("relay_uptime_seconds", "Time since this worker started.", ())

CATALOGUE = tuple(each for each in list(vars().values()) if isinstance(each, Metric))


class Metrics:
    """The counters of one worker, whose thread calls the methods; any thread may read the registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._counters = {
            metric: metric.counter(self.registry)
            for metric in (
                CHANGES, BYTES, RECORDS, RETRIED, TRANSACTIONS, FENCED, GAPS, DEAD_LETTERS, READS_FAILED, CLOCKS,
            )
        }  # fmt: skip
        self._commit, self._latency = COMMIT.histogram(self.registry), LATENCY.histogram(self.registry)
        # What was published since the start, over all sources, and by source and table.
        self.totals = Totals(0.0, 0.0, 0.0)
        self.tables: dict[tuple[str, str], int] = {}
        # What pages, gaps and dead letters add counts once the open transaction is committed.
        self._pending: list[Callable[[], None]] = []
        for outcome in ("committed", "aborted"):
            self._counters[TRANSACTIONS].labels(outcome)

    def dead_letters(self) -> dict[str, int]:
        """Return the number of dead letters since the start, by source."""
        [family] = self._counters[DEAD_LETTERS].collect()
        return {each.labels["source"]: int(each.value) for each in family.samples if each.name.endswith("_total")}

    def add_source(self, name: str) -> None:
        """Expose the counters of a source at 0 from the start, so that the first increase is visible."""
        for metric in (CHANGES, BYTES, RECORDS, RETRIED, DEAD_LETTERS, READS_FAILED, CLOCKS):
            self._counters[metric].labels(name)
        self._latency.labels(name)

    def count_read(self, source: str, page: ReadResult | RelayError) -> None:
        if isinstance(page, Unreadable | RelayError):
            self._counters[READS_FAILED].labels(source).inc()
        elif isinstance(page, Page) and page.counts.records:
            self._counters[RECORDS].labels(source).inc(page.counts.records)

    def count_page(self, source: str, page: Page, size: int, tables: Mapping[tuple[str, str], int]) -> None:
        """Count a page in the open transaction: ``size`` bytes of values, and the changes of each of ``tables``."""
        changes = len(page.changes)
        oldest = page.changes[0]
        latency = None
        if oldest.snapshot is None:
            latency = max(0.0, (oldest.relayed_at - oldest.committed_at) / 1_000_000)

        def count() -> None:
            self._counters[CHANGES].labels(source).inc(changes)
            self._counters[BYTES].labels(source).inc(size)
            self._counters[CLOCKS].labels(source).inc(page.counts.behind)
            if latency is not None:
                self._latency.labels(source).observe(latency)
            for table, number in tables.items():
                self.tables[table] = self.tables.get(table, 0) + number
            before = self.totals
            self.totals = Totals(
                before.changes + changes, before.latency + (latency or 0.0), before.pages + (latency is not None)
            )

        self._pending.append(count)

    def count_gap(self, source: str, reason: str) -> None:
        # I11: a reason may end in the name of a table, and each text would be a separate series.
        self._pending.append(self._counters[GAPS].labels(source, reason.partition(": ")[0]).inc)

    def count_dead_letter(self, source: str) -> None:
        self._pending.append(self._counters[DEAD_LETTERS].labels(source).inc)

    def count_commit(self, seconds: float) -> None:
        self._counters[TRANSACTIONS].labels("committed").inc()
        self._commit.observe(seconds)
        for count in self._pending:
            count()
        self._pending.clear()

    def count_abort(self) -> None:
        self._counters[TRANSACTIONS].labels("aborted").inc()
        self._pending.clear()

    def count_retry(self, source: str) -> None:
        self._counters[RETRIED].labels(source).inc()

    def count_fencing(self) -> None:
        self._counters[FENCED].inc()
        self._pending.clear()

"""The metrics of the consumers, beside those of the relay in ``metrics``: their catalogue, and their counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

from relay.observe.metrics import Metric

_OF_ONE = ("consumer",)

RECORDS = Metric(
    "relay_consumer_records_total",
    "counter",
    _OF_ONE,
    "records",
    "Records in the batches that were applied. Batches that come again after a crash count again.",
    "The rate is the input rate. No increase while relay_consumer_lag_records is above 0: see /healthz.",
)
CHANGES = Metric(
    "relay_consumer_changes_total",
    "counter",
    ("consumer", "outcome"),
    "changes",
    "What was done with the changes: applied; ignored (stale, or there already; the cache: discarded); unknown (of "
    "unknown order, also counted as applied); incomplete (came without its image); collected (tombstones); retried "
    "and bumps, of the cache.",
    "Many unknown: two relays, or a reset; a rise of bumps empties the cache, and the log says why.",
)
DEAD_LETTERS = Metric(
    "relay_consumer_dead_letters_total",
    "counter",
    _OF_ONE,
    "records",
    "Records that could not be decoded and are in the dead letters.",
    "Alert on any: each is a change that the log and the copy lack. Look with `relay dead-letters list`.",
)
GAPS = Metric(
    "relay_consumer_gaps_total",
    "counter",
    _OF_ONE,
    "gaps",
    "Gaps that the log or the copy has noted. The cache counts them as bumps.",
    "Alert on any: changes are missing at the source; the copy needs a snapshot.",
)
RETRIES = Metric(
    "relay_consumer_failures_total",
    "counter",
    _OF_ONE,
    "times",
    "Failed attempts at a batch or at a start, each followed by another one.",
    "The log has the error of each. If they go on, /healthz is red and shows the last.",
)
BATCH = Metric(
    "relay_consumer_batch_seconds",
    "histogram",
    _OF_ONE,
    "seconds",
    "Time to apply a batch, from its beginning to its end.",
    "With a growing lag: the target is slow, or the executors are too few.",
)
LAG_RECORDS = Metric(
    "relay_consumer_lag_records",
    "gauge",
    _OF_ONE,
    "offsets",
    "Offsets between what is applied and the ends of the topics, at the last look, every 5 s. An end of a transaction "
    "takes an offset, too. Absent before the first look.",
    "A lasting rise: the consumer is slower than the relay.",
)
LAG_SECONDS = Metric(
    "relay_consumer_lag_seconds",
    "gauge",
    _OF_ONE,
    "seconds",
    "Everything that was on the topics this long ago is applied. At most the time that the consumer has been "
    "running, since nothing is known of before; 0 if nothing waited at the last look. Absent before the first look.",
    "Alert well below the retention of the topics: beyond it, changes are lost to this consumer.",
)
COMMIT_LAG = Metric(
    "relay_consumer_commit_lag_seconds",
    "gauge",
    _OF_ONE,
    "seconds",
    "The longest time from the commit of a change to when the cache was invalidated for it, over the batches of the "
    "last five minutes; 0 if there was none. Only of the cache.",
    "Above half of relay_consumer_tombstone_ttl_seconds, the log has an event `behind`, which says what to do.",
)
TOMBSTONE_TTL = Metric(
    "relay_consumer_tombstone_ttl_seconds",
    "gauge",
    _OF_ONE,
    "seconds",
    "What `cache.tombstone_ttl` is set to. Only of the cache.",
    "It should be more than twice the usual relay_consumer_commit_lag_seconds.",
)
RUNNING = Metric(
    "relay_consumer_running",
    "gauge",
    _OF_ONE,
    "0 or 1",
    "1 while the consumer runs, 0 before its start, after its end, and between a failure and the next attempt.",
    "0 for long: see /healthz and the log.",
)
UPTIME = Metric(
    "relay_consumer_uptime_seconds",
    "gauge",
    _OF_ONE,
    "seconds",
    "Time since the process of the consumer started.",
    "If it stays small, the process ends soon after each start; the end of its log says why.",
)

CONSUMER_CATALOGUE = (
    RECORDS, CHANGES, DEAD_LETTERS, GAPS, RETRIES, BATCH, LAG_RECORDS, LAG_SECONDS, COMMIT_LAG, TOMBSTONE_TTL, RUNNING,
    UPTIME,
)  # fmt: skip

_BATCH_BUCKETS = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_OUTCOMES = {"applied": "applied", "ignored": "ignored", "discarded": "ignored"} | {
    name: name for name in ("unknown", "incomplete", "collected", "retried", "bumps")
}


class ConsumerMetrics:
    """The counters of the consumers of a process, in a registry of their own. Safe from any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._records, self._changes, self._dead_letters, self._gaps, self._failures = (
            Counter(metric.name, metric.help, metric.labels, registry=self.registry)
            for metric in (RECORDS, CHANGES, DEAD_LETTERS, GAPS, RETRIES)
        )
        self._batch = Histogram(BATCH.name, BATCH.help, BATCH.labels, registry=self.registry, buckets=_BATCH_BUCKETS)

    def add_consumer(self, name: str) -> None:
        """Expose the counters of a consumer at 0 from the start, so that the first increase is visible as one."""
        for counter in (self._records, self._dead_letters, self._gaps, self._failures, self._batch):
            counter.labels(name)
        for outcome in ("applied", "ignored", "unknown"):
            self._changes.labels(name, outcome)

    def count_batch(self, name: str, counts: Mapping[str, Any], seconds: float) -> None:
        """Count an applied batch by the counts of its line in the log, which took ``seconds``."""
        self._records.labels(name).inc(counts["rows"])
        self._dead_letters.labels(name).inc(counts.get("dead_letters", 0))
        self._gaps.labels(name).inc(counts.get("gaps", 0))
        for count, outcome in _OUTCOMES.items():
            if count in counts:
                self._changes.labels(name, outcome).inc(counts[count])
        self._batch.labels(name).observe(seconds)

    def dead_letters(self, name: str) -> int:
        """Return how many records of a consumer became dead letters since the start of the process."""
        [family] = self._dead_letters.labels(name).collect()
        return int(family.samples[0].value)

    def count_failure(self, name: str) -> None:
        self._failures.labels(name).inc()

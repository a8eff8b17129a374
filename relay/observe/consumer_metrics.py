"""The metrics of the consumers, beside the relay's in ``metrics``: their catalogue, and their counters."""

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry

from relay.observe.metrics import Metric

_OF_ONE = ("consumer",)
_BATCH_BUCKETS = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)

RECORDS = Metric(
    "relay_consumer_records_total",
    "Records in the batches that were applied. Batches that come again after a crash count again.",
    _OF_ONE,
)
CHANGES = Metric(
    "relay_consumer_changes_total",
    "What was done with the changes: applied; ignored (stale, or there already; the cache: discarded); unknown (of "
    "unknown order, also counted as applied); incomplete (came without its image); collected (tombstones); retried, "
    "deleted (entries for whose tombstones there was no room) and bumps, of the cache.",
    ("consumer", "outcome"),
)
DEAD_LETTERS = Metric(
    "relay_consumer_dead_letters_total", "Records that could not be decoded and are in the dead letters.", _OF_ONE
)
GAPS = Metric(
    "relay_consumer_gaps_total", "Gaps that the log or the copy has noted. The cache counts them as bumps.", _OF_ONE
)
RETRIES = Metric(
    "relay_consumer_failures_total", "Failed attempts at a batch or at a start, each followed by another one.", _OF_ONE
)
BATCH = Metric(
    "relay_consumer_batch_seconds",
    "Time to apply a batch, from its beginning to its end.",
    _OF_ONE,
    buckets=_BATCH_BUCKETS,
)
LAG_RECORDS = Metric(
    "relay_consumer_lag_records",
    "Offsets between what is applied and the ends of the topics, at the last look, every 5 s. An end of a transaction "
    "takes an offset, too. Absent before the first look.",
    _OF_ONE,
)
LAG_SECONDS = Metric(
    "relay_consumer_lag_seconds",
    "Everything that was on the topics this long ago is applied. At most the time that the consumer has been running, "
    "since nothing is known of before; 0 if nothing waited at the last look. Absent before the first look.",
    _OF_ONE,
)
COMMIT_LAG = Metric(
    "relay_consumer_commit_lag_seconds",
    "The longest time from the commit of a change to when the cache was invalidated for it, over the batches of the "
    "last five minutes; 0 if there was none. Only of the cache.",
    _OF_ONE,
)
TOMBSTONE_TTL = Metric(
    "relay_consumer_tombstone_ttl_seconds", "What `cache.tombstone_ttl` is set to. Only of the cache.", _OF_ONE
)
RUNNING = Metric(
    "relay_consumer_running",
    "1 while the consumer runs, 0 before its start, after its end, and from a failure until it has advanced.",
    _OF_ONE,
)
UPTIME = Metric("relay_consumer_uptime_seconds", "Time since the process of the consumer started.", _OF_ONE)
SET_ASIDE = Metric(
    "relay_consumer_tables_set_aside", "Tables of the copy that cannot take their changes; the others go on.", _OF_ONE
)
STORE_USED = Metric(
    "relay_consumer_store_used_bytes",
    "Memory that a server of the cache has taken, at the last look that it answered, one in 5 s.",
    ("consumer", "server"),
)
STORE_LIMIT = Metric(
    "relay_consumer_store_limit_bytes",
    "The limit of that memory, 0 for none; `policy` is what the server does there, as Redis calls it.",
    ("consumer", "server", "policy"),
)

CONSUMER_CATALOGUE = tuple(each for each in list(vars().values()) if isinstance(each, Metric))

_OUTCOMES = {"applied": "applied", "ignored": "ignored", "discarded": "ignored"} | {
    name: name for name in ("unknown", "incomplete", "collected", "retried", "deleted", "bumps")
}


class ConsumerMetrics:
    """The counters of the consumers of a process, in a registry of their own. Safe from any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._records, self._changes, self._dead_letters, self._gaps, self._failures = (
            metric.counter(self.registry) for metric in (RECORDS, CHANGES, DEAD_LETTERS, GAPS, RETRIES)
        )
        self._batch = BATCH.histogram(self.registry)

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

"""The metrics of the consumers: their catalogue and their counters. The relay's are in ``metrics``."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry

from relay.observe.metrics import Metric

_metric = partial(Metric, labels=("consumer",))
_BATCH_BUCKETS = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)

RECORDS = _metric(
    "relay_consumer_records_total", "Records in applied batches. A batch that is repeated after a crash counts again."
)
CHANGES = Metric(
    "relay_consumer_changes_total",
    "Changes by what was done: applied; ignored (stale or already there; in the cache: discarded); unknown (of "
    "unknown order, also counted as applied); incomplete (came without an image); collected (tombstones); only in the "
    "cache: retried, deleted (entries, because there was no room for their tombstones) and bumps.",
    labels=("consumer", "outcome"),
)
DEAD_LETTERS = _metric(
    "relay_consumer_dead_letters_total", "Records that could not be decoded and are in the dead letters."
)
GAPS = _metric(
    "relay_consumer_gaps_total", "Gaps that the log or the copy has recorded. The cache counts gaps as bumps."
)
RETRIES = _metric(
    "relay_consumer_failures_total", "Failed attempts to apply a batch or to start. Another attempt follows each."
)
BATCH = _metric(
    "relay_consumer_batch_seconds", "Time to apply a batch, from its beginning to its end.", buckets=_BATCH_BUCKETS
)
LAG_RECORDS = _metric(
    "relay_consumer_lag_records",
    "Offsets that are not applied yet, up to the ends of the topics, at the last look, every 5 s. The end of a "
    "transaction takes an offset, too. Absent before the first look.",
)
LAG_SECONDS = _metric(
    "relay_consumer_lag_seconds",
    "Everything that was on the topics this long ago is applied. Never more than the running time of the consumer, "
    "because earlier times are unknown; 0 if nothing waited at the last look. Absent before the first look.",
)
COMMIT_LAG = _metric(
    "relay_consumer_commit_lag_seconds",
    "The longest time from the commit of a change until its cache entries were invalidated, over the batches of the "
    "last five minutes; 0 without batches. Only for the cache.",
)
TOMBSTONE_TTL = _metric(
    "relay_consumer_tombstone_ttl_seconds", "The value of `cache.tombstone_ttl`. Only for the cache."
)
RUNNING = _metric(
    "relay_consumer_running",
    "1 while the consumer runs; 0 before its start, after its end, and from a failure until it advances again.",
)
UPTIME = _metric("relay_consumer_uptime_seconds", "Time since the consumer's process started.")
SET_ASIDE = _metric(
    "relay_consumer_tables_set_aside", "Tables of the copy that cannot take their changes; the other tables go on."
)
STORE_USED = Metric(
    "relay_consumer_store_used_bytes",
    "Memory used by a server of the cache, at the last look that it answered. Looks are 5 s apart.",
    labels=("consumer", "server"),
)
STORE_LIMIT = Metric(
    "relay_consumer_store_limit_bytes",
    "The server's memory limit, 0 for none; `policy` is Redis' name for what the server does at the limit.",
    labels=("consumer", "server", "policy"),
)
STORE_BYPASSED = _metric(
    "relay_consumer_store_bypassed",
    "1 while readers cannot cache anything on a server: it does not answer, or is full and does not evict.",
)

CONSUMER_CATALOGUE = tuple(each for each in list(vars().values()) if isinstance(each, Metric))

_OUTCOMES = ("applied", "ignored", "discarded", "unknown", "incomplete", "collected", "retried", "deleted", "bumps")


class ConsumerMetrics:
    """The counters of all consumers in a process, in their own registry. Any thread may use it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._records, self._changes, self._dead_letters, self._gaps, self._failures = (
            metric.counter(self.registry) for metric in (RECORDS, CHANGES, DEAD_LETTERS, GAPS, RETRIES)
        )
        self._batch = BATCH.histogram(self.registry)

    def add_consumer(self, name: str) -> None:
        """Expose the counters of a consumer at 0 from the start, so that the first increase is visible."""
        for counter in (self._records, self._dead_letters, self._gaps, self._failures, self._batch):
            counter.labels(name)
        for outcome in ("applied", "ignored", "unknown"):
            self._changes.labels(name, outcome)

    def count_batch(self, name: str, counts: Mapping[str, Any], seconds: float) -> None:
        """Count an applied batch by the counts in its log line. ``seconds``: how long it took."""
        self._records.labels(name).inc(counts["rows"])
        self._dead_letters.labels(name).inc(counts.get("dead_letters", 0))
        self._gaps.labels(name).inc(counts.get("gaps", 0))
        for count in [each for each in _OUTCOMES if each in counts]:
            self._changes.labels(name, "ignored" if count == "discarded" else count).inc(counts[count])
        self._batch.labels(name).observe(seconds)

    def dead_letters(self, name: str) -> int:
        """Return how many records of a consumer became dead letters since the start of the process."""
        [family] = self._dead_letters.labels(name).collect()
        return int(family.samples[0].value)

    def count_failure(self, name: str) -> None:
        self._failures.labels(name).inc()

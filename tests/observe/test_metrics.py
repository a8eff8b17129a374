"""The metrics catalogue, and when counters increase."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from relay.change import Change, Images, Operation, Snapshot
from relay.mysql_dialect.layout_cache import lost_rows
from relay.observe.consumer_metrics import CONSUMER_CATALOGUE
from relay.observe.metrics import CATALOGUE, Metrics
from relay.observe.observer import Observer
from relay.observe.verifier import VERIFIER_CATALOGUE
from relay.records import Shard
from relay.source import Page, PageCounts, Unreadable
from tests.observe.documented import Documented, documented
from tests.observe.known import NOW, WALL, polled, reading, source, status


def page(changes: int = 1, **fields: Any) -> Page:
    change = Change(
        "e", Operation.INSERT, "orders", "orders", {"id": "k"}, None, "{}", Images.NEW, None,
        committed_at=10_000_000, relayed_at=12_500_000,
    )  # fmt: skip
    counts = PageCounts(changes)
    fields = {"position": None, "token": None, "progress": None, "begun": 0.0, "counts": counts, **fields}
    return Page(Shard("s"), [change] * changes, **fields)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_published_changes_count_when_they_are_committed() -> None:
    metrics = Metrics()
    metrics.add_source("orders")
    metrics.count_page("orders", page(3), 300, {})
    metrics.count_gap("orders", "trimmed")
    metrics.count_dead_letter("orders")
    assert value(metrics, "relay_changes_published_total", source="orders") == 0
    metrics.count_commit(0.003)
    assert value(metrics, "relay_changes_published_total", source="orders") == 3
    assert value(metrics, "relay_published_bytes_total", source="orders") == 300
    assert value(metrics, "relay_gaps_total", source="orders", reason="trimmed") == 1
    assert value(metrics, "relay_dead_letters_total", source="orders") == 1
    assert value(metrics, "relay_transactions_total", outcome="committed") == 1
    assert value(metrics, "relay_commit_seconds_sum") == 0.003
    assert value(metrics, "relay_publish_latency_seconds_sum", source="orders") == 2.5
    assert list(metrics.totals) == [3, 2.5, 1]
    metrics.add_source("lines")
    metrics.count_page("lines", page(2), 200, {})
    metrics.count_page("orders", page(1), 100, {})
    metrics.count_commit(0.003)
    assert list(metrics.totals) == [6, 7.5, 3]


@pytest.mark.parametrize("ending", ["count_abort", "count_fencing"])
def test_uncommitted_changes_count_once_when_they_are_published_again(ending: str) -> None:
    """I3: a change counts as often as a consumer sees it."""
    metrics = Metrics()
    metrics.count_page("orders", page(3), 300, {})
    getattr(metrics, ending)()
    assert list(metrics.totals) == [0, 0.0, 0]
    metrics.count_retry("orders")
    metrics.count_page("orders", page(3), 300, {})
    metrics.count_commit(0.003)
    metrics.count_commit(0.003)
    assert value(metrics, "relay_changes_published_total", source="orders") == 3
    assert value(metrics, "relay_pages_retried_total", source="orders") == 1


def test_reads_count_records_or_a_failure() -> None:
    metrics = Metrics()
    metrics.count_read("orders", page(0, counts=PageCounts(7)))
    metrics.count_read("orders", Unreadable(Shard("s"), 0.0, "throttled"))
    metrics.count_read("orders", page(0))
    assert value(metrics, "relay_records_read_total", source="orders") == 7
    assert value(metrics, "relay_reads_failed_total", source="orders") == 1


def test_snapshot_rows_do_not_count_towards_the_latency() -> None:
    metrics = Metrics()
    row = page()
    metrics.count_page("orders", replace(row, changes=[replace(row.changes[0], snapshot=Snapshot("s", 1))]), 10, {})
    metrics.count_commit(0.003)
    assert value(metrics, "relay_changes_published_total", source="orders") == 1
    assert value(metrics, "relay_publish_latency_seconds_count", source="orders") is None
    assert metrics.totals == (1, 0, 0)


def test_a_clock_that_is_behind_never_gives_a_negative_latency() -> None:
    metrics = Metrics()
    early = page()
    early.changes[0].relayed_at = early.changes[0].committed_at - 1
    metrics.count_page("orders", early, 10, {})
    metrics.count_commit(0.003)
    assert value(metrics, "relay_publish_latency_seconds_sum", source="orders") == 0


def test_workers_in_one_process_have_separate_counters() -> None:
    first, second = Metrics(), Metrics()
    first.count_fencing()
    assert (value(first, "relay_fenced_total"), value(second, "relay_fenced_total")) == (1, 0)


def test_gaps_are_counted_by_reasons_that_do_not_name_their_tables() -> None:
    """I11"""
    metrics = Metrics()
    for n in range(3):
        metrics.count_gap("orders", lost_rows(f"t{n}: x", is_left=False))
    metrics.count_commit(0.1)
    reason = "left out up to here, as it had no primary key"
    assert value(metrics, "relay_gaps_total", source="orders", reason=reason) == 3


def test_exactly_the_metrics_of_the_catalogue_are_exposed() -> None:
    observer = Observer("shop", keeps_status=True, clock=lambda: NOW, wall=lambda: WALL)
    observer._status = status(
        source(checkpoints={"a": reading(WALL - 70)}, open={"a": polled(2)}, rows=(5, 10), low_watermark=WALL - 70)
    )
    observer.liveness.turned = NOW - 1
    observer.metrics.count_gap("orders", "trimmed")
    exposed = {
        (family.name + ("_total" if family.type == "counter" else ""), family.type, family.documentation)
        for family in observer.metrics.registry.collect()
    }
    named = {metric.name for metric in CATALOGUE}
    assert exposed == {(row.name, row.kind, row.help) for row in documented() if row.name in named}
    assert value(observer.metrics, "relay_lag_seconds", source="orders") == 70
    assert value(observer.metrics, "relay_oldest_poll_seconds", source="orders") == 2
    assert value(observer.metrics, "relay_turn_age_seconds") == 1


@pytest.mark.parametrize("metric", documented(), ids=lambda metric: metric.name)
def test_a_metric_has_a_name_of_its_kind_and_says_what_to_do(metric: Documented) -> None:
    assert metric.name.startswith("relay_")
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert metric.unit
    assert metric.help.endswith(".")
    assert metric.act.endswith(".")


def test_the_readme_has_the_table_of_the_catalogue() -> None:
    catalogue = [
        (each.name, ", ".join(each.labels), each.help)
        for each in (*CATALOGUE, *CONSUMER_CATALOGUE, *VERIFIER_CATALOGUE)
    ]
    assert [(row.name, row.labels, row.help) for row in documented()] == catalogue

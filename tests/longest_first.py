"""Orders the test files so that the longest starts first, and no process of a parallel run is left with it at the end.

The seconds of each test are remembered in pytest's cache. In a fresh checkout, as in CI, ``USUAL`` has those of the
longest files, and the others are estimated from the markers of their tests.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")

USUAL = {
    "tests/spark_consumers/test_runs.py": 440,
    "tests/spark_consumers/test_scenarios.py": 380,
    "tests/spark_consumers/replay/test_replay.py": 360,
    "tests/spark_consumers/test_newest.py": 230,
    "tests/demo/test_demo.py": 220,
    "tests/kafka/test_iam.py": 210,
    "tests/stream/test_lost_state.py": 200,
    "tests/spark_consumers/test_log_views.py": 190,
    "tests/faults/test_random_scenarios.py": 180,
    "tests/cache/test_interleavings.py": 150,
    "tests/faults/test_consumers_killed.py": 150,
    "tests/faults/test_vitess_cluster.py": 150,
    "tests/mysql/test_relayed.py": 140,
    "tests/kafka/test_publisher.py": 130,
    "tests/mysql/test_failover.py": 130,
    "tests/mysql/test_statements.py": 130,
    "tests/faults/test_exactly_once.py": 120,
    "tests/operations/test_snapshot.py": 120,
    "tests/spark_consumers/test_change_log.py": 120,
    "tests/engine/test_worker.py": 110,
    "tests/faults/test_snapshots.py": 110,
    "tests/kafka/test_changes.py": 110,
    "tests/mysql/test_database_snapshots.py": 110,
    "tests/spark_consumers/test_evolution.py": 110,
    "tests/spark_consumers/test_verify.py": 110,
    "tests/faults/test_stop.py": 100,
    "tests/spark_consumers/test_cluster.py": 100,
    "tests/faults/test_lineage_on_kafka.py": 90,
    "tests/faults/test_mysql.py": 90,
    "tests/soak/test_soak.py": 90,
    "tests/spark_consumers/test_launch.py": 90,
    "tests/spark_consumers/test_python_engine.py": 90,
    "tests/vitess/test_copies_of_keys.py": 90,
    "tests/faults/test_long_snapshot.py": 80,
    "tests/faults/test_mysql_group.py": 80,
    "tests/faults/test_restart_at_time.py": 80,
    "tests/faults/test_vitess_snapshots.py": 80,
    "tests/operations/test_gaps.py": 80,
    "tests/spark_consumers/test_upkeep.py": 80,
    "tests/faults/test_replaced_table.py": 70,
    "tests/faults/test_snapshots_killed_in_commits.py": 70,
    "tests/mysql/test_reader.py": 70,
    "tests/mysql/test_shards_mysql_only.py": 70,
    "tests/spark_consumers/test_frames.py": 70,
    "tests/faults/test_application.py": 60,
    "tests/faults/test_snapshots_beside_statements.py": 60,
    "tests/faults/test_two_drivers.py": 60,
    "tests/faults/test_vitess_cluster_copies.py": 60,
    "tests/keyspace/test_queries.py": 60,
    "tests/engine/test_slow_calls.py": 50,
    "tests/mysql/test_filters.py": 50,
    "tests/operations/test_dead_letters.py": 50,
    "tests/package/test_installed.py": 50,
    "tests/deploy/test_tools.py": 40,
    "tests/faults/test_new_stream.py": 40,
    "tests/faults/test_vitess_snapshots_beside_statements.py": 40,
    "tests/kafka/test_checkpoints.py": 40,
    "tests/mysql/binlog/test_stream.py": 40,
    "tests/mysql/test_altered_keys.py": 40,
    "tests/operations/test_reset.py": 40,
    "tests/operations/test_reset_unanswered.py": 40,
    "tests/operations/test_verify.py": 40,
    "tests/services/test_servers.py": 40,
    "tests/test_cli.py": 40,
    "tests/engine/test_repeated_aborts.py": 30,
    "tests/faults/test_mysql_snapshots.py": 30,
    "tests/faults/test_statements.py": 30,
    "tests/kafka/test_topics.py": 30,
    "tests/mysql/test_cut_off.py": 30,
    "tests/mysql/test_queries.py": 30,
    "tests/services/test_mariadb.py": 30,
    "tests/mysql/test_compiled_rows.py": 20,
    "tests/spark_consumers/test_examples.py": 20,
}
"""Seconds that a file takes on two cores; only their order matters."""

_CACHE_KEY = "relay/seconds"
_WORTH_REMEMBERING = 0.05  # seconds
WORKER = "PYTEST_XDIST_WORKER"


class LongestFirst:
    """A plugin. Every xdist worker sorts the same way; the process that started them keeps the times."""

    def __init__(self, cache: pytest.Cache) -> None:
        self._cache = cache
        self._remembered: dict[str, float] = cache.get(_CACHE_KEY, {})
        self._measured: Counter[str] = Counter()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        in_file = Counter(file_of(item.nodeid) for item in items)

        def expected(item: pytest.Item) -> float:
            unknown = 0.02 if item.get_closest_marker("services") is None else 1.0
            return self.expected(item.nodeid, in_file[file_of(item.nodeid)], unknown)

        items[:] = longest_file_first(items, lambda item: file_of(item.nodeid), expected)

    def expected(self, test: str, in_file: int, unknown: float = 0.1) -> float:
        """Return the seconds of a test whose file has so many."""
        usual = USUAL.get(file_of(test))
        return self._remembered.get(test, unknown if usual is None else usual / in_file)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._measured[report.nodeid] += report.duration  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        if WORKER not in os.environ:
            self._cache.set(_CACHE_KEY, updated(self._remembered, self._measured))


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def longest_file_first(tests: Sequence[T], file: Callable[[T], str], seconds: Callable[[T], float]) -> list[T]:
    """Return the tests by the total time of their files. The tests of a file stay together and in order."""
    total: dict[str, float] = {}
    for test in tests:
        total[file(test)] = total.get(file(test), 0.0) + seconds(test)
    return sorted(tests, key=lambda test: (-total[file(test)], file(test)))


def updated(remembered: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
    """Return the times to remember: those just measured, and those of tests that were not run."""
    kept = {test: round(took, 2) for test, took in measured.items() if took >= _WORTH_REMEMBERING}
    return {test: took for test, took in remembered.items() if test not in measured} | kept

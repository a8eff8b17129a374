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
    "tests/faults/test_random_scenarios.py": 180,
    "tests/spark_consumers/test_newest.py": 360,
    "tests/spark_consumers/replay/test_replay.py": 240,
    "tests/spark_consumers/test_gaps.py": 240,
    "tests/spark_consumers/test_scenarios.py": 240,
    "tests/spark_consumers/test_log_views.py": 230,
    "tests/spark_consumers/test_runs.py": 220,
    "tests/demo/test_demo.py": 150,
    "tests/faults/test_vitess_cluster.py": 150,
    "tests/faults/test_consumers_killed.py": 140,
    "tests/stream/test_lost_state.py": 130,
    "tests/spark_consumers/test_starts.py": 120,
    "tests/faults/test_mysql.py": 90,
    "tests/kafka/test_iam.py": 90,
    "tests/mysql/test_statements.py": 90,
    "tests/soak/test_soak.py": 90,
    "tests/spark_consumers/test_redrive.py": 90,
    "tests/faults/test_exactly_once.py": 80,
    "tests/faults/test_mysql_group.py": 80,
    "tests/spark_consumers/test_verify.py": 80,
    "tests/faults/test_snapshots_killed_in_commits.py": 70,
    "tests/mysql/test_relayed.py": 70,
    "tests/operations/test_snapshot.py": 70,
    "tests/spark_consumers/test_evolution.py": 70,
    "tests/spark_consumers/test_launch.py": 70,
    "tests/commands/test_machine.py": 60,
    "tests/faults/test_snapshots.py": 60,
    "tests/faults/test_two_drivers.py": 60,
    "tests/faults/test_vitess_cluster_copies.py": 60,
    "tests/mysql/test_database_snapshots.py": 60,
    "tests/mysql/test_failover.py": 60,
    "tests/spark_consumers/test_change_log.py": 60,
    "tests/spark_consumers/test_own_session.py": 60,
    "tests/spark_consumers/test_python_engine.py": 60,
    "tests/deploy/test_permissions.py": 50,
    "tests/faults/test_lineage_on_kafka.py": 50,
    "tests/faults/test_vitess_snapshots.py": 50,
    "tests/mysql/test_shards_mysql_only.py": 50,
    "tests/operations/test_gaps.py": 50,
    "tests/spark_consumers/test_delta_cost.py": 50,
    "tests/spark_consumers/test_frames.py": 50,
    "tests/spark_consumers/test_noted_gaps.py": 50,
    "tests/spark_consumers/test_submit.py": 50,
    "tests/faults/test_long_snapshot.py": 40,
    "tests/faults/test_replaced_table.py": 40,
    "tests/faults/test_snapshots_beside_statements.py": 40,
    "tests/faults/test_stop.py": 40,
    "tests/faults/test_vitess_snapshots_beside_statements.py": 40,
    "tests/kafka/test_changes.py": 40,
    "tests/kafka/test_publisher.py": 40,
    "tests/kafka/test_secured.py": 40,
    "tests/keyspace/test_queries.py": 20,
    "tests/keyspace/test_server.py": 20,
    "tests/mysql/test_filters.py": 40,
    "tests/mysql/test_reader.py": 40,
    "tests/mysql/test_statement_names.py": 40,
    "tests/operations/test_status.py": 40,
    "tests/package/test_installed.py": 40,
    "tests/reading/test_set_aside.py": 40,
    "tests/services/test_servers.py": 40,
    "tests/spark_consumers/test_apply_every.py": 40,
    "tests/spark_consumers/test_packed_records.py": 40,
    "tests/spark_consumers/test_renamed_column.py": 40,
    "tests/cache/test_interleavings.py": 30,
    "tests/cache/test_spellings.py": 30,
    "tests/engine/test_slow_calls.py": 30,
    "tests/engine/test_worker.py": 30,
    "tests/mysql/test_altered_keys.py": 30,
    "tests/operations/test_dead_letters.py": 30,
    "tests/operations/test_redrives.py": 30,
    "tests/operations/test_reset.py": 30,
    "tests/operations/test_reset_unanswered.py": 30,
    "tests/operations/test_verify_cache.py": 30,
    "tests/operations/test_verify_forever.py": 35,
    "tests/operations/test_verifier_process.py": 35,
    "tests/spark_consumers/test_schema_wait.py": 30,
    "tests/spark_consumers/test_upkeep.py": 30,
    "tests/vitess/test_copies_of_keys.py": 30,
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

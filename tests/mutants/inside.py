"""Runs tests in a copy of the checkout: ``python -m tests.mutants.inside REPORT [--collect] TEST...``.

It runs in the copy, refuses to test any other code, and writes what came of the tests to the file REPORT.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import relay
import spark_consumers

SERVICES = ("kafka", "redis_server", "dynamodb")


class Recorder:
    """A plugin. Keeps, by node id, the services that a test uses, how long it took, and how it ended."""

    def __init__(self) -> None:
        self.services: dict[str, list[str]] = {}
        self.seconds: dict[str, float] = {}
        self.passed: list[str] = []
        self.failed: list[str] = []
        self.broken: list[str] = []  # outside of the test itself: in a fixture, or while it was collected

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            used = getattr(item, "fixturenames", ())
            if item.get_closest_marker("services"):
                self.services[item.nodeid] = [name for name in SERVICES if name in used]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken.append(f"{report.nodeid}: {str(report.longrepr)[-500:]}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            (self.failed if report.when == "call" else self.broken).append(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed.append(report.nodeid)


def main(report: str, *arguments: str) -> int:
    for package in (relay, spark_consumers):
        if Path.cwd() not in Path(str(package.__file__)).resolve().parents:
            print(f"{package.__name__} is imported from {package.__file__}, which is not in {Path.cwd()}")
            return 1
    recorder = Recorder()
    # Else a pyproject.toml in a folder above would change what tests are called.
    options = [f"--rootdir={Path.cwd()}", "-q", "--tb=short", "-p", "no:xdist", "-p", "no:cacheprovider"]
    code = pytest.main([*options, *arguments], plugins=[recorder])
    found: dict[str, Any] = {"code": int(code), **vars(recorder)}
    Path(report).write_text(json.dumps(found), encoding="utf-8")
    return int(code)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

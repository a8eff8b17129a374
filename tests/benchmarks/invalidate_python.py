"""The benchmark ``invalidate`` without Spark: one plain process reads, decodes and invalidates."""

from __future__ import annotations

from tests.benchmarks import invalidate
from tests.benchmarks.harness import Benchmark


def run() -> Benchmark:
    return invalidate.run("python")

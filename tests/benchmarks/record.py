"""Results of benchmarks as data: ``deploy/docs/benchmarks.json``, from which the documentation has its figures."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from tests.benchmarks.harness import Benchmark

FILE = Path(__file__).parents[2] / "deploy" / "docs" / "benchmarks.json"


def machine() -> str:
    """The machine in one line: its processor, cores, memory and Python."""
    cpu = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{cpu}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}, Python {platform.python_version()}"


def commit() -> str:
    """The commit that is checked out, with ``+`` behind it if files that git knows have changes."""
    described = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
    return subprocess.run(described, cwd=FILE.parent, capture_output=True, text=True, check=True).stdout.strip()


def record(name: str, results: list[Benchmark], file: Path = FILE) -> None:
    """Replace what ``file`` has of the benchmark ``name``."""
    recorded: dict[str, Any] = orjson.loads(file.read_bytes()) if file.exists() else {}
    recorded[name] = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "results": [result.fields() for result in results],
    }
    file.write_bytes(
        orjson.dumps(dict(sorted(recorded.items())), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    )


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []

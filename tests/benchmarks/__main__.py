"""``python -m tests.benchmarks [NAME...]``: each benchmark prints BENCH lines. Exit code 4 if a count is wrong."""

from __future__ import annotations

import importlib
import subprocess
import sys

from relay.errors import RelayError

NAMES = (
    "batch_load",
    "binlog",
    "cache_get",
    "copy_delta",
    "copy_growth",
    "copy_postgres",
    "cpu_profile",
    "decode",
    "dynamodb_read",
    "encode_publish",
    "get_records",
    "idle_cost",
    "invalidate",
    "invalidate_python",
    "latency",
    "log_append",
    "look",
    "memory",
    "models_load",
    "publish_latency",
    "scale_out",
    "snapshot_mysql",
    "start",
    "vstream",
    "vstream_client",
    "vstream_latency",
)


def main(names: list[str]) -> int:
    unknown = set(names) - set(NAMES)
    if unknown:
        print(f"unknown benchmark {', '.join(sorted(unknown))}: use one of {', '.join(NAMES)}", file=sys.stderr)
        return 2
    if len(names) != 1:
        # Each in its own process, so that pinning and caches of one do not affect the next.
        return max(
            subprocess.run([sys.executable, "-m", "tests.benchmarks", name]).returncode for name in names or NAMES
        )
    try:
        benchmarks = importlib.import_module(f"tests.benchmarks.{names[0]}").run()
    except RelayError as error:
        print(f"{names[0]}: {error}", file=sys.stderr)
        return error.exit_code
    wrong = False
    for benchmark in benchmarks if isinstance(benchmarks, list) else [benchmarks]:
        print(benchmark.line(), flush=True)
        wrong |= benchmark.expected != benchmark.seen
    return 4 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

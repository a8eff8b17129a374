"""``python -m tests.benchmarks [--record] [NAME...]``: each benchmark prints BENCH lines.

``--record`` also keeps the results in ``deploy/docs/benchmarks.json``. Exit code 4 if a count is wrong.
"""

from __future__ import annotations

import importlib
import subprocess
import sys

from relay.errors import RelayError
from tests.benchmarks.record import record

NAMES = (
    "batch_load",
    "binlog",
    "cache_get",
    "cache_latency",
    "copy_delta",
    "copy_growth",
    "copy_heap",
    "copy_iceberg",
    "copy_postgres",
    "copy_snapshot",
    "cpu_profile",
    "decode",
    "disturbed",
    "dynamodb_read",
    "encode_publish",
    "gate",
    "get_records",
    "idle_cost",
    "invalidate",
    "invalidate_python",
    "latency",
    "log_append",
    "log_iceberg",
    "look",
    "memory",
    "models_load",
    "publish_latency",
    "saturation",
    "scale",
    "scale_out",
    "snapshot_mysql",
    "start",
    "vstream",
    "vstream_client",
    "vstream_latency",
)


def main(arguments: list[str]) -> int:
    names = [argument for argument in arguments if argument != "--record"]
    recorded = ["--record"] * (len(names) < len(arguments))
    unknown = set(names) - set(NAMES)
    if unknown:
        print(f"unknown benchmark {', '.join(sorted(unknown))}: use one of {', '.join(NAMES)}", file=sys.stderr)
        return 2
    if len(names) != 1:
        # Each in its own process, so that pinning and caches of one do not affect the next.
        return max(
            subprocess.run([sys.executable, "-m", "tests.benchmarks", *recorded, name]).returncode
            for name in names or NAMES
        )
    try:
        benchmarks = importlib.import_module(f"tests.benchmarks.{names[0]}").run()
    except RelayError as error:
        print(f"{names[0]}: {error}", file=sys.stderr)
        return error.exit_code
    results = benchmarks if isinstance(benchmarks, list) else [benchmarks]
    for result in results:
        print(result.line(), flush=True)
    if any(result.expected != result.seen for result in results):
        return 4
    if recorded:
        record(names[0], results)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

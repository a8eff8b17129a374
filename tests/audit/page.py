"""The page of all runs of the audit that passed: `deploy/docs/audit.md`, made from `runs.jsonl`."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

RUNS = Path(__file__).with_name("runs.jsonl")
PAGE = Path(__file__).parents[2] / "deploy/docs/audit.md"

_TEXT = """\
# Audit

This audit tests the relay's promises under faults, and anyone can repeat it. A run starts real databases, a Kafka
broker, three workers of the relay, the three consumers and an application with a cache. It kills them, pauses them and
cuts them off at random. Meanwhile it records histories: the commits of the databases, the answers that writers got,
the contents of the topics, of the log and of the copy, the changes that the cache had applied, and the result of each
read by the application. Afterwards a [checker](../../tests/audit/README.md), which imports nothing of this project,
looks for changes that are lost, doubled, disordered, invented or torn, for stale reads, for copies that differ from
the source or go back in time, and for false gaps.

```sh
make audit SEEDS=1-3 SECONDS=120 PARTS=dynamodb,mysql,consumers BROKERS=3
```

With `BROKERS=3`, three Kafka brokers keep three replicas of everything, `min.insync.replicas` is 2, and unclean
elections are off. Without it there is one broker.

The seed of a run decides which changes are written and which faults happen, but not the exact moment of each fault.
Runs with an odd seed disturb the network, too. A run of two minutes is short, so run your own with other seeds, and
for longer. The following runs have passed; each is a line of `tests/audit/runs.jsonl`.

"""

FAULTS = {
    "worker": "a worker of the relay is killed",
    "stop": "a worker is stopped by SIGTERM",
    "pause": "a worker is paused, and continues later",
    "broker": "the only Kafka broker is killed",
    "leader of transactions": "the broker that coordinates a worker's transactions, one of three, is killed",
    "leader of offsets": "the broker that coordinates the workers' group, one of three, is killed",
    "leader of checkpoints": "the broker that leads a partition of the checkpoints, one of three, is killed",
    "leader of changes": "the broker that leads a partition of changes, one of three, is killed",
    "leader paused": "a broker that leads or coordinates, one of three, is paused, and continues once others may lead",
    "broker stopped": "one of three brokers is stopped in an orderly way, and starts again",
    "two brokers": "two of three brokers are killed, so that nothing can be written",
    "election": "the leaders of partitions, and the coordinators, move back to the preferred brokers",
    "controller": "the controller of the three brokers is killed",
    "network": "requests to Kafka and their answers are slow, repeated and cut off",
    "primary": "the primary of MariaDB is killed, and restarts",
    "replica": "the replica is killed, and restarts",
    "switch": "a replica becomes the primary while the old primary still runs",
    "failover": "the primary is killed, and a replica becomes the primary",
    "expire": "the iterators of the DynamoDB stream expire",
    "throttle": "DynamoDB throttles requests",
    "cache": "the cache's consumer is killed",
    "log": "the log's consumer is killed",
    "copy": "the copy's consumer is killed",
    "redis": "Redis is killed",
}


def render(runs: list[dict[str, Any]]) -> str:
    """Return the page for these runs."""
    lines = [
        "| parts | runs | hours | changes | reads of the cache | rows read from the copy | faults | seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        brokers = ["three brokers"] if run.get("brokers", 1) > 1 else []
        groups[", ".join([*run["parts"], *brokers])].append(run)
    for parts, group in sorted(groups.items()):
        seen: Counter[str] = Counter()
        for run in group:
            seen.update(run["looked_at"])
        cells = [
            parts,
            str(len(group)),
            f"{sum(run['seconds'] for run in group) / 3600:.2f}",
            *(f"{seen[name]:,}" for name in ("committed", "reads", "copy")),
            f"{sum(sum(run['faults'].values()) for run in group):,}",
            ", ".join(str(seed) for seed in sorted({run["seed"] for run in group})),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    faults: Counter[str] = Counter()
    for run in runs:
        faults.update(run["faults"])
    lines += ["", "| fault | times |", "|---|---|"]
    lines += [f"| {FAULTS[name]} | {count:,} |" for name, count in faults.most_common()]
    dates = sorted({run["date"] for run in runs})
    lines += ["", f"The runs took place on {', '.join(dates)}."]
    return _TEXT + "\n".join(lines) + "\n"


def read_runs() -> list[dict[str, Any]]:
    """Return the runs that passed."""
    return [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()] if RUNS.exists() else []


def write_page() -> None:
    """Write the page again."""
    PAGE.write_text(render(read_runs()), encoding="utf-8")

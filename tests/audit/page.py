"""The page of all runs of the audit that passed: `deploy/docs/audit.md`, made from `runs.jsonl`."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

RUNS = Path(__file__).with_name("runs.jsonl")
PAGE = Path(__file__).parents[2] / "deploy/docs/audit.md"

_TEXT = """\
# Audit

Anyone can repeat this. A run starts real databases, Kafka, three workers of the relay, the three consumers and an
application with a cache. It kills, pauses and cuts them off at random, and writes down histories: what the databases
committed, what writers were told, what is on the topics, in the log and in the copy, what the cache had applied, and
what each read of the application returned. A [checker](../../tests/audit/README.md) that imports nothing
of this project then looks for changes that are lost, doubled, disordered, invented or torn, for reads that are stale,
for copies that differ from the source or go back in time, and for false gaps.

```sh
make audit SEEDS=1-3 SECONDS=120 PARTS=dynamodb,mysql,consumers BROKERS=3
```

With `BROKERS=3`, three brokers hold three replicas of everything, `min.insync.replicas` is 2, and unclean elections are
off. Without it there is one broker.

The seed of a run decides what is written and which faults happen, but not at which moment of the run they hit. Runs
with an odd seed disturb the network, too. A run of two minutes is short, so run your own, with other seeds and longer.
These runs have passed; each is a line of `tests/audit/runs.jsonl`.

"""

FAULTS = {
    "worker": "a worker of the relay is killed",
    "stop": "a worker is stopped by SIGTERM",
    "pause": "a worker is paused, and woken later",
    "broker": "the only Kafka broker is killed",
    "leader of transactions": "of three brokers, the one that coordinates a worker's transactions is killed",
    "leader of offsets": "the one that coordinates the workers' group is killed",
    "leader of checkpoints": "the one that leads a partition of the checkpoints is killed",
    "leader of changes": "the one that leads a partition of changes is killed",
    "leader paused": "one of these is paused, and woken when others may lead",
    "broker stopped": "one of three brokers is stopped in an orderly way, and starts again",
    "two brokers": "two of three brokers are killed, so that nothing can be written",
    "election": "partitions, and coordinators with them, move back to the brokers that lead them by preference",
    "controller": "the controller of three brokers is killed",
    "network": "requests to Kafka and their answers are slow, repeated and cut off",
    "primary": "the primary of MariaDB is killed, and restarts",
    "replica": "the replica is killed, and restarts",
    "switch": "a replica becomes the primary while the primary lives",
    "failover": "the primary is killed, and a replica becomes the primary",
    "expire": "the iterators of the DynamoDB stream expire",
    "throttle": "DynamoDB throttles",
    "cache": "the cache's consumer is killed",
    "log": "the log's consumer is killed",
    "copy": "the copy's consumer is killed",
    "redis": "Redis is killed",
}


def render(runs: list[dict[str, Any]]) -> str:
    """Return the page for these runs."""
    lines = [
        "| parts | runs | hours | changes | reads of the cache | reads of the copy, rows | faults | seed numbers |",
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
    lines += ["", f"These runs were played on {', '.join(dates)}."]
    return _TEXT + "\n".join(lines) + "\n"


def read_runs() -> list[dict[str, Any]]:
    """Return the runs that passed."""
    return [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()] if RUNS.exists() else []


def write_page() -> None:
    """Write the page again."""
    PAGE.write_text(render(read_runs()), encoding="utf-8")

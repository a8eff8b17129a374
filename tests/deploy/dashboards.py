"""The dashboards of Grafana, written by ``python -m tests.deploy.dashboards``; a test compares them with the files.

Each panel says of its metrics what relay/observe/README.md says, so it has to be written again when that changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relay.observe import consumer_metrics as consumer
from relay.observe import metrics as relay
from relay.observe import verifier
from relay.observe.metrics import Metric
from tests.observe.documented import documented

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"

_ACTS = {row.name: row.act for row in documented()}
_RATE = "[$__rate_interval]"
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3


@dataclass(frozen=True)
class Panel:
    """``lines``: a query and its legend for each line. ``unit``: as Grafana calls it."""

    title: str
    unit: str
    metrics: tuple[Metric, ...]
    lines: tuple[tuple[str, str], ...]


def _rate(title: str, unit: str, metric: Metric, by: str) -> Panel:
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return Panel(title, unit, (metric,), ((f"sum by ({by}) (rate({metric.name}{{SELECTED}}{_RATE}))", legend),))


def _count(title: str, metric: Metric, by: str) -> Panel:
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    query = f"sum by ({by}) (increase({metric.name}{{SELECTED}}{_RATE}))"
    return Panel(title, "short", (metric,), ((query, legend),))


def _greatest(title: str, unit: str, metric: Metric, by: str) -> Panel:
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return Panel(title, unit, (metric,), ((f"max by ({by}) ({metric.name}{{SELECTED}})", legend),))


def _quantiles(title: str, metric: Metric, by: str) -> Panel:
    grouped = f"{by}, le" if by else "le"
    legend = f"{{{{{by}}}}} " if by else ""
    query = f"sum by ({grouped}) (rate({metric.name}_bucket{{SELECTED}}{_RATE}))"
    lines = tuple((f"histogram_quantile({q}, {query})", f"{legend}p{round(q * 100)}") for q in (0.5, 0.99))
    return Panel(title, "s", (metric,), lines)


RELAY = {
    "Is it keeping up?": (
        _greatest("Lag: how long ago all that the source had shown was published", "s", relay.LAG, "source"),
        _quantiles("From the commit in the database to the topic", relay.LATENCY, "source"),
        _rate("Changes published", "ops", relay.CHANGES, "source"),
        _greatest("Lag of the slowest shard", "s", relay.SHARD_LAG, "source, instance"),
        Panel(
            "Age of the low watermark",
            "s",
            (relay.WATERMARK,),
            ((f"time() - max by (source) ({relay.WATERMARK.name}{{SELECTED}})", "{{source}}"),),
        ),
        _rate("Bytes published", "Bps", relay.BYTES, "source"),
    ),
    "Is anything lost or set aside?": (
        Panel("Gaps", "short", (relay.GAPS,), ((f"{relay.GAPS.name}{{SELECTED}}", "{{source}} {{reason}}"),)),
        _greatest("Gaps that wait for a decision", "short", relay.PENDING_GAPS, "source"),
        _greatest("Tables that may differ from their copies", "short", relay.ALTERED, "source"),
        _greatest("Shards that wait for a person", "short", relay.SET_ASIDE, "source, instance"),
        _count("Dead letters", relay.DEAD_LETTERS, "source"),
        _count("Disagreeing clocks", relay.CLOCKS, "source"),
    ),
    "Does anything stand still?": (
        _greatest("Time since the start", "s", relay.UPTIME, "instance"),
        _greatest("Oldest poll of a shard", "s", relay.POLL_AGE, "source, instance"),
        _greatest("Age of the listing of shards", "s", relay.LISTING_AGE, "source"),
        _greatest("Last turn of the main loop", "s", relay.TURN_AGE, "instance"),
        Panel(
            "Checkpoint partitions owned, of 64",
            "short",
            (relay.PARTITIONS,),
            (
                (f"{relay.PARTITIONS.name}{{SELECTED}}", "{{instance}}"),
                (f"sum({relay.PARTITIONS.name}{{SELECTED}})", "all"),
            ),
        ),
        Panel(
            "Shards being read",
            "short",
            (relay.OPEN,),
            ((f"{relay.OPEN.name}{{SELECTED}}", "{{source}} {{instance}}"),),
        ),
        _greatest("Unfinished shards", "short", relay.UNFINISHED, "source"),
    ),
    "The database": (
        _rate("Records read", "ops", relay.RECORDS, "source"),
        _rate("Failed reads", "ops", relay.READS_FAILED, "source"),
        Panel(
            "Rows of a running snapshot",
            "short",
            (relay.SNAPSHOT_READ, relay.SNAPSHOT_ROWS),
            (
                (f"max by (source) ({relay.SNAPSHOT_READ.name}{{SELECTED}})", "{{source}} read"),
                (f"max by (source) ({relay.SNAPSHOT_ROWS.name}{{SELECTED}})", "{{source}} estimated"),
            ),
        ),
    ),
    "Kafka": (
        _quantiles("Duration of a commit", relay.COMMIT, ""),
        _rate("Transactions", "ops", relay.TRANSACTIONS, "outcome"),
        _rate("Pages published again", "ops", relay.RETRIED, "source"),
        _count("Workers that started over", relay.FENCED, "instance"),
    ),
}

CONSUMERS = {
    "Are they keeping up?": (
        _greatest("Lag", "s", consumer.LAG_SECONDS, "consumer"),
        _greatest("Lag in offsets", "short", consumer.LAG_RECORDS, "consumer"),
        Panel(
            "From commit to invalidated cache",
            "s",
            (consumer.COMMIT_LAG, consumer.TOMBSTONE_TTL),
            (
                (f"max by (consumer) ({consumer.COMMIT_LAG.name}{{SELECTED}})", "{{consumer}}"),
                (f"min by (consumer) ({consumer.TOMBSTONE_TTL.name}{{SELECTED}}) / 2", "{{consumer}} alarm"),
            ),
        ),
        Panel(
            "Memory of the cache",
            "bytes",
            (consumer.STORE_USED, consumer.STORE_LIMIT),
            (
                (f"max by (server) ({consumer.STORE_USED.name}{{SELECTED}})", "{{server}}"),
                (f"max by (server, policy) ({consumer.STORE_LIMIT.name}{{SELECTED}})", "{{server}} limit, {{policy}}"),
            ),
        ),
        _rate("Records applied", "ops", consumer.RECORDS, "consumer"),
        _quantiles("Time to apply a batch", consumer.BATCH, "consumer"),
        _rate("What became of the changes", "ops", consumer.CHANGES, "consumer, outcome"),
    ),
    "Is anything wrong?": (
        Panel(
            "Running",
            "short",
            (consumer.RUNNING,),
            ((f"min by (consumer) ({consumer.RUNNING.name}{{SELECTED}})", "{{consumer}}"),),
        ),
        _greatest("Time since the start", "s", consumer.UPTIME, "consumer"),
        _count("Failed attempts", consumer.RETRIES, "consumer"),
        _count("Dead letters", consumer.DEAD_LETTERS, "consumer"),
        _count("Gaps noted", consumer.GAPS, "consumer"),
        _greatest("Tables set aside", "short", consumer.SET_ASIDE, "consumer"),
        _greatest("Stores that are bypassed", "short", consumer.STORE_BYPASSED, "consumer"),
    ),
    "Is what they keep right, as `relay verify --forever` sees it?": (
        _greatest("Accused", "short", verifier.ACCUSED, "sink"),
        Panel(
            "Nines of consistency",
            "short",
            (verifier.NINES,),
            ((f"min by (sink, bound) ({verifier.NINES.name}{{SELECTED}})", "{{sink}} {{bound}}"),),
        ),
        Panel(
            "Share of samples that agree in time",
            "percentunit",
            (verifier.RATIO,),
            ((f"min by (sink, bound) ({verifier.RATIO.name}{{SELECTED}})", "{{sink}} {{bound}}"),),
        ),
        _rate("Samples", "ops", verifier.SAMPLES, "sink, outcome"),
        _greatest("Time since the last complete look", "s", verifier.BLIND, "sink"),
    ),
}

_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboards() -> dict[str, str]:
    """Return the text of each file, by its name."""
    return {
        "relay.json": _text("relay", "Relay", RELAY, relay.TURN_AGE, ("job", "source")),
        "consumers.json": _text(
            "relay-consumers", "Relay: consumers", CONSUMERS, consumer.RUNNING, ("job", "consumer")
        ),
    }


def _text(
    uid: str, title: str, rows: Mapping[str, Sequence[Panel]], scraped: Metric, variables: tuple[str, ...]
) -> str:
    panels: list[dict[str, Any]] = []
    y = 0
    for name, row in rows.items():
        place = {"h": 1, "w": _WIDTH * _COLUMNS, "x": 0, "y": y}
        panels.append({"id": len(panels) + 1, "type": "row", "title": name, "gridPos": place, "panels": []})
        y += 1
        for number, panel in enumerate(row):
            place = {"h": _HEIGHT, "w": _WIDTH, "x": number % _COLUMNS * _WIDTH, "y": y + number // _COLUMNS * _HEIGHT}
            panels.append({"id": len(panels) + 1, "gridPos": place, **_panel(panel)})
        y += -(-len(row) // _COLUMNS) * _HEIGHT
    found = {
        "uid": uid,
        "title": title,
        "tags": ["relay"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "",
        "templating": {"list": [_datasource(), *(_variable(each, scraped) for each in variables)]},
        "panels": panels,
    }
    return json.dumps(found, indent=1) + "\n"


def _panel(panel: Panel) -> dict[str, Any]:
    says = "\n\n".join(f"`{metric.name}`: {metric.help} *{_ACTS[metric.name]}*" for metric in panel.metrics)
    targets = [
        {
            "refId": chr(ord("A") + number),
            "datasource": _DATASOURCE,
            "expr": query.replace("{SELECTED}", _selector(panel.metrics[0])),
            "legendFormat": legend,
        }
        for number, (query, legend) in enumerate(panel.lines)
    ]
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": says,
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


def _selector(metric: Metric) -> str:
    chosen = ["job", *(label for label in metric.labels if label in ("source", "consumer"))]
    return "{" + ", ".join(f'{label}=~"${label}"' for label in chosen) + "}"


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(label: str, scraped: Metric) -> dict[str, Any]:
    known = scraped if label == "job" or label in scraped.labels else relay.LAG
    return {
        "name": label,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": f"label_values({known.name}, {label})", "refId": label},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def main() -> None:
    for name, text in dashboards().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()

"""The status page: ``/status.json`` for people. It loads nothing from elsewhere, and all values are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import orjson

MOST_ROWS = 500
"""The most shards on the page; ``/status.json`` has all of them."""

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5"><title>relay {name}</title>
<style>
body {{ font: 14px/1.4 system-ui, sans-serif; margin: 2em; color: #222; background: #fff }}
table {{ border-collapse: collapse; margin: .5em 0 1.5em }}
th, td {{ text-align: left; padding: .2em .8em .2em 0; border-bottom: 1px solid #ddd; vertical-align: top }}
td {{ overflow-wrap: anywhere }}
.good {{ color: #176f2c }} .bad {{ color: #b3261e; font-weight: bold }}
</style></head><body>
"""
_FOOT = (
    '<p><a href="/metrics">metrics</a> · <a href="/healthz">health</a> · <a href="/readyz">readiness</a> · '
    '<a href="/status.json">all of this as JSON</a></p></body></html>\n'
)
_SOURCES = (
    "source", "stream", "planned_at", "low_watermark", "lag_seconds", "unfinished_shards", "snapshot", "gaps",
)  # fmt: skip
_SHARDS = (
    "source", "stream", "shard", "state", "open", "owned", "position", "progress", "lag_seconds",
    "polled_seconds_ago", "failures", "error", "waits_for",
)  # fmt: skip


def page(report: Mapping[str, Any]) -> str:
    """Return the page for an ``Observer.report``."""
    stalls, reasons = report["stalls"], report["not_ready"]
    group = report["group"]
    parts = [
        _HEAD.format(name=escape(report["name"])),
        f"<h1>relay {escape(report['name'])}, worker {report['worker']}</h1>",
        f"<p>{escape(report['at'])}: ",
        '<span class="bad">stalled</span>' if stalls else '<span class="good">making progress</span>',
        ", ",
        '<span class="bad">not ready</span>' if reasons else '<span class="good">ready</span>',
        f"; owns {group['owned']} of {group['partitions']} checkpoint partitions" if group else "",
        "</p>",
        *(f'<p class="bad">{escape(_stall(stall))}</p>' for stall in stalls),
        *(f'<p class="bad">{escape(reason)}</p>' for reason in reasons),
        "<h2>Sources</h2>",
        _table(_SOURCES, report["sources"]),
        "<h2>Shards</h2>",
    ]
    shards = sorted(report["shards"], key=lambda shard: (not shard["open"], -(shard["lag_seconds"] or 0.0)))
    parts.append(_table(_SHARDS, shards[:MOST_ROWS]))
    if len(shards) > MOST_ROWS:
        parts.append(f"<p>{len(shards) - MOST_ROWS} more shards are in the JSON.</p>")
    return "".join([*parts, _FOOT])


def _stall(stall: Any) -> str:
    where = " / ".join(part for part in (stall.source, stall.stream, stall.shard) if part)
    return ": ".join(part for part in (where, f"{stall.what}, {stall.seconds:.0f} s", stall.error) if part)


def _table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{column.replace('_', ' ')}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(row[column])}</td>' for column in columns)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if value is None or value == []:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return escape(value if isinstance(value, str) else orjson.dumps(value).decode())

"""The status page, which loads nothing from elsewhere and escapes all values. ``page.js`` brings it to life."""

import base64
import hashlib
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from relay import __version__
from relay.observe.history import EVENTS
from relay.observe.observer import Observer
from relay.observe.status import FORMAT
from relay.observe.verdict import judge, span

MOST_ROWS = 500  # the most shards on the page; ``/status.json`` has all of them


def _own(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_STYLE = _own("page.css")
_SCRIPT = _own("page_parts.js") + _own("page.js")

CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page runs only its own script, and loads only its JSON."""

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<noscript><meta http-equiv="refresh" content="5"></noscript><title>relay {name}</title><link rel="icon" href="data:,">
<style>{style}</style></head><body><main>
"""
_FOOT = (
    '<p><a href="metrics">metrics</a> · <a href="healthz">health</a> · <a href="readyz">readiness</a> · '
    f'<a href="status.json">all of this as JSON</a></p></main><script>{_SCRIPT}</script></body></html>\n'
)


def page(observer: Observer) -> str:
    """Return the page, which says without a script what is wrong, what to do, and how far the sources are."""
    known = everybody(observer)
    columns = ("Source", "Lag", "Complete up to", "Shards not read to their end")
    rows = []
    for each in known["sources"]:
        lag = "–" if each["lag_seconds"] is None else span(each["lag_seconds"])
        rows.append((each["source"], lag, each["low_watermark"] or "–", each["unfinished_shards"]))
    return "".join(
        [
            _HEAD.format(name=escape(observer.name), style=_STYLE),
            f"<h1>relay {escape(observer.name)}</h1>",
            f'<p class="overall {known["colour"]}"><strong>{known["state"]}</strong> {escape(known["sentence"])}</p>',
            f'<p class="note">As of {escape(known["at"])}</p><ul class="problems">',
            *map(_problem, known["problems"]),
            "</ul><table><thead><tr>",
            *(f"<th>{column}</th>" for column in columns),
            "</tr></thead><tbody>",
            *("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows),
            "</tbody></table>",
            _FOOT,
        ]
    )


def _problem(each: Mapping[str, Any]) -> str:
    since = f"For {span(each['seconds'])}" if each["seconds"] is not None else ""
    place = ", ".join(filter(None, (since, f"in {each['where']}" if each["where"] else "")))
    said = " ".join(filter(None, (f"{place}." if place else "", each["reason"])))
    commands = "".join(f'<p class="command"><code>{escape(command)}</code></p>' for command in each["commands"])
    runbook = f'<p class="note">Runbook: alert {each["alert"]}</p>' if each["alert"] else ""
    kind = "bad" if each["colour"] == "bad" else "warn"
    return f'<li class="{kind}"><h3>{escape(each["what"])}</h3><p>{escape(said)}</p>{commands}{runbook}</li>'


def everybody(observer: Observer) -> dict[str, Any]:
    """Return the data for ``page.js``: all workers and consumers that answer, and the first ``MOST_ROWS`` shards."""
    report = observer.report()
    answers, ids, known = [], {observer.id}, set()
    for each in observer.others():
        status = each.get("status", {})
        known |= set(status.get("addresses", ()))
        # A peer may have several names.
        if (number := status.get("id")) is None or number not in ids:
            answers.append(each)
            ids.add(number)
    # A peer that answers under another name may be unreachable at the address that it reported.
    answers = [
        each for each in answers if "status" in each or each["is_peer"] or each["url"].partition("://")[2] not in known
    ]
    own = {"name": observer.name, "format": FORMAT}
    ours = [each for each in answers if own.items() <= each.get("status", {}).items()]
    statuses = [(each["url"], each["status"]) for each in ours]
    unreachable = [
        {
            "url": each["url"],
            "problem": each.get("problem") or _why_not_shown(each["status"], observer.name),
            "is_peer": each["is_peer"],
            "answers": "status" in each,
            "resolves": each.get("resolves", True),
            "consumers": each["consumers"],
        }
        for each in answers
        if each not in ours
    ]
    reports = [(None, report), *((url, status) for url, status in statuses if "shards" in status)]
    events = [{**event, "worker": f"worker {each['worker']}"} for _, each in reports for event in each["events"]]
    workers = [_worker(url, status) for url, status in reports]
    shards = _merged(workers, report["shards"])
    consumers = [(url, status) for url, status in statuses if "consumers" in status]
    shown: dict[str, Any] = {
        **{key: report[key] for key in ("name", "version", "format", "at", "config", "sources")},
        "workers": [{key: value for key, value in worker.items() if key != "shards"} for worker in workers],
        "consumers": [{"url": url, **consumer} for url, status in consumers for consumer in status["consumers"]],
        "consumer_stalls": [stall for _, status in consumers for stall in status["stalls"]],
        "unreachable": unreachable,
        "tables": _tables((each for _, each in reports), report["config"]),
        "events": sorted(events, key=lambda event: event["at"], reverse=True)[:EVENTS],
        "shards": shards[:MOST_ROWS],
        "shards_left_out": max(0, len(shards) - MOST_ROWS),
    }
    return shown | judge({**shown, "unread": observer.unread()})


def _why_not_shown(status: Mapping[str, Any], name: str) -> str:
    if status["name"] != name:
        return f"it belongs to relay {status['name']}"
    return (
        f"its version, {status.get('version', 'an earlier one')}, has a different status from this one, {__version__}"
    )


def _worker(url: str | None, report: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("process", "version", "uptime_seconds", "group", "stalls", "not_ready", "dead_letters", "history")
    return {
        "url": url,
        "name": f"worker {report['worker']}",
        **{key: report[key] for key in kept},
        "shards": [shard for shard in report["shards"] if shard["open"]],
        "open": sum(shard["open"] for shard in report["shards"]),
    }


def _tables(reports: Iterable[Mapping[str, Any]], config: str) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    reported = [each for report in reports for each in report["tables"]]
    topics = {(each["topic"], each["table"]) for each in reported}
    shared = {topic for topic, number in Counter(topic for topic, _ in topics).items() if number > 1}
    for table in reported:
        before = found.get((table["source"], table["table"]), {"changes": 0})
        look = table["table" if table["topic"] in shared else "topic"]
        look = shlex.join(("relay", "tail", config, look, "--from=-10m"))
        changes = table["changes"] + before["changes"]
        found[table["source"], table["table"]] = {**table, "changes": changes, "look": look}
    return sorted(found.values(), key=lambda table: -table["changes"])[:MOST_ROWS]


def _merged(workers: Sequence[Mapping[str, Any]], known: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return all ``known`` shards, as the worker with the shard sees it, and open segments; open ones first."""
    shards = {_key(shard): {**shard, "worker": None} for shard in known}
    for worker in workers:
        shards |= {_key(shard): {**shard, "worker": worker["name"]} for shard in worker["shards"]}
    ordered = sorted(shards.values(), key=_key)
    # Ended shards come last, the latest first; their lag is unknown.
    ordered.sort(key=lambda shard: shard["progress"] or "", reverse=True)
    return sorted(ordered, key=lambda shard: (shard["state"] in ("finished", "gone"), -(shard["lag_seconds"] or 0.0)))


def _key(shard: Mapping[str, Any]) -> tuple[str, str, str]:
    return shard["source"], shard["stream"], shard["shard"]

"""The status page: ``/status.json`` for people. It loads nothing from elsewhere, and all values are escaped.

``page.js`` replaces what is here by a page that is alive, from ``page.json``. Browsers without it show the tables.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from relay.observe.observer import Observer
from relay.observe.verdict import judge

MOST_ROWS = 500
"""The most shards on the page; ``/status.json`` has all of them."""


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
"""Nothing runs but the script of this page, and nothing is loaded but its JSON."""

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
    """Return the page, which says without a script what is wrong."""
    known = everybody(observer)
    found = [f"{each['what']} {each['where']} {each['reason']} {each['commands']}" for each in known["problems"]]
    return "".join(
        [
            _HEAD.format(name=escape(observer.name), style=_STYLE),
            f"<h1>relay {escape(observer.name)}</h1>",
            f'<p class="overall {known["colour"]}"><strong>{known["state"]}</strong> {escape(known["sentence"])}</p>',
            f"<p>As of {escape(known['at'])}</p><ul>",
            *(f"<li>{escape(each)}</li>" for each in found),
            "</ul>",
            _FOOT,
        ]
    )


def everybody(observer: Observer) -> dict[str, Any]:
    """Return what ``page.js`` shows: all workers and consumers that answer, and the first ``MOST_ROWS`` shards."""
    report = observer.report()
    answers, ids, known = [], {observer.id}, set()
    for each in observer.others():
        status = each.get("status", {})
        known |= set(status.get("addresses", ()))
        # A peer may have several names.
        if (number := status.get("id")) is None or number not in ids:
            answers.append(each)
            ids.add(number)
    # One that answers under another name may not be reached, or known to its certificate, by the address it noted.
    answers = [each for each in answers if "status" in each or each["is_peer"] or _place(each) not in known]
    ours = [each for each in answers if each.get("status", {}).get("name") == observer.name]
    statuses = [(each["url"], each["status"]) for each in ours]
    unreachable = [
        {
            "url": each["url"],
            "problem": each.get("problem") or f"it belongs to relay {each['status']['name']}",
            "is_peer": each["is_peer"],
        }
        for each in answers
        if each not in ours
    ]
    workers = [_worker(None, report), *(_worker(url, status) for url, status in statuses if "shards" in status)]
    shards = _merged(workers, report["shards"])
    consumers = [(url, status) for url, status in statuses if "consumers" in status]
    shown: dict[str, Any] = {
        **{key: report[key] for key in ("name", "at", "config", "sources")},
        "workers": [{key: value for key, value in worker.items() if key != "shards"} for worker in workers],
        "consumers": [{"url": url, **consumer} for url, status in consumers for consumer in status["consumers"]],
        "consumer_stalls": [stall for _, status in consumers for stall in status["stalls"]],
        "unreachable": unreachable,
        "shards": shards[:MOST_ROWS],
        "shards_left_out": max(0, len(shards) - MOST_ROWS),
    }
    return shown | judge(shown)


def _place(answer: Mapping[str, Any]) -> str:
    return str(answer["url"]).partition("://")[2]


def _worker(url: str | None, report: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("process", "group", "stalls", "not_ready", "dead_letters", "history")
    return {
        "url": url,
        "name": f"worker {report['worker']}",
        **{key: report[key] for key in kept},
        "shards": [shard for shard in report["shards"] if shard["open"]],
        "open": sum(shard["open"] for shard in report["shards"]),
    }


def _merged(workers: Sequence[Mapping[str, Any]], known: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return all ``known`` shards, as who has one open sees it, and the open segments of snapshots; open ones first."""
    shards = {_key(shard): {**shard, "worker": None} for shard in known}
    for worker in workers:
        shards |= {_key(shard): {**shard, "worker": worker["name"]} for shard in worker["shards"]}
    ordered = sorted(shards.values(), key=_key)
    # What has ended comes last, the latest first; its lag is not known.
    ordered.sort(key=lambda shard: shard["progress"] or "", reverse=True)
    return sorted(ordered, key=lambda shard: (shard["state"] in ("finished", "gone"), -(shard["lag_seconds"] or 0.0)))


def _key(shard: Mapping[str, Any]) -> tuple[str, str, str]:
    return shard["source"], shard["stream"], shard["shard"]

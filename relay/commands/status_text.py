"""The output of ``relay status`` for people. It may change freely; programs use ``--json``."""

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from relay.observe.verdict import many, span
from relay.operations.status import ConsumerStatus, RelayStatus, ShardStatus, SourceStatus
from relay.records import position_text

_COLOURS = {"reading": "green", "planned": "yellow", "finished": "dim", "gone": "bold red"}
_VERDICTS = {"bad": "bold red", "busy": "yellow", "good": "green"}
_ORDER = {"reading": 0, "planned": 1, "gone": 2, "finished": 3}

_NARROWEST = 12  # characters in a column
_BETWEEN = 2  # characters between two columns
_LONGEST_LINE = 1_000_000  # the GTID set in a position may have 50,000 characters


class _Row(NamedTuple):
    shard: str
    state: str
    owner: str
    position: str
    lag: str


def show(status: RelayStatus, *, every: bool, again: bool = False) -> None:
    """Print the status, unfinished shards first, all if ``every``. ``again``: replace what is on the terminal."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _LONGEST_LINE  # each row stays on one line for grep
    if again:
        console.clear()
    workers = len(status.members)
    console.print(
        Text()
        + Text(status.name, "bold")
        + Text(f": {many(workers, 'worker')}" if workers else ": no worker is running")
        + Text(f", {many(status.dead_letters, 'dead letter')}{_rate(status)}; as of {_time(status.at)}")
    )
    _show_verdict(console, status.verdict)
    for member in status.members:
        console.print(f"  {member.client} at {member.host}: {many(len(member.partitions), 'partition')}")
    for consumer in status.consumers:
        console.print(f"  consumer {consumer.consumer}: {_behind(consumer)}{_as_seen(status, consumer.consumer)}")
    for source in status.sources:
        console.print()
        _show_source(console, source, every, status.at)
    console.file.flush()


def _rate(status: RelayStatus) -> str:
    """Return the rate of changes that the workers have lately published, if they report it."""
    samples = [worker["history"][-1] for worker in (status.seen or {}).get("workers", ()) if worker["history"]]
    return f", {sum(rate for _, rate, *_ in samples):,.0f} changes a second" if samples else ""


def _show_verdict(console: Console, verdict: Mapping[str, Any]) -> None:
    console.print(Text(f"{verdict['state']}: {verdict['sentence']}", _VERDICTS[verdict["colour"]]))
    for each in verdict["problems"]:
        where = f" in {each['where']}" if each["where"] else ""
        since = f" for {span(each['seconds'])}" if each["seconds"] is not None else ""
        reason = f". {each['reason']}" if each["reason"] else ""
        console.print(f"- {each['what']}{where}{since}{reason}")
        for command in each["commands"]:
            console.print(f"    {command}", soft_wrap=True)  # on one line, to be copied


def _behind(consumer: ConsumerStatus) -> str:
    if consumer.error is not None:
        return f"not known: {consumer.error}"
    return "not begun" if consumer.offsets_behind is None else f"{many(consumer.offsets_behind, 'offset')} behind"


def _as_seen(status: RelayStatus, consumer: str) -> str:
    """Return what the process of a consumer shows of it, if a worker has a status page, and knows where it runs."""
    for each in (status.seen or {}).get("consumers", ()):
        if each["consumer"] == consumer:
            lag = "" if each["lag_seconds"] is None else f", lag {span(each['lag_seconds'])}"
            return f"{lag}, {each['state']}"
    return ""


def _show_source(console: Console, source: SourceStatus, every: bool, at: float) -> None:
    title = Text() + Text(f"source {source.source}", "bold") + Text(f" ({source.type} {source.table})")
    if source.stream is None:
        console.print(title + Text(": not read yet"))
    else:
        console.print(title + Text(f": stream {source.stream}"))
        console.print(f"  started {_time(source.planned_at)} at {source.start}")
        if (lag := source.lag_seconds) is not None:
            console.print(f"  relayed up to {_time(at - lag)}, {span(lag)} ago")
        _show_snapshot(console, source)
    for gap in source.gaps:
        style = "" if gap.state == "published" else "bold red"
        where = gap.gap["shard"] or gap.gap["stream"]
        console.print(Text(f"  gap {gap.id} {gap.state}: {gap.gap['reason']} at {where}", style))
    shown = sorted(
        (s for s in source.shards if every or s.state != "finished"),
        key=lambda s: (_ORDER[s.state], -(s.lag_seconds or 0.0), s.shard),
    )
    hidden = len(source.shards) - len(shown)
    if shown:
        rows = [_row(shard) for shard in shown]
        table = _table(rows)
        whole = sum(max(len(name), *(len(getattr(row, name)) for row in rows)) for name in ("shard", "state", "lag"))
        if console.width < (least := whole + 2 * _NARROWEST + 4 * _BETWEEN):
            table.width = least  # no column disappears: the terminal folds the lines
        console.print(table, crop=False)
    if hidden:
        console.print(f"  {many(hidden, 'finished shard')} not shown: --all")


def _show_snapshot(console: Console, source: SourceStatus) -> None:
    if (found := source.snapshot) is not None:
        rows = "" if found["rows_read"] is None else f", {found['rows_read']} of about {found['rows_estimated']} rows"
        segments = f"{found['segments_finished']} of {many(found['segments'], 'segment')}"
        state = "stopped" if found["stopped"] else found["state"]
        of = f" of {_tables(found)}" if found["requests"] else ""
        console.print(f"  snapshot {found['id']}{of} {state}: {segments}{rows}")
    for request in source.snapshot_requests:
        if found is None or request["id"] not in found["requests"]:
            state = "stopped" if request["stopped"] else "waiting"
            console.print(f"  snapshot of {_tables(request)} requested {_time(request['requested_at'])}: {state}")


def _tables(snapshot: Mapping[str, Any]) -> str:
    return f"table {', '.join(snapshot['tables'])}" if snapshot["tables"] else "all tables"


def _row(shard: ShardStatus) -> _Row:
    position = position_text(shard.position or shard.start or {})
    lag = "-" if shard.lag_seconds is None else span(shard.lag_seconds)
    return _Row(shard.shard, shard.state, shard.owner["client"] if shard.owner else "-", position or "-", lag)


def _table(rows: Iterable[_Row]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _BETWEEN, 0, 0))
    table.add_column("shard", no_wrap=True)
    table.add_column("state", no_wrap=True)
    # Cells that do not fit continue on the next line. Without a minimum width, a column could disappear.
    table.add_column("owner", overflow="fold", min_width=_NARROWEST)
    table.add_column("position", overflow="fold", min_width=_NARROWEST)
    table.add_column("lag", justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.shard, Text(row.state, _COLOURS[row.state]), row.owner, row.position, row.lag)
    return table


def _time(seconds: float | None) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if seconds else "an unknown time"

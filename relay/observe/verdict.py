"""One judgement of a relay's state: what needs a person, and why. For the page and for `relay status`.

It takes the values of ``/page.json``, or as many of them as Kafka alone has. What is red here is red in ``/healthz``.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

BEHIND = 120.0
"""Seconds of lag that are shown: less passes by itself, as after a start."""

_STATES = {
    "Stalled": ("bad", "Something makes no progress."),
    "Stopped at a gap": ("bad", "A person has to decide how it goes on."),
    "No worker is running": ("bad", "Nothing is relayed."),
    "A process does not answer": ("bad", "It is one of the peers in the config."),
    "A consumer fails": ("busy", "It tries again."),
    "Starting": ("busy", "Not everything is ready yet."),
    "Needs attention": ("busy", "Everything makes progress, but something waits for a person."),
    "Snapshotting": ("busy", ""),
    "Catching up": ("busy", ""),
    "Up to date": ("good", "Every shard and consumer makes progress."),
}
"""What is at the top, the worst first, each with its colour and what it means."""


@dataclass(frozen=True, slots=True)
class Problem:
    """``state``: what it puts at the top. ``seconds``: for how long, if that is known. ``commands``: complete lines."""

    state: str
    what: str
    reason: str = ""
    where: str = ""
    seconds: float | None = None
    commands: tuple[str, ...] = ()


def judge(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``state``, its ``colour`` and ``sentence``, and the ``problems``, the worst first.

    ``known``: as ``page.everybody`` has it. ``pending_letters`` in it: how many dead letters wait, where Kafka was
    asked.
    """
    rank = list(_STATES).index
    found = sorted(_problems(known), key=lambda each: rank(each.state))
    activity, said = _activity(known)
    state = min([activity, *(each.state for each in found)], key=rank)
    colour, meaning = _STATES[state]
    problems = [{**asdict(each), "colour": _STATES[each.state][0]} for each in found]
    return {"state": state, "colour": colour, "sentence": said if state == activity else meaning, "problems": problems}


def _activity(known: Mapping[str, Any]) -> tuple[str, str]:
    """Return the state of a relay that has no problems, and what to say of it."""
    for source in known["sources"]:
        if rows := source["snapshot"]:
            read = f"{rows['rows_read']:,} of about {many(rows['rows_estimated'], 'row')}"
            return "Snapshotting", f"{read} of {source['source']} are read."
    for kind in ("shard", "consumer"):
        lags = ((each["lag_seconds"] or 0.0, each[kind]) for each in known[f"{kind}s"])
        lag, last = max(lags, default=(0.0, ""))
        if lag > BEHIND:
            return "Catching up", f"The {kind} {last} is {span(lag)} behind."
    return "Up to date", _STATES["Up to date"][1]


def _problems(known: Mapping[str, Any]) -> Iterator[Problem]:
    def command(name: str, *words: str) -> str:
        name, _, verb = name.partition(" ")
        return shlex.join(("relay", name, *([verb] if verb else ()), known["config"], *words))

    gaps = {(gap["source"], gap["shard"]) for source in known["sources"] for gap in source["pending_gaps"]}
    stalls = [(stall, worker["name"]) for worker in known["workers"] for stall in worker["stalls"]]
    stalls += [(stall, "the consumers") for stall in known["consumer_stalls"]]
    for stall, process in stalls:
        source, stream, shard = stall["source"], stall["stream"], stall["shard"]
        if source is None or (source, shard) not in gaps:  # else the gap says more
            what = ": ".join(each for each in (shard or source, stall["what"]) if each)
            places = (f"source {source}" if source else "", f"stream {stream}" if stream else "", process)
            inside = ", ".join(filter(None, places))
            reason = f"Last error: {stall['error']}" if stall["error"] else ""
            look = (command("status" if stream else "check"),) if source else ()
            yield Problem("Stalled", what, reason, inside, stall["seconds"], look)
    for source in known["sources"]:
        yield from _gaps(source, command)
        for table, why in source.get("left_out", {}).items():
            what = f"table {table} is not relayed"
            if all((stall["source"], stall["what"]) != (source["source"], what) for stall, _ in stalls):
                yield Problem("Needs attention", f"{source['source']}: {what}", f"The table {why}.")
    if known.get("members") == 0:
        yield Problem("No worker is running", "no worker is running", commands=(command("run"),))
    for peer in known["unreachable"]:
        state = "A process does not answer" if peer["is_peer"] else "Needs attention"
        why = "." if peer["is_peer"] else ". A consumer served its status there: start it again, if it has ended."
        yield Problem(state, f"{peer['url']} does not answer", f"{peer['problem']}{why}")
    for worker in known["workers"]:
        yield from (Problem("Starting", f"{worker['name']}: {reason}") for reason in worker["not_ready"])
    for each in known["consumers"]:
        if each["state"] == "failing":
            yield Problem("A consumer fails", f"consumer {each['consumer']} fails, and tries again", each["error"])
        elif each["state"] == "starting":
            yield Problem("Starting", f"consumer {each['consumer']} is starting")
    counted = Counter[str]()
    for worker in known["workers"]:
        counted.update(worker["dead_letters"])
    counted.update({f"consumer {each['consumer']}": each["dead_letters"] for each in known["consumers"]})
    commands = (command("dead-letters list"), command("dead-letters redrive", "--all"))
    if waiting := known.get("pending_letters"):
        yield Problem("Needs attention", f"{many(waiting, 'dead letter')} to be sent again", commands=commands)
    elif waiting is None and (total := counted.total()):  # which does not say whether they still wait
        names = ", ".join(f"{name}: {count:,}" for name, count in counted.items() if count)
        said = f"{names}. Fix the cause, then send them again."
        yield Problem("Up to date", f"{many(total, 'dead letter')} since the start", said, commands=commands)


def _gaps(source: Mapping[str, Any], command: Callable[..., str]) -> Iterator[Problem]:
    name, can_read_again = source["source"], source["has_snapshots"]
    for gap in source["pending_gaps"]:
        where = f"shard {gap['shard']}" if gap["shard"] else f"stream {gap['stream']}"
        again = ", or also read the table again" if can_read_again else ""
        said = f"Changes of {where} are lost. The relay waits for a decision: continue after the gap{again}."
        decisions = ("skip", "resnapshot") if can_read_again else ("skip",)
        commands = tuple(command("gaps accept", gap["id"], decision) for decision in decisions)
        yield Problem("Stopped at a gap", f"Gap in {name}: {gap['reason']}", said, commands=commands)
    if can_read_again and (gaps := source["missing"]):
        said = f"The relay went on after {many(len(gaps), 'gap')}: {', '.join(gaps)}. Read the tables again."
        commands = (command("gaps list"), command("snapshot", name))
        yield Problem("Needs attention", f"changes of {name} are missing", said, commands=commands)


def many(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"

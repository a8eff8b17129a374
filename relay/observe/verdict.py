"""What in a relay needs a person, and why, for the page and `relay status`. What is red here is red in ``/healthz``."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from relay.config.value_types import iso_time

_CONSUMERS = "the consumers"
_STOPPED = "RelayConsumerStopped"
_AGAIN = "Start it again with its options, if it has ended."
_CONSUMER_ALERTS = {"is set aside": "RelayConsumerTableSetAside", "is bypassed": "RelayCacheBypassed"}

BEHIND = 120.0  # only more lag than this is shown, in seconds: less passes by itself, for example after a start

_STATES = {
    "Stalled": ("bad", "Something makes no progress.", "RelayStalled"),
    "Stopped at a gap": ("bad", "A person has to decide how to go on.", "RelayGapPending"),
    "No worker is running": ("bad", "Nothing is relayed.", "RelayDown"),
    "A process does not answer": ("bad", "It is one of the peers in the config.", "RelayDown"),
    "A consumer fails": ("busy", "It tries again.", "RelayConsumerFails"),
    "Starting": ("busy", "Not everything is ready yet.", ""),
    "Needs attention": ("busy", "Something waits for a person.", ""),
    "Snapshotting": ("busy", "", ""),
    "Catching up": ("busy", "", ""),
    "Up to date": ("good", "Every shard and consumer makes progress.", ""),
}
"""The states at the top of the page, the worst first: colour, meaning, and the alert whose runbook says what to do."""


@dataclass(frozen=True, slots=True)
class Problem:
    state: str  # at the top of the page
    what: str
    reason: str = ""
    where: str = ""
    seconds: float | None = None  # how long it has lasted, if that is known
    commands: tuple[str, ...] = ()  # complete command lines
    alert: str = ""  # instead of the alert of the state


def judge(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``state``, its ``colour`` and ``sentence``, and the ``problems``, the worst first.

    ``known``: what ``page.everybody`` returns. Its ``pending_letters``: their number, if Kafka was asked. ``is_blind``:
    whether no page answered.
    """
    rank = list(_STATES).index
    found = sorted(_problems(known), key=lambda each: rank(each.state))
    activity, said = _activity(known)
    state = min([activity, *(each.state for each in found)], key=rank)
    colour, meaning, _ = _STATES[state]
    problems = []
    for each in found:
        its_colour, _, alert = _STATES[each.state]
        problems.append({**asdict(each), "colour": its_colour, "alert": each.alert or alert})
    return {"state": state, "colour": colour, "sentence": said if state == activity else meaning, "problems": problems}


def _activity(known: Mapping[str, Any]) -> tuple[str, str]:
    """Return the state of a relay that has no problems, and a sentence about it."""
    for source in known["sources"]:
        if rows := source["snapshot"]:
            read = f"{rows['rows_read']:,} of about {many(rows['rows_estimated'], 'row')}"
            return "Snapshotting", f"{read} of {source['source']} are read."
    for kind in ("shard", "consumer"):
        lags = ((each["lag_seconds"] or 0.0, each[kind]) for each in known[f"{kind}s"])
        lag, last = max(lags, default=(0.0, ""))
        if lag > BEHIND:
            return "Catching up", f"The {kind} {last} is {span(lag)} behind."
    for name, offsets, _ in _unseen(known):  # I10: whether it makes progress is not known yet
        return "Catching up", f"The consumer {name} is {many(offsets, 'offset')} behind, and no page shows it."
    return "Up to date", _STATES["Up to date"][1]


def _problems(known: Mapping[str, Any]) -> Iterator[Problem]:
    def command(name: str, *words: str) -> str:
        return shlex.join(("relay", *name.split(), known["config"], *words))

    gaps = {(gap["source"], gap["shard"]) for source in known["sources"] for gap in source["pending_gaps"]}
    stalls: dict[tuple[Any, ...], list[tuple[Mapping[str, Any], str]]] = {}  # several processes may report one problem
    reporting = [(stall, worker["name"]) for worker in known["workers"] for stall in worker["stalls"]]
    reporting += [(stall, _CONSUMERS) for stall in known["consumer_stalls"]]
    for stall, process in reporting:
        same = stall["what"], stall["source"], stall["stream"], stall["shard"]
        stalls.setdefault(same, []).append((stall, process))
    for (told, source, stream, shard), found in stalls.items():
        if source is None or (source, shard) not in gaps:  # otherwise, the gap says more
            stall, process = found[0]
            what = ": ".join(each for each in (shard or source, told) if each)
            places = (f"source {source}" if source else "", f"stream {stream}" if stream else "")
            inside = ", ".join(filter(None, (*places, *(name for _, name in found))))
            reason = f"Last error: {stall['error']}" if stall["error"] else ""
            look = (command("status" if stream else "check"),) if source or "is bypassed" in told else ()
            alert = ""
            if process == _CONSUMERS:
                known_by = (alert for words, alert in _CONSUMER_ALERTS.items() if words in told)
                alert = next(known_by, _STOPPED)
            yield Problem("Stalled", what, reason, inside, max(each["seconds"] for each, _ in found), look, alert)
    for source in known["sources"]:
        yield from _gaps(source, command)
        yield from _altered(source, command)
        for table, why in source.get("left_out", {}).items():
            what = f"table {table} is not relayed"
            if (what, source["source"]) not in {same[:2] for same in stalls}:
                what, said = f"{source['source']}: {what}", f"The table {why}."
                yield Problem("Needs attention", what, said, alert="RelaySetAside")
    if known.get("members") == 0:
        yield Problem("No worker is running", "no worker is running", commands=(command("run"),))
    if known.get("is_blind"):  # I10: Kafka does not have what the processes know
        what = "no status page of a worker answers, so stalls are not known"
        yield Problem("Needs attention", what, "Run `relay status` where it reaches `http.address` or a peer.")
    for peer in known["unreachable"]:
        yield _unreachable(peer, command)
    for worker in known["workers"]:
        yield from (Problem("Starting", f"{worker['name']}: {reason}") for reason in worker["not_ready"])
    for each in known["consumers"]:
        if each["state"] == "failing":
            yield Problem("A consumer fails", f"consumer {each['consumer']} fails, and tries again", each["error"])
        elif each["state"] == "starting":
            yield Problem("Starting", f"consumer {each['consumer']} is starting")
    for name, offsets, is_late in _unseen(known):
        if is_late:  # I10, I12
            what, again = f"consumer {name} is behind, and seems not to run", (command(f"consume {name}"),)
            said = f"It is {many(offsets, 'offset')} behind, and no page shows it. {_AGAIN}"
            yield Problem("Needs attention", what, said, commands=again, alert=_STOPPED)
    counted = Counter[str]()
    for worker in known["workers"]:
        counted.update(worker["dead_letters"])
    counted.update({f"consumer {each['consumer']}": each["dead_letters"] for each in known["consumers"]})
    commands = (command("dead-letters list"), command("dead-letters redrive", "--all"))
    alert = "RelayDeadLetters"
    if waiting := known.get("pending_letters"):
        what = f"{many(waiting, 'dead letter')} to send again"
        yield Problem("Needs attention", what, commands=commands, alert=alert)
    elif waiting is None and (total := counted.total()):  # the count does not say whether they still wait
        names = ", ".join(f"{name}: {count:,}" for name, count in counted.items() if count)
        what, said = f"{many(total, 'dead letter')} since the start", f"{names}. Fix the cause, then send them again."
        yield Problem("Up to date", what, said, commands=commands, alert=alert)


def _unreachable(peer: Mapping[str, Any], command: Callable[..., str]) -> Problem:
    if peer["answers"]:
        return Problem("Needs attention", f"the state of {peer['url']} is not known", f"{peer['problem']}.")
    what, why = f"{peer['url']} does not answer", peer["problem"]
    if peer["is_peer"] and not peer.get("resolves", True):  # Kubernetes forgets the name of a worker that is removed
        said = f"{why}. If it was removed, restart the other workers, so that their config no longer names it."
        return Problem("Needs attention", what, said)
    if peer["is_peer"]:
        return Problem("A process does not answer", what, f"{why}.")
    names = peer["consumers"]
    what = f"consumer {' and '.join(names)} at {what}"
    said, again = f"{why}. {_AGAIN}", command(f"consume {' '.join(names)}")
    return Problem("Needs attention", what, said, commands=(again,), alert=_STOPPED)


def _unseen(known: Mapping[str, Any]) -> Iterator[tuple[str, int, bool]]:
    """Yield each consumer that has begun and is behind, but is on no page; how many offsets; and whether it is late."""
    seen = {each["consumer"].partition(".")[0] for each in known["consumers"]}  # log.-80 is the log of a key range
    seen |= {name for peer in known["unreachable"] for name in peer["consumers"]}  # these are problems already
    for each in known.get("unread", ()):
        if each["offsets"] and each["consumer"] not in seen:
            yield each["consumer"], each["offsets"], each["is_late"]


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
        yield Problem("Needs attention", f"changes of {name} are missing", said, commands=commands, alert="RelayGap")


def _altered(source: Mapping[str, Any], command: Callable[..., str]) -> Iterator[Problem]:
    """Yield a problem for each table. It is not red: the relay has published all that it was sent."""
    name, can_read_again = source["source"], source["has_snapshots"]
    of_tables: dict[str, list[Mapping[str, Any]]] = {}
    for gap in source.get("altered", ()):
        of_tables.setdefault(gap["table"], []).append(gap)
    for table, gaps in of_tables.items():
        what, last = f"table {table} of {name} may differ from its copies", gaps[-1]
        since = iso_time(gaps[0]["found_at"], "seconds")
        said = f"Since {since}. The last statement, at {last['from']['gtid']}: {last['statement']}"
        commands = (command("snapshot", name, table),) if can_read_again else ()
        skip = command("gaps accept", last["id"], "skip")  # copies may have the same rows
        yield Problem("Needs attention", what, said, commands=(*commands, skip), alert="RelayTableAltered")


def many(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"

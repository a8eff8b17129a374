"""One judgement for all who show the state: the page, /healthz and `relay status`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from relay.kafka.group import Member
from relay.observe.verdict import judge
from relay.operations.gaps import ListedGap
from relay.operations.status import ConsumerStatus, RelayStatus, ShardStatus, SourceStatus
from relay.records import Gap
from tests.observe.page_states import GAP, STATES, served
from tests.observe.requests import get

ALERTS = (Path(__file__).parents[2] / "deploy/prometheus/alerts.yaml").read_text()

ALTERED = Gap("orders", "label", None, "altered", {"gtid": "0-1-2"}, None, 1.0, "t", "ALTER TABLE t").published()
SKIPPED = f"relay gaps accept 'my shop.yaml' {ALTERED['id']} skip"

WORD = {
    "healthy": "Up to date",
    "snapshotting": "Snapshotting",
    "stalled": "Stalled",
    "gap": "Stopped at a gap",
    "unmet gap": "Stopped at a gap",
    "set aside": "Stalled",
    "left out": "Stalled",
    "altered": "Needs attention",
    "source away": "Stalled",
    "fenced": "Stalled",
    "copy": "Stalled",
    "store away": "Stalled",
    "store full": "Stalled",
    "starting": "Starting",
    "without coordinator": "Stalled",
    "failing consumer": "A consumer fails",
    "silent process": "A process does not answer",
    "late consumer": "Catching up",
    "absent copy": "Needs attention",
    "absent for a moment": "Catching up",
    "published gap": "Needs attention",
    "repaired gap": "Up to date",
    "hostile": "Stalled",
}


@pytest.mark.parametrize("name", STATES)
def test_the_page_is_red_when_a_process_is_and_says_the_worst_of_all(name: str) -> None:
    """I10, I12"""
    state = STATES[name]()
    with served(state) as found:
        shown = orjson.loads(get(found.port, "/page.json")[2])
        ports = [int(url.rpartition(":")[2]) for url in {each["url"] for each in shown["consumers"]}]
        ports += [found.port, *(int(each["url"].rpartition(":")[2]) for each in shown["workers"][1:])]
        codes = {get(port, "/healthz")[0] for port in ports}
        assert shown["state"] == WORD[name]
        is_silent = name == "silent process"
        assert (shown["colour"] == "bad") == (503 in codes or is_silent)
        assert all(each["what"] for each in shown["problems"])
        alerts = {each["alert"] for each in shown["problems"] if each["state"] != "Starting"}
        assert alerts <= {rule["alert"] for group in yaml.safe_load(ALERTS)["groups"] for rule in group["rules"]}
        said = [each["what"] for each in shown["problems"]]
        assert len(said) == len(set(said))  # though each worker may say it
        # Without a script the page says the same.
        assert f"<strong>{WORD[name]}</strong>" in get(found.port, "/")[2].decode()
        # Judged again, as `relay status` does it.
        assert shown == shown | orjson.loads(orjson.dumps(judge({**shown, "unread": state.unread})))


def status(**known: Any) -> Mapping[str, Any]:
    shard = ShardStatus("-80", "reading", None, None, None, (), None, 1.0, known.pop("lag", 1.0), None, None, 1.0)
    gaps = [ListedGap(gap, state) for gap, state in known.pop("gaps", ())]
    known_more = {"altered": known.pop("altered", ())}
    more = known_more | {"missing": known.pop("missing", ()), "has_snapshots": known.pop("has_snapshots", True)}
    source = SourceStatus("orders", "mysql", "t", "label", "current", 1.0, 1, 1.0, None, [shard], gaps, **more)
    members = [Member("m-1", "host-1", "127.0.0.1", frozenset(range(64)))] if known.pop("is_running", True) else []
    return RelayStatus("shop", 2.0, "shop.relay", members, [source], known.pop("letters", 0), **known).verdict


@pytest.mark.parametrize(
    ("known", "state", "commands"),
    [
        ({}, "Up to date", []),
        ({"lag": 121.0}, "Catching up", []),
        ({"is_running": False, "lag": 121.0}, "No worker is running", ["relay run 'my shop.yaml'"]),
        ({"letters": 2}, "Needs attention", ["relay dead-letters list 'my shop.yaml'"]),
        ({"consumers": [ConsumerStatus("log", "g", 1)]}, "Catching up", []),
        ({"consumers": [ConsumerStatus("log", "g", 0, is_late=True)]}, "Up to date", []),
        (
            {"consumers": [ConsumerStatus("log", "g", 1, is_late=True)]},
            "Needs attention",
            ["relay consume log 'my shop.yaml'"],
        ),
        ({"is_blind": True}, "Needs attention", []),
        ({"altered": [ALTERED]}, "Needs attention", ["relay snapshot 'my shop.yaml' orders t"]),
        ({"altered": [ALTERED], "has_snapshots": False}, "Needs attention", [SKIPPED]),
        ({"missing": ["5f"]}, "Needs attention", ["relay gaps list 'my shop.yaml'"]),
        ({"missing": ["5f"], "has_snapshots": False}, "Up to date", []),
        ({"gaps": [(GAP, "published")]}, "Up to date", []),
        ({"gaps": [(GAP, "pending")]}, "Stopped at a gap", [f"relay gaps accept 'my shop.yaml' {GAP['id']} skip"]),
    ],
)
def test_what_kafka_alone_has_is_judged_by_the_same(known: dict[str, Any], state: str, commands: list[str]) -> None:
    found = status(**known, file="my shop.yaml")
    assert found["state"] == state
    assert [command for each in found["problems"] for command in each["commands"][:1]] == commands


def test_a_table_is_shown_once_since_its_first_statement_and_because_of_its_last() -> None:
    with served(STATES["altered"]()) as found:
        shown = orjson.loads(get(found.port, "/page.json")[2])
    orders, items = shown["problems"]
    assert [each["what"] for each in (orders, items)] == [
        f"table {table} of legacy may differ from its copies" for table in ("orders", "items")
    ]
    assert "0-1-3: ALTER TABLE orders MODIFY total DECIMAL(10,3)" in orders["reason"]
    assert orders["commands"][0] == f"relay snapshot {shown['config']} legacy orders"


def test_what_a_worker_shows_is_judged_together_with_what_kafka_has() -> None:
    with served(STATES["set aside"]()) as served_state:
        seen = orjson.loads(get(served_state.port, "/page.json")[2])
    found = status(seen=seen, letters=3)
    assert found["state"] == "Stalled"
    assert [each["what"] for each in found["problems"]] == [
        "-80: the shard waits for a person",
        "3 dead letters to send again",
    ]
    assert found["problems"][0]["where"] == "source legacy, stream legacy, worker 0, worker 1"


def test_a_consumer_that_has_set_a_table_aside_is_not_shown_as_up_to_date() -> None:
    """I12"""
    with served(STATES["copy"]()) as found:
        shown = orjson.loads(get(found.port, "/page.json")[2])
    assert {each["consumer"]: each["is_stalled"] for each in shown["consumers"]} == {
        "cache": False,
        "log": False,
        "copy": True,
    }
    assert [each["alert"] for each in shown["problems"]] == ["RelayConsumerTableSetAside"]


def test_a_consumer_that_nobody_runs_is_named_and_does_not_make_progress() -> None:
    """I10, I12: only Kafka knows of it. The relay itself is well."""
    with served(STATES["absent copy"]()) as found:
        shown = orjson.loads(get(found.port, "/page.json")[2])
        assert get(found.port, "/healthz")[0] == 200
    [problem] = shown["problems"]
    assert (problem["what"], problem["alert"]) == (
        "consumer copy is behind, and seems not to run",
        "RelayConsumerStopped",
    )
    assert problem["reason"].startswith("It is 14 offsets behind, and no page shows it.")
    assert problem["commands"] == ["relay consume copy relay.yaml"]
    with served(STATES["absent for a moment"]()) as found:
        shown = orjson.loads(get(found.port, "/page.json")[2])
    assert shown["sentence"] == "The consumer copy is 14 offsets behind, and no page shows it."
    consumers = [ConsumerStatus("log", "shop.log", 14, is_late=True), ConsumerStatus("copy", "shop.copy", None)]
    told = status(consumers=consumers, seen=shown | {"consumers": []})
    assert [each["what"] for each in told["problems"]] == ["consumer log is behind, and seems not to run"]


@pytest.mark.parametrize("is_late", [True, False])
def test_a_consumer_whose_process_does_not_answer_is_named_once(is_late: bool) -> None:
    shown = {"state": "Needs attention", "what": "consumer copy at http://h:1 does not answer"}
    gone = {"url": "http://h:1", "problem": "refused", "is_peer": False, "answers": False, "consumers": ["copy"]}
    with served(STATES["absent copy"]()) as found:
        seen = orjson.loads(get(found.port, "/page.json")[2]) | {"unreachable": [gone]}
    copy = ConsumerStatus("copy", "shop.copy", 14, is_late=is_late)
    [problem] = status(consumers=[copy], seen=seen)["problems"]
    assert problem == problem | shown


@pytest.mark.parametrize(("name", "why"), [("store away", "no server answers"), ("store full", "redis:6379: 9.0 MB")])
def test_a_store_that_readers_bypass_is_not_shown_as_up_to_date(name: str, why: str) -> None:
    """I10: the primary answers all reads, and a consumer that has nothing to write does not notice."""
    with served(STATES[name]()) as found:
        [problem] = orjson.loads(get(found.port, "/page.json")[2])["problems"]
    assert problem["what"] == "consumer cache: its store is bypassed, and values come from the source"
    assert why in problem["reason"]
    assert problem["alert"] == "RelayCacheBypassed"
    assert problem["seconds"] == 20
    assert problem["commands"] == ["relay check relay.yaml"]

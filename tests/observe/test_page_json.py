"""What the status page is made from: all workers and consumers of a relay, and the last 15 minutes of each."""

from __future__ import annotations

import hashlib
import ssl
import urllib.request
from html import escape
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay.config import HttpConfig
from relay.observe.access import Access
from relay.observe.history import EVENTS, KEPT, Event, Totals
from relay.observe.observer import Observer
from relay.observe.peers import Peers
from relay.observe.status import FORMAT
from tests.certificates import Authority
from tests.observe.known import NOW, WALL, status
from tests.observe.page_states import (
    LABEL,
    STATES,
    gap_and_dead_letters,
    healthy,
    orders,
    served,
    shard,
    snapshotting,
    stalled,
)
from tests.observe.requests import get


def page_json(port: int) -> Any:
    code, headers, body = get(port, "/page.json")
    assert (code, headers["Content-Type"]) == (200, "application/json")
    return orjson.loads(body)


def test_it_has_all_workers_and_consumers_and_who_reads_which_shard() -> None:
    with served(healthy()) as found:
        shown = page_json(found.port)
        assert [(each["url"] is None, each["name"], each["open"]) for each in shown["workers"]] == [
            (True, "worker 0", 3),
            (False, "worker 1", 3),
        ]
        assert [each["consumer"] for each in shown["consumers"]] == ["cache", "log", "copy"]
        assert {each["shard"]: each["worker"] for each in shown["shards"] if each["source"] == "orders"} == {
            **{shard(number): None for number in range(6)},
            **{shard(number): f"worker {number // 8}" for number in range(6, 10)},
        }
        assert shown["unreachable"] == []
        code, _, body = get(found.port, "/status.json")
        parents = {each["shard"]: each["parents"] for each in orjson.loads(body)["shards"]}
        assert (code, parents[shard(9)], parents[shard(0)]) == (200, [shard(5)], [])


def test_it_has_the_segments_of_snapshots_and_the_gaps_that_wait() -> None:
    with served(snapshotting()) as found:
        shards = page_json(found.port)["shards"]
        assert {each["shard"] for each in shards if each["stream"] == f"{LABEL}/snapshot"} == {"segment-0", "segment-1"}
    with served(gap_and_dead_letters()) as found:
        shown = page_json(found.port)
        assert [gap["shard"] for gap in shown["sources"][0]["pending_gaps"]] == [shard(6)]
        assert shown["workers"][1]["dead_letters"] == {"orders": 3}


def test_shards_that_have_ended_are_the_first_to_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.observe.page.MOST_ROWS", 7)
    with served(healthy()) as found:
        shown = page_json(found.port)
        assert shown["shards_left_out"] == 5
        assert [each["state"] for each in shown["shards"]] == ["reading"] * 6 + ["finished"]


def test_a_peer_that_does_not_answer_or_belongs_to_another_relay_is_named() -> None:
    with served(healthy()) as found, served(healthy()) as other:
        for each in other.workers:
            each.name, each.process = "store", "elsewhere/1"
        ask = found.workers[0].others
        strange = Peers([f"127.0.0.1:{other.port}", "127.0.0.1:1"], HttpConfig(address="h:1"), Access())
        found.workers[0].others = lambda: [*ask(), *strange.ask()]
        shown = page_json(found.port)
        assert len(shown["workers"]) == 2
        store, nobody = shown["unreachable"]
        assert store == {
            "url": f"http://127.0.0.1:{other.port}",
            "problem": "it belongs to relay store",
            "is_peer": True,
            "answers": True,
            "resolves": True,
            "consumers": [],
        }
        assert (nobody["url"], "refused" in nobody["problem"]) == ("http://127.0.0.1:1", True)


def test_a_peer_without_an_address_may_have_been_removed_and_is_not_red() -> None:
    with served(healthy()) as found:
        ask = found.workers[0].others
        peer = {"url": "http://gone:9400", "is_peer": True, "consumers": [], "problem": "no name", "resolves": False}
        found.workers[0].others = lambda: [*ask(), peer]
        shown = page_json(found.port)
        assert (shown["state"], [each["what"] for each in shown["problems"]]) == (
            "Needs attention",
            ["http://gone:9400 does not answer"],
        )


def test_a_peer_of_another_build_is_named_with_its_version_and_its_state_is_not_known() -> None:
    """Whatever its status lacks, and also during a rolling upgrade."""
    with served(healthy()) as found:
        ask = found.workers[0].others
        old = {"name": "shop", "stalls": [], "version": "0.0.9"}
        peer = {"url": "http://old:9400", "is_peer": True, "consumers": [], "status": old}
        found.workers[0].others = lambda: [*ask(), peer]
        shown = page_json(found.port)
        assert (shown["state"], len(shown["workers"])) == ("Needs attention", 2)
        [problem] = shown["problems"]
        assert problem["what"] == "the state of http://old:9400 is not known"
        assert problem["reason"].startswith("its version, 0.0.9, has a different status from this one, ")
        assert "the state of http://old:9400 is not known" in get(found.port, "/")[2].decode()


def paths(value: Any, place: str = "") -> set[str]:
    """Return the keys of JSON; those in a mapping by name, such as a table's, are not known here."""
    if isinstance(value, dict):
        named = place.endswith((".left_out", ".dead_letters", ".position", ".reached", ".token"))
        return {place} if named else {place}.union(*(paths(each, f"{place}.{key}") for key, each in value.items()))
    return {place}.union(*(paths(each, place) for each in value)) if isinstance(value, list) else {place}


def test_the_number_of_the_format_is_another_one_when_the_keys_of_a_status_are() -> None:
    known: set[str] = set()
    for name in ("healthy", "snapshotting", "gap", "stalled", "silent process", "left out", "altered"):
        with served(STATES[name]()) as found:
            statuses = [each["status"] for each in found.workers[0].others() if "status" in each]
            for each in [page_json(found.port), *statuses]:
                known |= paths(orjson.loads(orjson.dumps(each)))
            known |= paths(orjson.loads(get(found.port, "/status.json")[2]))
    digest = hashlib.sha256("\n".join(sorted(known)).encode()).hexdigest()[:16]
    assert (FORMAT, digest) == (3, "bab74264674b76aa"), "raise FORMAT, and write both here"


def test_without_a_script_the_page_has_each_problem_with_its_commands_and_how_far_the_sources_are() -> None:
    with served(gap_and_dead_letters()) as found:
        shown, said = page_json(found.port), get(found.port, "/")[2].decode()
    for problem in shown["problems"]:
        assert f"<h3>{escape(problem['what'])}</h3>" in said
        assert escape(problem["reason"]) in said
        for command in problem["commands"]:
            assert f"<code>{escape(command)}</code>" in said
    assert f"<tr><td>orders</td><td>4 s</td><td>{shown['sources'][0]['low_watermark']}</td><td>4</td></tr>" in said
    with served(stalled()) as found:
        said = get(found.port, "/")[2].decode()
    assert "For 5.2 min, in source orders, stream " in said
    assert '<p class="note">Runbook: alert RelayStalled</p>' in said
    assert "hunter2" not in said


def test_a_process_with_several_addresses_is_shown_once() -> None:
    """It may be a peer by its name, and be found by another address, which its certificate may not have."""
    with served(healthy()) as found:
        ask = found.workers[0].others

        def ask_twice() -> list[dict[str, Any]]:
            answers = [*ask(), *ask()]
            for each in answers:
                if "consumers" in each["status"]:
                    each["status"]["addresses"] = ["10.0.0.5:9410"]
            unusable = {"problem": "the certificate does not have this address", "is_peer": False, "consumers": ["log"]}
            return [*answers, *({"url": f"https://10.0.0.{n}:9410", **unusable} for n in (5, 6))]

        found.workers[0].others = ask_twice
        shown = page_json(found.port)
        assert (len(shown["workers"]), len(shown["consumers"])) == (2, 3)
        assert [each["url"] for each in shown["unreachable"]] == ["https://10.0.0.6:9410"]
        [problem] = shown["problems"]
        assert problem["what"] == "consumer log at https://10.0.0.6:9410 does not answer"
        assert problem["commands"] == ["relay consume log relay.yaml"]


def test_containers_that_share_the_name_of_their_machine_are_told_apart() -> None:
    """Each is process 1 there."""
    with served(healthy()) as found, served(healthy()) as other:
        consumers = next(each for each in other.workers[0].others() if "consumers" in each["status"])
        ask = found.workers[0].others
        consumers["status"]["process"] = found.workers[0].process
        found.workers[0].others = lambda: [*ask(), consumers]
        assert len(page_json(found.port)["consumers"]) == 6


def test_workers_with_tls_and_a_token_show_each_other(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    secured = {"certificate": str(authority.issue("page")), "authorities": str(authority.ca), "bearer": "a-token"}
    with served(healthy(), **secured) as found:
        asked = urllib.request.Request(f"https://127.0.0.1:{found.port}/page.json")
        asked.add_header("Authorization", "Bearer a-token")
        with urllib.request.urlopen(asked, context=ssl.create_default_context(cafile=str(authority.ca))) as answered:
            shown = orjson.loads(answered.read())
        assert shown["unreachable"] == []
        assert (len(shown["workers"]), len(shown["consumers"])) == (2, 3)
        assert shown["workers"][1]["url"].startswith("https://")
        assert "a-token" not in str(shown)


def test_workers_of_one_machine_know_each_other_by_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_WORKERS", "3")
    with served(healthy(), peers=[]) as found:
        others = found.workers[0].others()
        assert [each["url"] for each in others] == [f"http://127.0.0.1:{found.port + number}" for number in (1, 2)]


def test_an_observer_takes_a_sample_every_five_seconds_of_what_was_published() -> None:
    now = [NOW]
    observer = Observer("shop", keeps_status=True, clock=lambda: now[0], wall=lambda: 2 * now[0])
    observer.metrics.add_source("orders")
    for pages in range(1, 51):
        observer.metrics.totals = Totals(30 * pages, 0.25 * pages, pages)
        observer.begin_turn(lambda: status(orders()), waits=False)
        now[0] += 0.5
    assert [(sample.rate, sample.latency) for sample in observer.recent.history.samples()] == [(60, 0.25)] * 4


def test_it_has_the_tables_of_all_workers_with_their_topics_and_how_to_look_at_them() -> None:
    with served(healthy()) as found:
        orders, customers = page_json(found.port)["tables"]
        assert (orders["table"], orders["topic"], orders["changes"]) == ("orders", "shop.orders", 2 * 1_234_567)
        assert customers["look"] == "relay tail relay.yaml shop.customers --from=-10m"


def test_it_has_the_last_events_of_all_workers_the_newest_first() -> None:
    with served(healthy()) as found:
        found.workers[1].recent.add(Event(WALL - second, "rebalance", f"{second}") for second in range(30, 0, -1))
        events = page_json(found.port)["events"]
        assert [each["what"] for each in events] == [str(second) for second in range(1, EVENTS + 1)]
        assert events[0]["worker"] == "worker 1"


def test_consumers_have_their_lag_of_the_last_quarter_of_an_hour() -> None:
    with served(healthy()) as found:
        for each in page_json(found.port)["consumers"]:
            assert len(each["history"]) == KEPT
            assert max(lag for _, _, lag, _ in each["history"]) > each["lag_seconds"]

"""A real ``relay run``, observed over HTTP (I10)."""

from __future__ import annotations

import json
import threading
from itertools import count
from typing import Any

import pytest
import yaml

from relay.config import HttpConfig
from relay.engine.relaying import run
from relay.kafka.publisher import Aborted, Fenced
from relay.process.managed import free_port
from tests.dynamodb.answering_server import Refused
from tests.dynamodb.endpoint import LABEL, TABLE, ScriptedStream, full
from tests.faults.harness import Scene
from tests.observe.observed_relay import ObservedRelay, get
from tests.waiting import wait_until

pytestmark = pytest.mark.services


def test_a_relay_reports_readiness_counts_and_progress(scene: Scene) -> None:
    raw = yaml.safe_load(scene.path.read_text())
    del raw["kafka"]["producer"]  # or a busy host has it read records again
    scene.path.write_text(yaml.safe_dump(raw))
    observed = ObservedRelay(scene.path)
    observed.until("/readyz", 200)
    for order in range(5):
        item = {"customer": {"S": "ada"}, "order_id": {"N": str(order)}, "version": {"N": "1"}}
        scene.client.put_item(TableName=scene.table, Item=item)
    observed.until_metric('relay_changes_published_total{source="orders"}', 5)
    assert observed.metric('relay_changes_published_total{source="orders"}') == 5
    assert observed.metric('relay_records_read_total{source="orders"}') == 5
    assert (observed.metric('relay_publish_latency_seconds_count{source="orders"}') or 0) >= 1
    transactions, commits = observed.metrics(
        'relay_transactions_total{outcome="committed"}', "relay_commit_seconds_count"
    )
    assert transactions == commits
    assert (commits or 0) >= 2
    assert observed.metric("relay_owned_partitions") == 64
    # The status is up to a second old.
    observed.until_metric('relay_lag_seconds{source="orders"}', 0.001)
    observed.until_metric('relay_open_shards{source="orders"}', 1)

    def read() -> Any:
        [shard] = json.loads(observed.get("/status.json")[1])["shards"]
        return shard if shard["position"] else None

    shard = wait_until(read, 60)
    shown = json.loads(observed.get("/page.json")[1])
    assert [(each["table"], each["changes"]) for each in shown["tables"]] == [(scene.table, 5)]
    assert [each["kind"] for each in shown["events"]] == ["rebalance", "restart"]  # the newest first
    assert (shard["source"], shard["state"], shard["owned"], shard["open"]) == ("orders", "reading", True, True)
    assert observed.get("/healthz")[0] == 200
    assert "<strong>Up to date</strong>" in observed.get("/")[1]
    observed.stop()


def test_health_is_red_with_the_name_of_a_throttled_or_hanging_shard_and_then_green_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10"""
    monkeypatch.setenv("RELAY_STALLED_AFTER", "3")
    with ScriptedStream() as stream:
        raw = yaml.safe_load(scene.path.read_text())
        raw["sources"][0] |= {"table": TABLE, "endpoint_url": stream.url}
        scene.path.write_text(yaml.safe_dump(raw))
        stream.shard("healthy")
        stream.shard("hot")
        stream.shard("waiting", "hot")
        stream.put("healthy", "a", 1)
        stream.put("hot", "b", 1)
        observed = ObservedRelay(scene.path)
        observed.until_metric('relay_changes_published_total{source="orders"}', 2)
        observed.until("/healthz", 200)

        def throttle(operation: str) -> None:
            asked = stream.requests[-1]
            if full("hot") in (asked.get("ShardId", ""), asked.get("ShardIterator", "").partition("|")[0]):
                raise Refused("ThrottlingException")

        stream.before = throttle

        def stall() -> Any:
            # On a busy host another shard may be late, too, and the reader repeats a call before it reports the error.
            found = [each for each in observed.until("/healthz", 503)["stalls"] if each["shard"] == full("hot")]
            return found[0] if found and found[0]["error"] else None

        stalled = wait_until(stall, 60)
        assert (stalled["source"], stalled["stream"]) == ("orders", LABEL)
        assert stalled["seconds"] > 3
        assert "Throttling" in stalled["error"]
        assert (observed.metric('relay_reads_failed_total{source="orders"}') or 0) > 0
        stream.before = lambda operation: None
        observed.until("/healthz", 200)

        go_on = threading.Event()

        def hang(operation: str) -> None:
            go_on.wait(600)

        stream.before = hang
        try:
            stalls = observed.until("/healthz", 503)["stalls"]
            assert {stall["shard"] for stall in stalls} <= {full("healthy"), full("hot")}
            assert observed.get("/readyz")[0] == 200
        finally:
            go_on.set()
        observed.until("/healthz", 200)
        observed.stop()


@pytest.mark.parametrize(("error", "how"), [(Aborted, "aborted"), (Fenced, "fenced")])
def test_health_is_red_when_every_transaction_is_aborted_or_fenced(
    error: type[Exception], how: str, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: the shards are polled and the loop turns, but nothing is committed. I3: each change counts once."""
    monkeypatch.setenv("RELAY_STALLED_AFTER", "1")
    item = {"customer": {"S": "ada"}, "order_id": {"N": "7"}, "version": {"N": "1"}}
    scene.client.put_item(TableName=scene.table, Item=item)
    url = f"http://127.0.0.1:{free_port()}"
    config = scene.config.model_copy(update={"http": HttpConfig(address=url.removeprefix("http://"))})
    seen: list[str] = []
    attempts = count()

    def probe(step: str) -> None:
        if step != "before_commit" or seen:
            return
        code, health = get(url, "/healthz")
        metrics = get(url, "/metrics")[1]
        if 'relay_records_read_total{source="orders"} 0.0' not in metrics:
            # On a slow host the shard may be called stalled before.
            if code == 503 and ("no transaction" in health or next(attempts) == 100):
                seen.extend([health, metrics])
            raise error("by the test")

    run(config, until_caught_up=True, probe=probe)
    health, metrics = seen
    assert "no transaction has been committed" in health
    assert f"failed; the last was {how}: by the test" in health
    assert 'relay_changes_published_total{source="orders"} 0.0' in metrics
    assert ('relay_pages_retried_total{source="orders"} 0.0' in metrics) == (error is Fenced)
    assert len(scene.events()) == 1


def test_an_address_in_use_ends_the_relay_before_it_reads_anything(scene: Scene) -> None:
    observed = ObservedRelay(scene.path)
    raw = yaml.safe_load(scene.path.read_text())
    scene.path.write_text(yaml.safe_dump({**raw, "http": observed.url.removeprefix("http://")}))
    second = scene.relay("--log-format", "json")
    assert second.wait(60) == 3, second.log()
    [line] = second.log().splitlines()
    assert "cannot listen on 127.0.0.1:" in json.loads(line)["message"]
    assert observed.relay.is_running
    observed.stop()

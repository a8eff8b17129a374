"""A real ``relay run``, observed over HTTP (I10)."""

from __future__ import annotations

import json
import re
import signal
import threading
import urllib.error
import urllib.request
from itertools import count
from typing import Any

import pytest
import yaml

from relay.config import HttpConfig
from relay.engine.worker import run
from relay.kafka.publisher import Aborted
from relay.process.managed import free_port
from tests.dynamodb.answering_server import Refused
from tests.dynamodb.endpoint import LABEL, TABLE, ScriptedStream, full
from tests.faults.harness import Scene
from tests.waiting import wait_until

pytestmark = pytest.mark.services


def get(url: str, path: str) -> tuple[int, str]:
    """Return the status code and the text of the response."""
    try:
        with urllib.request.urlopen(url + path, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class ObservedRelay:
    """A running relay and its endpoints, on a port that it chose itself."""

    def __init__(self, scene: Scene) -> None:
        raw = yaml.safe_load(scene.path.read_text())
        scene.path.write_text(yaml.safe_dump({**raw, "http": "127.0.0.1:0"}))
        self.relay = scene.relay("--log-format", "json")
        self.url = wait_until(self._find, 60)

    def _find(self) -> str | None:
        assert self.relay.is_running, self.relay.log()
        found = re.search(r"http://127\.0\.0\.1:\d+", self.relay.log())
        return found[0] if found else None

    def get(self, path: str) -> tuple[int, str]:
        return get(self.url, path)

    def until(self, path: str, code: int) -> Any:
        """Wait until ``path`` answers with ``code``; return the body."""

        def asked() -> Any:
            found, body = self.get(path)
            return json.loads(body) if found == code else None

        return wait_until(asked, 60)

    def metric(self, name: str) -> float | None:
        """Return the value of one metric; None if it is absent."""
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.get("/metrics")[1], re.MULTILINE)
        return float(found[1]) if found else None

    def until_metric(self, name: str, least: float) -> None:
        wait_until(lambda: True if (self.metric(name) or 0.0) >= least else None, 60)

    def stop(self) -> None:
        """Stop, and check every line of the log."""
        assert self.relay.stop(signal.SIGTERM) == 0, self.relay.log()
        for line in self.relay.log().splitlines()[1:]:  # the first may be cut
            assert {"time", "level", "logger", "message"} <= json.loads(line).keys()


def test_a_relay_reports_readiness_counts_and_progress(scene: Scene) -> None:
    observed = ObservedRelay(scene)
    observed.until("/readyz", 200)
    for order in range(5):
        item = {"customer": {"S": "ada"}, "order_id": {"N": str(order)}, "version": {"N": "1"}}
        scene.client.put_item(TableName=scene.table, Item=item)
    observed.until_metric('relay_changes_published_total{source="orders"}', 5)
    assert observed.metric('relay_changes_published_total{source="orders"}') == 5
    assert observed.metric('relay_records_read_total{source="orders"}') == 5
    assert (observed.metric('relay_publish_latency_seconds_count{source="orders"}') or 0) >= 1
    assert (observed.metric('relay_transactions_total{outcome="committed"}') or 0) >= 2
    assert observed.metric("relay_commit_seconds_count") == observed.metric(
        'relay_transactions_total{outcome="committed"}'
    )
    assert observed.metric("relay_owned_partitions") == 64
    # The status is up to a second old.
    observed.until_metric('relay_lag_seconds{source="orders"}', 0.001)
    assert observed.metric('relay_open_shards{source="orders"}') == 1

    def read() -> Any:
        [shard] = json.loads(observed.get("/status.json")[1])["shards"]
        return shard if shard["position"] else None

    shard = wait_until(read, 60)
    assert (shard["source"], shard["state"], shard["owned"], shard["open"]) == ("orders", "reading", True, True)
    assert observed.get("/healthz")[0] == 200
    assert shard["shard"] in observed.get("/")[1]
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
        observed = ObservedRelay(scene)
        observed.until_metric('relay_changes_published_total{source="orders"}', 2)
        assert observed.get("/healthz")[0] == 200

        def throttle(operation: str) -> None:
            asked = stream.requests[-1]
            if full("hot") in (asked.get("ShardId", ""), asked.get("ShardIterator", "").partition("|")[0]):
                raise Refused("ThrottlingException")

        stream.before = throttle
        [stall] = observed.until("/healthz", 503)["stalls"]
        assert (stall["source"], stall["stream"], stall["shard"]) == ("orders", LABEL, full("hot"))
        assert stall["seconds"] > 3
        # The reader retries for some seconds before it reports the error.
        reason = wait_until(lambda: observed.until("/healthz", 503)["stalls"][0]["error"], 30)
        assert "Throttling" in reason
        assert (observed.metric('relay_reads_failed_total{source="orders"}') or 0) > 0
        stream.before = lambda operation: None
        observed.until("/healthz", 200)

        go_on = threading.Event()

        def hang(operation: str) -> None:
            go_on.wait(30)

        stream.before = hang
        try:
            stalls = observed.until("/healthz", 503)["stalls"]
            assert {stall["shard"] for stall in stalls} <= {full("healthy"), full("hot")}
            assert observed.get("/readyz")[0] == 200
        finally:
            go_on.set()
        observed.until("/healthz", 200)
        observed.stop()


def test_health_is_red_when_every_transaction_is_aborted(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
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
        if 'relay_records_read_total{source="orders"} 1.0' in metrics:
            # On a slow host the shard may be called stalled before.
            if code == 503 and ("published" in health or next(attempts) == 100):
                seen.extend([health, metrics])
            raise Aborted("by the test")

    run(config, until_caught_up=True, probe=probe)
    health, metrics = seen
    assert "published changes cannot be committed" in health
    assert 'relay_changes_published_total{source="orders"} 0.0' in metrics
    assert 'relay_pages_retried_total{source="orders"} 0.0' not in metrics
    assert len(scene.events()) == 1


def test_an_address_in_use_ends_the_relay_before_it_reads_anything(scene: Scene) -> None:
    observed = ObservedRelay(scene)
    raw = yaml.safe_load(scene.path.read_text())
    scene.path.write_text(yaml.safe_dump({**raw, "http": observed.url.removeprefix("http://")}))
    second = scene.relay("--log-format", "json")
    assert second.wait(60) == 3, second.log()
    [line] = second.log().splitlines()
    assert "cannot listen on 127.0.0.1:" in json.loads(line)["message"]
    assert observed.relay.is_running

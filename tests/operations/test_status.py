"""``relay status`` before the first run, while no worker is running and while one is; and stream tokens."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import boto3
import pytest

from relay.commands.status_text import show
from relay.config import Config, load
from relay.dynamodb import Stream
from relay.kafka.group import Member
from relay.kafka.group_offsets import GroupOffsets, count_between
from relay.observe.server import serve_observer
from relay.operations.status import ConsumerStatus, RelayStatus, ShardStatus, SourceStatus, _page
from relay.process.managed import free_port
from tests.dynamodb.endpoint import ARN, ScriptedStream, full
from tests.dynamodb.reading import read, versions
from tests.faults.scripted_relay import start_relay
from tests.kafka.proxy import Api, ProxiedBroker, passing
from tests.listening import NOBODY, give_up_on_brokers_at_once
from tests.observe.page_states import STATES, served
from tests.observe.requests import get
from tests.operating import Operated
from tests.waiting import wait_until


def shard(number: int, state: str) -> ShardStatus:
    lag = float(number) if state == "reading" else None
    position = {"type": "after_sequence", "sequence": str(10**20 + number)}
    return ShardStatus(full(f"s{number}"), state, None, position, None, (), None, 1.0, lag, None, None, 1.0)


def test_only_the_unfinished_of_a_thousand_shards_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    shards = [shard(number, "finished" if number % 10 else "reading") for number in range(1000)]
    source = SourceStatus("s", "dynamodb", "t", "label", "latest", 1.0, 1, 990.0, None, shards, [])
    member = Member("m-1", "host-1", "127.0.0.1", frozenset(range(64)))
    status = RelayStatus("shop", 2.0, "shop.relay", [member], [source], 3)
    show(status, every=False)
    lines = capsys.readouterr().out.splitlines()
    assert sum("shardId" in line for line in lines) == 100
    assert "  900 finished shards not shown: --all" in lines
    assert "1 worker, 3 dead letters" in lines[0]
    longest = next(line for line in lines if "shardId" in line)
    assert full("s990") in longest  # the shard with the largest lag comes first
    show(status, every=True)
    assert sum("shardId" in line for line in capsys.readouterr().out.splitlines()) == 1000


def test_a_consumer_is_shown_with_its_lag_and_state_if_a_worker_knows_where_it_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with served(STATES["late consumer"]()) as found:
        seen = json.loads(get(found.port, "/page.json")[2])
    known = [ConsumerStatus("copy", "shop.copy", 1_170_000), ConsumerStatus("other", "shop.other", None)]
    show(RelayStatus("shop", 2.0, "shop.relay", [], [], 0, known, seen=seen), every=False)
    lines = capsys.readouterr().out.splitlines()
    assert "  consumer copy: 1,170,000 offsets behind, lag 21.7 min, running" in lines
    assert "  consumer other: not begun" in lines


@pytest.mark.parametrize(
    ("position", "shown"),
    [
        ({"gtid": "MariaDB/0-1-5"}, "MariaDB/0-1-5"),
        ({"gtid": "MariaDB/0-1-5", "transaction": "0-1-6", "rows_done": 7}, "MariaDB/0-1-5 and 7 rows of 0-1-6"),
    ],
)
def test_positions_of_sql_shards_are_shown(
    position: dict[str, Any], shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    reading = ShardStatus("-80", "reading", None, position, None, (), None, 1.0, 0.0, None, None, 1.0)
    source = SourceStatus("s", "vitess", "t", "commerce", "current", 1.0, 1, 0.0, None, [reading], [])
    show(RelayStatus("shop", 2.0, "shop.relay", [], [source], 0), every=False)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("-80"))
    assert line.split("  ")[-1].strip() == "0 s"
    assert shown in line


def owned_shard(sequence: str = "49590338271490256608559692538361571095921575989136588898") -> RelayStatus:
    owner = {"client": "relay-of-the-shop-on-host-17", "host": "127.0.0.1"}
    position = {"type": "after_sequence", "sequence": sequence}
    name = "shardId-00000001795245980151-07d8ac9b"
    reading = ShardStatus(name, "reading", owner, position, None, (), None, 1.0, 66.0, None, None, 1.0)
    source = SourceStatus("s", "dynamodb", "t", "label", "latest", 1.0, 1, 0.0, None, [reading], [])
    return RelayStatus("shop", 2.0, "shop.relay", [Member("m-1", "h", "h", frozenset())], [source], 0)


def test_a_narrow_terminal_shows_every_column_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    show(owned_shard(), every=False)
    lines = capsys.readouterr().out.splitlines()
    header = next(number for number, line in enumerate(lines) if line.startswith("shard "))
    assert lines[header].split() == ["shard", "state", "owner", "position", "lag"]
    assert max(map(len, lines)) <= 80
    begins = [lines[header].index(name) for name in ("shard", "state", "owner", "position", "  lag")]
    columns = ["".join(line[a:b].strip() for line in lines[header + 1 :]) for a, b in pairwise(begins)]
    assert columns[0] == "shardId-00000001795245980151-07d8ac9b"
    assert columns[2] == "relay-of-the-shop-on-host-17"
    assert "49590338271490256608559692538361571095921575989136588898" in columns[3]
    assert lines[header + 1].endswith("66 s")


@pytest.mark.parametrize("width", [20, 60])
def test_no_column_is_left_out_where_the_terminal_is_too_narrow(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    show(owned_shard(), every=False)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("shardId"))
    assert line.split()[:2] == ["shardId-00000001795245980151-07d8ac9b", "reading"]
    assert line.endswith("66 s")


@pytest.mark.parametrize("digits", [56, 50_000])
def test_in_a_pipe_each_shard_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, digits: int
) -> None:
    """The GTID set in a position may be long."""
    monkeypatch.delenv("COLUMNS", raising=False)
    show(owned_shard("9" * digits), every=False)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("shardId"))
    assert "9" * digits in line
    assert "relay-of-the-shop-on-host-17" in line


def test_the_page_of_a_worker_is_read_although_a_peer_of_it_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: the worker waits for its peer, and Kafka alone does not have what stalls."""
    monkeypatch.setenv("RELAY_STATE", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        address = f"127.0.0.1:{free_port()}"
        http = {"address": address, "peers": [address, f"127.0.0.1:{hanging.getsockname()[1]}"]}
        source = {"name": "s", "type": "dynamodb", "table": "orders"}
        kafka = {"bootstrap_servers": NOBODY}
        config = Config.model_validate({"name": "shop", "kafka": kafka, "sources": [source], "http": http})
        with serve_observer(config):
            found = _page(config)
    assert found is not None
    assert [each["what"] for each in found["problems"] if each["colour"] == "bad"] == [
        f"http://{http['peers'][1]} does not answer"
    ]


def test_an_unreachable_broker_exits_3(tmp_path: Path, stream: ScriptedStream, monkeypatch: pytest.MonkeyPatch) -> None:
    give_up_on_brokers_at_once(monkeypatch)
    relay = Operated(tmp_path, stream, NOBODY, "nobody")
    assert "no Kafka broker answers" in relay.command("status", "CONFIG", code=3).stderr


@pytest.mark.services
class TestOnKafka:
    @pytest.fixture
    def relay(self, tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str) -> Operated:
        return Operated(tmp_path, stream, kafka.bootstrap_servers, unique)

    def test_before_the_first_run_a_source_is_shown_as_not_read_yet(self, relay: Operated) -> None:
        assert "not read yet" in relay.command("status", "CONFIG").stdout
        found = relay.source()
        assert (found["stream"], found["watermark"], found["shards"], found["gaps"]) == (None, None, [], [])
        assert "has not been read yet" in relay.command("status", "CONFIG", "--token", "s", code=1).stderr

    @pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
    def test_it_is_shown_again_until_ctrl_c(self, relay: Operated, options: list[str]) -> None:
        command = [sys.executable, "-m", "relay", "status", str(relay.path), "--watch", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                mark = '{"name"' if options else f"{relay.name}: no worker is running"
                lines = (line for line in process.stdout if line.startswith(mark))
                first, second = next(lines), next(lines)
            finally:
                process.send_signal(signal.SIGINT)
            assert process.wait(120) == 130
        if options:
            assert json.loads(first)["at"] < json.loads(second)["at"]

    def test_shards_positions_lag_and_owners_come_from_the_checkpoints(
        self, relay: Operated, stream: ScriptedStream
    ) -> None:
        stream.shard("root")
        last = stream.put("root", "k", 1, created=int(time.time()) - 100)
        stream.split("root", "left")
        newest = stream.put("left", "k", 2, old=1)
        worker = start_relay(relay.path)
        try:
            found = wait_until(lambda: self.owned(relay), 60)
        finally:
            assert worker.terminate() == 0, worker.log()
        root, left = sorted(found["shards"], key=lambda shard: shard["state"])
        assert (root["state"], root["position"]["sequence"], root["lag_seconds"]) == ("finished", last, None)
        assert (left["state"], left["position"]["sequence"], left["parents"]) == ("reading", newest, [full("root")])
        assert left["token"]["position"] == f"DynamoDB/{newest}"
        assert left["owner"].keys() == {"member", "client", "host"}
        assert 0 <= left["lag_seconds"] <= time.time() - left["progress"]
        assert left["lag_records"] is None
        assert found["resume_timestamp"] == int(left["progress"])
        seen = relay.status()
        [source] = seen["sources"]
        assert source["lag_seconds"] == pytest.approx(seen["at"] - source["watermark"])
        # A busy broker may not have answered when it left.
        stopped = wait_until(lambda: found if (found := relay.status())["members"] == [] else None)
        assert all(shard["owner"] is None for shard in stopped["sources"][0]["shards"])
        shown = relay.command("status", "CONFIG").stdout
        assert "no worker is running" in shown
        assert "1 finished shard not shown" in shown
        assert full("left") in shown

    def owned(self, relay: Operated) -> dict[str, Any] | None:
        found = relay.source()
        reading = [s for s in found["shards"] if s["state"] == "reading" and s["owner"] and s["position"]]
        return found if reading and len(found["shards"]) == 2 else None

    def test_the_lag_of_the_consumers_is_that_of_their_groups(self, relay: Operated, stream: ScriptedStream) -> None:
        stream.shard("root")
        for version in (1, 2, 3):
            stream.put("root", "k", version, old=version - 1 or None)
        relay.run()
        with relay.path.open("a") as file:
            file.write(f'cache: {{url: "redis://127.0.0.1:1/0", namespace: n, keys: {{{stream.table}: ["{{id}}"]}}}}\n')
        config = load(relay.path)
        group = f"{relay.name}.cache"
        not_begun = {"consumer": "cache", "group": group, "offsets_behind": None, "error": None, "is_late": False}
        assert relay.status()["consumers"] == [not_begun]
        assert "  consumer cache: not begun\n" in relay.command("status", "CONFIG").stdout
        with closing(GroupOffsets(config, "cache", [config.topic(stream.table)])) as offsets:
            begin, end = offsets.locate({})
            # One that is not of the cache, and one of which it has read nothing yet.
            offsets.commit({config.internal("checkpoints"): {"0": 0}}, ids={}, wait=True)
            assert relay.status()["consumers"] == [not_begun]
            offsets.commit({config.internal("gaps"): {"0": 0}}, ids={}, wait=True)
            assert relay.status()["consumers"][0]["offsets_behind"] == count_between(begin, end)
            offsets.commit(begin, ids={}, wait=True)
            assert relay.status()["consumers"][0]["offsets_behind"] == count_between(begin, end) >= 3
            offsets.commit(end, ids={}, wait=True)
        assert "  consumer cache: 0 offsets behind\n" in relay.command("status", "CONFIG").stdout

    def test_the_status_is_shown_also_if_kafka_does_not_say_the_lag_of_a_consumer(
        self, tmp_path: Path, stream: ScriptedStream, broker: ProxiedBroker, unique: str
    ) -> None:
        relay = Operated(tmp_path, stream, broker.bootstrap_servers, unique)
        stream.shard("root")
        stream.put("root", "k", 1)
        relay.run()
        with relay.path.open("a") as file:
            file.write(f'cache: {{url: "redis://127.0.0.1:1/0", namespace: n, keys: {{{stream.table}: ["{{id}}"]}}}}\n')
        broker.proxy.lose(Api.OFFSET_FETCH)
        found = relay.status()
        assert found["sources"][0]["shards"]
        (consumer,) = found["consumers"]
        assert consumer["offsets_behind"] is None
        error = f"cannot look up the offsets of consumer group {unique}.cache: "
        assert consumer["error"].startswith(error)
        shown = relay.command("status", "CONFIG").stdout
        broker.proxy.rule = passing
        # The client has several words for the reason, and the line may be wrapped.
        assert f"consumer cache: not known: {error.rstrip()}" in " ".join(shown.split())

    def test_a_stream_resumes_at_its_token_without_loss_or_duplicates(
        self, relay: Operated, stream: ScriptedStream
    ) -> None:
        """Across splits: finished shards are not read again, and children come after their parents."""
        stream.shard("root")
        stream.put("root", "k", 1)
        stream.split("root", "left", "right")
        stream.put("left", "k", 2, old=1)
        stream.put("right", "o", 3)
        relay.run()
        token = json.loads(relay.command("status", "CONFIG", "--token", "s").stdout)
        assert token["stream_arn"] == ARN
        assert sorted(token["active"]) == [full("left"), full("right")]
        stream.put("left", "k", 4, old=2)
        stream.split("left", "leaf")
        stream.put("leaf", "k", 5, old=4)
        stream.put("right", "o", 6, old=3)
        client = boto3.client("dynamodbstreams", endpoint_url=stream.url, region_name="us-east-1")
        rest = versions(read(Stream(client, ARN, token)))
        client.close()
        assert sorted(rest) == [4, 5, 6]
        assert rest.index(4) < rest.index(5)
        assert "the sources are s" in relay.command("status", "CONFIG", "--token", "t", code=2).stderr

"""``relay reset``: the next run reads from another place, consumers see a gap, and no token goes back."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.avro.registry import open_schemas
from relay.config import load
from relay.errors import ConfigError
from relay.operations.reset import reset
from tests.dynamodb.answering_server import Refused
from tests.dynamodb.endpoint import ARN, ScriptedStream, full
from tests.faults.scripted_relay import start_relay
from tests.operating import Operated
from tests.topic_changes import read_changes
from tests.waiting import wait_until

pytestmark = pytest.mark.services


@pytest.fixture
def relay(tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str) -> Operated:
    return Operated(tmp_path, stream, kafka.bootstrap_servers, unique)


def test_a_reset_to_the_horizon_publishes_everything_again_and_no_token_goes_back(
    relay: Operated, stream: ScriptedStream
) -> None:
    """I9: the gap is published in the transaction that resets the source."""
    now = int(time.time())
    stream.shard("root")
    stream.put("root", "k", 1, created=now - 3000)
    stream.split("root", "left", "right")
    stream.put("left", "k", 2, old=1, created=now - 2000)
    stream.put("right", "other", 1, created=now - 1000)
    relay.run()
    before = relay.source()
    dry = relay.command("reset", "CONFIG", "s", "--to", "trim_horizon", "--dry-run").stdout
    assert "4 checkpoint records would be removed" in dry
    assert [s["updated_at"] for s in relay.source()["shards"]] == [s["updated_at"] for s in before["shards"]]
    done = json.loads(relay.command("reset", "CONFIG", "s", "--to", "trim_horizon", "--json").stdout)
    after = relay.source()
    assert (after["shards"], after["start"], after["stream"]) == ([], "trim_horizon", before["stream"])
    # By key, the last value. Those of streams stay.
    marks = {tuple(json.loads(mark["key"])): mark["value"] for mark in relay.records("watermarks")}
    assert {key[3] for key, value in marks.items() if value is None} == set(map(full, ("root", "left", "right")))
    assert all(value is None for key, value in marks.items() if len(key) == 4)
    relay.run()
    assert relay.versions() == [1, 2, 1, 2]
    (gap,) = relay.gap_records()
    assert (gap["source"], gap["reason"], gap["to"]["start"]) == ("s", "reset", "trim_horizon")
    assert done == {
        "source": "s",
        "dry_run": False,
        "stream": before["stream"],
        "start": "trim_horizon",
        "removed": 4,
        "gap": gap["id"],
        "snapshot_begins_again": False,
        "workers": [],
    }
    assert gap["from"]["shards"].keys() == {full("left"), full("right")}
    # No token published after the reset is older than the newest before it.
    tokens = [change["token"]["timestamp"] for change in relay.changes()]
    assert sorted(tokens) == [now - 3000, now - 2000, now - 1000, now - 1000, now - 1000, now - 1000]


def test_a_reset_to_latest_skips_changes_that_were_not_read(relay: Operated, stream: ScriptedStream) -> None:
    stream.shard("root")
    stream.put("root", "k", 1, created=int(time.time()) - 3600)
    relay.run()
    stream.put("root", "k", 2, old=1, created=int(time.time()) - 3000)
    relay.command("reset", "CONFIG", "s", "--to", "latest")
    stream.put("root", "k", 3, old=2, created=int(time.time()) + 2)
    relay.run()
    assert relay.versions() == [1, 3]
    # The config is unchanged, and the next reset publishes another gap.
    relay.run()
    relay.command("reset", "CONFIG", "s", "--to", "-2h")
    relay.run()
    assert relay.versions() == [1, 3, 1, 2, 3]
    assert len({gap["id"] for gap in relay.gap_records()}) == 2


def test_a_reset_to_a_token_resumes_after_it(relay: Operated, stream: ScriptedStream, tmp_path: Path) -> None:
    stream.shard("root")
    sequences = [stream.put("root", "k", version, old=version - 1 or None) for version in (1, 2, 3)]
    relay.run()
    place = {"shard_id": full("root"), "iterator_type": "after_sequence", "sequence_number": sequences[1]}
    token = {"stream_arn": ARN, "active": [full("root")], "shards": [place]}
    (tmp_path / "token.json").write_text(json.dumps(token))
    relay.command("reset", "CONFIG", "s", "--to", f"token:{tmp_path}/token.json")
    relay.run()
    assert relay.versions() == [1, 2, 3, 3]
    (tmp_path / "token.json").write_text(json.dumps(token | {"stream_arn": f"{ARN}9"}))
    refused = relay.command("reset", "CONFIG", "s", "--to", f"token:{tmp_path}/token.json", code=2)
    assert f"belongs to the stream {ARN}9" in refused.stderr


def test_a_reset_is_refused_while_workers_run_or_for_bad_arguments(relay: Operated, stream: ScriptedStream) -> None:
    refused = relay.command("reset", "CONFIG", "s", "--to", "latest", code=1)
    assert "has not run yet" in refused.stderr
    stream.shard("root")
    stream.put("root", "k", 1)
    worker = start_relay(relay.path)
    try:
        wait_until(lambda: any(s["owner"] for s in relay.source()["shards"]) or None, 60)
        assert "stop them first" in relay.command("reset", "CONFIG", "s", "--to", "latest", code=1).stderr
        assert "stop the workers first" in relay.command("reset", "CONFIG", "s", "--to", "latest", "--dry-run").stdout
    finally:
        assert worker.terminate() == 0, worker.log()
    assert relay.gap_records() == []
    assert "the sources are s" in relay.command("reset", "CONFIG", "t", "--to", "latest", code=2).stderr
    assert "is not a start" in relay.command("reset", "CONFIG", "s", "--to", "yesterday", code=2).stderr
    assert "no such file" in relay.command("reset", "CONFIG", "s", "--to", "token:none", code=2).stderr


def test_a_changed_start_is_refused_until_a_reset(relay: Operated, stream: ScriptedStream) -> None:
    stream.shard("root")
    stream.put("root", "k", 1)
    relay.run()
    relay.configure(start="latest")
    assert f"`relay reset {relay.path} s --to ...`" in relay.run(code=2).stderr
    relay.command("reset", "CONFIG", "s", "--to", "trim_horizon")
    relay.run()
    assert relay.versions() == [1, 1]


def test_a_reset_in_the_middle_of_a_snapshot_that_repairs_a_gap_lets_it_begin_again(
    relay: Operated, stream: ScriptedStream
) -> None:
    """I7, I9: copies wait for the end of a snapshot that has begun."""
    refusing = True

    def refuse(operation: str) -> None:
        if operation == "Scan" and refusing:
            raise Refused("ProvisionedThroughputExceededException")

    stream.before = refuse
    long_ago = int(time.time()) - 3600
    stream.shard("root")
    for version in (1, 2, 3):
        stream.put("root", "k", version, old=version - 1 or None, created=long_ago)
        if version == 1:
            relay.run()
    stream.trim("root", 2)
    relay.run(code=1)
    (gap,) = relay.gaps()
    relay.command("gaps", "accept", "CONFIG", gap["id"], "resnapshot")
    worker = start_relay(relay.path)
    try:
        wait_until(lambda: marks(relay) or None, 60)
    finally:
        assert worker.terminate() == 0, worker.log()
    said = relay.command("reset", "CONFIG", "s", "--to", "trim_horizon").stdout
    assert "the unfinished snapshot begins again" in said
    refusing = False
    relay.run()
    (first, *others) = marks(relay)
    assert first[0] == "begin"
    assert [kind for kind, _ in others] == ["begin", "end"]
    assert others[0][1] == others[1][1] != first[1]
    assert gap["id"] in relay.source()["snapshot"]["repairs"]


def marks(relay: Operated) -> list[tuple[str, str]]:
    """The marks of snapshots in the first partition, each with the id of its snapshot."""
    config = load(relay.path)
    with closing(open_schemas(config)) as schemas:
        found = read_changes(config.kafka.client(), config.topic(relay.stream.table), schemas)
    changes = [change for partition, _, change in sorted(found, key=lambda each: each[:2]) if partition == 0]
    return [
        (change["attributes"]["snapshot"], change["snapshot"]["id"])
        for change in changes
        if "snapshot" in change["attributes"]
    ]


def test_a_source_in_debeziums_envelope_is_not_copied(tmp_path: Path) -> None:
    """I7"""
    source = {"name": "s", "type": "vitess", "vtgate": "127.0.0.1:1", "keyspace": "k", "envelope": "debezium"}
    registry, kafka = {"url": "http://127.0.0.1:1"}, {"bootstrap_servers": "127.0.0.1:1"}
    config = {"name": "shop", "kafka": kafka, "schema_registry": registry, "sources": [source]}
    path = tmp_path / "relay.yaml"
    path.write_text(yaml.safe_dump(config))
    with pytest.raises(ConfigError, match="--to: `copy` does not fit"):
        reset(load(path), "s", "copy")

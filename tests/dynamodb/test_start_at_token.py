"""Where the relay starts by a token, and the token of a relay: the same positions as those of ``Stream``."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from typer.testing import CliRunner

from relay.cli import app
from relay.dynamodb import InvalidStream, Stream
from relay.dynamodb.resume_at_token import begin_at_token, token_of
from relay.errors import Unavailable
from relay.records import Plan, Shard, ShardCheckpoint, ShardState
from relay.stream_token import StreamToken
from tests.dynamodb.endpoint import ARN, ScriptedStream, full
from tests.dynamodb.reading import read, token
from tests.operating import Operated

NOW = 1_700_000_000.0
HORIZON = {"type": "trim_horizon"}
PASSED = {"type": "passed"}


def shards(*edges: str) -> list[Shard]:
    """``"0"`` is a shard, ``"0>1"`` the child 1 of 0, without 0."""
    pairs = [edge.rpartition(">") for edge in edges]
    return [Shard(full(child), (full(parent),) if parent else ()) for parent, _, child in pairs]


def begin(given: dict[str, Any], *listed: list[Shard]) -> Any:
    listings = [*listed, listed[-1]]
    return begin_at_token(StreamToken.from_json(given), listings[0], lambda: listings[1], lambda shard: False, NOW)


def test_shards_start_at_the_token_and_finished_shards_are_not_read() -> None:
    given = token(["1", "2"], ("0", None, None, None), ("1", "0", "after_sequence", "11"), ("2", "0", "latest", None))
    found = begin(given, shards("0", "0>1", "0>2", "1>3", "4"))
    assert found.lost == {}
    assert found.shards == {
        full("0"): PASSED,
        full("1"): {"type": "after_sequence", "sequence": "11"},
        full("2"): {"since": NOW},  # I4: the head is not exact
        full("3"): HORIZON,
        full("4"): HORIZON,
    }


def test_a_shard_that_was_read_before_its_parents_end_waits_and_keeps_its_position() -> None:
    """I2"""
    given = token(["0", "1"], ("0", None, "at_sequence", "5"), ("1", "0", "after_sequence", "11"))
    found = begin(given, shards("0", "0>1"))
    assert found.shards == {
        full("0"): {"type": "at_sequence", "sequence": "5"},
        full("1"): {"type": "after_sequence", "sequence": "11"},
    }


def test_an_active_shard_that_expired_is_lost_only_if_two_listings_lack_it() -> None:
    """I9"""
    given = token(["0"], ("0", None, "after_sequence", "5"), ("1", "0", None, None))
    found = begin(given, shards("0>1"), shards("0", "0>1"))
    assert found.lost == {}
    found = begin(given, shards("0>1"))
    assert found.lost == {full("0"): {"type": "after_sequence", "sequence": "5"}}
    assert found.shards == {full("1"): HORIZON}


def test_a_relay_does_not_begin_while_its_stream_lacks_a_shard_of_the_token_that_can_be_read() -> None:
    """I1: it would be a gap, or be missing until it is listed again."""
    given = StreamToken.from_json(token(["0", "1"], ("0", None, "after_sequence", "5"), ("1", None, "latest", None)))
    listed = shards("1")
    with pytest.raises(Unavailable, match=rf"currently leaves shards out of its list .* \({full('0')}\)"):
        begin_at_token(given, listed, lambda: listed, lambda shard: True, NOW)


def test_the_lost_shards_of_a_token_do_not_depend_on_the_time() -> None:
    """I9: otherwise its gap would have another id at every start, and accepting it would change nothing."""
    given = StreamToken.from_json(token(["0", "1"], ("0", None, "latest", None), ("1", None, "after_sequence", "5")))
    listed = shards("1")
    one, other = (begin_at_token(given, listed, lambda: listed, lambda shard: False, NOW + later) for later in (0, 60))
    assert one.lost == other.lost == {full("0"): {"type": "latest"}}


def test_a_token_without_a_listed_shard_is_refused() -> None:
    with pytest.raises(InvalidStream, match="too old"):
        begin(token(["0"], ("0", None, "after_sequence", "5")), shards("9"))


def test_the_checkpoints_of_a_relay_and_its_token_are_the_same_positions() -> None:
    position = {"type": "after_sequence", "sequence": "7"}
    checkpoints = {
        full("0"): ShardCheckpoint(ShardState.FINISHED, position),
        full("1"): ShardCheckpoint(ShardState.READING, position, parents=(full("0"),)),
        full("2"): ShardCheckpoint(
            ShardState.READING, parents=(full("0"),), start={"type": "at_sequence", "sequence": "9"}
        ),
        full("3"): ShardCheckpoint(ShardState.PLANNED, parents=(full("1"),), start=HORIZON),
    }
    plan = Plan("token:0", NOW, {full("a"): PASSED}, {})
    made = token_of(ARN, checkpoints, plan)
    assert made.active == (full("1"), full("2"), full("3"))
    found = begin(made.to_json(), shards("a", "0", "0>1", "0>2", "1>3"))
    assert found.shards == {
        full("a"): PASSED,
        full("0"): PASSED,
        full("1"): position,
        full("2"): {"type": "at_sequence", "sequence": "9"},
        full("3"): HORIZON,
    }


@pytest.mark.services
class TestRelayed:
    @pytest.fixture
    def stream(self) -> Iterator[ScriptedStream]:
        with ScriptedStream(page=3) as scripted:
            yield scripted

    @pytest.fixture
    def relay(self, tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str) -> Operated:
        return Operated(tmp_path, stream, kafka.bootstrap_servers, unique)

    @pytest.mark.parametrize("seed", range(3))
    def test_a_relay_resumes_where_a_stream_stopped_during_splits(
        self, relay: Operated, stream: ScriptedStream, tmp_path: Path, seed: int
    ) -> None:
        """I1, I3: each record is read by exactly one of the two, in order."""
        chance = random.Random(seed)
        stream.shard("root")
        leaves, version = ["root"], 0
        for number in range(6):
            for _ in range(chance.randint(0, 8)):
                version += 1
                leaf = chance.choice(leaves)
                stream.put(leaf, leaf, version, created=int(time.time()) - 100 + version)
            parent = leaves.pop(chance.randrange(len(leaves)))
            children = [f"{number}.{child}" for child in range(chance.randint(1, 2))]
            stream.split(parent, *children)
            leaves += children
        client = boto3.client("dynamodbstreams", endpoint_url=stream.url, region_name="us-east-1")
        reader = Stream(client, ARN)
        before = [record["meta"]["sequence_number"] for record in read(reader, chance.randint(0, version))]
        (tmp_path / "token.json").write_text(json.dumps(reader.token))
        client.close()
        relay.configure(start={"token": "token.json"})
        relay.run()
        relay.run()
        after = [change["token"]["position"].removeprefix("DynamoDB/") for change in relay.changes()]
        every = [r["dynamodb"]["SequenceNumber"] for s in stream.shards.values() for r in s.records]
        assert sorted(before + after) == sorted(every)
        assert relay.source()["start"].startswith("token:")

    def test_an_expired_shard_of_the_token_is_a_gap_and_the_token_of_another_stream_is_refused(
        self, relay: Operated, stream: ScriptedStream, tmp_path: Path
    ) -> None:
        """I9"""
        stream.shard("old")
        stream.split("old", "new")
        stream.put("new", "k", 2)
        stream.forget("old")
        place = ("old", None, "after_sequence", "5")
        given = token(["old"], place, ("new", "old", None, None))
        (tmp_path / "token.json").write_text(json.dumps(given | {"stream_arn": f"{ARN}9"}))
        relay.configure(start={"token": "token.json"})
        assert f"belongs to the stream {ARN}9" in relay.run(code=2).stderr
        (tmp_path / "token.json").write_text(json.dumps(given))
        relay.run(code=1)
        (gap,) = relay.gaps()
        assert gap["reason"] == "shards of the token lost"
        assert gap["from"]["shards"] == {full("old"): {"type": "after_sequence", "sequence": "5"}}
        relay.command("gaps", "accept", "CONFIG", gap["id"], "skip")
        relay.run()
        relay.run()
        assert relay.versions() == [2]
        assert [g["state"] for g in relay.gaps()] == ["published"]

    def test_on_dynamodb_local_a_relay_resumes_at_a_token_and_a_stream_at_the_relays(
        self, tmp_path: Path, kafka: Any, dynamodb: Any, unique: str
    ) -> None:
        reach = {"endpoint_url": dynamodb.endpoint_url, "region_name": "us-east-1"}
        database, streams = boto3.client("dynamodb", **reach), boto3.client("dynamodbstreams", **reach)
        arn = database.create_table(
            TableName=unique,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        )["TableDescription"]["LatestStreamArn"]

        def put(version: int) -> None:
            database.put_item(TableName=unique, Item={"id": {"S": "k"}, "version": {"N": str(version)}})

        for version in (1, 2, 3):
            put(version)
        stream = Stream(streams, arn)
        read(stream, 2)
        (tmp_path / "token.json").write_text(json.dumps(stream.token))
        source: dict[str, Any] = {"name": "s", "type": "dynamodb", "table": unique, "region": "us-east-1"}
        source |= {"endpoint_url": dynamodb.endpoint_url, "start": {"token": "token.json"}}
        servers = {"bootstrap_servers": kafka.bootstrap_servers}
        (tmp_path / "relay.yaml").write_text(yaml.safe_dump({"name": unique, "kafka": servers, "sources": [source]}))

        def relay(*arguments: str) -> str:
            result = CliRunner().invoke(app, [*arguments, str(tmp_path / "relay.yaml")])
            assert result.exit_code == 0, result.output
            return result.stdout

        relay("run", "--until-caught-up")
        lines = relay("tail", "--from-beginning", "--exit-at-end", "--json").splitlines()
        assert [json.loads(line)["value"]["new"]["version"]["N"] for line in lines] == ["3"]
        put(4)
        rest = read(Stream(streams, arn, json.loads(relay("status", "--token", "s"))))
        assert [record["new"] and record["new"]["version"]["N"] for record in rest] == ["4"]
        database.close()
        streams.close()

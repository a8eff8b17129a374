"""Parts of a relay's state on Kafka that are lost while others are there: never taken for a first start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
import yaml
from confluent_kafka import Producer

from relay.avro.evolution import table_of
from relay.avro.registry import open_schemas
from relay.cache.keys import gap_bump
from relay.config import Config, load
from relay.engine.kinds import open_source
from relay.errors import Unavailable
from relay.kafka.checkpoints import CheckpointView, StopRequested
from relay.kafka.settings import KafkaSettings
from relay.kafka.topics import CHECKPOINT_PARTITIONS
from relay.kafka.unfenced import write_unfenced
from relay.records import CommittedRecords, Plan, StreamId
from relay.stream import lost_state
from relay.stream.lost_state import LostState
from relay.stream.watermark_records import OVERALL
from relay.table import KeyColumn, TableSchema
from tests.command_line import errors
from tests.dynamodb.endpoint import TABLE, ScriptedStream, full
from tests.faults.scripted_relay import start_relay, tail_topic
from tests.stream.lost_relay import LostRelay
from tests.waiting import wait_until

pytestmark = pytest.mark.services


@pytest.fixture
def relay(tmp_path: Path, stream: ScriptedStream, kafka: Any, unique: str) -> LostRelay:
    return LostRelay(tmp_path, stream, kafka.bootstrap_servers, unique)


def refusal(relay: LostRelay) -> str:
    """What a run says that does not begin."""
    result = relay.run(code=3)
    assert not relay.gap_records()
    return errors(result)[-1]


@pytest.mark.parametrize(("start", "after"), [("latest", [2, 4]), ("trim_horizon", [1, 2, 1, 2, 3, 4])])
def test_lost_checkpoints_are_refused_until_somebody_accepts_the_loss(
    relay: LostRelay, stream: ScriptedStream, start: str, after: list[int]
) -> None:
    """I1, I3, I9: nothing is skipped or published again without a gap, which is published once."""
    relay.publish(start=start)
    before = relay.versions()
    relay.delete("checkpoints")
    relay.put(3, ago=3000)
    for _ in range(2):  # the first creates the topic, so that the second finds it empty
        said = refusal(relay)
        assert f"topic {relay.name}.checkpoints has no plan for source s" in said
        assert f"topic {relay.name}.{TABLE} has had records" in said
        assert f"`relay reset {relay.path} --lost-state`" in said
    assert relay.versions() == before
    for record in stream.shards[full("root")].records:  # so that all are before the next plan
        record["dynamodb"]["ApproximateCreationDateTime"] -= 100
    (line,) = relay.command("reset", "CONFIG", "--lost-state", "--json").stdout.splitlines()
    (gap,) = relay.gap_records()
    assert orjson.loads(line) == {"source": "s", "reason": "checkpoints lost", "gap": gap["id"]}
    assert gap["from"]["offsets"].keys() == {f"{relay.name}.{TABLE}"}
    assert gap_bump(orjson.dumps(gap), ["s"]) == "changes of s were lost: checkpoints lost"
    assert relay.command("reset", "CONFIG", "--lost-state").stdout == ""
    relay.put(4)
    relay.run()
    assert relay.versions() == after
    assert relay.gap_records() == [gap]


def test_a_source_may_begin_elsewhere_after_its_checkpoints_were_lost(relay: LostRelay) -> None:
    relay.publish(start="trim_horizon")
    relay.delete("checkpoints")
    assert "--lost-state" in relay.command("reset", "CONFIG", "s", "--to", "latest", code=1).stderr
    refusal(relay)
    done = orjson.loads(relay.command("reset", "CONFIG", "s", "--to", "-2h", "--json").stdout)
    (gap,) = relay.gap_records()
    assert (gap["id"], gap["reason"]) == (done["gap"], "checkpoints lost")
    relay.run()
    assert relay.versions() == [1, 2, 1, 2]


def test_a_second_loss_is_another_gap(relay: LostRelay) -> None:
    """I9: whoever knows the first does not take the second for it."""
    relay.publish(start="trim_horizon")
    relay.delete("checkpoints")
    relay.command("reset", "CONFIG", "--lost-state")
    relay.run()
    relay.delete("checkpoints")
    relay.command("reset", "CONFIG", "--lost-state")
    assert len({gap["id"] for gap in relay.gap_records()}) == 2


def test_checkpoints_are_lost_although_retention_has_removed_all_changes(relay: LostRelay) -> None:
    relay.publish(start="trim_horizon")
    relay.expire()
    relay.delete("checkpoints", "watermarks")
    assert f"topic {relay.name}.{TABLE} has had records" in refusal(relay)


def test_checkpoints_are_lost_although_no_change_was_published(relay: LostRelay, stream: ScriptedStream) -> None:
    """I1: `latest` would skip what was written since the first start."""
    stream.shard("root")
    relay.configure(start="latest")
    relay.create()
    running = start_relay(relay.path)
    try:
        wait_until(lambda: relay.watermarks() or None)
    finally:
        assert running.terminate() == 0, running.log()
    relay.delete("checkpoints")
    said = refusal(relay)
    assert f"topic {relay.name}.watermarks has its watermarks" in said
    assert "has had records" not in said


def test_a_plan_is_lost_although_checkpoints_are_there(relay: LostRelay) -> None:
    """One partition may have lost its last records."""
    relay.publish(start="trim_horizon")
    (stream,) = relay.status()["sources"]
    relay.forget("checkpoints", [StreamId("s", stream["stream"]).plan_key])
    relay.delete("watermarks", "changes")
    assert "there are checkpoints of its shards" in refusal(relay)
    relay.command("reset", "CONFIG", "--lost-state")
    relay.run()
    assert relay.versions() == [1, 2]


def test_the_checkpoint_of_a_shard_is_lost_although_its_plan_is_there(relay: LostRelay) -> None:
    """I3: it was published again, from its start in the plan, and nothing said so."""
    relay.publish(start="trim_horizon")
    source = relay.source()
    (shard,) = source["shards"]
    relay.forget("checkpoints", [StreamId("s", source["stream"]).shard_key(shard["shard"])])
    said = refusal(relay)
    assert f"topic {relay.name}.checkpoints has not all checkpoints for source s" in said
    assert f"topic {relay.name}.watermarks has the watermark of its shard {shard['shard']}" in said
    relay.command("reset", "CONFIG", "--lost-state")
    assert relay.command("reset", "CONFIG", "--lost-state").stdout == ""
    relay.run()
    assert relay.versions() == [1, 2, 1, 2]
    assert len(relay.gap_records()) == 1


def test_topics_that_were_created_beforehand_are_not_a_sign_of_a_loss(relay: LostRelay) -> None:
    relay.create()
    relay.publish(start="trim_horizon")
    assert relay.versions() == [1, 2]


def configure_two(relay: LostRelay, names: Sequence[str]) -> None:
    """Let sources with ``names`` publish to one topic."""
    config = yaml.safe_load(relay.path.read_text())
    (source,) = config["sources"][:1]
    config["topics"] = "{name}.all"
    config["sources"] = [{**source, "name": name} for name in names]
    relay.path.write_text(yaml.safe_dump(config))


def test_the_records_of_another_source_on_the_same_topic_are_not_a_sign_of_a_loss(
    relay: LostRelay, stream: ScriptedStream
) -> None:
    stream.shard("root")
    relay.put(1)
    for name in ("first", "second"):
        configure_two(relay, [name])
        relay.run()
    assert relay.gap_records() == []
    assert len(tail_topic(relay.path, f"{relay.name}.all")) == 2
    # But a source that has watermarks was relayed.
    source = relay.source()
    shards = [StreamId("second", source["stream"]).shard_key(shard["shard"]) for shard in source["shards"]]
    relay.forget("checkpoints", [StreamId("second", source["stream"]).plan_key, *shards])
    assert f"no plan for source second, but topic {relay.name}.watermarks has its watermarks" in refusal(relay)


def test_a_source_whose_checkpoints_are_lost_stops_alone_unless_all_plans_are_lost(
    relay: LostRelay, stream: ScriptedStream
) -> None:
    """I12: somebody may restore the topic, so nothing is written to an empty one."""
    relay.publish(start="trim_horizon")
    lost = StreamId("s", relay.source()["stream"]).plan_key
    with ScriptedStream(table="others") as others:
        config = yaml.safe_load(relay.path.read_text())
        (source,) = config["sources"]
        config["sources"].append({**source, "name": "other", "table": "others", "endpoint_url": others.url})
        relay.path.write_text(yaml.safe_dump(config))
        others.shard("root")
        others.put("root", "k", 1)
        relay.run()
        published = partial(tail_topic, relay.path, f"{relay.name}.others")
        assert len(published()) == 1
        relay.forget("checkpoints", [lost])
        others.put("root", "k", 2, old=1)
        said = refusal(relay)
        assert "no plan for source s, but" in said
        assert "Nothing of s was read" in said
        assert len(published()) == 2
        assert relay.versions() == [1, 2]
        relay.delete("checkpoints")
        others.put("root", "k", 3, old=2)
        assert "Nothing of s, other was read" in refusal(relay)
        assert len(published()) == 2


def test_a_worker_that_starts_while_another_plans_the_source_is_not_refused(
    relay: LostRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is a sign of a loss was published after the plan."""
    config = load(relay.path)
    settings = KafkaSettings.from_config(config)
    relay.create()
    with closing(CheckpointView(settings.client, settings.checkpoints)) as view:
        view.require_end(range(CHECKPOINT_PARTITIONS), 30.0)
        relay.publish()
        source = open_source(config.sources[0])
        with closing(source):
            source.connect()
            lost = LostState(relay.admin, config)
            assert lost.lost(view, [source]).keys() == {"s"}
            read = view.require_end
            reads = iter([lambda *whole: None])  # the first was before that
            monkeypatch.setattr(view, "require_end", lambda *whole: next(reads, read)(*whole))
            lost.require_checkpoints(view, [source])
            relay.delete("checkpoints")
            relay.create()
            with closing(CheckpointView(settings.client, settings.checkpoints)) as empty:
                empty.require_end(range(CHECKPOINT_PARTITIONS), 30.0)
                with pytest.raises(Unavailable, match="checkpoints are lost"):
                    lost.require_checkpoints(empty, [source])


class RegisteredMeanwhile:
    """The schemas of a relay that publishes right after they were looked for."""

    place = "a topic"

    def __init__(self, relay: LostRelay, schemas: Any) -> None:
        self._relay = relay
        self._schemas = schemas

    def lacks(self, wanted: Sequence[tuple[str, Mapping[str, Any]]]) -> Sequence[bool]:
        found: Sequence[bool] = self._schemas.lacks(wanted)
        if not self._relay.stream.shards:
            self._relay.publish()
        return found


def test_a_worker_that_starts_while_another_registers_schemas_is_not_refused(relay: LostRelay) -> None:
    """What is a sign of a loss was published after the schemas."""
    config = load(relay.path)
    relay.create()
    source = open_source(config.sources[0])
    with closing(source), closing(open_schemas(config)) as schemas:
        source.connect()
        meanwhile: Any = RegisteredMeanwhile(relay, schemas)
        assert LostState(relay.admin, config).without_schema(meanwhile, source.tables()) == {}
        assert relay.versions() == [1, 2]


@pytest.mark.parametrize("created_again", [False, True])
def test_checkpoints_that_are_deleted_under_a_running_relay_end_it(
    relay: LostRelay, stream: ScriptedStream, created_again: bool
) -> None:
    """I3: and what it says is true: a restart would not help."""
    relay.publish(start="trim_horizon")
    running = start_relay(relay.path)
    running.wait_for("reading shard")
    relay.delete("checkpoints")
    if created_again:
        relay.create()
    relay.put(3)
    assert running.wait(300) == 3, running.log()
    last = running.log().splitlines()[-1]
    assert f"`relay reset {relay.path} --lost-state`" in last
    assert "restart" not in last
    refusal(relay)
    relay.command("reset", "CONFIG", "--lost-state")
    relay.run()
    assert set(relay.versions()) == {1, 2, 3}


def test_lost_schemas_are_refused_until_somebody_accepts_the_loss(relay: LostRelay) -> None:
    """I1, I9: nobody could decode changes with an earlier layout, and nothing would say so."""
    relay.publish(start="trim_horizon")
    relay.delete("schemas")
    for _ in range(2):
        said = refusal(relay)
        assert f"topic {relay.name}.schemas has no schema of source s" in said
        assert f"topic {relay.name}.{TABLE} has had records" in said
    (line,) = relay.command("reset", "CONFIG", "--lost-state").stdout.splitlines()
    (gap,) = relay.gap_records()
    assert line == f"source s: schemas lost, gap {gap['id']} was published"
    assert relay.command("reset", "CONFIG", "--lost-state").stdout == ""
    relay.put(3)
    relay.run()
    assert relay.versions() == [1, 2, 3]
    assert relay.gap_records() == [gap]


def test_a_table_that_moves_to_the_topic_of_another_one_has_lost_no_schema(relay: LostRelay) -> None:
    """I12: the records there are the other's."""
    relay.publish(start="trim_horizon")
    raw = yaml.safe_load(relay.path.read_text())
    (source,) = raw["sources"]
    config = Config.model_validate(
        {**raw, "topics": f"{relay.name}.{TABLE}", "sources": [source, {**source, "name": "lines", "table": "lines"}]}
    )
    tables = [
        TableSchema(name, table, (KeyColumn("id", "S"),), 1) for name, table in (("s", TABLE), ("lines", "lines"))
    ]
    settings = KafkaSettings.from_config(config)
    plan = Plan("trim_horizon", 0.0, {}, {"lines": (("id", "S"),)})
    write_unfenced(settings, StreamId("lines", "stream").plan_key, plan.to_json(), "relay status")
    lost = LostState(relay.admin, config)

    def lacking(*names: str) -> Any:
        return SimpleNamespace(lacks=lambda wanted: [str(table_of(each)).split(".")[1] in names for _, each in wanted])

    assert lost.without_schema(lacking("lines"), tables) == {}
    assert lost.without_schema(lacking("lines", "s"), tables).keys() == {"s", "lines"}


def test_checkpoints_and_schemas_may_be_lost_together(relay: LostRelay) -> None:
    relay.publish(start="trim_horizon")
    relay.delete("checkpoints", "schemas", "watermarks", "gaps")
    assert "schemas are lost" in errors(relay.run(code=3))[-1]
    assert len(relay.command("reset", "CONFIG", "--lost-state").stdout.splitlines()) == 2
    relay.run()
    assert relay.versions() == [1, 2, 1, 2]
    assert [gap["reason"] for gap in relay.gap_records()] == ["schemas lost", "checkpoints lost"]


def test_other_topics_the_offsets_of_the_group_and_local_state_are_made_again(
    relay: LostRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, I3: no source begins anew. What was only in them is gone."""
    relay.publish(start="trim_horizon")
    relay.command("reset", "CONFIG", "s", "--to", "trim_horizon")
    assert len(relay.gap_records()) == 1
    relay.delete("gaps", "watermarks", "dead_letters")
    (deleted,) = relay.admin.delete_consumer_groups([f"{relay.name}.relay"]).values()
    deleted.result(120)
    monkeypatch.setenv("RELAY_STATE", str(tmp_path / "new"))
    relay.put(3)
    relay.run()
    assert relay.versions() == [1, 2, 1, 2, 3]
    assert relay.watermarks()
    assert relay.gap_records() == []
    assert relay.command("dead-letters", "list", "CONFIG").stdout == "no dead letters\n"


def test_a_plan_of_another_cluster_stops_its_source_alone_and_an_unknown_cluster_none(relay: LostRelay) -> None:
    """I1, I12"""
    source, view = cast(Any, SimpleNamespace(name="s")), CommittedRecords()
    view.apply(StreamId("s", "stream").plan_key, Plan("latest", 0.0, {}, {}, cluster="of-another-one").to_json())
    state = LostState(relay.admin, load(relay.path))
    with pytest.raises(Unavailable, match="belong to another Kafka cluster, of-another-one") as refused:
        state._require_own(view, [source])
    assert refused.value.source == "s"
    state.cluster = ""  # a proxy does not tell it
    state._require_own(view, [source])


def test_a_worker_waits_for_the_transaction_of_another_one_that_may_remove_a_watermark(
    relay: LostRelay, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3: as long as Kafka lets it be open, unless it is asked to stop."""
    relay.configure()
    relay.create()
    config = load(relay.path)
    settings = KafkaSettings.from_config(config)
    other = Producer({"bootstrap.servers": config.kafka.bootstrap_servers, "transactional.id": relay.name})
    other.init_transactions(60)
    other.begin_transaction()
    other.produce(settings.watermarks, b"removed", OVERALL)
    assert other.flush(60) == 0
    caplog.set_level("INFO", "relay")
    with closing(CheckpointView(settings.client, settings.checkpoints)) as view:
        view.stopping = lambda: "for the transaction of another worker" in caplog.text
        with pytest.raises(StopRequested):
            LostState(relay.admin, config).require_checkpoints(view, [])
        assert f"topic {settings.watermarks}: waiting up to {settings.transaction_timeout + 20:.0f} s" in caplog.text
        view.stopping = lambda: False
        monkeypatch.setattr(lost_state, "barrier_timeout", lambda _: 3.0)
        with pytest.raises(Unavailable, match="nothing arrived for 3 s"):
            LostState(relay.admin, config).require_checkpoints(view, [])
        other.abort_transaction(60)
        LostState(relay.admin, config).require_checkpoints(view, [])

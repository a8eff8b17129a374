"""Replays: a copy and a log that are rebuilt from the topics, and put in the place of the present ones."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from relay.change import REDRIVEN, UNDECODED, Change, Operation
from relay.config import load
from relay.kafka import topics
from relay.kafka.group_offsets import GroupOffsets
from relay.services.postgres import execute
from tests.command_line import errors, relay
from tests.faults.harness import Relay
from tests.log_lines import log_lines
from tests.spark_consumers.topic import Topic, change, copied, logged, mark, read
from tests.waiting import wait_until

pytestmark = pytest.mark.services

IN_BATCHES = """
import os, sys
from unittest import mock
from relay.cli import main
from spark_consumers import copy

with mock.patch.dict(os.environ, RELAY_STATE=sys.argv.pop(1)), mock.patch.object(copy, "_AT_MOST", AT_MOST):
    main()
"""
# So small that a replay takes several, and is killed after the first one; so large that it takes two or three.
SMALLEST, SMALL = (IN_BATCHES.replace("AT_MOST)", f"{number})") for number in (12, 30))


def arguments(topic: Topic, kind: str, into: str, *options: str) -> tuple[str, ...]:
    return str(topic.folder / "state"), "replay", kind, str(topic.path), "--into", into, *options


def replay(topic: Topic, kind: str, into: str, *options: str) -> list[dict[str, Any]]:
    """Run a replay in the shared Spark; return the lines of its log. AssertionError with the log if it fails."""
    log = topic.folder / f"replay-{len(list(topic.folder.glob('replay-*.log')))}.log"
    assert topic.spark is not None
    topic.spark.run(SMALL, *arguments(topic, kind, into, *options), log=log)
    return log_lines(log)


def checkpoint(topic: Topic, name: str) -> tuple[str, ...]:
    return "--swap", "--checkpoint", str(topic.folder / "checkpoints" / name)


def history(versions: Sequence[int]) -> list[Change]:
    """Ten customers, changed in turn; the last one is deleted again and again."""
    changes = [change(f"c{number}", 10 * version + number) for version in versions for number in range(9)]
    for version in versions:
        changes += [change("c9", 10 * version + 8), change("c9", 10 * version + 9, Operation.DELETE)]
    return changes


def line(version: int) -> Change:
    one = change("ada", version)
    one.source = one.table = "lines"
    one.event_id = f"line-{version}"
    return one


def rows(version: int) -> dict[str, int]:
    return {f"c{number}": 10 * version + number for number in range(9)}


@pytest.mark.faults("one that SIGTERM ends goes on, and a swap that is cut off is ended: the tests below")
def test_a_replay_that_was_killed_goes_on_and_the_consumer_goes_on_after_the_swap(topic: Topic) -> None:
    """I1, I7: the consumer has applied more than the replay, and the earlier copy has a row that is wrong."""
    topic.publish([*history([1, 2]), line(1)])
    topic.consume("copy", checkpoint="copy")
    into = f"delta://{topic.folder}/rebuilt"
    log = topic.folder / "killed.log"
    killed = Relay([sys.executable, "-c", SMALLEST, *arguments(topic, "copy", into)], log)
    wait_until(lambda: '"progress"' in log.read_text() or None, 400)
    killed.kill()
    begun = next(json.loads(line) for line in log.read_text().splitlines() if '"replay"' in line)
    first = [json.loads(line) for line in log.read_text().splitlines() if '"progress"' in line]
    assert first[-1]["done"] < first[-1]["total"]
    # Past the end of the replay, and applied to the earlier copy only.
    topic.publish([*history([3]), line(2)])
    topic.consume("copy", checkpoint="copy")
    with pytest.raises(AssertionError, match="began with --to latest, not -1h"):
        replay(topic, "copy", into, "--to", "-1h")
    events = replay(topic, "copy", into, *checkpoint(topic, "copy"))
    assert [event["event"] for event in events][-2:] == ["replayed", "swapped"]
    assert begun["end"] == json.loads(events[-2]["offsets"]) == events[-1]["offsets"]
    assert next(event["done"] for event in events if event["event"] == "progress") > first[-1]["done"]
    swapped = topic.apply(("log", "log"))
    assert (swapped["copy"], swapped["lines"]) == (rows(2), {"ada": 1})
    topic.publish([line(3)])
    assert topic.consume("copy", checkpoint="copy")["rows"] == len(history([3])) + 2
    after = topic.apply()
    assert (after["copy"], after["lines"]) == (rows(3), {"ada": 3})
    (kept,) = events[-1]["kept"]
    assert sorted(path.name for path in Path(kept).iterdir()) == ["lines", "orders"]


def test_a_log_is_replayed_up_to_a_place_and_swapped_though_the_swap_was_cut_off(topic: Topic) -> None:
    """I1, I7"""
    changes = [*history([1, 2]), line(1)]
    topic.publish(changes)
    topic.consume("log", checkpoint="log")
    with GroupOffsetsOf(topic) as group:
        ends = group.resolve("latest")
    later = [*history([3]), line(2)]
    topic.publish(later)
    into = f"file://{topic.folder}/rebuilt"
    replay(topic, "log", into, "--to", json.dumps(ends))
    cut_off = """
import sys
from pathlib import Path
rename = Path.rename
def cut(path, new):
    if path.name == "rebuilt":
        raise OSError("cut off")
    return rename(path, new)
Path.rename = cut
try:
    exec(sys.argv.pop(1))
finally:
    Path.rename = rename
"""
    given = arguments(topic, "log", into, "--to", json.dumps(ends), *checkpoint(topic, "log"))
    assert topic.spark is not None
    with pytest.raises(AssertionError, match="cut off"):
        topic.spark.run(cut_off, SMALL, *given)
    with pytest.raises(AssertionError, match="did not finish"):
        topic.consume("log", checkpoint="log")
    replay(topic, "log", into, "--to", json.dumps(ends), *checkpoint(topic, "log"))
    topic.publish([line(3)])
    assert topic.consume("log copy", checkpoint=".")["rows"] > 0
    assert topic.apply()["log"] == sorted(one.event_id for one in [*changes, *later, line(3)])


def test_a_topic_that_is_created_again_after_a_swap_is_not_read_from_where_the_replay_ended(topic: Topic) -> None:
    """I1: neither from the checkpoint nor from the offsets of the group."""
    topic.publish(history([1]))
    replay(topic, "log", f"file://{topic.folder}/rebuilt", *checkpoint(topic, "log"))
    client = Consumer({**topic.config.kafka.client(), "group.id": f"{topic.config.name}.log"})
    reported = client.committed([TopicPartition(topic.name, number) for number in range(topic.partitions)], timeout=60)
    topic.create_again()
    topic.publish(history([2, 3]))
    topic.refuse("log", checkpoint="log")
    assert "was created again, so the offsets in the checkpoint" in topic.log.read_text()
    client.commit(offsets=reported, asynchronous=False)  # a broker forgets those of a topic that is deleted
    client.close()
    topic.refuse("log", "--from", "committed", checkpoint="another")
    assert f"topic {topic.name} was created again since group" in topic.log.read_text()


def test_a_replay_to_a_watermark_ends_with_what_was_committed_before(topic: Topic) -> None:
    """I1, I7: also where a partition has later changes before it."""
    time = 1_700_000_000
    before, after = (time - 60) * 1_000_000, (time + 60) * 1_000_000
    topic.publish([committed(one, before) for one in [*history([1, 2]), line(1)]])
    early = topic.ends()
    topic.publish([committed(one, after) for one in [*history([3]), line(2)]])
    topic.publish([committed(change("c0", 500), before)])
    late = topic.ends()
    (with_late,) = {str(record.partition()) for record in topic.records() if record.key() == b"c0"}
    topic.publish([committed(change("c0", 600), after)])
    into, to = f"delta://{topic.folder}/rebuilt", "watermark:2023-11-14T22:13:20Z"
    topic.publish_watermark(time - 1)
    with pytest.raises(AssertionError, match="the watermark is at 2023-11-14T22:13:19Z"):
        replay(topic, "copy", into, "--to", to)
    topic.publish_watermark(time)
    log = topic.folder / "replayed.log"
    assert topic.spark is not None
    printed = topic.spark.run(SMALL, *arguments(topic, "copy", into, "--to", to, "--json"), log=log)
    events = log_lines(log)
    count = events[-2]["total"]
    assert json.loads(printed) == {
        "kind": "copy",
        "into": into,
        "finished": True,
        "done": count,
        "total": count,
        "end": json.loads(events[-1]["offsets"]),
        "kept": None,
    }
    assert json.loads(events[-1]["offsets"])[topic.name] == early | {with_late: late[with_late]}
    topic.set_copy_url(into)
    found = topic.apply(("log", "log"))
    assert (found["copy"]["c0"], found["lines"]) == (500, {"ada": 1})


def test_a_replay_with_a_schema_registry_finds_its_end_and_its_snapshots(
    topic: Topic, database_url: str, schema_registry: Any
) -> None:
    """I1, I7: before its first batch it has met no schema."""
    topic.set_copy_url(database_url)
    topic.use_registry(schema_registry.url)
    time = 1_700_000_000
    topic.publish([committed(one, (time - 60) * 1_000_000) for one in history([1])])
    early = topic.ends()
    topic.publish([committed(one, (time + 60) * 1_000_000) for one in history([2])])
    topic.publish_watermark(time)
    events = replay(topic, "copy", "schema:one", "--to", "watermark:2023-11-14T22:13:20Z")
    assert json.loads(events[-1]["offsets"])[topic.name] == early
    remove_beginning(topic)
    as_of = time + 200
    topic.publish([mark("begin", as_of), *(read(f"c{number}", 99, as_of) for number in range(3)), mark("end", as_of)])
    events = replay(topic, "copy", "schema:two")
    assert json.loads(events[-1]["offsets"])[topic.name] == topic.ends()


STOPPED = """
import os, signal
from spark_consumers.replay.rebuild import ReplayProgress
show = ReplayProgress.show
def stop(self, done, counts):
    show(self, done, counts)
    os.kill(os.getpid(), signal.SIGTERM)
ReplayProgress.show = stop
try:
    exec(sys.argv.pop(1))
except SystemExit as ended:
    print(ended.code)
finally:
    ReplayProgress.show = show
"""


def test_a_replay_that_sigterm_ends_is_not_taken_for_a_whole_one(topic: Topic, database_url: str) -> None:
    """I7: nor is one whose target has lost a part."""
    topic.set_copy_url(database_url)
    topic.publish([*history([1, 2]), line(1)])
    assert topic.spark is not None
    log = topic.folder / "stopped.log"
    given = arguments(topic, "copy", "schema:rebuilt", "--json")
    printed = topic.spark.run(f"import sys\n{STOPPED}", SMALLEST, *given, log=log).splitlines()
    outcome = json.loads(printed[0])
    assert (outcome["finished"], printed[1:]) == (False, ["143"])
    assert 0 < outcome["done"] < outcome["total"]
    assert (
        f"stopped after {outcome['done']} of {outcome['total']} offsets: run the same command again" in log.read_text()
    )
    again = topic.folder / "again.log"
    assert json.loads(topic.spark.run(SMALLEST, *given, log=again))["finished"]
    first = next(json.loads(line) for line in again.read_text().splitlines() if '"progress"' in line)
    assert first["done"] > outcome["done"]
    execute(database_url, "DROP SCHEMA rebuilt_lines CASCADE")
    with pytest.raises(AssertionError, match=r"schema:rebuilt lacks .*lines.*, which the replay has written there"):
        topic.spark.run(SMALLEST, *given)


def test_a_log_is_rebuilt_on_another_file_system_where_nothing_changes_places(topic: Topic) -> None:
    """I1: it is never written to a folder of this machine that only has the name."""
    topic.publish([*history([1]), line(1)])
    mounted = f"""
from pyspark.sql import SparkSession
hadoop = SparkSession.getActiveSession().sparkContext._jsc.hadoopConfiguration()
hadoop.set("fs.viewfs.mounttable.{topic.name}.link./relay", {topic.folder.as_uri()!r})
{SMALL}"""
    into = f"viewfs://{topic.name}/relay/rebuilt"
    assert topic.spark is not None
    with pytest.raises(AssertionError, match="only two folders on this machine can be swapped safely, not file:"):
        topic.spark.run(mounted, *arguments(topic, "log", into, *checkpoint(topic, "log")))
    topic.spark.run(mounted, *arguments(topic, "log", into))
    with pytest.raises(AssertionError, match="the folder is not empty, and no replay into it has begun"):
        topic.spark.run(mounted, *arguments(topic, "copy", f"delta+{into}"))
    assert "_delta_log" in [path.name for path in (topic.folder / "rebuilt").iterdir()]
    topic.set_log_path(f"file://{topic.folder}/rebuilt")
    assert topic.apply(("copy", "copy"))["log"] == sorted(one.event_id for one in [*history([1]), line(1)])
    assert not Path("viewfs:").exists()


def committed(one: Change, at: int) -> Change:
    one.committed_at = at
    return one


def remove_beginning(topic: Topic) -> None:
    admin = topics.connect(topic.config)
    for done in admin.delete_records([TopicPartition(topic.name, number, 4) for number in (0, 1)]).values():
        done.result(60)


class GroupOffsetsOf(GroupOffsets):
    def __init__(self, topic: Topic) -> None:
        names = [topic.name, topic.config.topic("lines"), topic.config.internal("gaps")]
        super().__init__(topic.config, "test", names)

    def __enter__(self) -> GroupOffsets:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def test_schemas_of_postgresql_change_places_with_what_is_granted_on_them(topic: Topic, database_url: str) -> None:
    """I7"""
    topic.set_copy_url(database_url)
    topic.publish([*history([1]), line(1)])
    topic.consume("copy", checkpoint="copy")
    reader = f"reader_{topic.config.name.replace('-', '_')}"
    execute(database_url, f"CREATE ROLE {reader}")
    execute(database_url, f"GRANT USAGE ON SCHEMA orders TO {reader}")
    execute(database_url, f"GRANT SELECT ON orders.orders TO {reader}")
    execute(database_url, "DELETE FROM orders._relay_rows_orders WHERE customer = 'c1'")
    replay(topic, "copy", "schema:new", *checkpoint(topic, "copy"))
    topic.publish([change("c0", 500), line(2)])
    topic.consume("copy", checkpoint="copy")
    after = topic.apply(("log", "log"))
    assert (after["copy"], after["lines"]) == ({**rows(1), "c0": 500}, {"ada": 2})
    granted = execute(
        database_url,
        f"SELECT has_schema_privilege('{reader}', 'orders', 'USAGE'),"
        f" has_table_privilege('{reader}', 'orders.orders', 'SELECT')",
    )
    assert granted == [(True, True)]
    with pytest.raises(AssertionError, match="schema:NAME"):
        replay(topic, "copy", database_url.rpartition("/")[0] + "/other", *checkpoint(topic, "copy"))


def test_before_the_first_run_a_replay_names_a_topic_and_what_creates_it(
    tmp_path: Path, kafka: Any, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAY_STATE", str(tmp_path / "state"))
    path = tmp_path / "relay.yaml"
    config = {
        "name": unique,
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers},
        "sources": [{"name": "orders", "type": "dynamodb", "table": "orders", "region": "us-east-1"}],
        "copy": {"url": f"delta://{tmp_path}/copy"},
    }
    path.write_text(yaml.safe_dump(config))
    result = relay("replay", "copy", path, "--into", f"delta://{tmp_path}/rebuilt")
    assert result.exit_code == 3
    assert errors(result) == [
        f"topic '{unique}.orders' does not exist at {kafka.bootstrap_servers}: start `relay run`, which creates it"
    ]


def test_a_log_is_not_whole_if_its_topic_is_compacted(topic: Topic) -> None:
    """I1: Kafka may have removed changes, and the offsets do not show it, as markers of transactions have some, too."""
    topic.publish([*history([1]), line(1)])
    admin = topics.connect(topic.config)
    compact = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic.name, incremental_configs=[compact])
    admin.incremental_alter_configs([resource])[resource].result(120)
    into = f"file://{topic.folder}/rebuilt"
    with pytest.raises(AssertionError, match=f"partial log: topic {topic.name} is compacted"):
        replay(topic, "log", into)
    replay(topic, "log", into, "--partial")
    replay(topic, "copy", f"delta://{topic.folder}/copied")


@pytest.mark.parametrize(
    "into", ["delta://{}/copy/new", "delta://{}/log/new", "delta://{}", "delta://{}/copy/../copy/new"]
)
def test_a_place_inside_another_one_is_refused(topic: Topic, into: str) -> None:
    """I1: a swap would rename it along with the present one, and the copy would be gone."""
    (topic.folder / "copy").mkdir()
    result = relay("replay", "copy", topic.path, "--into", into.format(topic.folder), "--swap")
    assert result.exit_code == 2
    assert "must not be inside each other: choose a location beside it" in errors(result)[0]


def test_topics_that_lost_their_beginning_need_a_snapshot_or_consent(topic: Topic, database_url: str) -> None:
    """I9: what was removed is not in the target, and nobody would know. Marks that are sent again do not count."""
    topic.set_copy_url(database_url)
    as_of = 1_700_000_000 + 200
    late = [mark("begin", as_of), mark("end", as_of)]
    for one in late:
        one.attributes = {**one.attributes, REDRIVEN: UNDECODED}
    topic.publish([*history([1]), line(1), *late])
    remove_beginning(topic)
    for kind, into in (("copy", "schema:partial"), ("log", f"file://{topic.folder}/log-partial")):
        with pytest.raises(AssertionError, match=r"\[1\] begins at offset 4, 20"):
            replay(topic, kind, into)
    with pytest.raises(AssertionError, match="no watermark yet"):
        replay(topic, "copy", "schema:none", "--to", "watermark:-1s")
    topic.publish([mark("begin", as_of), *(read(f"c{number}", 99, as_of) for number in range(3)), mark("end", as_of)])
    replay(topic, "copy", "schema:partial")
    replay(topic, "log", f"file://{topic.folder}/log-partial", "--partial")
    topic.set_log_path(f"file://{topic.folder}/log-partial")
    assert copied(load(topic.path), "orders", prefix="partial_") == {f"c{number}": 99 for number in range(3)}
    assert len(logged(load(topic.path))) == len(history([1])) - 8 + 3 + 2 + 1
    assert os.listdir(topic.folder / "state")

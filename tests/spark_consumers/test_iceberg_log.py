"""The change log in Iceberg has each change once, whatever comes again, is cut off, or is done by others (I7)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyiceberg.table import StaticTable

from relay.config import Config
from relay.errors import ConfigError
from relay.kafka.dead_letters import DeadLetterWriter
from relay.operations.dead_letters import DeadLetters
from relay.records import Gap
from spark_consumers import log_script
from spark_consumers.sinks.places import log_target
from tests.spark_consumers.iceberg_catalog import CATALOG, FORMATS, of_url
from tests.spark_consumers.noted_gaps import publish_records
from tests.spark_consumers.oversize import LARGEST, huge
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change


def with_log(path: str, copy: str = "iceberg://lake/copied", **conf: str) -> Config:
    config = of_url(copy, **(conf or {"lake": CATALOG}))
    return Config.model_validate({**config.model_dump(exclude_unset=True, by_alias=True), "log": {"path": path}})


def place(path: str, keyrange: str = "", **conf: str) -> Any:
    config = with_log(path, **conf)
    assert config.log is not None
    return log_target(config, config.log, keyrange)


@pytest.mark.parametrize(
    ("path", "conf", "said"),
    [
        ("iceberg://lake", {}, "log.path: iceberg://lake must name .* iceberg://CATALOG/NAMESPACE"),
        ("iceberg://lake/a.b", {}, "iceberg://CATALOG/NAMESPACE"),
        ("iceberg://sea/log", {}, "log.path: iceberg://sea/log is in a catalog that Spark does not know"),
        ("iceberg://lake/Copied_shop_x002E_orders", {}, "where the copy keeps the tables of a source: name another"),
    ],
)
def test_a_place_of_a_log_in_iceberg_that_cannot_be_is_refused_without_a_connection(
    path: str, conf: dict[str, str], said: str
) -> None:
    """I1: a table of the source could have the log's name."""
    with pytest.raises(ConfigError, match=said):
        place(path, **conf)


def test_a_log_in_iceberg_has_a_namespace_and_a_key_range_a_table_of_its_own() -> None:
    assert place("iceberg://lake/audit").open().name == "`lake`.`audit`.`log`"
    of_range = place("iceberg://lake/audit/", "-80").open()
    assert (of_range.name, of_range.gaps) == ("`lake`.`audit`.`log_x002E_-80`", "`lake`.`audit`.`log_x002E_-80_gaps`")


def test_a_log_in_iceberg_keeps_versions_for_an_hour_unless_the_config_says_longer() -> None:
    for path, expected in (("iceberg://lake/audit", 3600.0), ("file:///log", 7 * 86400.0)):
        log = with_log(path).log
        assert log is not None
        assert log.keep_versions == expected


def test_a_log_in_a_catalog_in_folders_is_said_to_exclude_no_second_driver() -> None:
    found = place("iceberg://lake/audit", lake=CATALOG, lake__type="hadoop").check()
    assert found.endswith("prevents a second driver: run only one")


PRELUDE = """
import json, sys
import pytest
from relay.errors import Unavailable
from spark_consumers.change_log import ChangeLog
from spark_consumers.sinks import iceberg_copy
from spark_consumers.sinks.iceberg_log import IcebergLog
from tests.spark_consumers.lake_config import lake_config
from tests.benchmarks.decoded import Batches
from tests.spark_consumers.local_spark import spark

def table(schedule=lake_config(1e9, 1e9)):
    return IcebergLog("lake", f"`lake`.`{sys.argv[1]}`", "log", "iceberg://lake/log", schedule)

def consumer():
    return ChangeLog(table(), dict)

def count(session):
    return session.sql(f"SELECT count(event_id) FROM {table().name}").collect()[0][0]
"""


@pytest.mark.services
def test_of_two_consumers_with_one_log_in_iceberg_the_slower_one_fails_and_reads_the_log_again(
    spark_process: SparkProcess, unique: str
) -> None:
    """I7: an append is not checked by Iceberg. Elsewhere than in local folders, no lock keeps two apart."""
    spark_process.run(PRELUDE + TWO_WRITERS, unique)


TWO_WRITERS = """
with spark() as session:
    batches, consumers = Batches(session, range(100), rows=10), [consumer(), consumer()]
    for number in range(3):  # the first time, the log is empty
        batch = batches.get(number)
        plans = [each.plan(batch) for each in consumers]  # both have read what the log has
        assert plans[0].write([])["applied"] == 10
        with pytest.raises(Unavailable, match="another consumer of the log, stop it"):
            plans[1].write([])
        # It reads again what the log has.
        assert consumers[1].plan(batch).write([]) == {"applied": 0, "ignored": 10}
        consumers.reverse()
    assert count(session) == 30
"""


@pytest.mark.services
def test_an_append_that_is_cut_off_or_comes_again_is_in_the_log_in_iceberg_once(
    spark_process: SparkProcess, unique: str
) -> None:
    """I7: cut off before readers see it, after that and before Spark's commit, and by what others do to the table."""
    spark_process.run(PRELUDE + CUT_OFF, unique)


CUT_OFF = """
class Killed(BaseException):
    pass

commit = iceberg_copy.commit

def cut_off(before=None, after=None):
    def step(session, name, change):
        if before is not None:
            before(session)
        found = commit(session, name, change)
        if after is not None:
            after(session)
        return found
    iceberg_copy.commit = step

def die(session):
    raise Killed

with spark() as session:
    batches, name = Batches(session, range(100), rows=10), table().name
    for number, when in enumerate(({"before": die}, {"after": die})):
        batch, one = batches.get(number), consumer()
        cut_off(**when)
        with pytest.raises(Killed):
            one.plan(batch).write([])
        iceberg_copy.commit = commit
        assert count(session) == 10 * number + (10 if "after" in when else 0), "a part of a batch is seen"
        again = consumer().plan(batch).write([])
        assert again["applied"] == (0 if "after" in when else 10), again
        assert count(session) == 10 * number + 10

    # A job of the owner removes a row while a batch is appended: neither undoes the other.
    ours, batch = consumer(), batches.get(2)
    cut_off(before=lambda session: session.sql(f"DELETE FROM {name} WHERE `offset` = 0"))
    with pytest.raises(Unavailable, match="changed the log at iceberg://lake/log during an append"):
        ours.plan(batch).write([])
    iceberg_copy.commit = commit
    assert ours.plan(batch).write([])["applied"] == 10
    left = 30 - 2
    assert count(session) == left, "each partition had a row with that offset"

    # What others set does not let a batch be seen before its contents are recorded.
    session.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ('write.wap.enabled')")
    assert ours.plan(batches.get(3)).write([])["applied"] == 10
    assert count(session) == left + 10

    # The log knows what it has though its files were merged and the version that recorded it is gone,
    session.sql(f"CALL lake.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))")
    session.sql(f"CALL lake.system.expire_snapshots(table => '{name}', older_than => now(), retain_last => 1)")
    assert session.sql(f"SELECT count(*) FROM {name}.snapshots").collect()[0][0] == 1
    assert consumer().plan(batches.batch).write([]) == {"applied": 0, "ignored": 10}
    assert table().last_append(session).version == 4

    # and trusts no record of what a rollback has taken away.
    before = session.sql(f"SELECT snapshot_id FROM {name}.snapshots").collect()[0][0]
    batch = batches.get(4)
    assert ours.plan(batch).write([])["applied"] == 10
    session.sql(f"CALL lake.system.rollback_to_snapshot('{name}', {before})")
    assert table().last_append(session) is None
    with pytest.raises(Unavailable):
        ours.plan(batches.get(5)).write([])
    assert ours.plan(batches.batch).write([])["applied"] == 10
    assert consumer().plan(batches.batch).write([])["applied"] == 0
    assert count(session) == left + 20
"""


@pytest.mark.services
def test_two_consumers_note_a_gap_of_the_log_in_iceberg_once(
    tmp_path: Path, spark_process: SparkProcess, unique: str
) -> None:
    """I9: also at once."""
    assert json.loads(spark_process.run(PRELUDE + GAPS, unique, str(tmp_path))) == ["a", "b", "c"]


GAPS = """
import time
from pathlib import Path
from threading import Thread
from pyspark.sql import functions as F
from spark_consumers.gaps import LostChanges

begun, go = (Path(sys.argv[2]) / name for name in ("begun", "go"))

def waits(reason, begun=str(begun), go=str(go)):
    import pathlib, time
    pathlib.Path(begun).touch()
    while not pathlib.Path(go).exists():
        time.sleep(0.05)
    return reason

def gaps(*ids):
    return [LostChanges(each, "shop", "trimmed", 1_700_000_000.0, "{}") for each in ids]

def note(*ids):
    ours = table()
    def slow(session, statement):
        wait = F.udf(waits)
        session.table("relay_gaps").withColumn("reason", wait("reason")).createOrReplaceTempView("relay_gaps")
        return IcebergLog.merge(ours, session, statement)
    ours.merge = slow
    try:
        ChangeLog(ours, dict).note_gaps(session.newSession(), gaps(*ids))
    except Exception as error:
        errors.append(error)

with spark() as session:
    one, errors = consumer(), []
    one.note_gaps(session, gaps("a"))
    thread = Thread(target=note, args=("a", "b"))
    thread.start()
    deadline = time.monotonic() + 120
    while not begun.exists() and thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    one.note_gaps(session, gaps("b", "c"))
    go.touch()
    thread.join()
    if errors:
        one.note_gaps(session, gaps("a", "b"))
    found = session.sql(f"SELECT id FROM {table().gaps} ORDER BY id").collect()
    json.dump([row[0] for row in found], sys.stdout)
"""


METADATA = """
import sys
from tests.spark_consumers.local_spark import spark
from spark_consumers.spark_internals import iceberg_table

with spark() as session:
    for statement in sys.argv[2:]:
        session.sql(statement)
    if len(sys.argv) == 2:
        print(iceberg_table(session, sys.argv[1]).operations().current().metadataFileLocation(), end="")
"""


class IcebergLogOf:
    """The log of a topic in a namespace of its own, read with PyIceberg."""

    def __init__(self, topic: Topic, catalog: str = "lake") -> None:
        self.topic, self.catalog, self.namespace = topic, catalog, f"{topic.config.name}_audit"
        topic.set_log_path(f"iceberg://{catalog}/{self.namespace}")
        topic.set_spark(conf={f"spark.sql.catalog.{catalog}": CATALOG})

    def rows(self, name: str = "log") -> Any:
        assert self.topic.spark is not None
        metadata = self.topic.spark.run(METADATA, f"{self.catalog}.{self.namespace}.{name}")
        table = StaticTable.from_metadata(metadata)
        assert table.metadata.format_version == FORMATS[self.catalog]
        return table.scan().to_arrow()

    def applied(self, checkpoint: str) -> tuple[int, int]:
        found = self.topic.consume("log", checkpoint=checkpoint)
        return found["applied"], found["ignored"]

    def ids(self) -> list[str]:
        return sorted(self.rows()["event_id"].to_pylist())


@pytest.mark.services
@pytest.mark.parametrize(
    "catalog", ["lake", pytest.param("newer", marks=pytest.mark.faults("format 3: `lake` has format 2"))]
)
def test_a_consumer_keeps_the_log_in_iceberg_as_it_does_in_delta(topic: Topic, catalog: str) -> None:
    """I1, I7, I9: with stubs, gaps, topics that are created again, and a table that is lost; PyIceberg reads it."""
    log = IcebergLogOf(topic, catalog)
    letters = DeadLetterWriter(topic.config.internal("dead_letters"), LARGEST)
    published = [change("ann", 1), change("bob", 1), big := huge("ann", 2)]
    topic.publish(published[:2])
    assert log.applied("c") == (2, 0)
    topic.publish([big], largest=LARGEST, dead_letters=letters)
    publish_records(topic, gap := Gap("orders", "orders/x", None, "trimmed", None, None, 1.7e9).to_json(), gap)
    assert log.applied("c") == (1, 0)
    dead = DeadLetters(topic.config)
    dead.redrive(dead.all(), lambda letter: None)
    assert log.applied("c") == (1, 0)
    assert log.applied("another") == (0, 4)

    # Readers other than Spark.
    rows = log.rows()
    assert sorted(rows["event_id"].to_pylist()) == sorted(one.event_id for one in published)
    assert log.rows("log_gaps")["reason"].to_pylist() == ["trimmed"]
    connection = duckdb.connect()
    connection.register("relay_log", rows)
    connection.execute(log_script.script("duckdb"))
    key = """{"customer":"ann","order_id":"1"}"""
    history = connection.execute(f"SELECT new FROM relay_history('orders', '{key}') ORDER BY number").fetchall()
    assert [json.loads(new)["version"]["N"] for (new,) in history] == ["1", "2"], "the stub is complete"
    connection.close()

    # Offsets of a topic that is created again are those of other changes.
    topic.create_again()
    topic.publish([change("cid", 1), change("dan", 1)])
    topic.refuse("log", checkpoint="c")
    assert log.applied("new") == (2, 0)

    # It is rebuilt in another namespace, and not where something is.
    assert topic.spark is not None
    into = f"iceberg://{catalog}/{log.namespace}_new"
    state = {"state": str(topic.folder / "state")}
    replay = ("replay", "log", str(topic.path), "--into", into)
    topic.spark.run(REPLAY, state["state"], *replay, log=topic.folder / "replay.log")
    with pytest.raises(AssertionError, match="Iceberg tables cannot be swapped in one step"):
        topic.spark.run(REPLAY, state["state"], *replay, "--swap", "--checkpoint", str(topic.folder / "s"))
    with pytest.raises(AssertionError, match="is not empty, and no replay into it has begun"):
        topic.spark.run(REPLAY, f"{state['state']}-2", *replay)

    # What a table that was dropped had is lost with it, and its note, too.
    before = log.ids()
    topic.spark.run(METADATA, "", f"DROP TABLE {catalog}.{log.namespace}.log PURGE")
    topic.refuse("log", checkpoint="new")
    assert "the log lacks" in topic.log.read_text()
    topic.set_log_path(into)
    log.namespace += "_new"
    assert log.ids() == sorted(one.event_id for one in (change("cid", 1), change("dan", 1)))
    assert set(log.ids()) < set(before)


REPLAY = """
import os, sys
from unittest import mock
from relay.cli import main

with mock.patch.dict(os.environ, RELAY_STATE=sys.argv.pop(1)):
    main()
"""


@pytest.mark.services
@pytest.mark.faults("one that is cut off in the process: test_an_append_that_is_cut_off_or_comes_again")
@pytest.mark.parametrize("step", ["staged", "appended", "noted"])
def test_a_consumer_that_is_killed_while_it_appends_to_the_log_in_iceberg_goes_on(topic: Topic, step: str) -> None:
    """I7: before readers see the batch, and between that and Spark's commit."""
    log = IcebergLogOf(topic)
    topic.publish(first := [change("ann", 1), change("bob", 1)])
    assert log.applied("c") == (2, 0)
    topic.publish(second := [change("ann", 2), change("cid", 1)])
    assert topic.spark is not None
    checkpoint = str(topic.folder / "checkpoints" / "c")
    killed = topic.spark.start(KILLED, step, str(topic.path), checkpoint, log=topic.folder / "killed.log")
    assert killed.wait(300) == -1
    assert log.applied("c") == ((2, 0) if step == "staged" else (0, 2))
    assert log.ids() == sorted(one.event_id for one in [*first, *second])


KILLED = """
import os, pathlib, signal, sys
import spark_consumers
from relay.config import load
from spark_consumers import change_log
from spark_consumers.applied_notes import AppliedNotes
from spark_consumers.sinks import iceberg_copy
from tests.spark_consumers.local_spark import spark

def die(*given):
    os.kill(os.getpid(), signal.SIGKILL)

step, path, checkpoint = sys.argv[1:]
if step == "noted":
    advance = AppliedNotes.advance
    AppliedNotes.advance = lambda *given: (advance(*given), die())
else:
    commit = iceberg_copy.commit
    iceberg_copy.commit = die if step == "staged" else lambda *given: (commit(*given), die())
with spark():
    spark_consumers.run("log", load(pathlib.Path(path)), until_caught_up=True, checkpoint=checkpoint)
"""

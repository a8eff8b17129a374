"""The change log has each change once, whatever comes again and from where (I7)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relay.change import Change
from relay.token import OriginToken
from tests.log_lines import log_lines
from tests.spark_consumers import delta_rows
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import SHARD, Topic, change, logged

pytestmark = pytest.mark.services

HOUR = 3600

SCRIPT = """
import pathlib, sys
import spark_consumers
from relay.config import load
from tests.spark_consumers.local_spark import spark

path = pathlib.Path(sys.argv[1])
config, table = load(path), f"delta.`{path.parent / 'log'}`"

def consume(checkpoint, start=None):
    spark_consumers.run(
        "log", config, until_caught_up=True, start=start, checkpoint=path.parent / "checkpoints" / checkpoint
    )

with spark() as session:
    exec(sys.argv[2])
"""


class Log:
    """The log of a topic, and a Spark that consumes into it and looks at it when the test says."""

    def __init__(self, topic: Topic, spark: SparkProcess) -> None:
        self._topic = topic
        self._spark = spark
        self._stderr = topic.folder / "stderr"

    def after(self, code: str) -> Any:
        """Run ``code``; return the event ids of the log, and its commits, newest first."""
        self._spark.run(SCRIPT, str(self._topic.path), code, log=self._stderr)
        return {"ids": logged(self._topic.config), "commits": delta_rows.operations(self._topic.folder / "log")}

    def counts(self) -> Sequence[tuple[int, int]]:
        """Return what each batch has applied and ignored."""
        return [(batch["applied"], batch["ignored"]) for batch in log_lines(self._stderr, "batch")]


def at(number: int, hours: float) -> Change:
    """Return a change that was committed so many hours after midnight."""
    one = change(f"c{number}", number)
    one.committed_at = 1_700_006_400_000_000 + int(hours * HOUR * 1_000_000)
    return one


def replicated(one: Change, lag: float) -> Change:
    """Return a change as the target of a reshard has it, whose replication lags by some hours."""
    assert one.token is not None
    origin = OriginToken(one.committed_at // 1_000_000, SHARD, one.token.position)
    token = replace(one.token, shard=f"{SHARD}-2", origin=origin, timestamp=one.token.timestamp)
    return replace(one, token=token, committed_at=one.committed_at + int(lag * HOUR * 1_000_000))


@pytest.fixture
def topic(tmp_path: Path, kafka: Any, redis_server: Any, unique: str) -> Topic:
    return Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url)


@pytest.fixture
def log(topic: Topic, spark_process: SparkProcess) -> Log:
    return Log(topic, spark_process)


def test_each_change_is_in_the_log_once(topic: Topic, log: Log) -> None:
    """I7: after replays, resets, lags of many hours, an OPTIMIZE and a RESTORE; and a new change costs an append."""
    first = [at(number, number / 10) for number in range(5)]
    topic.publish(first)
    seen = log.after("consume('one')")
    ids = sorted(one.event_id for one in first)
    assert seen["ids"] == ids

    # Newer changes are appended. The whole topic again, by another checkpoint, changes nothing.
    topic.publish([newer := at(9, 2)])
    seen = log.after("consume('one')")
    ids = sorted([*ids, newer.event_id])
    assert seen["ids"] == ids
    upkeep = ("OPTIMIZE", "SET TBLPROPERTIES")
    assert [kind for kind in seen["commits"] if kind not in upkeep] == ["WRITE", "WRITE", "CREATE TABLE"]
    assert log.after("consume('two')") == seen

    # A reset publishes some again, beside one that was late. So does a reshard, whose replication lagged for hours,
    # from the source of the reshard or from its target.
    late, sharded = at(11, 1), at(12, 20)
    topic.publish([*first[2:], late, replicated(sharded, 9), replicated(newer, 30)])
    seen = log.after("consume('one')")
    ids = sorted([*ids, late.event_id, sharded.event_id])
    assert seen["ids"] == ids
    topic.publish([sharded, sharded, replicated(first[0], 50), twice := at(13, 90), twice])
    seen = log.after("consume('one')")
    ids = sorted([*ids, twice.event_id])
    assert seen["ids"] == ids

    # What others do to the table: the offsets in its history are those of the restored rows then, or none.
    topic.publish([at(14, 91)])
    log.after('session.sql(f"OPTIMIZE {table}")')
    log.after('consume("one")')
    log.after('session.sql(f"RESTORE TABLE {table} TO VERSION AS OF 1")')
    seen = log.after('consume("three")')
    assert seen["ids"] == sorted([*ids, at(14, 91).event_id])
    assert log.counts()[:5] == [(5, 0), (1, 0), (0, 6), (2, 4), (1, 4)]


def test_a_log_that_began_at_the_end_gets_the_rest_from_another_checkpoint(topic: Topic, log: Log) -> None:
    """I1: that it has the later offsets does not mean that it has the earlier ones."""
    topic.publish([at(number, number) for number in range(4)])
    log.after("consume('late', 'latest')")
    topic.publish([at(7, 7)])
    assert len(log.after("consume('late')")["ids"]) == 1
    assert len(log.after("consume('early')")["ids"]) == 5


FILES = """
import json, sys
from pathlib import Path
from tests.spark_consumers.local_spark import spark
from spark_consumers.change_log import ChangeLog
from spark_consumers.sinks.delta_log import DeltaLog
from tests.spark_consumers.lake_config import lake_config
from tests.benchmarks.decoded import Batches

with spark() as session:
    folder = Path(sys.argv[1])
    log = ChangeLog(DeltaLog(str(folder), lake_config(1e9, 1e9)), dict)
    log.plan(Batches(session, range(100), rows=10).get(0)).write([])
    actions = map(json.loads, (folder / "_delta_log/00000000000000000001.json").read_text().splitlines())
    json.dump([json.loads(each["add"]["stats"]) for each in actions if "add" in each], sys.stdout)
"""


def test_files_have_the_bounds_of_columns_that_queries_filter_on(tmp_path: Path, spark_process: SparkProcess) -> None:
    """Those of images and tokens take a fifth of an append, and no query has a use for them."""
    (found,) = json.loads(spark_process.run(FILES, str(tmp_path / "log")))
    filtered = {"source", "committed_at", "event_id", "operation", "key", "topic", "partition", "offset"}
    assert found["numRecords"] == 10
    assert found["minValues"].keys() == found["maxValues"].keys() == {*filtered, "token_timestamp"}


TWO_WRITERS = """
import sys
import pytest
from tests.spark_consumers.local_spark import spark
from relay.errors import Unavailable
from spark_consumers.change_log import ChangeLog
from spark_consumers.sinks.delta_log import DeltaLog
from tests.spark_consumers.lake_config import lake_config
from tests.benchmarks.decoded import Batches

with spark() as session:
    path = sys.argv[1]
    batches = Batches(session, range(100), rows=10)
    consumers = [ChangeLog(DeltaLog(path, lake_config(1e9, 1e9)), dict) for _ in range(2)]
    for number in range(3):  # the first time, the log is empty
        batch = batches.get(number)
        plans = [each.plan(batch) for each in consumers]  # both have read what the log has
        assert plans[0].write([])["applied"] == 10
        with pytest.raises(Unavailable, match="another consumer is appending to the change log"):
            plans[1].write([])
        # It reads again what the log has.
        assert consumers[1].plan(batch).write([]) == {"applied": 0, "ignored": 10}
        consumers.reverse()
    assert session.read.format("delta").load(path).count() == 30
"""


def test_of_two_consumers_with_one_log_the_slower_one_fails_and_reads_the_log_again(
    tmp_path: Path, spark_process: SparkProcess
) -> None:
    """Delta skips what the slower one appends. Elsewhere than in local folders, no lock keeps two apart."""
    spark_process.run(TWO_WRITERS, str(tmp_path / "log"))

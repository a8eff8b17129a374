"""Drivers that write one copy in Iceberg at once or after another one died, and the sessions that they need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark_consumers.spark_process import SparkProcess


@pytest.mark.services
def test_of_two_drivers_that_write_a_row_at_once_the_later_commit_is_decided_again(
    tmp_path: Path, spark_process: SparkProcess
) -> None:
    """I7: by the catalog's compare and set. An append would have the row twice."""
    found = json.loads(spark_process.run(TWO_DRIVERS, str(tmp_path)))
    assert found["failed"] == [True, True, True]
    assert found["rows"] == [["a", "a 20"], ["b", "b 11"], ["c", "c 9"], ["d", "d 30"]]


TWO_DRIVERS = """
import json, sys, time
from pathlib import Path
from threading import Thread
from pyspark.sql import functions as F
from tests.spark_consumers.local_spark import spark
from tests.spark_consumers.batches import change, layout, read
from tests.spark_consumers.targets import InIceberg

LAYOUT = layout({"id": "string"}, {"id": "string", "note": "string"})
folder = Path(sys.argv[1])

def written(number, key):
    return change(number, [key], {"id": key, "note": f"{key} {number}"})

def blocks(begun, go):
    def wait(key):
        Path(begun).touch()
        while not Path(go).exists():
            time.sleep(0.05)
        return key
    return F.udf(wait)

with spark() as session:
    ours, other = (InIceberg(session.newSession(), sys.argv[1]) for _ in range(2))
    run, failed = type(ours.table)._run, []

    def beside(changes, *between):
        begun, go = (str(folder / f"{name}{len(failed)}") for name in ("begun", "go"))

        def slow(session, statement):
            wait = blocks(begun, go)
            session.table("relay_batch").withColumn("k0", wait("k0")).createOrReplaceTempView("relay_batch")
            return run(ours.table, session, statement)

        def play():
            try:
                ours.play(LAYOUT, *changes)
            except Exception as error:
                errors.append(type(error).__name__)

        errors, ours.table._run = [], slow
        thread = Thread(target=play)
        thread.start()
        deadline = time.monotonic() + 120
        while not Path(begun).exists() and thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        other.play(LAYOUT, *between)
        Path(go).touch()
        thread.join()
        del ours.table._run
        failed.append(bool(errors))
        ours.play(LAYOUT, *changes)

    beside([written(5, "a"), written(6, "b")], written(20, "a"))  # both insert
    beside([written(11, "b"), written(9, "c")], written(10, "b"))  # one updates
    beside([read(3, ["d"], {"id": "d", "note": "read"}, as_of=1000)], written(30, "d"))  # of a snapshot
    json.dump({"failed": failed, "rows": ours.rows("id", "note")}, sys.stdout)
"""


@pytest.mark.faults("the same in Delta: test_delta_view.py; what two drivers do at once: the tests beside it")
@pytest.mark.services
def test_a_driver_that_dies_before_or_after_any_commit_is_followed_by_one_that_ends_as_without_it(
    tmp_path: Path, spark_process: SparkProcess
) -> None:
    """I1, I7"""
    assert json.loads(spark_process.run(KILLED, str(tmp_path))) >= 6


KILLED = """
import json, sys
from contextlib import suppress
from tests.spark_consumers.local_spark import spark
from tests.spark_consumers.batches import change, mark
from tests.spark_consumers.scenarios import ORDERS, order
from tests.spark_consumers.targets import InIceberg
from relay.change import Operation

class Killed(BaseException):
    pass

BATCHES = [
    [order(1, 1, "a"), order(2, 2, "a"), order(3, 2, "b"), change(4, (), None, Operation.TRUNCATE), order(5, 3, "c")],
    [order(6, 3, "d"), order(7, 4, "d"), mark(8, "begin", 2000)],
]

def killable(table, left):
    def cut_off(does):
        def step(*given):
            for kills in (True, False):
                left[0] -= 1
                if left[0] == 0:
                    raise Killed
                if kills:
                    found = does(*given)
            return found
        return step
    for name in ("_run", "replace_property"):
        setattr(table, name, cut_off(getattr(table, name)))
    return table

with spark() as session:
    at = 0
    while True:
        at += 1
        left, place = [at], f"{sys.argv[1]}/{at}"
        for batch in BATCHES:
            table = InIceberg(session, place)
            killable(table.table, left)
            with suppress(Killed):
                table.play(ORDERS, *batch)
                continue
            InIceberg(session, place).play(ORDERS, *batch)
        found = InIceberg(session, place).rows("id", "note")
        assert found == [(3, "d"), (4, "d")], (at, found)
        if left[0] > 0:
            break
    json.dump(at, sys.stdout)
"""


@pytest.mark.services
def test_rows_that_are_written_again_are_not_taken_for_those_of_changes(
    tmp_path: Path, spark_process: SparkProcess
) -> None:
    """I7: as an owner of the table has set it. The MERGE leaves a row of another shard to the rule."""
    spark_process.run(COPY_ON_WRITE, str(tmp_path))


COPY_ON_WRITE = """
import sys
from dataclasses import replace
from tests.spark_consumers.local_spark import spark
from tests.spark_consumers.scenarios import ORDERS, order
from tests.spark_consumers.targets import InIceberg

with spark() as session:
    table = InIceberg(session, sys.argv[1])
    first = order(1, 1, "a")
    elsewhere = replace(first, head=replace(first.head, token=replace(first.head.token, shard="shop/other/-")))
    table.play(ORDERS, elsewhere, order(2, 2, "b"))
    session.sql(f"ALTER TABLE {table.stored} SET TBLPROPERTIES ('write.merge.mode' = 'copy-on-write')")
    counts = table.play(ORDERS, order(3, 1, "c"), order(4, 2, "d"))
    assert counts.applied == 2, counts
    assert table.rows("id", "note") == [(1, "c"), (2, "d")]
"""


@pytest.mark.services
def test_a_session_that_would_not_see_the_commits_of_others_is_refused(spark_process: SparkProcess) -> None:
    """I7"""
    spark_process.run(UNREADY)


UNREADY = """
import pytest
from tests.spark_consumers.local_spark import spark
from relay.errors import ConfigError
from spark_consumers.sinks.iceberg_copy import refuse_unready

with spark() as session:
    refuse_unready(session, "lake")
    with pytest.raises(ConfigError, match="spark.sql.catalog.sea=org.apache.iceberg.spark.SparkCatalog"):
        refuse_unready(session, "sea")
    own = session.newSession()
    own.conf.set("spark.sql.catalog.lake.cache-enabled", "true")
    with pytest.raises(ConfigError, match="spark.sql.catalog.lake.cache-enabled=false"):
        refuse_unready(own, "lake")
"""


@pytest.mark.services
def test_a_spark_that_a_consumer_starts_knows_the_catalogs_of_its_config(tmp_path: Path) -> None:
    """Also without Delta."""
    code = [sys.executable, "-c", OWN_SPARK, str(tmp_path)]
    subprocess.run(code, check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.getcwd()})


OWN_SPARK = """
import sys
from pathlib import Path
from relay.config.spark import SparkConfig
from spark_consumers.session import close_session, open_session
from tests.spark_consumers.iceberg_catalog import settings
from tests.spark_consumers.scenarios import ORDERS, order
from tests.spark_consumers.targets import InIceberg

session = open_session("own", delta=False, spark=SparkConfig(conf=settings(Path(sys.argv[1]))))
try:
    table = InIceberg(session, "own")
    table.play(ORDERS, order(1, 1, "a"))
    assert table.rows("id", "note") == [(1, "a")]
finally:
    close_session(session)
"""


@pytest.mark.services
def test_a_property_that_another_driver_has_changed_is_not_replaced(
    tmp_path: Path, spark_process: SparkProcess
) -> None:
    """I7, I9: as gaps and the snapshots that were seen are kept."""
    assert json.loads(spark_process.run(PROPERTIES, str(tmp_path))) == [True, False, True, "c $x tokens"]


PROPERTIES = """
import json, sys
from tests.spark_consumers.local_spark import spark
from tests.spark_consumers.scenarios import ORDERS, order
from tests.spark_consumers.targets import InIceberg

with spark() as session:
    table = InIceberg(session, sys.argv[1])
    table.play(ORDERS, order(1, 1, "a"))
    steps = ((None, "a"), (None, "b"), ("a", "c $x tokens"))
    found = [table.table.replace_property(session.range(0), "relay.test", *step) for step in steps]
    json.dump([*found, table.table.properties(session.range(0))["relay.test"]], sys.stdout)
"""

"""The consumers on the other versions of Spark that they work with, each with its own connectors.

PySpark of a version is in a folder of the cache, before the one of the environment: processes here begin with it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
import pytest

from relay.cache import RedisStore, entry_key, generation_key
from relay.cache.entry import decode
from relay.change import Change, Operation
from relay.jvm.connectors import CONNECTORS, connectors_of, minor
from relay.jvm.jars import cache_folder
from relay.process.folders import made_once
from tests.log_lines import rows_applied
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change
from tests.waiting import wait_until

# The newest patch of each, whose connectors are those of an older one. All other tests play the version that is locked.
VERSIONS = ("4.1.4", "4.2.1")

faults = pytest.mark.faults("other versions of Spark: test_runs.py and test_own_session.py play the locked one")


def test_every_version_that_is_not_refused_is_played() -> None:
    assert {minor(version) for version in (*VERSIONS, pyspark.__version__)} == CONNECTORS.keys()


def installed(version: str) -> Path:
    """Return a folder with this PySpark, installed if need be: 450 MB are downloaded, and half a minute of CPU."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache_folder() / "tests" / f"pyspark-{version}-python{python}"

    def install() -> None:
        uv = shutil.which("uv")
        assert uv is not None, "uv is not on the PATH"
        draft = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(draft, ignore_errors=True)
        command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", str(draft)]
        ran = subprocess.run([*command, f"pyspark=={version}"], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr[-3000:]
        draft.rename(folder)

    return made_once(folder, install)


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> Iterator[str]:
    """A version of Spark, on which the processes that are started meanwhile run."""
    found = os.pathsep.join(filter(None, (str(installed(request.param)), os.environ.get("PYTHONPATH"))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", found)
        patch.delenv("SPARK_SUBMIT_OPTS", raising=False)  # classes of another version
        yield request.param


@pytest.fixture(scope="module")
def spark(version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    process = SparkProcess(tmp_path_factory.mktemp(f"spark-{version}"))
    yield process
    process.close()


@pytest.fixture
def topic(tmp_path: Path, kafka: Any, redis_server: Any, unique: str, spark: SparkProcess) -> Topic:
    return Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url, spark)


def history(first: int) -> list[Change]:
    """Updates of twenty customers, each of some versions from ``first`` on, and deletions of every fifth."""
    found = [change(f"c{number}", first + n) for n in range(5) for number in range(n % 3, 20, 3)]
    return [*found, *(change(f"c{number}", first + 5, Operation.DELETE) for number in range(first % 5, 20, 5))]


def newest(changes: list[Change]) -> dict[str, Change]:
    return {str((one.key or {})["customer"]): one for one in changes}


def truth(changes: list[Change]) -> dict[str, int]:
    """Return the version of each customer's order that was not deleted."""
    left = {customer: one.new for customer, one in newest(changes).items() if one.operation is not Operation.DELETE}
    return {customer: int(json.loads(str(image))["version"]["N"]) for customer, image in left.items()}


@faults
@pytest.mark.services
def test_consumers_that_run_and_start_again_keep_what_was_written(
    topic: Topic, version: str, redis_server: Any
) -> None:
    """I7, I6: the log, a copy in Delta and the cache, through batches that come while they run, and a restart."""
    changes = history(1)
    topic.publish(changes)
    running = topic.start_in_spark("cache log copy", checkpoint="all")

    def are_applied(records: int) -> bool | None:
        assert running.is_running, running.log()
        done = rows_applied(topic.log)
        return all(done[name] >= records for name in ("cache", "log", "copy")) or None

    for more in (history(11), history(21), []):
        wait_until(partial(are_applied, len(changes)))
        topic.publish(more)
        changes += more
    assert running.terminate() == 0, running.log()
    last = [change("c0", 31), change("new", 31, Operation.INSERT)]
    topic.publish(last)
    changes += last
    topic.consume("cache log copy", checkpoint="all")
    found = topic.apply()
    assert found["copy"] == truth(changes)
    assert sorted(found["log"]) == sorted(one.event_id for one in changes)
    with RedisStore(redis_server.url) as store:
        keys = [entry_key(topic.config.name, f"order:{name}") for name in newest(changes)]
        stored, _ = store.read(keys, generation_key(topic.config.name))
    entries = [decode(each.meta) if each else None for each in stored]
    cached = [list(entry.tokens.values()) if entry else [] for entry in entries]
    assert cached == [[one.token] for one in newest(changes).values()]


SESSION = """
import json, pathlib, sys
import pyspark
import spark_consumers
from relay.config import load
from spark_consumers.sinks.iceberg_target import IcebergPlace
from tests.spark_consumers.local_spark import spark
from tests.spark_consumers.topic import copied

config, unique, folder = load(pathlib.Path(sys.argv[1])), sys.argv[2], pathlib.Path(sys.argv[3])
with spark() as session:
    assert session.version == pyspark.__version__ == sys.argv[4], (session.version, pyspark.__file__)
    own = session.newSession()
    own.conf.set(f"fs.viewfs.mounttable.{unique}.link./relay", folder.as_uri())
    for _ in range(2):
        spark_consumers.run("copy", config, until_caught_up=True, checkpoint=f"viewfs://{unique}/relay/c", spark=own)
    changes = spark_consumers.read_changes(own, config, table="orders", streaming=False)
    found = {"changes": changes.count(), "deleted": changes.where("operation = 'DELETE'").count()}
    if config.copy_.url.startswith("iceberg:"):
        rows = IcebergPlace.of(config.copy_.url).rows("orders", "orders")
        kept = own.sql(f"SELECT customer, item FROM {rows} WHERE NOT _relay_deleted").collect()
        found["copy"] = {customer: int(json.loads(item)["version"]["N"]) for customer, item in kept}
    else:
        found["copy"] = copied(config, "orders")
json.dump(found, sys.stdout)
"""


@faults
@pytest.mark.services
@pytest.mark.parametrize(
    ("version", "target"),
    [
        (version, target)
        for version in VERSIONS
        for target in ("postgres", "iceberg")
        if target == "postgres" or connectors_of(version).iceberg is not None  # Iceberg may have no release for it yet
    ],
    indirect=["version"],
)
def test_what_spark_does_not_promise_is_as_it_was(
    topic: Topic, version: str, target: str, unique: str, tmp_path: Path, database_url: str, spark: SparkProcess
) -> None:
    """I7: checkpoints in a file system of Hadoop, rows of plans, tables of Iceberg, in a session of one's own."""
    changes = [*history(1), *history(11)]
    topic.publish(changes)
    topic.set_copy_url(database_url if target == "postgres" else f"iceberg://folders/{unique}")
    catalog = {"spark.sql.catalog.folders": "org.apache.iceberg.spark.SparkCatalog"}
    topic.set_spark(conf=catalog if target == "iceberg" else {})
    arguments = [str(topic.path), unique, str(tmp_path), version]
    found = json.loads(spark.run(SESSION, *arguments, log=tmp_path / "session.log", compiled=True))
    deleted = sum(one.operation is Operation.DELETE for one in changes)
    assert found == {"changes": len(changes), "deleted": deleted, "copy": truth(changes)}

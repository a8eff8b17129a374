"""The consumers on a cluster of Spark, and what they refuse there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from relay.cache import RedisStore, entry_key, generation_key
from relay.cache.entry import decode
from relay.cli import app
from relay.errors import ConfigError
from relay.jvm.connectors import installed_connectors
from spark_consumers.session import connectors
from tests.log_lines import rows_applied
from tests.spark_consumers.standalone_cluster import StandaloneCluster
from tests.spark_consumers.topic import Topic, change
from tests.waiting import wait_until

pytestmark = [pytest.mark.services]

SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture
def topic(tmp_path: Path, unique: str, kafka: Any, redis_server: Any) -> Topic:
    return Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path) as cluster:
        yield cluster


@pytest.mark.faults("Spark repeats the tasks of a lost worker; code on executors: test_runs.py `on the workers`")
def test_the_consumers_are_right_on_a_cluster_that_loses_a_worker(
    topic: Topic, cluster: StandaloneCluster, redis_server: Any
) -> None:
    """So many changes that the cache's are applied by the executors, with the code that came from here."""
    names = [f"c{number:03}" for number in range(500)]
    before = [change(name, version) for version in range(1, 22) for name in names]
    after = [change(name, version) for version in (30, 31) for name in names[:50]]
    topic.set_spark(conf=SETTINGS, shared_folders=True)
    topic.publish(before)
    process = topic.start("cache log copy", "--master", cluster.url, checkpoint="all")

    def applied() -> Counter[str]:
        assert process.is_running, process.log()
        return rows_applied(topic.log)

    wait_until(lambda: applied() or None, 120)
    cluster.workers[0].kill()
    topic.publish(after)
    everything = dict.fromkeys(("cache", "log", "copy"), len(before) + len(after))
    wait_until(lambda: applied() == everything or None, 180)
    assert process.stop(timeout=60) == 0, process.log()
    found = topic.apply()
    latest = {name: 31 if number < 50 else 21 for number, name in enumerate(names)}
    assert found["copy"] == latest
    assert found["log"] == sorted(one.event_id for one in before + after)
    with RedisStore(redis_server.url) as store:
        namespace = topic.config.name
        stored, _ = store.read([entry_key(namespace, f"order:{name}") for name in names], generation_key(namespace))
    positions = {name: decode(each.meta) for name, each in zip(names, stored, strict=True) if each is not None}
    assert {
        name: [int(token.position.partition("/")[2]) - 10**20 for token in entry.tokens.values() if token is not None]
        for name, entry in positions.items()
        if entry is not None
    } == {name: [version] for name, version in latest.items()}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cache",), "cache: its checkpoint (--checkpoint) is the local folder "),
        (("log", "--checkpoint", "hdfs://host/c"), "log: its table (`log.path`) is the local folder "),
        (("copy", "--checkpoint", "hdfs://host/c"), "copy: its table (`copy.url`) is the local folder "),
        (("copy", "--checkpoint", "file:///c"), "copy: its checkpoint (--checkpoint) is the local folder /c"),
    ],
)
def test_folders_of_one_machine_are_refused_on_a_cluster(topic: Topic, arguments: tuple[str, ...], said: str) -> None:
    command = ["consume", arguments[0], str(topic.path), "--master", "spark://elsewhere:7077", *arguments[1:]]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert said in result.output
    assert "spark.shared_folders: true" in result.output


def test_without_spark_its_options_are_refused(topic: Topic) -> None:
    result = CliRunner().invoke(app, ["consume", "cache", str(topic.path), "--engine", "python", "--conf", "spark.a=1"])
    assert result.exit_code == 2
    assert "omit --master and --conf" in result.output


def test_connectors_come_from_a_folder_that_has_them(tmp_path: Path) -> None:
    names = [f"{each.name}-{each.version}.jar" for each in installed_connectors().spark.artifacts]
    for name in (*names[:-1], "kafka-clients.jar"):
        (tmp_path / name).touch()
    found = connectors(str(tmp_path), delta=False)
    assert sorted(jar.name for jar in found) == sorted((*names[:-1], "kafka-clients.jar"))
    with pytest.raises(ConfigError, match=r"the folder .* has no delta-spark_2.13-4.0.0.jar: copy all"):
        connectors(str(tmp_path), delta=True)
    with pytest.raises(ConfigError, match=r"has no iceberg-spark-runtime-4.0_2.13-1.10.1.jar: copy all"):
        connectors(str(tmp_path), delta=False, iceberg=True)
    assert connectors("installed", delta=True) == []

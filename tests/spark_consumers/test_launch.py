"""Several consumers in one Spark."""

from __future__ import annotations

import re
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread
from typing import Any, Literal

import orjson
import pytest
from typer.testing import CliRunner

from relay.cli import app
from relay.config import Config
from relay.errors import ConfigError
from relay.kafka.group_offsets import consumer_addresses
from relay.process.managed import free_port
from spark_consumers import run
from spark_consumers.checkpoint import ConsumerCheckpoint
from spark_consumers.locations import Lock
from tests.log_lines import log_lines, rows_applied
from tests.observe.requests import get
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change
from tests.waiting import wait_until

pytestmark = pytest.mark.services


@pytest.fixture
def topic(tmp_path: Path, unique: str, kafka: Any, redis_server: Any, spark_process: SparkProcess) -> Topic:
    return Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url, spark_process)


def test_a_start_is_refused_if_another_consumer_begins_the_checkpoint_meanwhile(topic: Topic) -> None:
    """I1: a person who names a start would take it for the one that counts."""
    folder = topic.folder / "checkpoints" / "log"
    lock = Lock(folder / "lock", "the checkpoint")
    held = ExitStack()
    held.enter_context(lock)

    def begin() -> None:
        wait_until(lambda: times_open(lock.path) == 2 or None)
        ConsumerCheckpoint(str(folder)).begin({})
        held.close()

    other = Thread(target=begin)
    other.start()
    with pytest.raises(ConfigError, match="--from latest only applies to a new checkpoint"):
        run("log", topic.config, start="latest", checkpoint=folder)
    other.join()


def times_open(path: Path) -> int:
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found += each.readlink() == path.resolve()
    return found


def test_each_consumer_has_its_own_progress(topic: Topic, database_url: str) -> None:
    topic.set_copy_url(database_url)
    topic.publish([change("ada", 1), change("bob", 1)])
    topic.consume("log", checkpoint="all/log")
    topic.consume("cache log copy", checkpoint="all")
    assert rows_applied(topic.log) == {"cache": 2, "copy": 2}
    topic.publish([change("ada", 2)])
    topic.consume("cache log copy", checkpoint="all")
    assert rows_applied(topic.log) == {"cache": 1, "log": 1, "copy": 1}


def test_one_that_fails_does_not_stop_the_others_and_is_started_again(topic: Topic) -> None:
    """It takes five attempts to give up, and half a minute until the next start."""
    blocked = topic.folder / "copy"
    blocked.write_text("a file where the folder of the copy belongs")
    port = free_port()
    process = topic.start_in_spark("log copy", "--http", f"127.0.0.1:{port}", checkpoint="all")
    topic.publish([change("ada", 1)])

    def failed() -> bool | None:
        assert process.is_running, process.log()
        return {e["consumer"] for e in log_lines(topic.log, "failed")} == {"copy"} or None

    wait_until(failed, 120)

    def stalled() -> Any:
        code, _, health = get(port, "/healthz")
        stalls = orjson.loads(health)["stalls"] if code == 503 else []
        return next((each for each in stalls if each["what"] == "consumer copy fails again and again"), None)

    assert "copy" in wait_until(stalled, 60)["error"]
    topic.publish([change("ada", 2)])
    wait_until(lambda: rows_applied(topic.log).get("log") == 2 or None, 60)

    def metrics() -> str:
        return get(port, "/metrics")[2].decode()

    wait_until(lambda: 'relay_consumer_changes_total{consumer="log",outcome="applied"} 2.0' in metrics(), 60)
    (failed_times,) = re.findall(r'^relay_consumer_failures_total\{consumer="copy"\} (.*)$', metrics(), re.MULTILINE)
    assert float(failed_times) >= 6  # more, if it was started again meanwhile
    assert 'relay_consumer_records_total{consumer="copy"} 0.0' in metrics()
    blocked.unlink()
    wait_until(lambda: rows_applied(topic.log).get("copy") == 2 or None, 120)
    wait_until(lambda: get(port, "/healthz")[0] == 200 or None, 10)
    assert get(port, "/readyz")[0] == 200
    waiting = re.compile(r'^relay_consumer_lag_records\{consumer="(log|copy)"\} 0\.0$', re.MULTILINE)
    wait_until(lambda: len(waiting.findall(get(port, "/metrics")[2].decode())) == 2 or None, 30)
    assert consumer_addresses(topic.config) == {f"127.0.0.1:{port}@{socket.gethostname()}": ["log", "copy"]}
    assert process.terminate() == 0, process.log()
    assert consumer_addresses(topic.config) == {}
    assert {e["consumer"] for e in log_lines(topic.log, "stopped")} == {"log", "copy"}


def test_until_caught_up_the_others_finish_and_the_failure_is_the_result(topic: Topic) -> None:
    (topic.folder / "copy").write_text("a file where the folder of the copy belongs")
    topic.publish([change("ada", 1)])
    topic.refuse("copy log", checkpoint="all", code=1)
    assert rows_applied(topic.log) == {"log": 1}
    assert "copy: gave up after" in topic.log.read_text()


@pytest.mark.parametrize("engine", ["spark", "python"])
def test_tables_that_only_the_database_names_are_not_taken_for_none(engine: Literal["spark", "python"]) -> None:
    """I1: a program, unlike the command, does not ask the database."""
    legacy = {"name": "legacy", "type": "mysql", "shards": {"-": ["db:1"]}, "database": "legacy", "user": "relay"}
    config = {"name": "shop", "kafka": {"bootstrap_servers": "k:1"}, "sources": [{**legacy, "password": "secret"}]}
    cache = {"url": "redis://r:1/0", "namespace": "shop", "keys": {"orders": ["order:{id}"]}}
    with pytest.raises(ConfigError, match="source legacy: its tables are not known: list them in `tables`"):
        run("cache", Config.model_validate({**config, "cache": cache}), engine=engine)


def test_only_the_cache_runs_without_spark(topic: Topic) -> None:
    result = CliRunner().invoke(app, ["consume", "cache", "copy", str(topic.path), "--engine", "python"])
    assert result.exit_code == 2
    assert "only the cache runs without Spark, not the cache and the copy" in result.output

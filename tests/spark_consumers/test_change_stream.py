"""A consumer of one's own, with the progress, retries and dead letters of the relay's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from relay.change import Change
from relay.errors import ConfigError
from spark_consumers import changes
from spark_consumers.checkpoint import ConsumerCheckpoint
from tests.log_lines import log_lines
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change

pytestmark = pytest.mark.services

# Counts the versions that each batch has. Fails once if a file says so.
SCRIPT = """
import json, pathlib, sys
import spark_consumers
from relay.config import load
from tests.spark_consumers.local_spark import spark

config = load(pathlib.Path(sys.argv[1]))
folder = pathlib.Path(sys.argv[1]).parent

def apply(batch, number):
    found = [json.loads(row.new)["version"]["N"] for row in batch.orderBy("topic", "partition", "offset").collect()]
    with open(folder / "applied", "a") as file:
        file.write(json.dumps([number, found]) + "\\n")
    if (folder / "fail").exists():
        (folder / "fail").unlink()
        raise OSError("the disk is full")

def note(gap):
    with open(folder / "gaps", "a") as file:
        file.write(json.dumps(gap) + "\\n")

with spark():
    stream = spark_consumers.changes(config, ["orders"], name="mine", checkpoint=folder / "point", on_gap=note)
    stream.foreach_batch(apply, until_caught_up=True)
"""


@pytest.fixture
def topic(tmp_path: Path, unique: str, kafka: Any, spark_process: SparkProcess) -> Topic:
    return Topic(tmp_path, unique, kafka.bootstrap_servers, "redis://127.0.0.1:1/0", spark_process)


def applied(topic: Topic, script: str = SCRIPT) -> list[Any]:
    assert topic.spark is not None
    topic.spark.run(script, str(topic.path), log=topic.folder / "stderr")
    found = [json.loads(line) for line in (topic.folder / "applied").read_text().splitlines()]
    (topic.folder / "applied").unlink()
    return found


def test_batches_come_once_in_order_and_again_if_they_failed(topic: Topic) -> None:
    topic.publish([change("ada", version) for version in range(1, 4)])
    (topic.folder / "fail").touch()
    assert applied(topic) == [[0, ["1", "2", "3"]]] * 2
    topic.publish([change("ada", 4)])
    assert applied(topic) == [[1, ["4"]]]


def test_a_program_that_is_started_again_goes_on_whatever_start_it_names(topic: Topic) -> None:
    """I10: a supervisor starts it with the same words, and what came meanwhile may not be passed over."""
    script = SCRIPT.replace('folder / "point"', 'folder / "point", start="-1h"')
    topic.publish([change("ada", 1)])
    assert applied(topic, script) == [[0, ["1"]]]
    topic.publish([change("ada", 2)])
    assert applied(topic, script) == [[1, ["2"]]]
    (said,) = log_lines(topic.folder / "stderr", "goes on")
    assert (said["start"], said["offsets"].keys()) == ("-1h", {topic.name, topic.config.internal("gaps")})


def test_a_start_that_is_none_is_refused_also_where_a_checkpoint_goes_on(topic: Topic) -> None:
    ConsumerCheckpoint(str(topic.folder / "point")).begin({})
    stream = changes(topic.config, name="mine", start="erliest", checkpoint=topic.folder / "point")
    with pytest.raises(ConfigError, match="start erliest: use earliest, latest"):
        stream.foreach_batch(lambda batch, number: None)


def test_a_record_that_is_not_a_change_is_a_dead_letter(topic: Topic) -> None:
    topic.publish([change("ada", 1)])
    topic.publish_raw(b"hello")
    assert applied(topic) == [[0, ["1"]]]
    ((key, value, reason),) = topic.dead_letters()
    assert key.endswith(b"/mine")
    assert (value, reason) == (b"hello", "unknown framing")


def test_a_gap_comes_before_the_batch_that_it_came_with(topic: Topic) -> None:
    """I9: whoever applies changes has to know that some are missing."""
    gap = {"id": "1", "source": "orders", "stream": "s", "shard": "0", "reason": "trimmed", "found_at": 7.0}
    producer = Producer(topic.config.kafka.client())
    producer.produce(topic.config.internal("gaps"), json.dumps(gap), b"1", partition=0)
    assert producer.flush(30) == 0
    topic.publish([change("ada", 1)])
    assert applied(topic) == [[0, ["1"]]]
    (found,) = map(json.loads, (topic.folder / "gaps").read_text().splitlines())
    assert json.loads(found["record"]) == gap
    assert (found["source"], found["reason"], found["found_at"]) == ("orders", "trimmed", 7.0)


def line(version: int) -> Change:
    found = change("bob", version)
    found.source = found.table = "lines"
    return found


def test_a_topic_that_is_no_longer_asked_for_is_not_passed_over(topic: Topic) -> None:
    """I1: it may be asked for again."""
    topic.publish([change("ada", 1), line(2)])
    both = SCRIPT.replace('["orders"]', '["orders", "lines"]')
    assert [sorted(found) for _, found in applied(topic, both)] == [["1", "2"]]
    topic.publish([change("ada", 3), line(4)])
    with pytest.raises(AssertionError, match=f"topic {topic.config.topic('lines')} is no longer requested"):
        applied(topic)
    elsewhere = SCRIPT.replace('folder / "point"', 'folder / "other", start="committed"')
    assert applied(topic, elsewhere) == [[0, ["3"]]]
    assert [sorted(found) for _, found in applied(topic, both)] == [["3", "4"]]


def test_a_table_that_left_the_config_is_read_to_its_end_where_all_were_asked_for(topic: Topic) -> None:
    """I1: it may have been dropped."""
    everything = SCRIPT.replace('["orders"], ', "")
    topic.publish([change("ada", 1), line(2)])
    assert [sorted(found) for _, found in applied(topic, everything)] == [["1", "2"]]
    topic.publish([change("ada", 3), line(4)])
    topic.leave_out("lines")
    assert [sorted(found) for _, found in applied(topic, everything)] == [["3", "4"]]


def test_the_names_of_the_relays_own_consumers_are_taken(topic: Topic) -> None:
    with pytest.raises(ConfigError, match="'copy' is one of the relay's own consumers"):
        changes(topic.config, ["orders"], name="copy")

"""A replay of a topic of two tables whose rows have equal keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relay.change import Operation
from tests.log_lines import log_lines
from tests.spark_consumers.shared_topic import AS_OF, of_lines, rows, snapshot
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change, read

pytestmark = pytest.mark.services

REPLAY = """
import os, sys
from unittest import mock
from relay.cli import main

with mock.patch.dict(os.environ, RELAY_STATE=sys.argv.pop(1)):
    main()
"""


def replay(topic: Topic, into: str, *options: str) -> list[str]:
    """Run a replay of the copy; return the events in its log. AssertionError with the log if it fails."""
    assert topic.spark is not None
    log = topic.folder / f"replay-{len(options)}.log"
    arguments = str(topic.folder / "state"), "replay", "copy", str(topic.path), "--into", into, *options
    topic.spark.run(REPLAY, *arguments, log=log)
    return [event["event"] for event in log_lines(log)]


def test_a_snapshot_of_each_table_makes_up_for_a_lost_beginning(
    tmp_path: Path, kafka: Any, unique: str, spark_process: SparkProcess
) -> None:
    """I7, I9"""
    topic = Topic(tmp_path, unique, kafka.bootstrap_servers, "redis://127.0.0.1:1/0", spark_process, shared=True)
    topic.publish([*rows(10), *of_lines([*rows(20)])])
    topic.remove_all()
    topic.publish(snapshot(read("c0", 10, AS_OF)))
    into = f"delta://{topic.folder}/rebuilt"
    with pytest.raises(AssertionError, match="would create a partial copy"):
        replay(topic, into)
    topic.publish(of_lines(snapshot(read("c0", 20, AS_OF), read("c2", 22, AS_OF))))
    topic.publish([change("c0", 300), *of_lines([change("c2", 301, Operation.DELETE)])])
    swap = "--swap", "--checkpoint", str(topic.folder / "checkpoints" / "copy")
    assert replay(topic, into, *swap)[-2:] == ["replayed", "swapped"]
    found = topic.apply()
    assert (found["copy"], found["lines"]) == ({"c0": 300}, {"c0": 20})

"""What the new target of a replay refuses: all changes of a table, or a row."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relay.config import load
from relay.operations.dead_letters import DeadLetters
from relay.table import Column, KeyColumn, TableSchema
from tests.spark_consumers.topic import Topic, change, copied

pytestmark = pytest.mark.services

REPLAY = """
import os, sys
from unittest import mock
from relay.cli import main
from spark_consumers import copy

with mock.patch.dict(os.environ, RELAY_STATE=sys.argv.pop(1)), mock.patch.object(copy, "_AT_MOST", 2):
    try:
        main()
    except SystemExit as ended:
        print(ended.code)
"""
BY_NOTE = TableSchema("orders", "orders", (KeyColumn("note", "string"),), 1, (Column("note", "string"),))


def replay(topic: Topic, into: str, *options: str) -> tuple[str, str]:
    """Return the exit code of a replay of the copy, in batches of two records, and its log."""
    log = topic.folder / f"replay-{len(list(topic.folder.glob('replay-*.log')))}.log"
    assert topic.spark is not None
    given = str(topic.folder / "state"), "replay", "copy", str(topic.path), "--into", into, *options
    printed = topic.spark.run(REPLAY, *given, log=log)
    return printed.splitlines()[-1], log.read_text()


def line(version: int) -> Any:
    one = change("ada", version)
    one.source = one.table = "lines"
    return one


def by_note() -> Any:
    """Return a change of ``orders``, which has another key now."""
    one = change("c0", 2)
    one.key, one.old, one.new = {"note": "a"}, None, {"note": "a"}
    return one


def test_a_replay_that_sets_a_table_aside_fails_and_takes_the_place_of_nothing(topic: Topic) -> None:
    """I7, I12: however often it is run, with or without a swap."""
    topic.publish([change("c0", 1), line(1)])
    topic.consume("copy", checkpoint="copy")
    topic.publish_rows(BY_NOTE, by_note())
    into, point = f"delta://{topic.folder}/rebuilt", topic.folder / "checkpoints" / "copy"
    swap = "--swap", "--checkpoint", str(point)
    before = sorted(path.name for path in point.iterdir())
    for options in swap, (), swap:
        code, log = replay(topic, into, *options)
        assert code == "1", log
        assert f"error: the replay into {into} lacks changes of these tables, and nothing was swapped:" in log
        assert "  orders: delta.`" in log
        assert "the changes have the key note" in log
        assert f"remove the cause, {into} and {topic.folder}/state/{topic.config.name}/replay-copy-" in log
        assert '"replayed"' not in log
        assert '"swapped"' not in log
    assert sorted(path.name for path in point.iterdir()) == before
    found = topic.apply()
    assert (found["copy"], found["lines"]) == ({"c0": 1}, {"ada": 1})
    topic.set_copy_url(into)
    assert topic.apply()["lines"] == {"ada": 1}  # the others have gone on


def test_a_row_that_only_the_new_target_of_a_replay_refuses_becomes_a_dead_letter(
    topic: Topic, database_url: str
) -> None:
    """I12: the consumer, which writes to Delta, has taken it. It has sent all others."""
    topic.publish([change("a\0b", 1), change("c0", 2), line(1)])
    topic.publish_raw(b"damaged")
    assert topic.consume("copy", checkpoint="copy")["dead_letters"] == 1
    code, log = replay(topic, database_url)
    assert code == "0", log
    counted = [json.loads(each)["dead_letters"] for each in log.splitlines() if '"progress"' in each]
    assert sum(counted) == 2
    sent = [reason for _, _, reason in topic.dead_letters()]
    assert sent == ["unknown framing", "refused by the table"]
    refused = DeadLetters(topic.config).pending(reason="refused by the table")
    assert [letter.text("consumer") for letter in refused] == ["copy"]
    assert "NUL" in refused[0].text("detail")
    assert copied(load(topic.path), "orders") == {"a\0b": 1, "c0": 2}

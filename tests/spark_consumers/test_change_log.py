"""The change log has each change once, whatever comes again and from where (I7)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relay.change import Change
from relay.token import OriginToken
from tests.spark_consumers.topic import SHARD, Topic, change

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]

HOUR = 3600

SCRIPT = """
import json, pathlib, sys
import spark_consumers
from relay.config import load
from relay.demo.tables import spark

path = pathlib.Path(sys.argv[1])
config, table = load(path), f"delta.`{path.parent / 'log'}`"

def consume(checkpoint, start=None):
    spark_consumers.run(
        "log", config, until_caught_up=True, start=start, checkpoint=path.parent / "checkpoints" / checkpoint
    )

def look():
    rows = session.sql(f"SELECT event_id, offset FROM {table} ORDER BY event_id").collect()
    commits = [row["operation"] for row in session.sql(f"DESCRIBE HISTORY {table}").collect()]
    return {"rows": [list(row) for row in rows], "commits": commits}

with spark() as session:
    for line in sys.stdin:
        exec(json.loads(line))
        print(json.dumps(look()), flush=True)
"""


class Log:
    """The log of a topic, and a Spark that consumes into it and looks at it when the test says."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._errors = (topic.folder / "stderr").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(topic.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def after(self, code: str) -> Any:
        """Run ``code``; return the rows of the log, as event id and offset, and its commits, newest first."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, (self.topic.folder / "stderr").read_text()[-4000:]
        return json.loads(answer)

    def counts(self) -> Sequence[tuple[int, int]]:
        """Return what each batch has applied and ignored."""
        lines = (self.topic.folder / "stderr").read_text().splitlines()
        batches = [json.loads(line) for line in lines if line.startswith('{"event": "batch"')]
        return [(batch["applied"], batch["ignored"]) for batch in batches]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.stdout is not None
        self._process.stdout.close()
        assert self._process.wait(60) == 0
        self._errors.close()


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
def log(topic: Topic) -> Iterator[Log]:
    found = Log(topic)
    yield found
    found.close()


def test_each_change_is_in_the_log_once(topic: Topic, log: Log) -> None:
    """I7: after replays, resets, lags of many hours, an OPTIMIZE and a RESTORE; and a new change costs an append."""
    first = [at(number, number / 10) for number in range(5)]
    topic.publish(first)
    seen = log.after("consume('one')")
    ids = sorted(one.event_id for one in first)
    assert [event for event, _ in seen["rows"]] == ids

    # Newer changes are appended. The whole topic again, by another checkpoint, changes nothing.
    topic.publish([newer := at(9, 2)])
    seen = log.after("consume('one')")
    ids = sorted([*ids, newer.event_id])
    assert [event for event, _ in seen["rows"]] == ids
    assert [kind for kind in seen["commits"] if kind != "OPTIMIZE"] == ["WRITE", "WRITE", "CREATE TABLE"]
    assert log.after("consume('two')") == seen

    # A reset publishes some again, beside one that was late. So does a reshard, whose replication lagged for hours,
    # from the source of the reshard or from its target.
    late, sharded = at(11, 1), at(12, 20)
    topic.publish([*first[2:], late, replicated(sharded, 9), replicated(newer, 30)])
    seen = log.after("consume('one')")
    ids = sorted([*ids, late.event_id, sharded.event_id])
    assert [event for event, _ in seen["rows"]] == ids
    topic.publish([sharded, sharded, replicated(first[0], 50), twice := at(13, 90), twice])
    seen = log.after("consume('one')")
    ids = sorted([*ids, twice.event_id])
    assert [event for event, _ in seen["rows"]] == ids

    # What others do to the table: the offsets in its history are those of the restored rows then, or none.
    topic.publish([at(14, 91)])
    log.after('session.sql(f"OPTIMIZE {table}")')
    log.after('consume("one")')
    log.after('session.sql(f"RESTORE TABLE {table} TO VERSION AS OF 1")')
    seen = log.after('consume("three")')
    assert [event for event, _ in seen["rows"]] == sorted([*ids, at(14, 91).event_id])
    assert log.counts()[:5] == [(5, 0), (1, 0), (0, 6), (2, 4), (1, 4)]


def test_a_log_that_began_at_the_end_gets_the_rest_from_another_checkpoint(topic: Topic, log: Log) -> None:
    """I1: that it has the later offsets says nothing about the earlier ones."""
    topic.publish([at(number, number) for number in range(4)])
    log.after("consume('late', 'latest')")
    topic.publish([at(7, 7)])
    assert len(log.after("consume('late')")["rows"]) == 1
    assert len(log.after("consume('early')")["rows"]) == 5

"""The changes of a range of keyspace ids, from a Vitess that is resharded, by every way to read them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import yaml

import relay
from relay.change import Operation
from relay.demo.orders import TABLE
from relay.demo.sql_orders import SQLWriter
from relay.demo.vitess_orders import BEFORE, TARGETS, VitessOrders
from relay.keyrange import KeyRange
from tests import needs
from tests.command_line import relay as command
from tests.command_line import run_until_caught_up
from tests.spark_consumers import delta_rows
from tests.spark_consumers.spark_process import SparkProcess

pytestmark = pytest.mark.services

CONSUME = """
import json, pathlib, sys
import spark_consumers
from relay.config import load
from tests.spark_consumers.local_spark import spark

config = load(pathlib.Path(sys.argv[1]))
with spark() as session:
    for keyrange in sys.argv[2:]:
        spark_consumers.run("log", config, until_caught_up=True, keyrange=keyrange)
"""


def test_ranges_that_partition_the_key_space_have_each_change_once_also_through_a_reshard(
    kafka: Any, unique: str, tmp_path: Path, spark_process: SparkProcess
) -> None:
    """I1, I3: and each of them has what is of no row."""
    needs.vitess()
    path = tmp_path / "relay.yaml"
    with ExitStack() as stack:
        orders = VitessOrders()
        orders.start(stack)
        writer = stack.enter_context(closing(orders.workload(pause=0).writers[0]))
        assert isinstance(writer, SQLWriter)
        items = writer.items[:60]
        writer.store([(item, 1) for item in items])
        raw = {
            "name": unique,
            "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 2},
            "sources": [orders.source() | {"start": "copy"}],
            "log": {"path": f"file://{tmp_path}/log"},
        }
        path.write_text(yaml.safe_dump(raw))
        run_until_caught_up(path)
        writer.store([(item, 2) for item in items])
        orders.incidents()[0].do()
        writer.store([(item, 3 if number % 3 else None) for number, item in enumerate(items)])
        run_until_caught_up(path)
        orders.vitess.execute(f"TRUNCATE TABLE {TABLE}", f"{BEFORE}:-40")
        run_until_caught_up(path)

    def read(keyrange: str | None, group: str | None = None) -> list[relay.ReceivedChange]:
        with relay.changes(path, group=group, keyrange=keyrange, until_caught_up=True) as changes:
            found = list(changes)
            if group is not None:
                changes.commit()  # I1: of this range alone
            return found

    def places(found: Sequence[relay.ReceivedChange]) -> list[tuple[int, int]]:
        return sorted((each.partition, each.offset) for each in found)

    whole = read(None)
    of_rows = Counter(each.event_id for each in whole if each.key is not None)
    of_none = [each for each in whole if each.key is None]
    assert {each.operation for each in whole} == {*Operation} - {Operation.INSERT}
    assert {each.operation for each in of_none} == {Operation.READ, Operation.TRUNCATE}
    assert {each.token.shard.rpartition("/")[2] for each in whole if each.token} >= {"-40", "c0-", *TARGETS}
    for ranges in (["-80", "80-"], ["-10", "10-48", "48-c8", "c8-"], ["-"]):
        parts = [read(keyrange, f"{unique}-{len(ranges)}") for keyrange in ranges]
        assert sum((Counter(each.event_id for each in part if each.key) for part in parts), Counter()) == of_rows
        for keyrange, part in zip(ranges, parts, strict=True):
            assert all(KeyRange.parse(keyrange).contains(each.keyspace_id or b"") for each in part if each.key)
            assert places([each for each in part if each.key is None]) == places(of_none)
            shown = command("tail", path, "--from-beginning", "--exit-at-end", "--json", "--keyrange", keyrange)
            lines = [json.loads(line) for line in shown.output.splitlines()]
            assert sorted((each["partition"], each["offset"]) for each in lines) == places(part)

    spark_process.run(CONSUME, str(path), "-80", "80-")
    log = tmp_path / "log"
    for text in ("-80", "80-"):
        logged = delta_rows.rows(log.with_name(f"log.{text}"), ["event_id"])
        # What is of no row is in every partition, and in the log once.
        assert sorted(logged) == sorted({(each.event_id,) for each in read(text)})
    assert not log.exists()

"""A table of DynamoDB that is deleted, or created again, while its snapshot is read (I7, I9, I10)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from relay.avro.registry import open_schemas
from relay.change import MARK
from relay.config import load
from relay.demo.dynamodb_orders import create_table
from tests.dynamodb.kept_open import KeptOpen
from tests.faults.copied import Seen, copied, seen
from tests.faults.harness import Relay, Scene
from tests.faults.scripted_relay import tail_topic
from tests.topic_changes import read_changes
from tests.waiting import wait_until

pytestmark = pytest.mark.services

ITEMS = 12  # of which three fill a page of a scan


class Scanned(Scene):
    """A table with items from before its stream is read, whose scan is held after its first page."""

    def __init__(self, folder: Path, name: str, servers: str, endpoint: str) -> None:
        self.proxy = KeptOpen(endpoint, before=self._hold_scans)
        self.scans = 0
        self.may_scan = threading.Event()
        self.proxy.__enter__()
        super().__init__(folder, name, servers, self.proxy.url)
        self.set(snapshot="initial", on_gap="skip", start="latest")

    def set(self, **source: Any) -> None:
        raw = yaml.safe_load(self.path.read_text())
        raw["sources"][0] |= source
        self.path.write_text(yaml.safe_dump(raw))

    def put(self, numbers: range, version: str) -> None:
        for number in numbers:
            item = {"customer": {"S": f"c{number}"}, "order_id": {"N": "1"}, "version": {"S": version}}
            self.client.put_item(TableName=self.table, Item=item | {"text": {"S": "x" * 350_000}})

    def recreate(self) -> None:
        self.client.delete_table(TableName=self.table)
        create_table(self.client, self.table)

    def start_scan(self) -> Relay:
        """Start a relay, and return it once it has published a page of the snapshot."""
        relay = self.relay()
        wait_until(lambda: self.scans > 1 or None, 60)
        wait_until(lambda: any(each.item is not None for each in self.seen()) or None, 60)
        return relay

    def seen(self) -> list[Seen]:
        config = load(self.path)
        changes = read_changes(config.kafka.client(), config.topic(self.table), open_schemas(config))
        return [
            seen(
                partition,
                change,
                item=change["key"]["customer"] if change["key"] else None,
                new=orjson.loads(change["new"])["version"]["S"] if change["new"] else None,
            )
            for partition, _, change in sorted(changes, key=lambda found: found[:2])
        ]

    def _hold_scans(self, operation: str) -> None:
        if operation == "Scan":
            self.scans += 1
            if self.scans > 1:
                self.may_scan.wait()

    def close(self) -> None:
        self.may_scan.set()
        super().close()
        self.proxy.__exit__()


@pytest.fixture
def scanned(tmp_path: Path, kafka: Any, dynamodb: Any, unique: str) -> Iterator[Scanned]:
    world = Scanned(tmp_path, unique, kafka.bootstrap_servers, dynamodb.endpoint_url)
    yield world
    world.close()


def snapshots(changes: list[Seen], kind: str) -> set[str]:
    return {each.snapshot.id for each in changes if each.snapshot and each.attributes.get(MARK) == kind}


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_table_that_is_created_again_during_its_snapshot_leaves_no_rows_of_the_one_before(
    scanned: Scanned, is_stopped: bool
) -> None:
    """I7: the snapshot of the table that is gone never ends; another one begins beside the new stream."""
    scanned.put(range(ITEMS), "old")
    relay = scanned.start_scan()
    if is_stopped:
        relay.kill()
    scanned.recreate()
    scanned.may_scan.set()
    if is_stopped:
        relay = scanned.relay()
    wait_until(lambda: snapshots(scanned.seen(), "end") or None, 90)
    changes = scanned.seen()
    [first, second] = sorted(snapshots(changes, "begin"))
    assert snapshots(changes, "end") == {second}
    assert any(each.snapshot and each.snapshot.id == first and each.new == "old" for each in changes)
    assert copied(changes) == {}
    assert relay.terminate() == 0, relay.log()
    assert [gap["value"]["reason"] for gap in tail_topic(scanned.path, scanned.config.internal("gaps"))] == [
        "new stream"
    ]


def test_a_table_without_a_stream_that_takes_the_place_of_another_is_not_scanned_again_and_again(
    scanned: Scanned,
) -> None:
    """I10: whoever reads the log can enable its stream; a scan of a megabyte every few seconds costs money."""
    scanned.put(range(ITEMS), "old")
    relay = scanned.start_scan()
    described = scanned.client.describe_table(TableName=scanned.table)["Table"]
    scanned.client.delete_table(TableName=scanned.table)
    scanned.client.create_table(
        TableName=scanned.table,
        KeySchema=described["KeySchema"],
        AttributeDefinitions=described["AttributeDefinitions"],
        BillingMode="PAY_PER_REQUEST",
    )
    scanned.may_scan.set()
    relay.wait_for("failure 3 in a row: table")
    assert relay.has_logged("was deleted and created again during its snapshot")
    assert scanned.scans == 2
    assert relay.terminate() == 0, relay.log()


def test_a_table_that_is_deleted_during_its_snapshot_is_named_and_stops_nothing_else(scanned: Scanned) -> None:
    """I10, I12: nothing more of it can be read."""
    scanned.put(range(ITEMS), "old")
    relay = scanned.start_scan()
    scanned.client.delete_table(TableName=scanned.table)
    scanned.may_scan.set()
    relay.wait_for(f"table {scanned.table!r} was deleted while its snapshot was being read")
    assert relay.terminate() == 0, relay.log()
    again = scanned.relay()
    assert again.wait(60) == 3
    assert again.has_logged(f"table {scanned.table!r} does not exist")

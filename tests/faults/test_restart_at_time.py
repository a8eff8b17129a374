"""A relay whose checkpoints are lost begins again at a published ``resume_timestamp``, for each kind of source: I1.

``resume_timestamp`` says where a restart would have to begin: whoever has consumed up to a change then misses nothing
of what was published from there on, or was not published yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from typer.testing import CliRunner

from relay.avro.registry import open_schemas
from relay.cli import app
from relay.config import load
from relay.config.value_types import iso_time
from relay.services.mariadb import PASSWORD, USER, MariaDB
from relay.services.vitess import Vitess, database
from tests import needs
from tests.topic_changes import read_changes

pytestmark = pytest.mark.services

TABLE = "customer"
SHARDS = ("-80", "80-")
BATCHES, SIZE = 4, 12
BEFORE = 32.0  # seconds; a published time is 30 s before what was read

Write = Callable[[int], object]


def dynamodb(stack: ExitStack, unique: str, request: pytest.FixtureRequest) -> tuple[dict[str, Any], str, Write]:
    endpoint = request.getfixturevalue("dynamodb").endpoint_url
    client = boto3.client("dynamodb", endpoint_url=endpoint, region_name="us-east-1")
    client.create_table(
        TableName=unique,
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "N"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    )
    stack.callback(client.delete_table, TableName=unique)
    entry = {"type": "dynamodb", "table": unique, "region": "us-east-1", "endpoint_url": endpoint, "start": "latest"}
    return entry, unique, lambda number: client.put_item(TableName=unique, Item={"id": {"N": str(number)}})


def mysql(stack: ExitStack, unique: str, request: pytest.FixtureRequest) -> tuple[dict[str, Any], str, Write]:
    servers = [stack.enter_context(MariaDB()) for _ in SHARDS]
    for server in servers:
        server.execute(f"create database {unique}")
        server.execute(f"create table {unique}.{TABLE} (id bigint primary key)")
    shards = {shard: [server.address] for shard, server in zip(SHARDS, servers, strict=True)}
    entry = {"type": "mysql", "database": unique, "user": USER, "password": PASSWORD, "shards": shards}

    def write(number: int) -> None:
        servers[number % 2].execute(f"insert into {unique}.{TABLE} values ({number})")

    return entry, TABLE, write


def vitess(stack: ExitStack, unique: str, request: pytest.FixtureRequest) -> tuple[dict[str, Any], str, Write]:
    needs.vitess()
    vschema = {
        "sharded": True,
        "vindexes": {"hash": {"type": "hash"}},
        "tables": {TABLE: {"column_vindexes": [{"column": "id", "name": "hash"}]}},
    }
    table = f"create table {TABLE} (id bigint primary key)"
    cluster = stack.enter_context(Vitess(keyspaces={"split": list(SHARDS)}, schemas={"split": (table, vschema)}))
    time.sleep(BEFORE)  # its binlogs go back no further, and vtgate cannot begin where there was nothing

    def write(number: int) -> None:
        if number % SIZE == 0:
            cluster.mariadb.execute("flush binary logs")
        cluster.mariadb.execute(f"insert into `{database('split', SHARDS[number % 2])}`.{TABLE} values ({number})")

    return {"type": "vitess", "vtgate": cluster.vtgate, "keyspace": "split"}, TABLE, write


@pytest.fixture(
    params=[
        dynamodb,
        pytest.param(mysql, marks=pytest.mark.faults("another source: mysql/test_start.py begins before such a time")),
        pytest.param(vitess, marks=pytest.mark.faults("another source: vitess/test_start_at_time.py begins at a time")),
    ],
    ids=lambda make: make.__name__,
)
def source(request: pytest.FixtureRequest, unique: str) -> Iterator[tuple[dict[str, Any], str, Write]]:
    """The config of a source, its table, and what writes a row with a number."""
    with ExitStack() as stack:
        yield request.param(stack, unique, request)


class Published:
    """A relay of the source under a name of its own, and so with checkpoints and topics of its own."""

    def __init__(self, folder: Path, name: str, servers: str, entry: dict[str, Any]) -> None:
        self.path = folder / f"{name}.yaml"
        kafka = {"bootstrap_servers": servers, "partitions": 2}
        self.path.write_text(yaml.safe_dump({"name": name, "kafka": kafka, "sources": [{"name": "shop", **entry}]}))

    def run(self) -> None:
        ran = CliRunner().invoke(app, ["run", str(self.path), "--until-caught-up"])
        assert ran.exit_code == 0, (ran.output, ran.exception)

    def changes(self, table: str) -> list[dict[str, Any]]:
        config = load(self.path)
        with closing(open_schemas(config)) as schemas:
            return [change for _, _, change in read_changes(config.kafka.client(), config.topic(table), schemas)]


def test_nothing_is_lost_by_a_restart_at_a_published_resume_timestamp(
    kafka: Any, unique: str, tmp_path: Path, source: tuple[dict[str, Any], str, Write]
) -> None:
    """I1."""
    entry, table, write = source
    first = Published(tmp_path, unique, kafka.bootstrap_servers, entry)
    first.run()  # plans, and begins at the head
    for batch in range(BATCHES):
        time.sleep(1.2)  # times are whole seconds
        for number in range(batch * SIZE, (batch + 1) * SIZE):
            write(number)
        first.run()
    changes = first.changes(table)
    assert sorted(int(change["key"]["id"]) for change in changes) == list(range(BATCHES * SIZE))
    restarts = {change["resume_timestamp"]: change for change in changes if change["resume_timestamp"] > 0}
    assert restarts
    # The latest of the third batch is the most demanding that leaves some to publish.
    until = max((at for at, change in restarts.items() if int(change["key"]["id"]) < 3 * SIZE), default=min(restarts))
    consumed = restarts[until]
    missing = {int(change["key"]["id"]) for change in changes if change["relayed_at"] >= consumed["relayed_at"]}
    assert set(range(3 * SIZE, BATCHES * SIZE)) <= missing
    again = Published(tmp_path, f"{unique}again", kafka.bootstrap_servers, entry | {"start": iso_time(until)})
    again.run()
    found = [int(change["key"]["id"]) for change in again.changes(table)]
    assert missing <= set(found)
    assert len(found) == len(set(found))

"""A table with declared columns, from DynamoDB to the copy, the log and the cache, on real services."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from typer.testing import CliRunner

from relay.cache import RedisStore, entry_key, generation_key
from relay.cli import app
from relay.services.postgres import execute
from tests.spark_consumers.spark_process import SparkProcess

pytestmark = pytest.mark.services

COLUMNS = {
    "id": "string",
    "line": "long",
    "a-b": "string",
    "ab": "string",
    "total": "decimal(38,10)",
    "raw": "bytes",
    "tags": "set",
    "expires": "timestamp",
    "more": "json",
}
ITEM: dict[str, Any] = {
    "id": {"S": "o-1"},
    "line": {"N": "7"},
    "a-b": {"S": "1"},
    "ab": {"N": "1"},
    "total": {"N": "0.00000001"},
    "raw": {"B": b"\x00\xff"},
    "tags": {"SS": ["gift"]},
    "expires": {"N": "1700000000"},
    "more": {"M": {"é": {"N": "1"}}},
    "rest": {"S": "mine"},
    "note": {"S": "first"},
}
CONSUME = """
import json, pathlib, sys

COLUMNS = (
    "id", "line", "`a-b`", "ab", "CAST(total AS STRING) AS total", "base64(raw) AS raw", "tags",
    "CAST(expires AS STRING) AS expires", "more", "rest",
)
import spark_consumers
from relay.config import CopyConfig, load
from tests.spark_consumers.local_spark import spark

config = load(pathlib.Path(sys.argv[1]))
folder = pathlib.Path(sys.argv[2])
with spark() as session:
    for name in ("copy", "log", "cache"):
        spark_consumers.run(name, config, until_caught_up=True, start=None, checkpoint=folder / name)
    delta = session.read.format("delta")
    elsewhere = config.model_copy(update={"copy_": CopyConfig(url=sys.argv[3])})
    spark_consumers.run("copy", elsewhere, until_caught_up=True, start=None, checkpoint=folder / "postgres")
    copied = delta.load(f"{folder}/copied/orders/{config.sources[0].table}")
    logged = delta.load(f"{folder}/logged").orderBy("token_position")
    json.dump(
        {
            "copy": {row["id"]: row.asDict() for row in copied.selectExpr(*COLUMNS).collect()},
            "log": [[row["operation"], json.loads(row["new"] or "null")] for row in logged.collect()],
        },
        sys.stdout,
        default=str,
    )
"""


@pytest.fixture
def path(tmp_path: Path, kafka: Any, dynamodb: Any, redis_server: Any, unique: str) -> Path:
    client = boto3.client("dynamodb", endpoint_url=dynamodb.endpoint_url, region_name="us-east-1")
    client.create_table(
        TableName=unique,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}, {"AttributeName": "line", "KeyType": "RANGE"}],
        AttributeDefinitions=[
            {"AttributeName": "id", "AttributeType": "S"},
            {"AttributeName": "line", "AttributeType": "N"},
        ],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    )
    client.put_item(TableName=unique, Item=ITEM)
    client.put_item(TableName=unique, Item=ITEM | {"total": {"N": "12.50"}, "note": {"S": "second"}})
    client.put_item(TableName=unique, Item={"id": {"S": "o-2"}, "line": {"N": "1E+30"}, "total": {"NULL": True}})
    client.put_item(TableName=unique, Item={"id": {"S": "o-3"}, "line": {"N": "1"}})
    client.delete_item(TableName=unique, Key={"id": {"S": "o-3"}, "line": {"N": "1"}})
    client.close()
    source = {
        "name": "orders",
        "type": "dynamodb",
        "table": unique,
        "region": "us-east-1",
        "endpoint_url": dynamodb.endpoint_url,
        "columns": COLUMNS,
    }
    keys = {unique: ["order:{id}:{line}", "total:{total}", "ab:{ab}", "note:{note}", "expires:{expires}"]}
    config = {
        "name": unique,
        "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 2},
        "sources": [source],
        "cache": {"url": redis_server.url, "namespace": unique, "keys": keys},
        "log": {"path": f"file://{tmp_path}/logged"},
        "copy": {"url": f"delta://{tmp_path}/copied"},
    }
    path = tmp_path / "relay.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def test_a_typed_table_is_relayed_tailed_copied_logged_and_invalidated(
    path: Path, redis_server: Any, spark_process: SparkProcess, database_url: str, unique: str
) -> None:
    """I6, I8"""
    run = [sys.executable, "-m", "relay.cli", "run", str(path), "--until-caught-up"]
    subprocess.run(run, check=True, timeout=600)
    shown = CliRunner().invoke(app, ["tail", str(path), "--from-beginning", "--exit-at-end", "--json"])
    changes = [json.loads(line)["value"] for line in shown.stdout.splitlines()]
    assert [change["operation"] for change in changes if change["key"]["id"] == "o-1"] == ["INSERT", "UPDATE"]
    first = next(change for change in changes if change["operation"] == "INSERT" and change["key"]["id"] == "o-1")
    # The columns have the table's names, and a value that does not fit its column is in `rest`.
    assert first["new"] == {
        "id": "o-1",
        "line": 7,
        "a-b": "1",
        "ab": None,
        "total": "0.0000000100",
        "raw": "AP8=",
        "tags": ["gift"],
        "expires": "2023-11-14T22:13:20Z",
        "more": '{"M":{"é":{"N":"1"}}}',
        "rest": first["new"]["rest"],
    }
    rest = {"ab": {"N": "1"}, "rest": {"S": "mine"}, "note": {"S": "first"}}
    assert json.loads(first["new"]["rest"]) == rest

    printed = spark_process.run(CONSUME, str(path), str(path.parent), database_url, compiled=True)
    found = json.loads(printed.splitlines()[-1])
    of_first = {
        "id": "o-1",
        "line": "7",
        "a-b": "1",
        "ab": None,
        "total": "12.5000000000",
        "raw": "AP8=",
        "tags": ["gift"],
        "expires": "2023-11-14 22:13:20",
        "more": '{"M":{"é":{"N":"1"}}}',
        "rest": rest | {"note": {"S": "second"}},
    }
    of_second = dict.fromkeys(of_first) | {"id": "o-2", "line": "1" + "0" * 30}
    in_postgres = {
        row[0]: dict(zip(of_first, row, strict=True))
        for row in execute(
            database_url,
            """SELECT id, line::text, "a-b", ab, total::text, encode(raw, 'base64'), tags, """
            f"""to_char(expires AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), more::text, rest FROM orders.{unique}""",
        )
    }
    for row in found["copy"].values():
        row["rest"] = json.loads(row["rest"])
    for copied in (found["copy"], in_postgres):
        undeclared = copied["o-2"].pop("rest")
        assert copied == {"o-1": of_first, "o-2": {name: of_second[name] for name in of_second if name != "rest"}}
        assert set(undeclared) == {"line", "total"}
    assert [operation for operation, _ in found["log"]] == ["INSERT", "UPDATE", "INSERT", "INSERT", "DELETE"]
    assert found["log"][0][1]["total"] == "0.0000000100"

    # A value has one text in a cache key, whether it is in its column, in `rest`, or not declared.
    namespace = yaml.safe_load(path.read_text())["cache"]["namespace"]
    keys = ["order:o-1:7", "total:0.00000001", "total:12.5", "ab:1", "note:first", "note:second", "expires:1700000000"]
    with RedisStore(redis_server.url) as store:
        entries, _ = store.read([entry_key(namespace, key) for key in keys], generation_key(namespace))
    assert [key for key, entry in zip(keys, entries, strict=True) if entry is None] == []

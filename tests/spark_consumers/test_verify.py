"""`relay verify CONFIG copy|log` through the complete system: it finds what was planted, and accuses nothing else."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest

from relay.services.mariadb import PASSWORD, USER
from relay.services.postgres import execute
from relay.services.vitess import Vitess
from tests import needs
from tests.cache.sources import create_orders
from tests.command_line import errors, relay
from tests.faults.harness import Relay
from tests.spark_consumers.spark_process import SparkProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.services


def write_config(folder: Path, name: str, kafka: Any, **more: Any) -> Path:
    path = folder / "relay.yaml"
    document = {"name": name, "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 2}, **more}
    path.write_text(json.dumps(document))
    return path


def of_kind(table: Mapping[str, Any], kind: str, column: str) -> list[str]:
    return sorted(row["key"][column] for row in table["wrong_rows"] if row["kind"] == kind)


PLANTED = """
from pyspark.sql import functions as F
from tests.spark_consumers.local_spark import spark

with spark() as session:
    copy = session.table("delta.`FOLDER/copy/orders/TABLE/_relay_rows`")
    is_4 = F.col("number") == "4"
    copy = (
        copy.where("number <> '1'")
        .withColumn("item", F.expr("replace(replace(item, 'v2', 'vX'), 'v4', 'old')"))
        .withColumn("_relay_incomplete", is_4)
        .unionAll(copy.where("number = '3'").withColumn("number", F.lit("77")))
        .unionAll(copy.where("number = '5'"))
    )
    copy.write.format("delta").mode("overwrite").save("FOLDER/copy/orders/TABLE/_relay_rows")
    log = session.table("delta.`FOLDER/log`")
    number = F.get_json_object("key", "$.number")
    # DynamoDB Local rounds times down, so that the end of the snapshot may delete what it did not read.
    extra = log.where((number == "3") & (F.col("operation") == "READ")).withColumn("event_id", F.lit("planted"))
    log = (
        log.where((number != "6") | number.isNull())
        .withColumn("new", F.expr("replace(new, 'v7', 'vX')"))
        .unionAll(log.where((number == "5") & (F.col("operation") != "READ")).limit(1))
        .unionAll(extra.withColumn("key", F.expr("replace(key, '3', '77')")))
    )
    log.write.format("delta").mode("overwrite").save("FOLDER/log")
"""

WATCHED = """
import json, sys
from pathlib import Path
from relay.config import load
from relay.engine.kinds import kind_of
from relay.observe.verifier import VerifierObserver
from relay.operations import verify_forever
from spark_consumers.kept_rows import kept_rows
from tests.clock import Clock
from tests.operations.watched_orders import Progress

config = load(Path("FOLDER/relay.yaml"))
(entry,) = config.sources
clock, progress, told = Clock(), Progress(), []
event_id = sys.argv[1]
for kind in ("copy", "log"):
    with kept_rows(config, kind) as kept:
        sink = verify_forever.WatchedTables(
            kind, progress, VerifierObserver("shop", [kind]), told.append, clock,
            sources={entry.name: lambda tables: kind_of(entry).rows(entry, list, tables)},
            tables={table: entry.name for table in entry.table_names}, kept=kept,
        )
        sink.look(50)
        event = {"event_id": event_id, "committed_at": 0.0, "topic": "t", "partition": 0, "offset": 0, "what": "UPDATE"}
        sink.watch([((entry.table_names[0], ("ada", "5")), event)])
        for _ in range(3):
            progress.time = clock.now
            reason = sink.look(50)
            assert reason is None, reason
            clock.now += 601
print(json.dumps([[each.sink, each.kind, each.key["number"]] for each in told]))
"""


def test_planted_differences_are_found_in_a_copy_and_a_log_in_delta(
    dynamodb: Any, kafka: Any, unique: str, tmp_path: Path, spark_of_delta: SparkProcess
) -> None:
    """The table is DynamoDB's, not published in full. A snapshot has read it, so the log is complete."""
    client = boto3.client("dynamodb", region_name="us-east-1", endpoint_url=dynamodb.endpoint_url)
    create_orders(client, unique, StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"})
    source = {"name": "orders", "type": "dynamodb", "table": unique, "region": "us-east-1", "snapshot": "initial"}
    rules: dict[str, Any] = {
        "endpoint_url": dynamodb.endpoint_url,
        "protect": {unique: {"card": "mask"}},
        "where": {unique: {"customer": "ada"}},
    }
    kept = {"copy": {"url": f"delta://{tmp_path}/copy"}, "log": {"path": f"file://{tmp_path}/log"}}
    path = write_config(tmp_path, unique, kafka, sources=[{**source, **rules}], **kept)

    def put(number: int, note: str) -> None:
        item: dict[str, Any] = {"customer": {"S": "ada"}, "number": {"N": str(number)}, "note": {"S": note}}
        item |= {"tags": {"SS": [note, "b", "a"]}, "n": {"N": f"{number}.50"}, "card": {"S": note}}
        client.put_item(TableName=unique, Item=item)

    def verify(kind: str, code: int, *options: str) -> dict[str, Any]:
        log = tmp_path / f"{kind}-{code}-{len(options)}.log"
        spark_of_delta.relay("verify", str(path), kind, "--within", "0.1", "--json", *options, log=log, code=code)
        (line,) = [line for line in log.read_text().splitlines() if line.startswith("{")]
        (table,) = json.loads(line)[kind]
        assert isinstance(table, dict)
        return table

    for number in range(10):
        put(number, "first")
    for number in range(9):
        put(number, f"v{number}")
    client.put_item(TableName=unique, Item={"customer": {"S": "bob"}, "number": {"N": "1"}})
    client.delete_item(TableName=unique, Key={"customer": {"S": "ada"}, "number": {"N": "9"}})
    assert relay("run", path, "--until-caught-up").exit_code == 0
    checkpoint = ("--until-caught-up", "--checkpoint", str(tmp_path / "checkpoints"))
    spark_of_delta.relay("consume", "copy", "log", str(path), *checkpoint, log=tmp_path / "consume.log")
    for kind in ("copy", "log"):
        table = verify(kind, 0)
        assert (table["checked"], table["consistent"], table["late"], table["unknown"]) == (9, 9, 0, 0), table
    assert verify("copy", 0, "--sample", "4")["consistent"] >= 4
    spark_of_delta.run(PLANTED.replace("FOLDER", str(tmp_path)).replace("TABLE", unique))
    table = verify("copy", 4)
    counts = {kind: of_kind(table, kind, "number") for kind in ("missing", "extra", "different")}
    assert counts == {"missing": ["1"], "extra": ["77"], "different": ["2"]}
    assert (table["checked"], table["consistent"], table["incomplete"]) == (9, 6, 1)
    assert table["incomplete_keys"] == [{"customer": "ada", "number": "4"}]
    assert (table["duplicates"], [json.loads(each["key"])["number"] for each in table["duplicated"]]) == (1, ["5", "5"])
    (different,) = [row for row in table["wrong_rows"] if row["kind"] == "different"]
    assert different["columns"]["note"] == {"kept": '{"S":"vX"}', "source": '{"S":"v2"}'}
    table = verify("log", 4)
    counts = {kind: of_kind(table, kind, "number") for kind in ("missing", "extra", "different")}
    assert counts == {"missing": ["6"], "extra": ["77"], "different": ["7"]}
    assert (table["duplicates"], [json.loads(each["key"])["number"] for each in table["duplicated"]]) == (1, ["5"])
    script = WATCHED.replace("FOLDER", str(tmp_path))
    told = json.loads(spark_of_delta.run(script, table["duplicated"][0]["event_id"]).splitlines()[-1])
    assert sorted(map(tuple, told)) == [
        ("copy", "different", "2"),
        ("copy", "extra", "77"),
        ("log", "different", "7"),
        ("log", "doubled change", "5"),
        ("log", "extra", "77"),
    ]
    shown = (tmp_path / "log-4-0.log").read_text()
    assert f"relay: error: the log of {unique}: 1 missing, 1 extra, 1 different, 1 duplicated, of 10 rows" in shown


@contextmanager
def running(*arguments: str | Path, log: Path) -> Iterator[Relay]:
    process = Relay([sys.executable, "-m", "relay.cli", *map(str, arguments)], log)
    try:
        yield process
    finally:
        process.kill()


@contextmanager
def repeated(step: Callable[[], object]) -> Iterator[None]:
    """Call ``step`` in a thread again and again."""
    stop, failures = threading.Event(), list[Exception]()

    def repeat() -> None:
        try:
            while not stop.is_set():
                step()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert failures == []


def test_a_busy_copy_in_postgres_is_not_accused_and_planted_differences_are_found(
    mariadb: Any, kafka: Any, database_url: str, unique: str, tmp_path: Path, spark_of_delta: SparkProcess
) -> None:
    """The table is MariaDB's. A writer, the relay and the consumer run all the time."""
    mariadb.execute(f"CREATE DATABASE {unique}")
    mariadb.execute(
        f"CREATE TABLE {unique}.orders (id INT PRIMARY KEY, total DECIMAL(10,2), raw BLOB, at TIMESTAMP(6) NULL)"
    )
    source = {"name": "shop", "type": "mysql", "database": unique, "user": USER, "password": PASSWORD}
    more = {"shards": {"-": [mariadb.address]}, "tables": ["orders"], "snapshot": "initial"}
    path = write_config(tmp_path, unique, kafka, sources=[{**source, **more}], copy={"url": database_url})
    chance, versions = random.Random(1), iter(range(1, 10**6))
    writer = mariadb.connect(database=unique)

    def run(statement: str, values: Sequence[object] = ()) -> None:
        with writer.cursor() as cursor:
            cursor.execute(statement, values)

    def write() -> None:
        id = chance.randrange(500)
        if chance.random() < 0.1:
            run("DELETE FROM orders WHERE id = %s", (id,))
        else:
            run("REPLACE orders VALUES (%s, %s / 100, UNHEX('00ff'), NOW(6))", (id, next(versions)))
        time.sleep(0.05)

    def verify(code: int, *options: str, within: float = 20.0) -> dict[str, Any]:
        result = relay("verify", path, "copy", "--within", str(within), "--json", *options)
        assert result.exit_code == code, (result.output, result.exception)
        (table,) = json.loads(result.stdout)["copy"]
        assert isinstance(table, dict)
        return table

    run("INSERT orders SELECT seq, seq / 10, 'b', NOW(6) FROM seq_1000_to_1100")
    assert relay("run", path, "--until-caught-up").exit_code == 0  # makes the topics
    consume = ("consume", "copy", str(path), "--checkpoint", str(tmp_path / "checkpoint"))
    with running("run", path, log=tmp_path / "relay.log") as relayed:
        consumer = spark_of_delta.start_relay(*consume, log=tmp_path / "consumer.log")
        count = "SELECT count(*) FROM shop.orders"

        def copied() -> bool | None:
            assert relayed.is_running, relayed.log()
            assert consumer.is_running, consumer.log()
            try:
                return execute(database_url, count)[0][0] == 101 or None
            except Exception:
                return None  # there is no table yet

        wait_until(copied, 120)
        with repeated(write):
            clean = [verify(0, within=120.0), verify(0, "--sample", "100", within=120.0)]
            execute(database_url, "DELETE FROM shop._relay_rows_orders WHERE id = 1001")
            execute(database_url, "UPDATE shop._relay_rows_orders SET total = 1 WHERE id = 1002")
            execute(database_url, "UPDATE shop._relay_rows_orders SET id = 2000 WHERE id = 1003")
            spoilt = verify(4)
        assert verify(4)["wrong_rows"]  # everything is applied now: without its key, the table is set aside
        execute(database_url, "ALTER TABLE shop._relay_rows_orders DROP CONSTRAINT _relay_rows_orders_pkey")
        execute(
            database_url, "INSERT INTO shop._relay_rows_orders SELECT * FROM shop._relay_rows_orders WHERE id = 1004"
        )
        twice = verify(4)
        assert consumer.terminate() == 0, consumer.log()
    writer.close()
    for table in clean:
        assert [table[each] for each in ("missing", "extra", "different", "unknown")] == [0, 0, 0, 0], table
    assert clean[0]["consistent"] >= 101
    assert clean[1]["checked"] >= 100
    for found in (spoilt, twice):
        counts = {kind: of_kind(found, kind, "id") for kind in ("missing", "extra", "different")}
        assert counts == {"missing": ["1001", "1003"], "extra": ["2000"], "different": ["1002"]}
    assert spoilt["duplicates"] == 0
    assert (twice["duplicates"], [each["key"] for each in twice["duplicated"]]) == (1, ['{"id":"1004"}'] * 2)
    (different,) = [row for row in spoilt["wrong_rows"] if row["kind"] == "different"]
    assert different["columns"] == {"total": {"kept": "1", "source": "100.2"}}


def test_planted_differences_are_found_in_a_copy_and_a_log_of_a_keyspace(
    kafka: Any, database_url: str, unique: str, tmp_path: Path, spark_of_delta: SparkProcess
) -> None:
    """The table is in two shards of Vitess, not published in full. A snapshot has read it."""
    needs.vitess()
    columns = "id bigint, region varchar(9), total decimal(10, 2), ratio double, name text, at timestamp(6)"
    vschema: dict[str, Any] = {
        "sharded": True,
        "vindexes": {"hash": {"type": "hash"}},
        "tables": {"orders": {"column_vindexes": [{"column": "id", "name": "hash"}]}},
    }
    schemas = {"shop": (f"create table orders ({columns}, primary key (region, id))", vschema)}
    with Vitess(keyspaces={"shop": ["-80", "80-"]}, schemas=schemas) as cluster:
        source = {"name": "shop", "type": "vitess", "vtgate": cluster.vtgate, "keyspace": "shop", "start": "copy"}
        rules = {"protect": {"orders": {"name": "mask"}}, "where": {"orders": {"region": "eu"}}}
        kept = {"copy": {"url": database_url}, "log": {"path": f"file://{tmp_path}/log"}}
        sources = [{**source, "tables": ["orders"], **rules}]
        path = write_config(tmp_path, unique, kafka, sources=sources, **kept)

        def verify(kind: str, code: int) -> dict[str, Any]:
            log = tmp_path / f"{kind}-{code}.log"
            spark_of_delta.relay("verify", str(path), kind, "--within", "0.1", "--json", log=log, code=code)
            (line,) = [line for line in log.read_text().splitlines() if line.startswith("{")]
            (table,) = json.loads(line)[kind]
            assert isinstance(table, dict)
            return table

        for id in range(20):
            region = "eu" if id < 12 else "us"
            values = f"({id}, '{region}', {id} / 4, {id} / 3, 'Ada', now(6))"
            cluster.execute(f"insert into orders (id, region, total, ratio, name, at) values {values}")
        ran = relay("run", path, "--until-caught-up")
        assert ran.exit_code == 0, ran.output
        cluster.execute("update orders set region = 'us', total = 9 where id = 3")
        cluster.execute("update orders set region = 'eu' where id = 13")
        cluster.execute("delete from orders where id = 4")
        cluster.execute("update orders set total = total + 1")
        assert relay("run", path, "--until-caught-up").exit_code == 0
        checkpoint = ("--until-caught-up", "--checkpoint", str(tmp_path / "checkpoints"))
        spark_of_delta.relay("consume", "copy", "log", str(path), *checkpoint, log=tmp_path / "consume.log")
        for kind in ("copy", "log"):
            table = verify(kind, 0)
            assert (table["checked"], table["consistent"], table["late"], table["unknown"]) == (11, 11, 0, 0), table
        cluster.execute("update orders set ratio = 0.5 where id = 1")
        cluster.execute("delete from orders where id = 2")
        cluster.execute("insert into orders (id, region, at) values (21, 'eu', now(6)), (22, 'us', now(6))")
        for kind in ("copy", "log"):
            table = verify(kind, 4)
            found = {kind: of_kind(table, kind, "id") for kind in ("missing", "extra", "different")}
            assert found == {"missing": ["21"], "extra": ["2"], "different": ["1"]}


def test_what_cannot_be_verified_is_refused_before_anything_is_connected_to(tmp_path: Path, kafka: Any) -> None:
    source = {"name": "shop", "type": "mysql", "database": "shop", "user": "me", "shards": {"-": ["127.0.0.1:9"]}}
    path = write_config(tmp_path, "shop", kafka, sources=[source | {"tables": ["orders"]}])
    for kind in ("copy", "log"):
        result = relay("verify", path, kind)
        assert (result.exit_code, errors(result)) == (
            2, [f"the config has no `{kind}:` section: add one to verify the {kind}"],
        )  # fmt: skip
    result = relay("verify", path, "copy", "--loader", "shop:orders")
    assert result.exit_code == 2
    assert "only `verify CONFIG cache` uses one" in errors(result)[0]

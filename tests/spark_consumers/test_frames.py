"""Changes as DataFrames, for jobs of one's own."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient

from relay.change import Change
from relay.kafka import topics
from relay.table import Column, KeyColumn, TableSchema
from tests.snippets import changed, programs
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change, truncation
from tests.waiting import wait_until

pytestmark = pytest.mark.services

START = """
import json, pathlib, sys
import spark_consumers
from relay.config import load
from tests.spark_consumers.local_spark import spark
from pyspark.sql import functions as F

config = load(pathlib.Path(sys.argv[1]))
folder = pathlib.Path(sys.argv[1]).parent
"""


@pytest.fixture
def topic(tmp_path: Path, unique: str, kafka: Any, spark_process: SparkProcess) -> Topic:
    return Topic(tmp_path, unique, kafka.bootstrap_servers, "redis://127.0.0.1:1/0", spark_process)


def run(topic: Topic, script: str) -> Any:
    """Return what a script prints as JSON."""
    assert topic.spark is not None
    return json.loads(topic.spark.run(START + script, str(topic.path), compiled=True))


def test_a_batch_has_every_change_between_two_starts(topic: Topic) -> None:
    topic.publish([change("ada", version) for version in range(1, 5)] + [replace_table(change("bob", 9), "lines")])
    offsets = json.dumps({topic.name: {partition: 1 for partition, end in topic.ends().items() if end}})
    found = run(
        topic,
        f"""
with spark() as session:
    read = lambda **options: spark_consumers.read_changes(session, config, streaming=False, **options)
    everything, part = read(), read(topics=["orders"], start='{offsets}', end="latest")
    columns = ["table", "key", "operation", "new"]
    rows = [each.orderBy("offset").select(*columns).collect() for each in (everything, part)]
    print(json.dumps([[list(row) for row in of_frame] for of_frame in rows]))
    assert not {{"status", "value", "layout", "key_texts"}} & set(everything.columns)
""",
    )
    everything, part = found
    assert sorted(json.loads(new)["version"]["N"] for *_, new in everything) == ["1", "2", "3", "4", "9"]
    assert [json.loads(new)["version"]["N"] for *_, new in part] == ["2", "3", "4"]
    assert everything[0][:3] in (
        ["orders", '{"customer":"ada","order_id":"1"}', "UPDATE"],
        ["lines", '{"customer":"bob","order_id":"1"}', "UPDATE"],
    )


def test_the_changes_of_one_table_have_the_types_of_all_versions_of_its_columns(topic: Topic) -> None:
    """I8: also in a session with another time zone, where nothing about it is ours."""
    first = laid_out(id="int", total="decimal(10,2)", at="timestamp")
    second = laid_out(id="long", total="decimal(18,10)", **{"a-b": "string"})
    old = typed(1, {"id": 1, "total": Decimal("1.50"), "at": 1_700_000_000_123_456})
    topic.publish_rows(first, old)
    topic.publish_rows(second, typed(2, {"id": 2**40, "total": Decimal("0.0000000001"), "a-b": "x"}))
    found = run(
        topic,
        """
with spark() as session:
    mine = session.newSession()
    mine.conf.set("spark.sql.session.timeZone", "America/New_York")
    mine.conf.set("spark.sql.ansi.enabled", "false")
    frame = spark_consumers.read_changes(mine, config, ["orders"], table="orders", streaming=False)
    as_json = spark_consumers.read_changes(mine, config, ["orders"], streaming=False)
    print(json.dumps({
        "types": frame.schema["new"].dataType.simpleString(),
        "key": frame.schema["key"].dataType.simpleString(),
        "rows": [[str(value) for value in row] for row in frame.orderBy("token_position").select(
            "key.id", "new.id", (F.col("new.total") * 10**10).cast("long"), F.unix_micros("new.at"), F.col("new.`a-b`")
        ).collect()],
        "json": sorted(row[0] for row in as_json.select("new").collect()),
    }))
""",
    )
    assert found["types"] == "struct<id:bigint,total:decimal(18,10),at:timestamp,a-b:string>"
    assert found["key"] == "struct<id:bigint>"
    assert found["rows"] == [
        ["1", "1", "15000000000", "1700000000123456", "None"],
        [str(2**40), str(2**40), "1", "None", "x"],
    ]
    assert found["json"] == [
        '{"id":1,"total":"1.50","at":"2023-11-14T22:13:20.123456Z"}',
        '{"id":1099511627776,"total":"0.0000000001","a-b":"x"}',
    ]


def test_the_changes_on_a_topic_with_a_schema_registry_have_all_versions_of_its_columns(
    topic: Topic, schema_registry: Any
) -> None:
    """I1: also those from before there was a registry, and those that somebody has deleted there since."""
    topic.publish_rows(laid_out(id="int", v="int"), typed(1, {"id": 1, "v": 7}))
    topic.use_registry(schema_registry.url)
    topic.publish_rows(laid_out(id="int", v="long"), typed(2, {"id": 1, "v": 2**40}))
    topic.publish_rows(laid_out(id="int", v="long", note="string"), typed(3, {"id": 1, "v": 8, "note": "x"}))
    with closing(SchemaRegistryClient({"url": schema_registry.url})) as client:
        client.delete_version(f"{topic.name}-value", 1)
    found = run(
        topic,
        """
with spark() as session:
    read = lambda **options: spark_consumers.read_changes(session, config, streaming=False, **options)
    typed = read(table="orders").orderBy("token_position").select("new.id", "new.v", "new.note").collect()
    as_json = read(topics=["orders"]).orderBy("token_position").select("new").collect()
    print(json.dumps([[list(row) for row in typed], [json.loads(row.new) for row in as_json]]))
""",
    )
    assert found == [
        [[1, 7, None], [1, 2**40, None], [1, 8, "x"]],
        [{"id": 1, "v": 7}, {"id": 1, "v": 2**40}, {"id": 1, "v": 8, "note": "x"}],
    ]


def test_partitions_that_an_end_leaves_out_are_read_to_their_ends(topic: Topic) -> None:
    """I1"""
    customers = [f"c{number}" for number in range(9)]
    topic.publish([change(customer, 1) for customer in customers])
    ends = topic.ends()
    assert all(ends.values())
    counts = run(
        topic,
        f"""
with spark() as session:
    frame = spark_consumers.read_changes(
        session, config, ["orders"], streaming=False, end=json.dumps({{"{topic.name}": {{"0": 1}}}})
    )
    print(json.dumps(dict(frame.groupBy("partition").count().collect())))
""",
    )
    assert counts == {"0": 1, "1": ends["1"]}


def test_a_batch_is_refused_that_would_lack_changes(topic: Topic) -> None:
    """I1: what was removed, or is not there, would be missing, and nobody would know."""
    topic.publish([change("ada", version) for version in range(1, 5)])
    ((partition, end),) = [(partition, end) for partition, end in topic.ends().items() if end]
    admin = topics.connect(topic.config)
    for done in admin.delete_records([TopicPartition(topic.name, int(partition), 2)]).values():
        done.result(60)
    said = run(
        topic,
        f"""
with spark() as session:
    def read(**options):
        try:
            given = {{name: json.dumps({{"{topic.name}": {{"{partition}": at}}}}) for name, at in options.items()}}
            return spark_consumers.read_changes(session, config, ["orders"], streaming=False, **given).count()
        except Exception as error:
            return f"{{type(error).__name__}}: {{error}}"

    print(json.dumps([read(start=-2), read(start=2), read(start=1), read(start=9), read(start=2, end=9)]))
""",
    )
    where = f"{topic.name}[{partition}] has the records from offset 2 to {end}"
    gone = "its records were removed, or the topic was created again. Use -2 to start at the beginning"
    later = "try again later, or omit `end` to read to the current end"
    assert said == [
        2,
        2,
        f"ConfigError: start: {where}, so reading cannot start at 1: {gone}",
        f"ConfigError: start: {where}, so reading cannot start at 9: {gone}",
        f"ConfigError: end: {where}, so it cannot be read up to 9: {later}",
    ]


def test_columns_that_no_type_holds_exactly_are_refused_by_name(topic: Topic) -> None:
    topic.publish_rows(laid_out(id="int", v="int"), typed(1, {"id": 1, "v": 7}))
    topic.publish_rows(laid_out(id="int", v="string"), typed(2, {"id": 1, "v": "7"}))
    found = run(
        topic,
        """
with spark() as session:
    try:
        spark_consumers.read_changes(session, config, table="orders", streaming=False)
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
""",
    )
    assert found[0] == "ConfigError"
    assert "table orders: column v has had the types int and string" in found[1]


@pytest.mark.parametrize("selected", ["event_id", "offset"])
def test_a_record_that_is_not_a_change_ends_the_query_whatever_is_selected_or_is_kept(
    topic: Topic, selected: str
) -> None:
    topic.publish([change("ada", 1)])
    topic.publish_raw(b"hello")
    found = run(
        topic,
        f"""
with spark() as session:
    read = lambda **options: spark_consumers.read_changes(session, config, ["orders"], streaming=False, **options)
    kept = sorted((row.status, bytes(row.value or b"").decode()) for row in read(undecodable="keep").collect())
    try:
        read().select("{selected}").collect()
    except Exception as error:
        print(json.dumps([kept, str(error)]))
""",
    )
    assert found[0] == [["change", ""], ["framing", "hello"]]
    assert f"{topic.name}[0] offset " in found[1]
    assert ": framing" in found[1]


@pytest.mark.parametrize("fields", [100, 1])
def test_a_record_that_is_not_a_change_ends_the_query_whatever_it_filters(topic: Topic, fields: int) -> None:
    """I1: also if Spark interprets the filter, as for tables with many columns."""
    topic.publish([change("ada", 1)])
    topic.publish_raw(b"\xc3\x01" + bytes(8) + b"of a schema that is not known")
    said = run(
        topic,
        f"""
with spark() as session:
    mine = session.newSession()
    mine.conf.set("spark.sql.codegen.maxFields", "{fields}")
    frame = spark_consumers.read_changes(mine, config, ["orders"], streaming=False)
    try:
        print(json.dumps(str(frame.where("operation = 'UPDATE' AND `table` = 'orders'").select("new").collect())))
    except Exception as error:
        print(json.dumps(str(error)))
""",
    )
    assert ": its schema was not known when the query started: start the query again" in said


def test_a_record_of_an_unknown_schema_is_kept_in_full(topic: Topic) -> None:
    """I8: it may be stored until its schema is known."""
    value = b"\xc3\x01" + bytes(8) + b"a long value"
    topic.publish_raw(value)
    found = run(
        topic,
        """
with spark() as session:
    frame = spark_consumers.read_changes(session, config, ["orders"], streaming=False, undecodable="keep")
    print(json.dumps([[row.status, bytes(row.value).hex()] for row in frame.collect()]))
""",
    )
    assert found == [["schema", value.hex()]]


def test_the_changes_of_an_item_are_applied_in_order(topic: Topic) -> None:
    """I2: one call for each item, wherever Spark has put its changes."""
    customers = [f"c{number}" for number in range(7)]
    topic.publish([change(customer, version) for version in range(1, 31) for customer in customers] + [truncation(99)])
    run(
        topic,
        """
from relay import item_values

def rule(item, changes):
    source, table, key = item
    versions = [str(item_values(each.new)["version"]) for each in changes]
    with open(folder / "applied", "a") as file:
        file.write(json.dumps([source, table, json.loads(key)["customer"], versions]) + "\\n")

with spark() as session:
    frame = spark_consumers.read_changes(session, config, ["orders"], streaming=False)
    spark_consumers.apply_in_order(frame.repartition(5), rule)
    print("null")
""",
    )
    applied = [json.loads(line) for line in (topic.folder / "applied").read_text().splitlines()]
    assert sorted(applied) == [["orders", "orders", each, [str(n) for n in range(1, 31)]] for each in customers]


def test_the_programs_of_the_documentation_run_as_they_stand_there(topic: Topic) -> None:
    as_frame, in_batches = programs("deploy/docs/how_to/read.md")
    topic.publish([change("ada", 1), change("ada", 2)])
    assert topic.spark is not None
    shown = topic.spark.run(changed(as_frame, {'"relay.yaml"': repr(str(topic.path))}))
    assert sum("|ada" in line for line in shown.splitlines()) == 2
    point = f'name="mine", checkpoint={str(topic.folder / "point")!r})'
    ended = {
        '"relay.yaml"': repr(str(topic.path)),
        'name="mine")': point,
        "foreach_batch(apply)": "foreach_batch(apply, until_caught_up=True)",
        "print(item, change.operation, change.new)": f"open({str(topic.folder / 'stored')!r}, 'a').write(change.new)",
    }
    topic.spark.run(changed(in_batches, ended))
    assert re.findall(r'"version":\{"N":"(\d)"\}', (topic.folder / "stored").read_text()) == ["1", "2"]


def test_a_streaming_query_goes_on_at_its_checkpoint(topic: Topic) -> None:
    topic.publish([change("ada", 1)])
    script = """
with spark() as session:
    frame = spark_consumers.read_changes(session, config, ["orders"])
    query = frame.writeStream.option("checkpointLocation", str(folder / "point")).trigger(availableNow=True)
    query = query.format("json").option("path", str(folder / "out")).start()
    query.awaitTermination()
    rows = session.read.json(str(folder / "out")).collect()
    print(json.dumps(sorted(json.loads(row.new)["version"]["N"] for row in rows)))
"""
    assert run(topic, script) == ["1"]
    topic.publish([change("ada", 2)])
    assert run(topic, script) == ["1", "2"]


def test_a_streaming_query_goes_on_after_a_column_was_added(topic: Topic) -> None:
    """I1, I12: its schema is looked up before the batch that has its first change."""
    script = """
with spark() as session:
    values = []

    def keep(batch, number):
        values.extend(json.loads(row.new) for row in batch.collect())
        (folder / "begun").touch()

    frame = spark_consumers.read_changes(session, config, ["orders"])
    query = frame.writeStream.option("checkpointLocation", str(folder / "point")).foreachBatch(keep).start()
    while query.isActive and len(values) < 2:
        query.awaitTermination(0.1)
    query.stop()
    print(json.dumps(values))
"""
    topic.publish_rows(laid_out(id="int"), typed(1, {"id": 1}))
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(run, topic, script)
        wait_until(lambda: found.done() or (topic.folder / "begun").exists())
        topic.publish_rows(laid_out(id="int", note="string"), typed(2, {"id": 1, "note": "new"}))
        assert found.result() == [{"id": 1}, {"id": 1, "note": "new"}]


def replace_table(row: Change, table: str) -> Change:
    row.source = row.table = table
    return row


def laid_out(**columns: str) -> TableSchema:
    row = tuple(Column(name, kind) for name, kind in columns.items())
    return TableSchema("orders", "orders", (KeyColumn("id", columns["id"]),), 1, row=row)


def typed(version: int, row: dict[str, Any]) -> Change:
    found = change("ada", version)
    found.key, found.old, found.new = {"id": row["id"]}, None, row
    return found

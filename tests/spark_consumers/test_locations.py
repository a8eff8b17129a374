"""Folders of any name, and tables of any name in them, as Python, Hadoop and Delta find them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_consumers.locations import local_folder, spark_path, table_folder
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change

ODD = " #?%+&=:;,é価𝄞%20%2Fa-_.~`'\"\\|<>^{}[]$*"
PATHS = st.text(st.sampled_from(ODD), min_size=1, max_size=12).map(lambda path: f"/{path}")


@given(PATHS)
@example("/a b#c?d%20e")
def test_a_folder_of_any_name_is_the_same_as_a_path_and_in_a_url(path: str) -> None:
    """I1: a part of it behind # or ? was cut off, and %20 in a path was taken for a blank."""
    folder = Path(os.path.abspath(path))
    assert local_folder(path) == local_folder(folder.as_uri()) == local_folder(f"delta://{quote(path)}") == folder
    assert spark_path(path) == spark_path(folder.as_uri()) == f"file://{folder}"


@given(st.text(min_size=1, max_size=80), st.text(min_size=1, max_size=80))
@example("../x", "x")
@example("a/b", "a")
@example("_delta_log", "_x005F_delta_log")
@example("..", ".")
@example("é" * 64, "é" * 63)
def test_a_table_of_any_name_has_a_folder_of_its_own_in_the_one_of_its_source(first: str, second: str) -> None:
    """I1: VACUUM deletes what is in the folder of a table and is not the table's."""
    found = [Path(table_folder("/copy", "shop", name)) for name in (first, second)]
    assert (found[0] == found[1]) == (first == second)
    for folder in found:
        assert folder.parent == Path("/copy/shop")
        assert folder.name not in ("", ".", "..", "_delta_log", "_relay_applied.json")
        assert len(folder.name) <= 255
        assert "${" not in folder.name


def test_a_table_of_an_ordinary_name_has_a_folder_of_this_name() -> None:
    assert table_folder("s3a://b/copy/", "shop", "Order-lines_x.2024") == "s3a://b/copy/shop/Order-lines_x.2024"
    assert table_folder("/copy", "shop") == "/copy/shop"


HADOOP = """
import json, pathlib, sys
from tests.spark_consumers.local_spark import spark
from spark_consumers.checkpoint import ConsumerCheckpoint
from spark_consumers.locations import HadoopFolder, LocalFolder, spark_path

with spark() as session:
    path_of = session._jvm.org.apache.hadoop.fs.Path
    for path in json.load(sys.stdin):
        assert path_of(spark_path(path)).toUri().getPath() == path, path
    folder = pathlib.Path(sys.argv[1])
    for number, name in enumerate(["a b", "a%20b", "c#d?e", "é価", "[x]*{y}"]):
        LocalFolder(folder / name).write("note", str(number))
        assert HadoopFolder(spark_path(str(folder / name)), session).read("note") == str(number)
"""


@pytest.mark.services
def test_hadoop_finds_a_folder_of_any_name(tmp_path: Path, spark_process: SparkProcess) -> None:
    paths: list[str] = []

    @given(PATHS)
    def draw(path: str) -> None:
        paths.append(os.path.abspath(path))

    draw()
    spark_process.run(HADOOP, str(tmp_path), given=json.dumps([path for path in paths if path != "/"]))


NAMES = """
import sys
from contextlib import ExitStack
import pytest
from relay.config import Config
from tests.spark_consumers.local_spark import spark
from relay.errors import ConfigError
from spark_consumers import log_views
from spark_consumers.change_log import log_consumer
from spark_consumers.launch import session_for
from spark_consumers.sinks.delta_copy import DeltaTable
from tests.spark_consumers.lake_config import lake_config
from tests.spark_consumers.batches import change, in_spark, layout
from tests.spark_consumers.targets import InDelta

ODD = ["c${env:HOME}", "${spark.app.name}", "a`b", "x.y", "é %", "a;b", "it's", '"q"', "${", "{}", "a\\\\b", "-"]
with spark() as session:
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    table = InDelta(session, sys.argv[1])
    of_odd = layout({"id": "long"}, {"id": "long", **dict.fromkeys(ODD[:6], "string")})
    table.play(of_odd, change(1, ["1"], {"id": 1, **dict.fromkeys(ODD, "v")}))
    of_odd = layout({"id": "long"}, {"id": "long", **dict.fromkeys(ODD, "string")})
    for number, value in ((2, "w"), (3, "x")):
        table.play(of_odd, change(number, ["1"], {"id": 1, **{name: name + value for name in ODD}}))
    (row,) = session.table(table.table.name).collect()
    found = {name: value for name, value in row.asDict().items() if not name.startswith("_relay_")}
    assert found == {"id": 1, **{name: name + "x" for name in ODD}}, found
    kept = table.kept(of_odd, ODD)
    assert kept[0].values == tuple(name + "x" for name in ODD), kept

    one = layout({"id": "long"}, {"id": "long"})
    names = ["a", "a/b", "../a", "a${env:HOME}", "_delta_log", ".."]
    tables = [DeltaTable(sys.argv[1], lake_config(86400.0, 604800.0), "sh/op", name) for name in names]
    for number, each in enumerate(tables):
        each.prepare(in_spark(session, []), {0: one})
        session.sql(f"INSERT INTO {each.name} (id) VALUES ({number})")
    session.sql(f"VACUUM {tables[0].name} RETAIN 0 HOURS")
    for number, each in enumerate(tables):
        assert [row.id for row in session.table(each.name).collect()] == [number], each.name

    own = session.newSession()  # which replaces ${...}
    with pytest.raises(ConfigError, match="a part of the name c.{env:HOME} for a variable: use a session"):
        InDelta(own, sys.argv[2]).play(of_odd, change(1, ["1"], {"id": 1}))
    source = {"name": "shop", "type": "dynamodb", "table": "orders"}
    kafka = {"bootstrap_servers": "127.0.0.1:9"}
    raw = {"name": "shop", "kafka": kafka, "sources": [source], "log": {"path": sys.argv[1]}}
    config = Config.model_validate(raw)
    with pytest.raises(ConfigError, match="a part of the name"), ExitStack() as stack:
        session_for([log_consumer(config, config.log)], config, own, (), stack)
    with pytest.raises(ConfigError, match="a part of the name"):
        log_views(own, config)
"""


@pytest.mark.services
def test_delta_holds_columns_and_tables_of_any_name(tmp_path: Path, spark_process: SparkProcess) -> None:
    """I1, I8: `${env:HOME}` in the name of a column was replaced, and `../a` was a folder beside the copy."""
    folder = tmp_path / "the copy#1?%20é${env:HOME}"
    spark_process.run(NAMES, str(folder), str(tmp_path / "own"), compiled=True)
    assert [each.name for each in tmp_path.iterdir()] == [folder.name]


COUNTED = """
import json, sys
from tests.spark_consumers.local_spark import spark
from spark_consumers.locations import spark_path, table_folder
from spark_consumers.sinks import delta

with spark() as session:
    paths = [spark_path(f"{sys.argv[1]}/log"), table_folder(spark_path(f"{sys.argv[1]}/copy"), "orders", "orders")]
    print(json.dumps([session.table(delta.table(path)).count() for path in paths]))
"""


@pytest.mark.services
def test_consumers_go_on_in_folders_of_any_name(
    tmp_path: Path, unique: str, kafka: Any, redis_server: Any, spark_process: SparkProcess
) -> None:
    """I1: tables, their note and the checkpoint are in one folder, which the next start finds, and so does a swap."""
    odd = tmp_path / "a b#c?d%20é"
    topic = Topic(tmp_path, unique, kafka.bootstrap_servers, redis_server.url, spark_process)
    topic.set_log_path(str(odd / "log"))
    topic.set_copy_url(f"delta://{quote(str(odd / 'copy'))}")
    for version in (1, 2):
        topic.publish([change("ada", version)])
        topic.consume("log copy", checkpoint="c d#%20é")
    assert json.loads(spark_process.run(COUNTED, str(odd)).splitlines()[-1]) == [2, 1]  # delta-rs decodes the path
    assert (odd / "copy/orders/_relay_applied.json").exists()
    assert {each.name for each in odd.iterdir()} == {"log", "log.lock", "copy", "copy.lock"}

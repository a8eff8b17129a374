"""What is Iceberg's own in a copy: places, views, and other readers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from relay.config import Config
from relay.errors import ConfigError
from spark_consumers.sinks.iceberg_target import IcebergPlace
from spark_consumers.sinks.places import copy_target
from tests.spark_consumers.iceberg_catalog import CATALOG, FORMATS, of_url
from tests.spark_consumers.spark_process import SparkProcess
from tests.spark_consumers.topic import Topic, change


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (of_url("iceberg://lake"), "is in a catalog that Spark does not know: set spark.conf"),
        (of_url("iceberg://lake", lake="com.example.Catalog"), "is in a catalog that Spark does not know"),
        (of_url("iceberg://", lake=CATALOG), "iceberg://CATALOG or iceberg://CATALOG/PREFIX"),
        (of_url("iceberg://lake/a/b", lake=CATALOG), "iceberg://CATALOG or iceberg://CATALOG/PREFIX"),
        (
            of_url("iceberg://lake", "Orders", "orders", lake=CATALOG),
            "treat shop.Orders and shop.orders as the same name: keep",
        ),
        (
            of_url("iceberg://lake", "_relay_rows_a", lake=CATALOG),
            "_relay_rows_a is .* the copy reserves .*: give the sou",
        ),
    ],
)
def test_a_place_in_iceberg_that_cannot_be_is_refused_without_a_connection(config: Config, said: str) -> None:
    assert config.copy_ is not None
    with pytest.raises(ConfigError, match=said):
        copy_target(config, config.copy_)


def test_a_catalog_in_folders_is_said_to_exclude_no_second_driver() -> None:
    for kind, expected in (("hadoop", "prevents a second driver: run only one"), ("rest", "opens its catalog")):
        config = of_url("iceberg://lake", lake=CATALOG, lake__type=kind)
        assert config.copy_ is not None
        assert copy_target(config, config.copy_).check(offline=True).endswith(expected)


def test_names_in_iceberg_have_no_dots_and_no_two_become_one() -> None:
    place = IcebergPlace.of("iceberg://lake/new")
    assert place.rows("shop.eu", "a b") == "`lake`.`new_shop_x002E_eu`.`_relay_rows_a_x0020_b`"
    assert place.shown("shop", "a.b") != place.shown("shop", "a_x002E_b")


FORMAT_3 = pytest.mark.faults("format 3: test_scenarios.py and this file have format 2")


@pytest.mark.services
@pytest.mark.parametrize("catalog", ["lake", pytest.param("newer", marks=FORMAT_3)])
def test_other_readers_see_the_table_of_the_source(catalog: str, tmp_path: Path, spark_process: SparkProcess) -> None:
    """Also after a column was widened, and one added."""
    found = json.loads(spark_process.run(READERS, str(tmp_path), catalog, compiled=True))
    assert found["spark"] == [[1, "c", "1.50"], [3, "d", None]]
    assert found["columns"] == [["id", "bigint"], ["note", "string"], ["total", "string"]]
    table = StaticTable.from_metadata(found["metadata"])
    read = table.scan(row_filter="_relay_deleted = false", selected_fields=COLUMNS).to_arrow().to_pylist()
    assert sorted(tuple(row[name] for name in COLUMNS) for row in read) == [(1, "c", "1.50"), (3, "d", None)]
    assert found["format"] == FORMATS[catalog]


COLUMNS = ("id", "note", "total")


READERS = """
import json, sys
from tests.spark_consumers.batches import change, layout
from tests.spark_consumers.local_spark import spark
from tests.spark_consumers.scenarios import ORDERS, order
from tests.spark_consumers.targets import InIceberg
from spark_consumers.spark_internals import iceberg_table

with spark() as session:
    table = InIceberg(session, sys.argv[1], catalog=sys.argv[2])
    table.play(ORDERS, order(1, 1, "a"), order(2, 2, "b"), order(3, 3, "d"))
    wider = layout({"id": "long"}, {"id": "long", "note": "string", "total": "string"})
    table.play(wider, change(4, ["1"], {"id": 1, "note": "c", "total": "1.50"}), order(5, 2, None))
    # Other jobs may call the catalog otherwise.
    made = session.sql(f"SHOW CREATE TABLE {table.shown}").collect()[0][0]
    assert sys.argv[2] not in made[made.index("SELECT"):], made
    found = session.newSession().table(table.shown).orderBy("id")
    metadata = iceberg_table(session, table.stored).operations().current()
    json.dump({
        "spark": [list(row) for row in found.collect()], "columns": found.dtypes,
        "metadata": metadata.metadataFileLocation(), "format": metadata.formatVersion(),
    }, sys.stdout)
"""


@FORMAT_3
@pytest.mark.services
def test_the_scenarios_of_the_copy_are_played_in_format_3(tmp_path: Path, spark_process: SparkProcess) -> None:
    spark_process.run(SCENARIOS_IN_FORMAT_3, str(tmp_path), compiled=True)


SCENARIOS_IN_FORMAT_3 = """
import sys
from tests.spark_consumers.local_spark import spark
from tests.spark_consumers.scenarios import SCENARIOS
from tests.spark_consumers.targets import InIceberg

with spark() as session:
    for name, scenario in SCENARIOS.items():
        if not name.startswith("batches_of_any_size"):
            print(name, file=sys.stderr)
            scenario(InIceberg(session, f"{sys.argv[1]}/{name}", catalog="newer"))
"""


@pytest.mark.services
def test_a_catalog_without_views_has_the_rows_only(tmp_path: Path, spark_process: SparkProcess) -> None:
    log = tmp_path / "log"
    assert json.loads(spark_process.run(WITHOUT_VIEWS, str(tmp_path), log=log)) == [[1, "b"]]
    assert "the catalog has no views: select from `folders`" in log.read_text()


WITHOUT_VIEWS = """
import json, sys
from tests.spark_consumers.local_spark import spark
from tests.spark_consumers.scenarios import ORDERS, order
from tests.spark_consumers.targets import InIceberg

with spark() as session:
    table = InIceberg(session, sys.argv[1], catalog="folders")
    table.play(ORDERS, order(1, 1, "a"), order(2, 2, "b"))
    table.play(ORDERS, order(3, 1, "b"), order(4, 2, None))
    json.dump([row[:2] for row in table.rows("id", "note", "_relay_deleted")], sys.stdout)
"""


@pytest.mark.services
def test_the_view_follows_the_columns_and_no_table_of_others_is_replaced(
    tmp_path: Path, spark_process: SparkProcess
) -> None:
    spark_process.run(VIEW, str(tmp_path))


VIEW = """
import sys
import pytest
from tests.spark_consumers.local_spark import spark
from tests.spark_consumers.batches import change, layout
from tests.spark_consumers.scenarios import ORDERS, order
from tests.spark_consumers.targets import InIceberg
from spark_consumers.sinks.faults import TableFault

with spark() as session:
    table = InIceberg(session, sys.argv[1] + "/a")
    table.play(ORDERS, order(1, 1, "a"))
    wider = layout({"id": "long"}, {"id": "long", "note": "string", "total": "decimal(10,2)"})
    table.play(wider, change(2, ["2"], {"id": 2, "note": "b", "total": "1.5"}))
    assert dict(session.table(table.shown).dtypes) == {"id": "bigint", "note": "string", "total": "decimal(10,2)"}
    # As after a crash between the two.
    session.sql(f"DROP VIEW {table.shown}")
    table = InIceberg(session, sys.argv[1] + "/a")
    table.play(wider, change(3, ["1"], {"id": 1, "note": "c", "total": None}))
    assert [row[:2] for row in table.rows("id", "note")] == [(1, "c"), (2, "b")]
    other = InIceberg(session, sys.argv[1] + "/b")
    session.sql(f"CREATE NAMESPACE {other.place.namespace('shop')}")
    theirs = f"{other.place.namespace('shop')}.theirs"
    session.sql(f"CREATE TABLE {theirs} (id INT, note STRING) USING ICEBERG")
    for kind, made in (("TABLE", "(id INT, note STRING) USING ICEBERG"), ("VIEW", f"AS SELECT * FROM {theirs}")):
        session.sql(f"CREATE {kind} {other.shown} {made}")
        with pytest.raises(TableFault, match="does not belong to the copy: rename it"):
            other.play(ORDERS, order(1, 1, "a"))
        session.sql(f"DROP {kind} {other.shown}")
"""


@pytest.mark.services
def test_a_consumer_keeps_a_copy_in_iceberg_and_goes_on_after_a_stop(topic: Topic) -> None:
    topic.set_copy_url(f"iceberg://lake/{topic.folder.name}")
    topic.set_spark(conf={"spark.sql.catalog.lake": CATALOG})
    topic.publish([change("ann", 1), change("bob", 1)])
    assert topic.consume("copy", checkpoint="c")["applied"] == 2
    topic.publish([change("ann", 2), change("cid", 1)])
    assert topic.consume("copy", checkpoint="c")["applied"] == 2
    found = topic.consume("copy", checkpoint="other")
    assert (found["applied"], found["ignored"], found["gaps"]) == (0, 4, 0)

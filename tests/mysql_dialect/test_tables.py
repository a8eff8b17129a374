"""Which columns are the key of a table, and choose the partition (I2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from relay.avro.schema import change_schema
from relay.config import MySQLConfig
from relay.errors import RelayError
from relay.mysql.relayed_tables import Layouts
from relay.mysql_dialect.tables import Unfit, lay_out, lay_out_by, lay_out_keys
from relay.stream.planning import key_of
from relay.table import Column

COLUMNS = [Column(name, "int") for name in "abc"]


def names(primary: Sequence[str] = (), key: Sequence[str] = (), hash_key: Sequence[str] = ()) -> tuple[list[str], int]:
    schema = lay_out("s", "t", COLUMNS, primary, key=key, hash_key=hash_key).schema
    return [column.name for column in schema.key], schema.hash_columns


def test_the_primary_key_is_the_key_and_all_of_it_chooses_the_partition() -> None:
    assert names(primary=["c", "a"]) == (["c", "a"], 2)


def test_the_columns_that_choose_the_shard_come_first_and_choose_the_partition() -> None:
    assert names(primary=["a", "b"], hash_key=["b"]) == (["b", "a"], 1)


def test_columns_that_choose_the_shard_become_part_of_the_key() -> None:
    """Rows with the same primary key in two shards are two rows."""
    assert names(primary=["a"], hash_key=["b"]) == (["b", "a"], 1)


def test_a_key_says_which_of_its_texts_end_in_decimals() -> None:
    table = lay_out("s", "t", [Column("a", "string", "time"), Column("b", "string")], ["a", "b"])
    fields = {field["name"]: field for field in change_schema(table.schema)["fields"]}
    assert [field.get("decimals") for field in fields["key"]["type"][1]["fields"]] == [True, None]


def test_a_schema_says_what_sql_calls_a_column_whose_type_does_not_tell_it() -> None:
    columns = [Column("day", "string", "date"), Column("at", "timestamp", "timestamp"), Column("note", "string")]
    fields = {field["name"]: field for field in change_schema(lay_out("s", "t", columns, ["day"]).schema)["fields"]}
    assert [field.get("relay.sql") for field in fields["old"]["type"][1]["fields"]] == ["date", "timestamp", None]
    assert fields["key"]["type"][1]["fields"][0]["relay.sql"] == "date"


def test_columns_can_replace_a_missing_primary_key() -> None:
    assert names(key=["b", "c"]) == (["b", "c"], 2)


def test_a_table_without_a_key_is_refused_with_what_to_do() -> None:
    with pytest.raises(RelayError, match=r"the table t has no primary key.*`key: \{t: \[a\]\}`"):
        names()


def test_a_missing_key_column_is_refused() -> None:
    with pytest.raises(RelayError, match="the table t has no column 'z'"):
        names(key=["z"])


@pytest.mark.parametrize("key", [(), ("b", "a")])
def test_a_column_that_no_key_can_have_is_refused_by_table_and_name(key: Sequence[str]) -> None:
    """I8: a set has several texts, which would be several keys."""
    columns = [Column("a", "set"), Column("b", "int")]
    with pytest.raises(RelayError, match=r"the table t has the column 'a' of type set.*`key: \{t: \[\.\.\.\]\}`"):
        lay_out("s", "t", columns, ["b"] if key else ["a", "b"], key=key)
    assert lay_out("s", "t", columns, ["a", "b"], key=["b"]).schema.key[0].name == "b"


def test_a_table_that_is_gone_has_the_key_that_it_had() -> None:
    """I12: else a copy whose first change of it is a TRUNCATE refuses its rows."""
    schema = lay_out("s", "t", [Column("d", "string", "date"), Column("n", "int")], ["d", "n"]).schema
    assert lay_out_keys("s", "t", key_of(schema), None).schema.key == schema.key
    assert key_of(schema) == (("d", "string", "date"), ("n", "int"))


def test_a_table_whose_columns_have_one_name_in_debeziums_envelope_is_left_out() -> None:
    """I12: the other tables of the source go on."""
    columns = [Column(name, "int") for name in ("id", "a-b", "a#b")]
    settings = {"name": "s", "type": "mysql", "database": "d", "shards": {"-": ["h:1"]}, "envelope": "debezium"}
    layouts = Layouts(MySQLConfig.model_validate(settings))
    assert layouts("d", "odd", columns, ["id"]) is None
    assert "the columns a#b, a-b have the same name in `envelope: debezium`" in layouts.skipped.reasons["odd"]
    assert layouts("d", "plain", columns[:2], ["id"]) is not None
    with pytest.raises(Unfit, match="list the tables to relay"):
        Layouts(MySQLConfig.model_validate({**settings, "tables": ["odd"]}))("d", "odd", columns, ["id"])


@pytest.mark.parametrize(("settings", "is_strict"), [({}, True), ({"on_unencodable": "dead_letter"}, False)])
def test_a_source_says_whether_rows_that_cannot_be_carried_are_refused(settings: Any, is_strict: bool) -> None:
    """I8, I12"""
    entry = MySQLConfig(name="s", type="mysql", database="d", user="u", password="p", shards={"-": ["h:1"]}, **settings)
    assert lay_out_by(entry, "t", COLUMNS, ["a"], ()).is_strict is is_strict

"""Tables that cannot be relayed, and what is not a table, beside tables that are relayed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from relay.errors import ConfigError, RelayError
from relay.mysql_dialect.sources import check_tables
from relay.records import ShardCheckpoint, ShardState
from relay.source import Opening, Page, Unreadable
from tests.mysql.reading import is_mysql, session
from tests.mysql.segments import head, segment_of
from tests.mysql.shards import begin, open_at, read_to_head, source_of

pytestmark = pytest.mark.services

MERGED = (
    "CREATE TABLE part (id INT PRIMARY KEY) ENGINE=MyISAM",
    "CREATE TABLE merged (id INT NOT NULL, PRIMARY KEY (id)) ENGINE=MERGE UNION=(part) INSERT_METHOD=LAST",
)
UNFIT = {
    "by_set": ("CREATE TABLE by_set (s SET('a', 'b') PRIMARY KEY, v INT)", "INSERT by_set VALUES ('a', 1)"),
    "merged": (*MERGED, "INSERT merged VALUES (1)"),
    "bare": ("CREATE TABLE bare (a INT)", "INSERT bare VALUES (1)"),
}
OF_MARIADB = {
    "versions": ("CREATE TABLE versions (id INT PRIMARY KEY) WITH SYSTEM VERSIONING", "INSERT versions VALUES (1)"),
    "old_time": (
        "SET GLOBAL mysql56_temporal_format = OFF",
        "CREATE TABLE old_time (id INT PRIMARY KEY, v DATETIME(3))",
        "SET GLOBAL mysql56_temporal_format = ON",
        "INSERT old_time VALUES (1, '2024-01-01')",
    ),
}
OF_MYSQL = {  # which MariaDB has as a plugin
    "hole": ("CREATE TABLE hole (id INT PRIMARY KEY) ENGINE=BLACKHOLE", "INSERT hole VALUES (1)")
}


@pytest.fixture
def execute(server: Any, unique: str) -> Iterator[Any]:
    """Runs a statement in a database of the test's own, with the table ``t``."""
    with session(server, unique) as run:
        run("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        yield run


@pytest.mark.parametrize("appears", [False, True])
def test_a_table_that_cannot_be_relayed_is_left_out_and_the_others_go_on(
    server: Any, execute: Any, unique: str, caplog: pytest.LogCaptureFixture, appears: bool
) -> None:
    """I12: whether it is there at the start, or appears while the relay runs, or is there when it starts again."""
    unfit = UNFIT | (OF_MYSQL if is_mysql(server) else OF_MARIADB)
    if not appears:
        for statements in unfit.values():
            for statement in statements[:-1]:
                execute(statement)
    source = source_of(unique, server)
    position = begin(source)["-"]
    with closing(open_at(source, position)) as reader:
        for number, statements in enumerate(unfit.values()):
            for statement in statements if appears else statements[-1:]:
                execute(statement)
            execute(f"INSERT t VALUES ({number}, {number})")
        changes, _ = read_to_head(reader)
    assert {change.table for change in changes} == {"t"}
    assert len(changes) == len(unfit)
    assert set(source.left_out) == set(unfit)
    for table in unfit:
        assert caplog.text.count(f"changes of {unique}.{table} are not relayed: the table ") == 1, table
    again = source_of(unique, server)
    assert [table.table for table in again.tables()] == ["part", "t"]
    assert set(again.left_out) == set(unfit)
    with closing(open_at(again, position)) as reader:
        assert {change.table for change in read_to_head(reader)[0]} == {"t"}


@pytest.mark.parametrize("server", ["mysql"], indirect=True)
def test_a_table_that_gets_another_engine_or_a_key_is_relayed_from_then_on(
    server: Any, execute: Any, unique: str
) -> None:
    """I1: also if its rows look the same in the binlog as before."""
    for table in ("hole", "bare"):
        execute((UNFIT | OF_MYSQL)[table][0])
    source = source_of(unique, server)
    with closing(open_at(source, begin(source)["-"])) as reader:
        for number, alter in enumerate(
            ("DO 1", "ALTER TABLE hole ENGINE=InnoDB", "ALTER TABLE bare ADD PRIMARY KEY (a)")
        ):
            execute(alter)
            for table in ("hole", "bare"):
                execute(f"INSERT {table} VALUES ({number + 10})")
            execute("TRUNCATE TABLE bare")
        changes, _ = read_to_head(reader)
    keys = [change.key and next(iter(change.key.values())) for change in changes]
    found = [(change.table, change.operation.value, key) for change, key in zip(changes, keys, strict=True)]
    assert found == [("hole", "INSERT", 11), ("hole", "INSERT", 12), ("bare", "INSERT", 12), ("bare", "TRUNCATE", None)]
    assert not source.left_out


@pytest.mark.parametrize("server", ["mysql"], indirect=True)
def test_a_table_that_keeps_no_rows_is_made_again_without_a_trace(server: Any, execute: Any, unique: str) -> None:
    """I12: its rows are in the binlog, and do not make it one that was relayed."""
    execute(OF_MYSQL["hole"][0])
    source = source_of(unique, server)
    with closing(open_at(source, begin(source)["-"])) as reader:
        for number in range(3):
            execute("START TRANSACTION")  # which is read as a whole
            execute(f"INSERT t VALUES ({number}, {number})")
            execute(OF_MYSQL["hole"][1])
            execute("COMMIT")
            assert [change.table for change in read_to_head(reader)[0]] == ["t"]
            execute("DROP TABLE hole")
            execute(OF_MYSQL["hole"][0])
    assert set(source.left_out) == {"hole"}


def test_all_named_tables_that_cannot_be_relayed_are_refused_at_once(server: Any, execute: Any, unique: str) -> None:
    for table in ("by_set", "bare"):
        execute(UNFIT[table][0])
    with pytest.raises(ConfigError, match=r"table bare has no primary key.*; .*table by_set has the column 's'"):
        source_of(unique, server, tables=["t", "by_set", "bare"])


def test_a_table_that_loses_its_key_is_left_out_between_two_gaps_and_taken_back_when_it_has_one_again(
    server: Any, execute: Any, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I9, I12: another shard may have its key already, so it does not stop this one. Also wherever reading resumes."""
    source = source_of(unique, server)
    position = begin(source)["-"]
    execute("CREATE TABLE u (id INT PRIMARY KEY)")
    execute("INSERT t VALUES (1, 1)")
    execute("ALTER TABLE t DROP PRIMARY KEY")
    for number in (2, 3):
        execute(f"INSERT t VALUES ({number}, {number})")
        execute(f"INSERT u VALUES ({number})")
    with closing(open_at(source, position)) as reader:
        pages = read_to_head(reader)[1]
        assert "has no primary key" in source.left_out["t"]
        execute("ALTER TABLE t ADD PRIMARY KEY (id)")
        execute("INSERT t VALUES (4, 4)")
        pages += read_to_head(reader)[1]
    assert not source.left_out
    assert "t are relayed from here on. Those before are missing: run `relay snapshot`" in caplog.text
    found = read(pages)
    assert [each for each in found if not each.startswith("gap")] == ["t 1", "u 2", "u 3", "t 4"]
    assert [each for each in found if each.startswith("gap")] == [
        "gap left out from here on, as it has no primary key: table t",
        "gap left out up to here, as it had no primary key: table t",
    ]
    gaps = [page.gap for page in pages if page.gap is not None]
    for at, page in enumerate(pages):
        assert page.position is not None
        again = source_of(unique, server)
        checkpoint = ShardCheckpoint(ShardState.READING, page.position)
        opening = Opening(again.shards()[0], position, checkpoint, keys={"t": (("id", "int"),), "u": (("id", "int"),)})
        with closing(again.open(opening)) as reader:
            rest = read_to_head(reader)[1]
        assert read(rest) == read(pages[at + 1 :])
        assert {page.gap.id for page in rest if page.gap} <= {gap.id for gap in gaps}


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_table_that_had_no_key_before_it_was_relayed_is_left_out_with_a_gap_when_it_has_none_again(
    server: Any, execute: Any, unique: str, elsewhere: bool
) -> None:
    """I1, I9: its rows look as they did before it was relayed, here or by the reader of another shard."""
    source = source_of(unique, server)
    position = begin(source)["-"]
    execute("CREATE TABLE b (id INT NOT NULL)")
    with closing(open_at(source, position)) as reader:
        execute("INSERT b VALUES (1)")
        pages = read_to_head(reader)[1]
        if elsewhere:
            source.layouts.skipped.keep(["b"])
        else:
            execute("ALTER TABLE b ADD PRIMARY KEY (id)")
            execute("INSERT b VALUES (2)")
            execute("ALTER TABLE b DROP PRIMARY KEY")
        execute("INSERT b VALUES (3)")
        pages += read_to_head(reader)[1]
    left_out = "gap left out from here on, as it has no primary key: table b"
    assert read(pages) == ([] if elsewhere else ["b 2"]) + [left_out]
    assert "has no primary key" in source.left_out["b"]


def read(pages: list[Page]) -> list[str]:
    """Return the gaps and the changes in pages."""
    found = []
    for page in pages:
        found += [f"gap {page.gap.reason}"] if page.gap is not None else []
        found += [f"{change.table} {change.key['id']}" for change in page.changes if change.key]
    return found


def test_what_is_not_a_table_of_its_own_is_refused_by_what_it_is(server: Any, execute: Any, unique: str) -> None:
    objects = {"v": "is a view", "merged": "has the engine MERGE"}
    for statement in ("CREATE VIEW v AS SELECT * FROM t", *MERGED):
        execute(statement)
    if is_mysql(server):
        objects["hole"] = "has the engine BLACKHOLE, which keeps no rows"
        execute(OF_MYSQL["hole"][0])
    else:
        objects["s"] = "is a sequence"
        execute("CREATE SEQUENCE s")
    for name, said in objects.items():
        with pytest.raises(ConfigError, match=f"the table {name} {said}"):
            source_of(unique, server, tables=["t", name])
    assert set(source_of(unique, server).left_out) == objects.keys() & {"merged", "hole"}  # a view is not missed


def test_a_named_table_that_is_missing_is_explained(server: Any, execute: Any, unique: str) -> None:
    execute("CREATE TABLE parted (id INT PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION low VALUES LESS THAN (9))")
    execute("CREATE TEMPORARY TABLE passing (id INT PRIMARY KEY)")
    for name, said in (
        ("low", "has no table low: it is a partition of the table parted: name the table"),
        ("parted#P#low", "has no table parted#P#low: it is a partition of the table parted: name the table"),
        ("Parted", "has no table Parted, but one that is called parted: use this spelling"),
        ("passing", "has no table passing: create it, .*; a temporary table is not in the binlog"),
    ):
        source = source_of(unique, server, tables=[name])
        with pytest.raises(RelayError, match=f"the database {unique} {said}"):
            begin(source)
        with pytest.raises(RelayError, match=f"it {said}"):
            check_tables(source)


@pytest.mark.parametrize("server", ["mariadb"], indirect=True)
@pytest.mark.parametrize("settings", [{}, {"key": ["id"]}])
def test_the_rows_of_a_sequence_are_passed(
    server: Any, execute: Any, unique: str, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    """I12"""
    execute("CREATE SEQUENCE before_it")
    source = source_of(unique, server, **settings)
    with closing(open_at(source, begin(source)["-"])) as reader:
        execute("CREATE SEQUENCE later")
        for sequence in ("before_it", "later"):
            execute(f"SELECT NEXTVAL({sequence})")
            execute(f"SELECT SETVAL({sequence}, 5000)")
            execute(f"ALTER SEQUENCE {sequence} RESTART 7")
        execute("INSERT t VALUES (1, 1)")
        execute("DROP SEQUENCE later")
        execute("INSERT t VALUES (2, 2)")
        changes, _ = read_to_head(reader)
    assert [(change.table, change.key) for change in changes] == [("t", {"id": 1}), ("t", {"id": 2})]
    assert "not relayed" not in caplog.text


def test_a_table_in_memory_is_relayed_and_empty_after_a_restart(own: Any, unique: str) -> None:
    """I7: the server logs that it has lost the rows."""
    with session(own, unique) as execute:
        execute("CREATE TABLE m (id INT PRIMARY KEY, v INT) ENGINE=MEMORY")
        source = source_of(unique, own)
        position = begin(source)["-"]
        execute("INSERT m VALUES (1, 1)")
    own.kill()
    own.restart()
    with session(own, unique) as execute:
        execute("INSERT m VALUES (2, 2)")
    with closing(open_at(source, position)) as reader:
        changes, _ = read_to_head(reader)
    assert [change.operation.value for change in changes] == ["INSERT", "TRUNCATE", "INSERT"]


def test_a_table_that_has_its_key_back_is_read_by_a_snapshot_and_not_left_out_any_more_without_a_row_of_it(
    mariadb: Any, unique: str
) -> None:
    """I12, I7."""
    with session(mariadb, unique) as execute:
        execute("create table item (id int not null)")
        source = source_of(unique, mariadb)
        assert set(source.left_out) == {"item"}
        assert source.snapshots.measure({"-": head(source)}).left_out == ["item"]
        execute("alter table item add primary key (id)")
        found = source.snapshots.measure({"-": head(source)})
        assert ([part.table for part in found.parts], found.left_out) == (["item"], [])
        assert not source.left_out


def test_a_table_that_can_be_read_no_more_is_not_finished(mariadb: Any, unique: str) -> None:
    """I7: the end of the snapshot would delete all its rows from copies."""
    with session(mariadb, unique) as execute:
        execute("create table item (id int primary key)")
        source = source_of(unique, mariadb)
        with closing(segment_of(source, head(source), "item")) as reader:
            for alter in ("drop primary key", "add s set('a', 'b') primary key"):
                execute(f"alter table item {alter}")
                read = reader.read()
                assert isinstance(read, Unreadable), alter
                assert "item" in read.reason

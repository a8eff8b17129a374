"""Protected columns of a database, through the complete relay: no topic and no line of the log has a value of one."""

from __future__ import annotations

import hmac
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from relay.avro.registry import open_schemas
from relay.change import Snapshot
from relay.cli import app
from relay.config import load
from relay.config.protection import NOT_SHOWN
from relay.errors import ConfigError, RelayError
from relay.records import Shard, ShardCheckpoint, ShardState, SnapshotPart
from relay.services.mariadb import PASSWORD, USER, MariaDB
from relay.source import Page, Segment
from tests.kafka.every_byte import every_byte
from tests.kafka.limited_topics import create
from tests.mysql.reading import session
from tests.mysql.shards import begin, open_at, read_to_head, read_until, source_of
from tests.reads import read_page
from tests.topic_changes import read_changes

pytestmark = pytest.mark.services

SALT = "pepper-and-salt"


def hashed(text: str) -> str:
    return hmac.digest(SALT.encode(), text.encode(), "sha256").hex()


def test_no_value_of_a_protected_column_or_of_a_row_that_is_not_wanted_leaves_the_relay(
    kafka: Any, mariadb: MariaDB, unique: str, tmp_path: Path
) -> None:
    """In rows of a snapshot, changes, a change that is too large for its topic, messages, checkpoints."""
    path = tmp_path / "relay.yaml"
    rules = f"ssn: exclude, phone: mask, Email: {{hash: {{salt: {SALT}}}}}"

    def relay(command: str, *options: str, rules: str = rules, code: int = 0) -> Result:
        path.write_text(
            f"""name: {unique}
kafka: {{bootstrap_servers: "{kafka.bootstrap_servers}", partitions: 2}}
sources:
  - {{name: shop, type: mysql, database: {unique}, user: {USER}, password: {PASSWORD}, snapshot: initial,
     shards: {{"-": ["{mariadb.address}"]}}, protect: {{customer: {{{rules}}}}}, where: {{visit: {{region: eu}}}}}}
"""
        )
        result = CliRunner().invoke(app, [command, str(path), *options])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    mariadb.execute(f"CREATE DATABASE {unique}")
    table = f"{unique}.customer"
    mariadb.execute(
        f"CREATE TABLE {table} (ssn VARCHAR(40), id INT PRIMARY KEY, phone BIGINT, email VARCHAR(40), note TEXT)"
    )
    mariadb.execute(f"INSERT {table} VALUES ('s3cr3t 1', 1, 5551234567, 's3cr3t@a', 'x'), (NULL, 2, NULL, NULL, 'x')")
    mariadb.execute(f"CREATE TABLE {unique}.visit (id INT, region VARCHAR(9), v INT, PRIMARY KEY (region, id))")
    mariadb.execute(f"INSERT {unique}.visit VALUES (1, 'eu', 0), (2, 's3cr3t', 0)")
    create(kafka.bootstrap_servers, f"{unique}.customer", 2, max_message_bytes="9000")
    for wrong, said in (
        ("id: mask", "`protect.customer.id`: it is part of the key"),
        ("sssn: mask", "table customer has no column sssn, which `protect.customer.sssn` names"),
    ):
        for command, options in (("check", ()), ("run", ("--until-caught-up",))):
            assert said in " ".join(relay(command, *options, rules=wrong, code=2).output.split())
    checked = relay("check").output
    assert "protects ssn (exclude), phone (mask), email (hash)" in " ".join(checked.split())
    logs = [checked, relay("run", "--until-caught-up").output]
    mariadb.execute(f"INSERT {table} VALUES ('s3cr3t 3', 3, 5551234567, 's3cr3t@a', repeat('long', 5000))")
    mariadb.execute(f"UPDATE {table} SET ssn = 's3cr3t 2' WHERE id = 1")
    mariadb.execute(f"DELETE FROM {table} WHERE id = 1")
    mariadb.execute(f"ALTER TABLE {table} COMMENT 's3cr3t' /* 5551234567 */")
    mariadb.execute(f"ALTER TABLE {table} MODIFY phone BIGINT DEFAULT 5551234567, ALTER ssn SET DEFAULT 's3cr3t\\''")
    mariadb.execute(f"ALTER TABLE {table} ADD COLUMN added INT")
    mariadb.execute(f"INSERT {table} VALUES ('s3cr3t 4', 4, 5551234567, 's3cr3t@b', 'x', 7)")
    for statement in (
        "UPDATE visit SET v = 1",
        "UPDATE visit SET region = 'eu' WHERE id = 2",
        "DELETE FROM visit WHERE id = 1",
        "INSERT visit VALUES (3, 's3cr3t', 0)",
        "UPDATE visit SET region = 's3cr3t' WHERE id = 2",
    ):
        mariadb.execute(statement.replace("visit", f"{unique}.visit"))
    logs.append(relay("run", "--until-caught-up").output)

    config = load(path)
    with closing(open_schemas(config)) as schemas:
        read = {
            name: read_changes(config.kafka.client(), config.topic(name), schemas) for name in ("customer", "visit")
        }
    found = {
        name: [change for *_, change in sorted(of, key=lambda each: each[:2]) if change["key"]]
        for name, of in read.items()
    }
    visits = [(c["operation"], c["key"]["id"]) for c in sorted(found["visit"], key=lambda c: int(c["key"]["id"]))]
    assert visits == [("READ", 1), ("UPDATE", 1), ("DELETE", 1), ("INSERT", 2), ("DELETE", 2)]
    changes = found["customer"]
    row = {"id": 1, "phone": "***", "email": hashed("s3cr3t@a"), "note": "x"}
    by_key = {number: [(c["operation"], c["old"], c["new"]) for c in changes if c["key"]["id"] == number]
              for number in range(1, 5)}  # fmt: skip
    assert by_key == {
        1: [("READ", None, row), ("UPDATE", row, row), ("DELETE", row, None)],
        2: [("READ", None, {"id": 2, "phone": None, "email": None, "note": "x"})],
        3: [("INSERT", None, None)],
        4: [("INSERT", None, {**row, "id": 4, "email": hashed("s3cr3t@b"), "added": 7})],
    }
    written = every_byte(kafka.bootstrap_servers, unique)
    assert b"longlong" in written, "the complete change is a dead letter"
    for shown in (b' COMMENT ***"', b' MODIFY phone BIGINT DEFAULT..."', b' ADD COLUMN added INT"'):
        assert shown in written
    for secret in ("s3cr3t", "5551234567", SALT):
        assert secret.encode() not in written
        assert secret not in "".join(logs)


def test_a_message_about_a_protected_table_shows_no_value(mariadb: MariaDB, unique: str) -> None:
    """Of its binlog and of its rows: the server accepts a byte of this character set that stands for nothing."""
    with session(mariadb, unique) as execute:
        execute("create table odd (id int primary key, v varchar(9), n varchar(9)) character set greek")
        source = source_of(unique, mariadb, protect={"odd": {"v": "mask"}})
        reader = open_at(source, begin(source)["-"])
        page = read_to_head(reader)[1][-1]
        execute("insert odd values (4, _greek x'733363723374a4', _greek x'733363723374a4')")
        published = ShardCheckpoint(ShardState.READING, page.position, page.token, reached=page.reached)
        part = SnapshotPart("-", "odd")
        segment = Segment(Shard("s/0"), Snapshot("s", 1), 0, 1, None, part, lambda: {"-": published})
        for each in (reader, source.snapshots.open(segment)):
            with closing(each), pytest.raises(RelayError, match=f"column 'n': {NOT_SHOWN}") as caught:
                read_until(each, bool)
            assert "s3cr3t" not in str(caught.value)
            assert "733363723374" not in str(caught.value)


def test_nothing_is_read_of_a_protected_column_that_is_renamed_before_the_first_row_of_its_table(
    mariadb: MariaDB, unique: str
) -> None:
    with session(mariadb, unique) as execute:
        execute("create table person (id int primary key, name varchar(9))")
        source = source_of(unique, mariadb, protect={"person": {"name": "mask"}})
        start = begin(source)["-"]
        execute("alter table person rename column name to label")
        execute("insert person values (1, 's3cr3t')")
        published = ShardCheckpoint(ShardState.READING, start)
        part = SnapshotPart("-", "person")
        segment = Segment(Shard("s/0"), Snapshot("s", 1), 0, 1, None, part, lambda: {"-": published})
        for reader in (open_at(source, start), source.snapshots.open(segment)):
            with closing(reader), pytest.raises(RelayError, match="the new column label"):
                read_until(reader, bool)


def test_a_protected_column_that_is_renamed_ends_the_stream_before_its_first_row(mariadb: MariaDB, unique: str) -> None:
    with session(mariadb, unique) as execute:
        execute("create table person (id int primary key, name varchar(9), v int)")
        rules: dict[str, Any] = {"name": "mask"}
        source = source_of(unique, mariadb, protect={"person": rules})
        start = begin(source)["-"]
        execute("insert person values (1, 's3cr3t', 1)")
        execute("alter table person drop column v")
        execute("insert person values (2, 's3cr3t')")
        execute("alter table person rename column name to label")
        execute("insert person values (3, 's3cr3t')")
        pages: list[Page] = []
        with closing(open_at(source, start)) as reader, pytest.raises(RelayError, match="the new column label"):
            pages += iter(lambda: read_page(reader), None)
        assert [change.new for page in pages for change in page.changes] == [
            {"id": 1, "name": "***", "v": 1},
            {"id": 2, "name": "***"},
        ]
        with pytest.raises(ConfigError, match="table person has no column name"):
            source_of(unique, mariadb, protect={"person": rules})
        source = source_of(unique, mariadb, protect={"person": {"name": {"absent": "mask"}, "label": "exclude"}})
        with closing(open_at(source, start)) as reader:
            changes, _ = read_to_head(reader)
        assert [change.new for change in changes][1:] == [{"id": 2, "name": "***"}, {"id": 3}]

"""`protect:` and `where:` of a keyspace, through the complete relay: snapshots, changes, statements, messages."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import Result

from relay.avro.registry import open_schemas
from relay.config import load
from relay.services.vitess import Vitess
from tests import command_line, needs
from tests.kafka.every_byte import every_byte
from tests.topic_changes import read_changes

pytestmark = pytest.mark.services

SALT = "pepper-and-salt"
_CUSTOMER = "create table customer (ssn varchar(40), id bigint primary key, phone bigint, email varchar(40), note text)"
_VISIT = "create table visit (id bigint, region varchar(9), v int, primary key (region, id))"
_VSCHEMA = {
    "sharded": True,
    "vindexes": {"hash": {"type": "hash"}},
    "tables": {name: {"column_vindexes": [{"column": "id", "name": "hash"}]} for name in ("customer", "visit")},
}


def hashed(text: str) -> str:
    return hmac.digest(SALT.encode(), text.encode(), "sha256").hex()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Vitess]:
    needs.vitess()
    with Vitess(keyspaces={"shop": ["-80", "80-"]}, schemas={"shop": (f"{_CUSTOMER}; {_VISIT}", _VSCHEMA)}) as own:
        yield own


@pytest.fixture
def command(cluster: Vitess, kafka: Any, unique: str, tmp_path: Path) -> Callable[..., Result]:
    path = tmp_path / "relay.yaml"
    rules = {"ssn": "exclude", "phone": "mask", "Email": {"hash": {"salt": SALT}}}

    def run(name: str, *options: str, rules: Any = rules, code: int = 0, **settings: Any) -> Result:
        entry = {"name": "s", "type": "vitess", "vtgate": cluster.vtgate, "keyspace": "shop", "start": "copy"}
        more = {"tables": ["customer", "visit"], "protect": {"customer": rules}, "where": {"visit": {"region": "eu"}}}
        sources = [{**entry, **more, **settings}]
        servers = {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 2}
        path.write_text(yaml.safe_dump({"name": unique, "kafka": servers, "sources": sources}))
        result = command_line.relay(name, path, *options)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return run


def test_no_value_of_a_protected_column_or_of_a_row_that_is_not_wanted_leaves_the_relay(
    cluster: Vitess, command: Callable[..., Result], kafka: Any, unique: str, tmp_path: Path
) -> None:
    """I1: rows match, begin to match and stop to match, in a snapshot, in changes, and in one beside the other."""
    customers = ("('s3cr3t 1', 1, 5551234567, 's3cr3t@a', 'x')", "(null, 2, null, null, 'x')")
    for values in customers:
        cluster.execute(f"insert into customer (ssn, id, phone, email, note) values {values}")
    for number in range(1, 7):
        cluster.execute(f"insert into visit (id, region, v) values ({number}, '{'eu' if number % 2 else 's3cr3t'}', 0)")
    for wrong, said in (
        ({"id": "mask"}, "`protect.customer.id`: it is part of the key"),
        ({"sssn": "mask"}, "table customer has no column sssn, which `protect.customer.sssn` names"),
    ):
        for name, options in (("check", ()), ("run", ("--until-caught-up",))):
            assert said in " ".join(command(name, *options, rules=wrong, code=2).output.split())
    checked = command("check").output
    assert "protects ssn (exclude), phone (mask), email (hash)" in " ".join(checked.split())
    logs = [checked, command("run", "--until-caught-up").output]
    for statement in (
        "insert into customer (ssn, id, phone, email, note) values ('s3cr3t 3', 3, 5551234567, 's3cr3t@a', 'y')",
        "update customer set ssn = 's3cr3t 2' where id = 1",
        "delete from customer where id = 1",
        "alter table customer add column added int default 7 comment 's3cr3t'",
        "update visit set v = 1",
        "update visit set region = 'eu' where id = 2",
        "update visit set region = 's3cr3t' where id = 1",
        "update visit set v = 2 where id in (1, 4)",
        "delete from visit where id in (3, 4)",
        "insert into visit (id, region, v) values (7, 's3cr3t', 0)",
        "insert into visit (id, region, v) values (8, 'eu', 0)",
    ):
        cluster.execute(statement)
    logs.append(command("run", "--until-caught-up").output)
    fourth = "(ssn, id, phone, email, note, added) values ('s3cr3t 4', 4, 5551234567, 's3cr3t@b', 'x', 8)"
    cluster.execute(f"insert into customer {fourth}")
    cluster.execute("update visit set region = 'eu' where id = 6")
    logs.append(command("snapshot", "s").output)
    logs.append(command("run", "--until-caught-up").output)

    config = load(tmp_path / "relay.yaml")
    with closing(open_schemas(config)) as schemas:
        read = {
            name: [
                change
                for *_, change in sorted(
                    read_changes(config.kafka.client(), config.topic(name), schemas), key=lambda each: each[:2]
                )
                if change["key"]
            ]
            for name in ("customer", "visit")
        }
    visits: dict[int, list[str]] = {}
    for change in read["visit"]:
        assert {image["region"] for image in (change["old"], change["new"]) if image} == {"eu"}
        visits.setdefault(change["key"]["id"], []).append(change["operation"])
    assert visits == {
        1: ["READ", "UPDATE", "DELETE"],
        2: ["INSERT", "READ"],
        3: ["READ", "UPDATE", "DELETE"],
        5: ["READ", "UPDATE", "READ"],
        6: ["INSERT", "READ"],
        8: ["INSERT", "READ"],
    }
    row: dict[str, Any] = {"id": 1, "phone": "***", "email": hashed("s3cr3t@a"), "note": "x"}
    second: dict[str, Any] = {"id": 2, "phone": None, "email": None, "note": "x"}
    by_key: dict[int, list[Any]] = {}
    for change in read["customer"]:
        by_key.setdefault(change["key"]["id"], []).append((change["operation"], change["old"], change["new"]))
    assert by_key[1] == [("READ", None, row), ("UPDATE", row, row), ("DELETE", row, None)]
    assert by_key[2] == [("READ", None, second), ("READ", None, {**second, "added": 7})]
    assert by_key[3] == [
        ("INSERT", None, {**row, "id": 3, "note": "y"}),
        ("READ", None, {**row, "id": 3, "note": "y", "added": 7}),
    ]
    last = {**row, "id": 4, "email": hashed("s3cr3t@b"), "added": 8}
    assert by_key[4] == [("INSERT", None, last), ("READ", None, last)]
    written = every_byte(kafka.bootstrap_servers, unique)
    for secret in ("s3cr3t", "5551234567", SALT):
        assert secret.encode() not in written
        assert secret not in "".join(logs)


def test_a_protected_column_that_is_renamed_ends_its_table_before_its_first_row(
    cluster: Vitess, command: Callable[..., Result], kafka: Any, unique: str
) -> None:
    cluster.execute("delete from customer")
    command("run", "--until-caught-up", start="current")
    cluster.execute("alter table customer change column ssn label varchar(40)")
    cluster.execute("insert into customer (id, label) values (9, 's3cr3t')")
    refused = command("run", "--until-caught-up", code=2, start="current").output
    assert "table customer has no column ssn" in " ".join(refused.split())
    assert b"s3cr3t" not in every_byte(kafka.bootstrap_servers, unique)

"""A database through the whole relay, onto Kafka."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from relay.avro.registry import open_schemas
from relay.cli import app
from relay.config import load
from relay.local.mariadb import PASSWORD, USER, MariaDB
from relay.local.truth import read_changes

pytestmark = pytest.mark.services


class Relayed:
    """A relay of one database."""

    def __init__(self, folder: Path, database: str, bootstrap_servers: str, shards: str) -> None:
        self.path = folder / "relay.yaml"
        self.path.write_text(
            f"""name: {database}
kafka: {{bootstrap_servers: "{bootstrap_servers}", partitions: 2}}
sources:
  - {{name: shop, type: mysql, database: {database}, user: {USER}, password: {PASSWORD}, shards: {shards}}}
"""
        )

    def command(self, *arguments: str) -> Result:
        result = CliRunner().invoke(app, [*arguments])
        assert result.exit_code == 0, (result.output, result.exception)
        return result

    def run(self) -> None:
        self.command("run", str(self.path), "--until-caught-up")

    def changes(self, table: str) -> list[dict[str, Any]]:
        config = load(self.path)
        with closing(open_schemas(config)) as schemas:
            found = read_changes(config.kafka.client(), config.topic(table), schemas)
        return [change for _, _, change in sorted(found, key=lambda change: change[:2])]


def test_what_is_committed_is_on_the_topic_once_whenever_the_relay_runs(
    kafka: Any, mariadb: MariaDB, unique: str, tmp_path: Path
) -> None:
    """I1, I3."""
    mariadb.execute(f"CREATE DATABASE {unique}")
    mariadb.execute(f"CREATE TABLE {unique}.item (id INT PRIMARY KEY, price DECIMAL(10,2))")
    relayed = Relayed(tmp_path, unique, kafka.bootstrap_servers, json.dumps({"-": [mariadb.address]}))
    relayed.command("check", str(relayed.path))
    relayed.run()  # plans, and begins at the head
    for number in range(20):
        mariadb.execute(f"INSERT {unique}.item VALUES ({number}, {number}.5)")
        if number % 8 == 0:
            relayed.run()
    mariadb.execute(f"ALTER TABLE {unique}.item ADD COLUMN name VARCHAR(20)")
    mariadb.execute(f"UPDATE {unique}.item SET name = 'n' WHERE id < 3")
    relayed.run()
    relayed.run()
    changes = relayed.changes("item")
    assert len(changes) == 23
    assert sorted(change["key"]["id"] for change in changes if change["operation"] == "INSERT") == list(range(20))
    updates = [change["new"] for change in changes if change["operation"] == "UPDATE"]
    assert [row["name"] for row in updates] == ["n"] * 3
    status = json.loads(relayed.command("status", str(relayed.path), "--json").stdout)
    assert f"MariaDB/{mariadb.gtid}" in json.dumps(status)

"""Tables whose rows a statement has changed without a change: what says so, until a snapshot has read them again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.services.mariadb import PASSWORD, USER
from tests.command_line import relay, run_until_caught_up
from tests.spark_consumers import delta_rows
from tests.spark_consumers.noted_gaps import noted_gaps
from tests.spark_consumers.spark_process import SparkProcess

pytestmark = pytest.mark.services

ORDERS, ITEMS = (f"table {name} may have different values now, which no change shows" for name in ("orders", "items"))


def test_a_table_with_rounded_values_is_named_by_status_log_and_copy_until_it_is_read_again(
    mariadb: Any, kafka: Any, database_url: str, unique: str, tmp_path: Path, spark_of_delta: SparkProcess
) -> None:
    """I7, I9, I12: also after a restart, once, and no other table is."""
    path = tmp_path / "relay.yaml"
    source: dict[str, Any] = {"name": "shop", "type": "mysql", "database": unique, "user": USER, "password": PASSWORD}
    source |= {"shards": {"-": [mariadb.address]}, "tables": ["orders", "items"]}
    config = {"name": unique, "kafka": {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 2}}
    sinks = {"log": {"path": f"file://{tmp_path}/log"}, "copy": {"url": database_url}}
    path.write_text(yaml.safe_dump({**config, "sources": [source], **sinks}))

    def execute(*statements: str) -> None:
        with mariadb.connect(database=unique) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def run(*arguments: str | Path, code: int = 0) -> str:
        result = relay(*arguments)
        assert result.exit_code == code, (result.output, result.exception)
        return result.stdout

    def applied() -> dict[str, list[str]]:
        """Let the relay and the consumers catch up, and return the marks of the log and of the copies."""
        run_until_caught_up(path)
        for consumer in ("log", "copy"):
            options = ("--until-caught-up", "--checkpoint", str(tmp_path / f"{consumer}-checkpoint"))
            running = spark_of_delta.start_relay(
                "consume", consumer, str(path), *options, log=tmp_path / f"{consumer}.txt"
            )
            assert running.wait(120) == 0, running.log()
        there = (tmp_path / "log_gaps").exists()
        found = {
            "log": sorted(reason for (reason,) in delta_rows.rows(tmp_path / "log_gaps", ["reason"])) if there else []
        }
        return found | {table: noted_gaps(path, "shop", table) for table in ("orders", "items")}

    def problems() -> list[tuple[str, str]]:
        status = json.loads(run("status", path, "--json"))
        found = status["problems"]
        assert status["state"] != "Stalled"
        return [(each["what"], each["reason"]) for each in found if "copies" in each["what"]]

    mariadb.execute(f"CREATE DATABASE {unique}")
    tables = ("orders", "items")
    execute(*(f"CREATE TABLE {table} (id INT PRIMARY KEY, total DECIMAL(10,2))" for table in tables))
    run_until_caught_up(path)
    execute(*(f"INSERT {table} VALUES (1, 1.25), (2, 3.00)" for table in tables))
    assert applied() == {"log": [], "orders": [], "items": []}
    rounding = "ALTER TABLE orders MODIFY total DECIMAL(10,1)"
    execute(rounding)
    marked = {"log": [ORDERS], "orders": [ORDERS], "items": []}
    assert applied() == marked
    ((what, why),) = problems()
    assert what == "table orders of shop may differ from its copies"
    assert why.endswith(rounding)
    run("verify", path, "copy", "--within", "1", code=4)
    execute("ALTER TABLE items MODIFY total DECIMAL(10,1)")
    run("snapshot", path, "shop", "orders")
    assert applied() == {"log": [ITEMS, ORDERS], "orders": [], "items": [ITEMS]}
    assert [what for what, _ in problems()] == ["table items of shop may differ from its copies"]
    verified = json.loads(run("verify", path, "copy", "--within", "1", "--json", code=4))["copy"]
    assert [each["table"] for each in verified if each["wrong_rows"]] == ["items"]
    gap = next(each for each in json.loads(run("gaps", "list", path, "--json")) if each.get("table") == "items")
    run("gaps", "accept", path, gap["id"], "skip")
    assert problems() == []

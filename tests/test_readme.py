"""The programs of README.md and some other documents, run as they stand there, on services of tests."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from relay.cache import RedisStore, TokenCache
from relay.process.supervisor import WORKER_NUMBER, WORKERS
from relay.services.mariadb import PASSWORD, USER
from tests.command_line import relay as run_relay
from tests.snippets import play, programs

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = ROOT / "deploy" / "docs"
DOCUMENTS = ("README.md", "deploy/docs/tutorial.md", "deploy/docs/how_to/cache.md", "relay/mysql/README.md")
PROGRAMS = [program for document in DOCUMENTS for program in programs(document)]
LONGEST = {"README.md": 900, "relay/README.md": 1200, "spark_consumers/README.md": 800}
"""Words of what somebody reads before they decide whether to go on, or where to change something."""


def program(word: str) -> str:
    """Return the program that has ``word``."""
    (found,) = (text for text in PROGRAMS if word in text)
    return found


def test_all_programs_are_played_here() -> None:
    assert len(PROGRAMS) == 8
    assert all(first != second for first, second in pairwise(PROGRAMS))


@pytest.mark.parametrize("document", LONGEST)
def test_a_readme_is_short(document: str) -> None:
    assert len((ROOT / document).read_text(encoding="utf-8").split()) <= LONGEST[document]


def test_the_readme_shows_the_checks_that_the_demo_prints() -> None:
    shown = re.findall(r"^(\S.*?) {2,}yes$", README.read_text(encoding="utf-8"), re.MULTILINE)
    code = (ROOT / "relay" / "demo" / "report.py").read_text(encoding="utf-8")
    checks = re.findall(r'^        "(.*?)":', code.partition("    checks = {")[2].partition("\n    }")[0], re.MULTILINE)
    assert shown == checks


def test_every_variable_of_the_environment_is_named() -> None:
    """But for those that the relay sets for its own workers."""
    sources = [path for folder in ("relay", "spark_consumers") for path in (ROOT / folder).rglob("*.py")]
    read = {name for path in sources for name in re.findall(r'"(RELAY_[A-Z_]+)"', path.read_text(encoding="utf-8"))}
    named = set(
        re.findall(r"^\| `(RELAY_[A-Z_]+)`", (PAGES / "how_to" / "run.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert read - {WORKER_NUMBER, WORKERS} == named


@pytest.fixture
def table(dynamodb: Any, unique: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table like that of the README, with one order."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb.endpoint_url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    client = boto3.client("dynamodb")
    client.create_table(
        TableName=unique,
        AttributeDefinitions=[
            {"AttributeName": "customer", "AttributeType": "S"},
            {"AttributeName": "order_id", "AttributeType": "N"},
        ],
        KeySchema=[{"AttributeName": "customer", "KeyType": "HASH"}, {"AttributeName": "order_id", "KeyType": "RANGE"}],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    )
    item = {"customer": {"S": "ada"}, "order_id": {"N": "7"}, "total": {"N": "19.9"}}
    client.put_item(TableName=unique, Item=item)
    client.close()
    return unique


@pytest.mark.services
def test_changes_are_read_by_the_program_of_the_readme(
    kafka: Any, dynamodb: Any, table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "relay.yaml"
    source = {"name": "orders", "type": "dynamodb", "table": table, "region": "us-east-1"}
    source["endpoint_url"] = dynamodb.endpoint_url
    content = {"name": table, "kafka": {"bootstrap_servers": kafka.bootstrap_servers}, "sources": [source]}
    path.write_text(yaml.safe_dump(content))
    assert run_relay("run", path, "--until-caught-up").exit_code == 0
    # It would wait for the next change.
    changed = {"relay.yaml": str(path), '"orders"': repr(table), "changes.commit()": "changes.commit(); break"}
    play(program("relay.changes("), changed)
    assert "INSERT" in capsys.readouterr().out


@pytest.mark.services
def test_the_cache_is_read_by_the_programs_of_the_readme(redis_server: Any, table: str) -> None:
    changed = {"redis://cache:6379/0": redis_server.url, '"shop"': repr(table), '"orders"': repr(table)}
    names = play(program("DynamoDBLoader"), changed)
    assert b"19.9" in names["order"]
    bounded = play(program("value_ttl"), {key: changed[key] for key in list(changed)[:2]})["cache"]
    assert bounded.value_ttl == 600
    names = play(program("order.invalidate("), changed, names)
    assert names["order"]("ada", 7)["total"] == {"N": "19.9"}
    names["boto3"].client("dynamodb").delete_item(
        TableName=table, Key={"customer": {"S": "ada"}, "order_id": {"N": "7"}}
    )
    assert names["order"]("ada", 7) is not None
    names["order"].invalidate("ada", 7)
    assert names["order"]("ada", 7) is None


@pytest.mark.services
def test_the_program_of_the_tutorial_loads_an_item_once(
    redis_server: Any, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = {"redis://127.0.0.1:6379/0": redis_server.url, '"shop"': repr(table), '"orders"': repr(table)}
    for expected in ("loading\n{'N': '19.9'}\n", "{'N': '19.9'}\n"):
        play(program('print("loading")'), changed)
        assert capsys.readouterr().out == expected


@pytest.mark.services
def test_rows_are_read_by_the_programs_of_the_readme(
    mariadb: Any, redis_server: Any, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a MariaDB alone; how its loader asks a vtgate has tests of its own."""
    mariadb.execute(f"CREATE DATABASE {unique}")
    mariadb.execute(f"CREATE TABLE {unique}.orders (id INT PRIMARY KEY, total INT)")
    mariadb.execute(f"INSERT INTO {unique}.orders VALUES (7, 19)")
    server = f'host="{mariadb.host}", port={mariadb.port}, user="{USER}", password="{PASSWORD}", database="{unique}"'
    vitess = program("VitessLoader").replace("\norder = cache", "\norder = lambda: cache")
    names: dict[str, Any] = {"cache": TokenCache(RedisStore(redis_server.url), unique)}
    play(vitess, {'host="vtgate", port=15306, user="app"': server}, names)
    changed = {
        '"db1-replica", 3306, "app", "secret"': f'"{mariadb.host}", {mariadb.port}, "{USER}", "{PASSWORD}"',
        'host="db1", user="app"': server,
        'host="db1-replica", user="app"': server,
    }
    play(program("QueriesLoader("), changed, names)
    asked = {
        '"db1-replica", 3306, "app", "secret"': f'"{mariadb.host}", {mariadb.port}, "{USER}", "{PASSWORD}"',
        'host="db1-replica", user="app", password="secret", database="legacy"': server,
    }
    told = play(program("TokenQueries"), asked)
    told["connection"].close()
    assert (list(told["rows"]), told["fresher"]) == ([(19,)], True)
    try:
        assert names["cache"].get_or_load("order:7", names["orders"].load).value == b"19"
    finally:
        names["watcher"].close()
        names["orders"].close()
        names["primary"].close()

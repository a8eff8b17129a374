"""A PostgreSQL that a copy cannot use: what the commands say, and with which exit code they end."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from typer.testing import CliRunner

from relay.cli import app
from relay.errors import ConfigError, Unavailable
from relay.services.postgres import PostgresServer, execute
from spark_consumers.sinks.postgres import PostgresDatabase, problems
from tests.listening import NOBODY

pytestmark = pytest.mark.services


@pytest.fixture
def user(postgres: Any, database_url: str, unique: str) -> Iterator[str]:
    """The URL of the database for a user who may do nothing there."""
    password = secrets.token_hex(4)
    execute(database_url, f"CREATE ROLE {unique} LOGIN PASSWORD '{password}'")
    execute(database_url, f"REVOKE ALL ON DATABASE {unique} FROM PUBLIC")
    execute(database_url, f"GRANT CONNECT ON DATABASE {unique} TO {unique}")
    parts = urlsplit(database_url)
    yield parts._replace(netloc=f"{unique}:{password}@{parts.hostname}:{parts.port}").geturl()
    execute(database_url, f"DROP OWNED BY {unique}")
    execute(postgres.url, f"DROP DATABASE {unique} WITH (FORCE)")
    execute(postgres.url, f"DROP ROLE {unique}")


def check(folder: Path, command: str, url: str) -> tuple[int, str]:
    source = {"name": "orders", "type": "dynamodb", "table": "orders", "region": "us-east-1"}
    raw = {
        "name": "shop",
        "kafka": {"bootstrap_servers": NOBODY},
        "sources": [source | {"endpoint_url": "http://127.0.0.1:1"}],
        "copy": {"url": url},
    }
    path = folder / "relay.yaml"
    path.write_text(yaml.safe_dump(raw))
    result = CliRunner().invoke(app, [*command.split(), str(path)])
    lines = [line for line in result.output.splitlines() if "copy" in line]
    return result.exit_code, "\n".join(lines)


def test_what_a_user_may_not_do_is_named_with_the_statement_that_grants_it(
    database_url: str, user: str, unique: str
) -> None:
    execute(database_url, "CREATE SCHEMA orders")
    database = PostgresDatabase(user)
    wanted = [
        f'GRANT TEMPORARY ON DATABASE "{unique}" TO "{unique}"',
        f'CREATE SCHEMA "lines" AUTHORIZATION "{unique}"',
        f'GRANT USAGE, CREATE ON SCHEMA "orders" TO "{unique}"',
    ]
    assert problems(database, ["orders", "lines"]) == wanted
    for statement in wanted:
        execute(database_url, statement)
    assert problems(database, ["orders", "lines"]) == []
    execute(database_url, f"ALTER ROLE {unique} SET default_transaction_read_only = on")
    database.close()
    assert problems(database, ["orders"]) == ["it only allows reading: use the address of the primary"]
    refused = r"cannot execute CREATE TABLE in a read-only transaction: `relay check` says"
    with pytest.raises(Unavailable, match=refused), database.transaction() as connection:
        connection.execute("CREATE TABLE orders.a ()")
    database.close()


def test_check_says_what_is_missing(tmp_path: Path, user: str, unique: str) -> None:
    code, said = check(tmp_path, "check", user)
    assert code == 3
    assert f'GRANT TEMPORARY ON DATABASE "{unique}"' in said
    assert urlsplit(user).password not in said  # type: ignore[operator]


def test_check_passes_a_database_that_the_copy_can_use(tmp_path: Path, database_url: str) -> None:
    _, said = check(tmp_path, "check", database_url)
    assert "reachable, and may create its tables" in said


@pytest.mark.parametrize("command", ["check", "consume copy"])
class TestRefused:
    def test_a_wrong_password(self, tmp_path: Path, command: str, database_url: str) -> None:
        parts = urlsplit(database_url)
        wrong = parts._replace(netloc=f"relay:wrong@{parts.hostname}:{parts.port}").geturl()
        code, said = check(tmp_path, command, wrong)
        assert code == 3
        assert 'password authentication failed for user "relay"' in said

    def test_a_database_that_does_not_exist(self, tmp_path: Path, command: str, database_url: str) -> None:
        code, said = check(tmp_path, command, f"{database_url}x")
        assert code == 3
        assert "does not exist" in said

    def test_a_server_that_does_not_answer(self, tmp_path: Path, command: str) -> None:
        code, said = check(tmp_path, command, f"postgresql://u:p@{NOBODY}/db")
        assert code == 3
        assert "Connection refused" in said

    def test_tls_where_the_server_has_none(self, tmp_path: Path, command: str, database_url: str) -> None:
        code, said = check(tmp_path, command, f"{database_url}?sslmode=require")
        assert code == 3
        assert "server does not support SSL" in said

    def test_a_setting_that_does_not_exist(self, tmp_path: Path, command: str, database_url: str) -> None:
        code, said = check(tmp_path, command, f"{database_url}?sslmood=require")
        assert (code, "sslmood" in said) == (2, True)


@pytest.mark.parametrize("password", ["hun%ter2", "hun ter2"])
def test_a_password_that_cannot_be_read_is_not_shown(password: str) -> None:
    with pytest.raises(ConfigError, match=r"`copy\.url`: (invalid percent-encoded token|unexpected spaces)") as refused:
        PostgresDatabase(f"postgresql://u:{password}@h/db")
    assert password not in str(refused.value)


def test_a_setting_that_does_not_exist_is_a_mistake_in_the_config() -> None:
    with pytest.raises(ConfigError, match=r'`copy\.url`: invalid URI query parameter: "sslmood"'):
        PostgresDatabase("postgresql://h/db?sslmood=require")


def test_a_connection_that_broke_is_opened_again(tmp_path: Path) -> None:
    with PostgresServer() as server:
        database = PostgresDatabase(server.url)
        database.connect()
        server.kill()
        for _ in range(2):
            with pytest.raises(Unavailable):
                database.connect()
        server.restart()
        database.connect()
        database.close()

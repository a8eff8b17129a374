"""``relay init``: what it writes passes ``relay check``, and it asks only where somebody can answer."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.config.config import validate
from relay.config.yaml_file import parse
from relay.operations.init import Wanted, draft
from relay.services.mariadb import PASSWORD, USER
from tests.command_line import errors, relay

DYNAMODB = ("--type", "dynamodb", "--table", "orders", "--region", "eu-west-1", "--kafka", "broker:9092")
MYSQL = ("--type", "mysql", "--server", "db1:3306", "--database", "shop", "--user", "app", "--kafka", "broker:9092")
VITESS = ("--type", "vitess", "--vtgate", "vtgate:15991", "--keyspace", "commerce", "--kafka", "broker:9092")


@pytest.mark.parametrize("options", [DYNAMODB, MYSQL, VITESS], ids=lambda options: options[1])
def test_what_is_written_passes_the_check_without_connections(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "relay.yaml"
    result = relay("init", file, *options, "--log", f"file://{tmp_path}/log", "--copy", f"delta://{tmp_path}/copy")
    assert result.exit_code == 0, result.stderr
    monkeypatch.setenv("SHOP_PASSWORD", "secret")
    checked = relay("check", file, "--offline")
    assert checked.exit_code == 0, checked.output


def test_the_next_commands_can_be_copied_whatever_the_file_is_called(tmp_path: Path) -> None:
    said = relay("init", tmp_path / "my relay.yaml", *DYNAMODB).stdout
    assert f"next: relay check '{tmp_path}/my relay.yaml', then relay run '{tmp_path}/my relay.yaml'" in said


def test_every_key_that_is_commented_out_is_one_of_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    for options in (DYNAMODB, MYSQL, VITESS):
        text = relay("init", "-", *options).stdout
        lines = text.splitlines()[3:]  # behind the words at the top
        active = "\n".join(line.replace("# ", "", 1) if line.lstrip().startswith("# ") else line for line in lines)
        config = validate(
            parse("relay.yaml", active, {"SHOP_PASSWORD": "a", "KAFKA_PASSWORD": "b", "password": "c"}),
            Path("relay.yaml"),
        )
        assert config.cache is not None
        assert config.log is not None
        assert config.copy_ is not None
        assert config.schema_registry is not None
        assert config.kafka.producer["sasl.mechanism"] == "SCRAM-SHA-512"


def test_a_password_stays_outside_the_file() -> None:
    result = relay("init", "-", *MYSQL)
    assert 'password: "${SHOP_PASSWORD}"' in result.stdout


def test_the_variable_of_the_password_is_named_until_it_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "export SHOP_PASSWORD=" in relay("init", tmp_path / "a.yaml", *MYSQL).stdout
    monkeypatch.setenv("SHOP_PASSWORD", "secret")
    assert "SHOP_PASSWORD" not in relay("init", tmp_path / "b.yaml", *MYSQL).stdout


def test_a_file_is_replaced_only_by_force(tmp_path: Path) -> None:
    file = tmp_path / "relay.yaml"
    file.write_text("mine")
    result = relay("init", file, *DYNAMODB)
    assert result.exit_code == 2
    assert errors(result) == [f"{file}: already exists: choose another name, or replace it with --force"]
    assert file.read_text() == "mine"
    assert relay("init", file, *DYNAMODB, "--force").exit_code == 0
    assert "table: orders" in file.read_text()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = relay("init", tmp_path / "none" / "relay.yaml", *DYNAMODB)
    assert result.exit_code == 2
    assert errors(result) == [f"{tmp_path}/none/relay.yaml: cannot be written: No such file or directory"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "give --type, --kafka, or run `relay init` on a terminal, where it asks for them"),
        (("--type", "mysql", "--kafka", "k:1"), "give --server, --database, --user, or run `relay init` on a terminal"),
        ((*DYNAMODB, "--vtgate", "x:1"), "--vtgate: does not apply to a source of type dynamodb"),
        ((*VITESS, "--region", "eu-west-1"), "--region: does not apply to a source of type vitess"),
        ((*DYNAMODB, "--cache", "redis://h"), "--cache: needs --look"),
        ((*DYNAMODB, "--http", "x:99999"), "--http: 'x:99999' is not an address to listen on"),
        ((*DYNAMODB, "--copy", "nonsense"), "--copy nonsense: must start with delta:// or "),
        ((*DYNAMODB, "--table", "a"), "--table: 'a' is not a valid table name"),
        ((*DYNAMODB, "--endpoint-url", "x"), "--endpoint-url: "),
        ((*MYSQL, "--server", "db1"), "--server: 'db1' is not an address to connect to"),
        ((*VITESS, "--vtgate", "v"), "--vtgate: 'v' is not an address to connect to"),
        ((*DYNAMODB, "--copy", "postgresql//u:p@h/d"), "--copy: "),
        ((*DYNAMODB, "--log", "~/log"), "--log ~/log: ~ does not stand for a home folder here"),
        ((*DYNAMODB, "--name", "my shop"), "--name: 'my shop' may contain only letters"),
        ((*MYSQL, "--look"), "the environment variable SHOP_PASSWORD is not set"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_options_are_named_and_nothing_is_written(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    result = relay("init", tmp_path / "relay.yaml", *options)
    assert result.exit_code == 2
    (line,) = errors(result)
    assert line.startswith(said)
    assert not list(tmp_path.iterdir())


# A variable is one there, too.
TEXTS = st.text(min_size=1).filter(lambda text: "${" not in text)
# What YAML does not take for text, and what Kafka allows in a topic.
TABLES = st.sampled_from(["on", "null", "1e3", "-", "0x1f", "2026-11-24"]) | st.from_regex(
    r"[A-Za-z0-9._-]{1,20}", fullmatch=True
)


@given(tables=st.lists(TABLES, min_size=1, unique_by=lambda table: table.replace(".", "_")), database=TEXTS, user=TEXTS)
def test_names_are_in_the_file_as_they_are(tables: list[str], database: str, user: str) -> None:
    wanted = Wanted(type="mysql", kafka="k:1", table=tables, server=["db:1"], database=database, user=user)
    config = validate(parse("relay.yaml", draft("-", wanted, look=False), {wanted.password: "x"}), Path("relay.yaml"))
    (source,) = config.sources
    assert source.table_names == tables
    assert source.type == "mysql"
    assert (source.database, source.user) == (database, user)


def test_on_a_terminal_it_asks_for_what_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "relay.yaml"
    answers = ["mysql", ",", "db1:3306, db2:3306", "shop", "app", "", "", f"file://{tmp_path}/log", "", "n"]
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "relay.cli", "init", str(file)]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        os.close(theirs)
        os.write(ours, "".join(f"{answer}\n" for answer in answers).encode())
        said, _ = process.communicate(timeout=600)
    os.close(ours)
    assert process.returncode == 0, said
    config = validate(parse(str(file), file.read_text(), {"SHOP_PASSWORD": "x"}), file)
    (source,) = config.sources
    assert source.type == "mysql"
    assert source.shards == {"-": ["db1:3306", "db2:3306"]}
    assert config.kafka.bootstrap_servers == "127.0.0.1:9092"
    assert config.log is not None
    assert config.copy_ is None


@pytest.mark.services
class TestALook:
    def test_at_tables_of_dynamodb_finds_the_keys_for_the_cache(
        self, kafka: Any, dynamodb: Any, redis_server: Any, unique: str, tmp_path: Path
    ) -> None:
        tables = [f"{unique}-a", f"{unique}.b"]
        client = boto3.client("dynamodb", region_name="us-east-1", endpoint_url=dynamodb.endpoint_url)
        for table in tables:
            client.create_table(
                TableName=table,
                AttributeDefinitions=[
                    {"AttributeName": "customer", "AttributeType": "S"},
                    {"AttributeName": "order_id", "AttributeType": "N"},
                ],
                KeySchema=[
                    {"AttributeName": "customer", "KeyType": "HASH"},
                    {"AttributeName": "order_id", "KeyType": "RANGE"},
                ],
                BillingMode="PAY_PER_REQUEST",
                StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
            )
        file = tmp_path / "relay.yaml"
        result = relay(
            "init", file, "--type", "dynamodb", "--table", tables[0], "--table", tables[1], "--region", "us-east-1",
            "--endpoint-url", dynamodb.endpoint_url, "--kafka", kafka.bootstrap_servers, "--name", unique,
            "--cache", redis_server.url, "--look",
        )  # fmt: skip
        assert result.exit_code == 0, result.stderr
        assert f'["{tables[1]}:{{customer}}:{{order_id}}"]' in file.read_text()
        checked = relay("check", file)
        assert checked.exit_code == 0, checked.output
        assert relay("run", file, "--until-caught-up").exit_code == 0

    def test_at_a_database_finds_its_tables_and_their_keys(
        self, kafka: Any, mariadb: Any, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mariadb.execute(f"CREATE DATABASE {unique}")
        mariadb.execute(f"CREATE TABLE {unique}.lines (shop INT, line INT, PRIMARY KEY (shop, line))")
        monkeypatch.setenv(f"{unique.upper()}_PASSWORD", PASSWORD)
        file = tmp_path / "relay.yaml"
        result = relay(
            "init", file, "--type", "mysql", "--server", f"{mariadb.host}:{mariadb.port}", "--database", unique,
            "--user", USER, "--kafka", kafka.bootstrap_servers, "--look",
        )  # fmt: skip
        assert result.exit_code == 0, result.stderr
        assert "    # lines: key shop, line\n" in file.read_text()
        checked = relay("check", file)
        assert checked.exit_code == 0, checked.output

    def test_at_a_table_that_is_not_there_writes_nothing(self, dynamodb: Any, unique: str, tmp_path: Path) -> None:
        result = relay(
            "init", tmp_path / "relay.yaml", "--type", "dynamodb", "--table", unique, "--region", "us-east-1",
            "--endpoint-url", dynamodb.endpoint_url, "--kafka", "k:1", "--look",
        )  # fmt: skip
        assert result.exit_code == 3
        assert unique in errors(result)[0]
        assert not list(tmp_path.iterdir())

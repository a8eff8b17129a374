"""Logging in with tokens of AWS: a new one for each connection, as the role of the config, and never without TLS."""

from __future__ import annotations

import json
import ssl
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest
import yaml
from typer.testing import CliRunner, Result

from relay.aws import AwsIdentity, Refused
from relay.aws.tokens import DatabaseTokens
from relay.cli import app
from relay.errors import Unavailable
from relay.mysql import ReplicationWatcher, TokenQueries
from relay.mysql.connection import connect
from relay.mysql.errors import Denied, Interrupted
from relay.services.mariadb import USER
from tests.aws_server import REGION, AwsServer, Keys
from tests.mysql import rds
from tests.mysql.scripted import Scripted, running


def test_every_connection_asks_for_a_password_of_its_own() -> None:
    """A token is valid for 15 minutes, and the dump of a binlog may be opened hours after its server was found."""
    made: list[str] = []

    def make() -> str:
        made.append("token")
        return "secret"

    with running(Scripted()) as script, closing(connect("127.0.0.1", script.port, "relay", make)) as server:
        assert len(made) == 1
        server.account.connect().close()
        assert len(made) == 2
        assert "make" not in repr(server.account)


def test_a_token_is_never_sent_without_tls(aws_user: Keys) -> None:
    script = Scripted(challenges=[b"\xfemysql_clear_password\0"])
    with running(script):
        make = partial(DatabaseTokens(AwsIdentity(REGION)).make, "127.0.0.1", script.port, "relay")
        with pytest.raises(Denied, match=r"clear text.*set `tls`"):
            connect("127.0.0.1", script.port, "relay", make)
    assert b"X-Amz" not in b"".join(script.told)


@pytest.mark.parametrize(("raised", "becomes"), [(Refused, Denied), (Unavailable, Interrupted)])
def test_a_token_that_cannot_be_made_is_an_error_of_the_server_that_needs_it(raised: Any, becomes: Any) -> None:
    """Waiting helps where AWS does not answer, and does not where it refuses."""

    def make() -> str:
        raise raised("no credentials")

    with pytest.raises(becomes, match=r"^db1:3306: no credentials$"):
        connect("db1", 3306, "relay", make)


@pytest.mark.services
class TestTheRelay:
    @pytest.fixture
    def run(self, tmp_path: Path) -> Any:
        def run(config: dict[str, Any], *arguments: str) -> Result:
            path = tmp_path / "relay.yaml"
            path.write_text(yaml.safe_dump(config))
            command = [str(path) if each == "CONFIG" else each for each in arguments]
            result = CliRunner().invoke(app, command)
            assert "X-Amz" not in result.output
            return result

        return run

    def test_reads_a_server_with_tokens_of_a_role(
        self, run: Any, aws: AwsServer, aws_user: Keys, mariadb: Any, kafka: Any, unique: str, tmp_path: Path
    ) -> None:
        mariadb.execute(f"CREATE DATABASE {unique}")
        mariadb.execute(f"CREATE TABLE {unique}.item (id INT PRIMARY KEY)")
        mariadb.execute(f"INSERT {unique}.item VALUES (1)")
        with rds.before(mariadb, tmp_path, aws.secret_of) as (front, ca):
            source = {
                "name": "shop",
                "type": "mysql",
                "database": unique,
                "shards": {"-": [front.address]},
                "snapshot": "initial",
                "user": USER,
                "tls": {"ca": ca},
                "iam": {"region": REGION, "role_arn": aws.role(unique)},
            }
            config = {"name": unique, "kafka": {"bootstrap_servers": kafka.bootstrap_servers}, "sources": [source]}
            checked = run(config, "check", "CONFIG")
            assert checked.exit_code == 0, checked.output
            ran = run(config, "run", "CONFIG", "--until-caught-up")
            assert ran.exit_code == 0, ran.output
            mariadb.execute(f"INSERT {unique}.item VALUES (2)")
            assert run(config, "run", "CONFIG", "--until-caught-up").exit_code == 0
            shown = run(config, "tail", "CONFIG", f"{unique}.item", "--from-beginning", "--exit-at-end", "--json")
            values = [json.loads(line)["value"] for line in shown.stdout.splitlines()]
            rows = {(each["operation"], each["key"]["id"]) for each in values if each["key"]}  # no marks of a snapshot
            assert rows == {("READ", 1), ("INSERT", 2)}
            assert front.refusals == []
            assert aws_user.access_key not in front.signers  # but the keys of the role
            # Without the role, the keys of the user sign, whom the server does not know.
            source["iam"] = {"region": REGION}
            refused = run(config, "check", "CONFIG")
            assert refused.exit_code == 3
            assert "Access denied" in refused.output
            assert front.refusals

    def test_says_which_role_is_refused(self, run: Any, aws: AwsServer, aws_user: Keys, unique: str) -> None:
        role = aws.role(unique, external_id="shop-42")
        source = {
            "name": "shop",
            "type": "mysql",
            "database": "shop",
            "tables": ["item"],
            "shards": {"-": ["127.0.0.1:1"]},
            "user": "relay",
            "tls": {},
            "iam": {"region": REGION, "role_arn": role, "external_id": "shop-43"},
        }
        config = {"name": unique, "kafka": {"bootstrap_servers": "127.0.0.1:1"}, "sources": [source]}
        answer = run(config, "check", "CONFIG", "--json")
        assert answer.exit_code == 3
        (found,) = (each for each in json.loads(answer.stdout) if each["check"] == "source shop")
        assert f"AWS does not let the relay assume the role {role}: AccessDenied" in found["detail"]

    def test_lets_queries_and_watchers_of_an_application_use_tokens(
        self, aws_user: Keys, mariadb: Any, unique: str, tmp_path: Path
    ) -> None:
        mariadb.execute(f"CREATE DATABASE {unique}")
        mine = (aws_user.secret_key, "")
        tokens = DatabaseTokens(AwsIdentity(REGION))
        with rds.before(mariadb, tmp_path, lambda _: mine) as (front, ca):
            context = ssl.create_default_context(cafile=ca)
            make = partial(tokens.make, "127.0.0.1", front.port, USER)
            watched = partial(connect, "127.0.0.1", front.port, USER, make, context)
            with (
                ReplicationWatcher(watched, f"shop/{unique}/-") as watcher,
                closing(
                    pymysql.connect(
                        host="127.0.0.1", port=front.port, user=USER, password=make(), ssl=context, autocommit=True
                    )
                ) as connection,
            ):
                found = TokenQueries(connection, watcher).execute("SELECT 1", include_event_token=True)
            assert list(found.rows) == [(1,)]
            assert found.token is not None
        assert len(front.signers) >= 3

"""Logging in to a schema registry: with a password, a token, or a certificate, none of which is ever shown."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from relay.avro.registry import open_schemas
from relay.avro.schema import change_schema
from relay.cli import app
from relay.config import Config
from relay.errors import ConfigError, Unavailable
from relay.table import Column, KeyColumn, TableSchema
from tests.avro.guarded import Guarded, asking_for_certificates, basic
from tests.certificates import Authority
from tests.listening import NOBODY

SCHEMA = change_schema(TableSchema("shop", "orders", (KeyColumn("id", "S"),), 1, (Column("a", "int"),)))
PASSWORD = "hunter2:with%a/colon é"


def data(registry: dict[str, Any]) -> dict[str, Any]:
    source = {"name": "orders", "type": "dynamodb", "table": "orders", "region": "us-east-1"}
    return {
        "name": "shop",
        "kafka": {"bootstrap_servers": NOBODY},
        "schema_registry": registry,
        "sources": [{**source, "endpoint_url": f"http://{NOBODY}"}],
    }


def use(registry: dict[str, Any], topic: str) -> None:
    """Register a schema as the relay does, and look it up as a consumer does."""
    config = Config.model_validate(data(registry))
    with closing(open_schemas(config)) as schemas:
        header = schemas.register(topic, SCHEMA)
    with closing(open_schemas(config)) as schemas:
        assert schemas.lookup(header) == SCHEMA


@pytest.mark.services
@pytest.mark.parametrize(
    ("wanted", "right", "wrong"),
    [
        (basic("me", PASSWORD), {"user": "me", "password": PASSWORD}, {"user": "me", "password": "hunter2-wrong"}),
        ("Bearer hunter2.token", {"bearer": "hunter2.token"}, {"bearer": "hunter2.other"}),
    ],
    ids=["basic", "bearer"],
)
def test_a_name_with_a_password_or_a_token_logs_in(
    schema_registry: Any, unique: str, wanted: str, right: dict[str, str], wrong: dict[str, str]
) -> None:
    with Guarded(schema_registry.url, wanted) as server:
        url = f"http://{server.address}"
        use({"url": url, **right}, unique)
        for other in (wrong, {}):
            with pytest.raises(Unavailable, match=r"Unauthorized.*check `user` and `password`, `bearer`") as refused:
                use({"url": url, **other}, unique)
            assert "hunter2" not in str(refused.value)


@pytest.mark.services
def test_a_certificate_logs_in_over_tls(schema_registry: Any, unique: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context, mine = asking_for_certificates(authority)
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other").issue("stranger")
    with Guarded(schema_registry.url, "Bearer hunter2", context) as server:
        registry = {"url": f"https://{server.address}", "bearer": "hunter2"}
        ca = str(authority.ca)
        use({**registry, "tls": {"ca": ca, "cert": str(mine), "key": str(mine)}}, unique)
        for tls, said in (
            ({"ca": ca}, "certificate required|CERTIFICATE_REQUIRED|closed|reset"),
            ({"ca": ca, "cert": str(stranger), "key": str(stranger)}, "unknown ca|UNKNOWN_CA|closed|reset|decrypt"),
            ({"cert": str(mine), "key": str(mine)}, "certificate verify failed|CERTIFICATE_VERIFY_FAILED"),
        ):
            with pytest.raises(Unavailable, match=said):
                use({**registry, "tls": tls}, unique)


@pytest.mark.parametrize("key", ["ca", "cert"])
def test_a_file_that_cannot_be_loaded_is_named(key: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    for file, said in ((tmp_path / "missing.pem", "No such file"), (broken, "")):
        broken.write_text("nothing")
        tls = {key: str(file)} | ({"key": str(file)} if key == "cert" else {})
        with pytest.raises(ConfigError, match=f"`schema_registry.tls`: cannot load {file}.*{said}"):
            use({"url": "https://127.0.0.1:1", "tls": tls}, "orders")


@pytest.mark.services
def test_check_names_a_wrong_token_and_exits_3(schema_registry: Any, tmp_path: Path) -> None:
    path = tmp_path / "relay.yaml"
    with Guarded(schema_registry.url, "Bearer hunter2") as server:
        path.write_text(yaml.safe_dump(data({"url": f"http://{server.address}", "bearer": "hunter2-wrong"})))
        answer = CliRunner().invoke(app, ["check", str(path), "--json"])
    assert answer.exit_code == 3
    (found,) = (each for each in json.loads(answer.stdout) if each["check"].startswith("schema registry"))
    assert "Unauthorized" in found["detail"]
    assert "hunter2" not in answer.output


def test_check_offline_loads_the_files(tmp_path: Path) -> None:
    path = tmp_path / "relay.yaml"
    path.write_text(yaml.safe_dump(data({"url": "https://127.0.0.1:1", "tls": {"ca": str(tmp_path / "no.pem")}})))
    answer = CliRunner().invoke(app, ["check", str(path), "--offline"])
    assert answer.exit_code == 2
    assert f"cannot load {tmp_path / 'no.pem'}" in answer.output.replace("\n", "")

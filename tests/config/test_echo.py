"""The config as a file that says the same, with defaults filled in and without secrets."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from relay.config import Config, load
from relay.config.config import read
from relay.config.echo import echo, to_yaml
from tests.config.configs import ARN, GOOD, change

SECRETS = """\
name: "${RELAY:-shop}"
kafka:
  bootstrap_servers: "${BROKERS:-b1:9092,b2:9092}"
  producer: {sasl.username: me, sasl.password: hunter-1, ssl.key.password: "${SECRET}", ssl.key.pem: "${X:-hunter-2}"}
schema_registry: {url: "http://me:hunter-3@registry/api"}
sources:
  - name: orders
    type: dynamodb
    tables: [orders, lines]
    endpoint_url: "http://${USER_INFO:-u:hunter-4}@host:8000"
    protect: {orders: {ssn: {hash: {salt: hunter-5}}}, lines: {password: {absent: {hash: {salt: "${SECRET}"}}}}}
  - {name: legacy, type: mysql, database: d, shards: {one: ["db:3306"]}, tables: [secrets], password: hunter-6}
cache: {url: "redis://:a${SECRET}@h/0", namespace: n, keys: {orders: ["$${literal}"]}, tombstone_ttl: "${TTL:-90m}"}
log: {path: "file:///${SECRET}"}
copy: {url: "postgresql://${DB_USER:-me}:${SECRET}@db/x?sslpassword=hunter-7"}
spark: {conf: {spark.hadoop.fs.s3a.secret.key: hunter-8, spark.hadoop.fs.azure.account.key.x: hunter-9, spark.a: 1,
  spark.sql.catalog.l.header.Authorization: hunter-10, spark.sql.catalog.l.adls.sas-token.x: hunter-11,
  spark.sql.catalog.l.adls.connection-string.x: hunter-12, spark.sql.catalog.l.uri: "jdbc:h2:x;PASSWORD=hunter-13"}}
"""


def echoed(file: Path, text: str) -> tuple[Config, dict[str, Any], Config]:
    """Return the config of a file, its echo, and the config of that."""
    file.write_text(dedent(text), encoding="utf-8")
    config, document = read(file)
    shown = to_yaml(echo(config, document))
    again = file.with_name("echo.yaml")
    again.write_text(shown, encoding="utf-8")
    return config, yaml.safe_load(shown), load(again)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        change("delta:///", "postgresql://h/"),
        change("table: orders", "tables: [orders, lines]"),
        change("table: orders", "tags: {relay: 'yes'}"),
        change("table: orders", f"stream_arn: {ARN}").replace("region: us-east-1", "columns: {'2024': long}"),
        change("start: trim_horizon", "start: 2026-11-21 06:00:00"),
        change("tombstone_ttl: 1h", "tombstone_ttl: 0.75s"),
        'name: "on"\nkafka: {bootstrap_servers: b}\nsources:\n'
        "  - {name: v, type: vitess, vtgate: 'h:1', keyspace: k,\n"
        "     start: {vgtid: [{shard: '-', gtid: MariaDB/0-1-5}]}}\n",
        "name: n\nkafka: {bootstrap_servers: b}\nsources:\n"
        "  - name: m\n    type: mysql\n    database: d\n    key: {t: [a, b]}\n    tls: {}\n    shards: {'-': ['h:1']}\n"
        "    start: {gtid: {'-': MariaDB/0-1-5}}\n    where: {t: {a: 5, b: '5'}}\n"
        "    protect: {t: {c: mask, d: exclude, e: {absent: mask}, f: {hash: {salt: '***'}}}}\n",
    ],
)  # fmt: skip
def test_an_echo_says_what_the_file_says(file: Path, text: str) -> None:
    config, shown, again = echoed(file, text)
    assert again.model_dump() == config.model_dump()
    assert shown.keys() >= {"name", "kafka", "sources", "topics", "spark"}
    assert echoed(file, to_yaml(shown))[1] == shown


def test_a_start_at_a_token_is_found_from_anywhere(file: Path, tmp_path: Path) -> None:
    token = {"stream_arn": ARN, "active": ["s"], "shards": [{"shard_id": "s"}]}
    (tmp_path / "t.json").write_text(json.dumps(token))
    file.write_text(change("start: trim_horizon", "start: {token: t.json}"))
    config, document = read(file)
    assert echo(config, document)["sources"][0]["start"] == {"token": str(tmp_path / "t.json")}


def test_defaults_are_filled_in(file: Path) -> None:
    text = "name: n\nkafka: {bootstrap_servers: b}\nsources: [{name: orders, type: dynamodb, table: orders}]\n"
    text += "copy: {url: 'delta:///c'}\n"
    assert echoed(file, text)[1] == {
        "name": "n",
        "kafka": {"bootstrap_servers": "b", "partitions": 6, "producer": {}},
        "topics": "{name}.{table}",
            "envelope": "change",
        "sources": [
            {
                "protect": {}, "where": {}, "name": "orders", "type": "dynamodb", "table": "orders",
                "start": "trim_horizon", "snapshot": "none", "on_alter": "warn", "key": "hash", "on_gap": "fail",
                "on_unencodable": "fail", "tombstones": False,
            }
        ],
        "copy": {"apply_every": "2s", "maintain_every": "1d", "keep_versions": "7d", "url": "delta:///c",
                 "tombstone_retention": "30d", "items": "json"},
        "spark": {"master": "local[*]", "conf": {}, "shared_folders": False},
    }  # fmt: skip


def test_secrets_are_hidden_and_other_variables_are_not_expanded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter-0")
    config, shown, again = echoed(file, SECRETS)
    assert "hunter" not in yaml.safe_dump(shown)
    assert shown["name"] == "${RELAY:-shop}"
    assert shown["kafka"]["bootstrap_servers"] == "${BROKERS:-b1:9092,b2:9092}"
    assert shown["kafka"]["producer"] == {
        "sasl.username": "me", "sasl.password": "***", "ssl.key.password": "***", "ssl.key.pem": "***",
    }  # fmt: skip
    assert shown["schema_registry"]["url"] == "http://***@registry/api"
    assert [source["name"] for source in shown["sources"]] == ["orders.orders", "orders.lines", "legacy"]
    assert [source.get("protect") for source in shown["sources"][:2]] == [
        {"orders": {"ssn": {"hash": {"salt": "***"}}}},
        {"lines": {"password": {"absent": {"hash": {"salt": "***"}}}}},
    ]
    assert (shown["sources"][2]["password"], shown["sources"][2]["tables"]) == ("***", ["secrets"])
    assert shown["cache"] == {
        "url": "redis://***@h/0", "namespace": "n", "keys": {"orders": ["$${literal}"]},
        "tombstone_ttl": "${TTL:-90m}",
    }  # fmt: skip
    assert shown["copy"]["url"] == "postgresql://***@db/x?sslpassword=***"
    assert shown["spark"]["conf"] == {
        "spark.hadoop.fs.s3a.secret.key": "***", "spark.hadoop.fs.azure.account.key.x": "***", "spark.a": "1",
        "spark.sql.catalog.l.header.Authorization": "***", "spark.sql.catalog.l.adls.sas-token.x": "***",
        "spark.sql.catalog.l.adls.connection-string.x": "***", "spark.sql.catalog.l.uri": "jdbc:h2:x;PASSWORD=***",
    }  # fmt: skip
    assert again.kafka.client()["bootstrap.servers"] == config.kafka.client()["bootstrap.servers"]


@pytest.mark.parametrize("access", ["user: me, password: hunter-1", "bearer: hunter-1"])
def test_the_password_and_the_token_of_a_registry_are_hidden(file: Path, access: str) -> None:
    text = change('/ccompat/v7"', f'/ccompat/v7", {access}')
    config, shown, _ = echoed(file, text)
    assert "***" in shown["schema_registry"].values()
    assert "hunter" not in repr(shown) + repr(config)

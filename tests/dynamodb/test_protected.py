"""Protected attributes of a table, through the complete relay: no topic and no line of the log has a value of one."""

from __future__ import annotations

import hmac
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest
from typer.testing import CliRunner, Result

from relay.avro.registry import open_schemas
from relay.cli import app
from relay.config import load
from relay.demo.dynamodb_orders import create_table
from relay.demo.workload import HASH_KEY, RANGE_KEY
from tests.kafka.every_byte import every_byte
from tests.kafka.limited_topics import create
from tests.topic_changes import read_changes

pytestmark = pytest.mark.services

SALT = "pepper-and-salt"


@pytest.mark.parametrize("columns", [None, {HASH_KEY: "string", RANGE_KEY: "long", "email": "string", "phone": "long"}])
def test_no_value_of_a_protected_attribute_or_of_an_item_that_is_not_wanted_leaves_the_relay(
    kafka: Any, dynamodb: Any, unique: str, tmp_path: Path, columns: dict[str, str] | None
) -> None:
    """In items of a snapshot, changes, a change that is too large for its topic, messages, checkpoints."""
    path, table = tmp_path / "relay.yaml", f"customers-{unique}"
    rules = {"ssn": "exclude", "phone": "mask", "email": {"hash": {"salt": SALT}}}

    def relay(command: str, *options: str, rules: Any = rules, code: int = 0) -> Result:
        source = {"name": "shop", "type": "dynamodb", "table": table, "region": "us-east-1", "snapshot": "initial",
                  "endpoint_url": dynamodb.endpoint_url, "protect": {table: rules},
                  "where": {table: {HASH_KEY: "c"}}}  # fmt: skip
        if columns is not None:
            source["columns"] = columns
        servers = {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 2}
        path.write_text(json.dumps({"name": unique, "kafka": servers, "sources": [source]}))
        result = CliRunner().invoke(app, [command, str(path), *options])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    with closing(boto3.client("dynamodb", region_name="us-east-1", endpoint_url=dynamodb.endpoint_url)) as client:
        create_table(client, table)

        def put(number: int, note: str, ssn: str = "s3cr3t", customer: str = "c") -> None:
            values = {"ssn": {"S": ssn}, "phone": {"N": "5551234567"}, "email": {"S": "s3cr3t@a"}, "note": {"S": note}}
            client.put_item(TableName=table, Item={HASH_KEY: {"S": customer}, RANGE_KEY: {"N": str(number)}, **values})

        put(1, "x")
        put(1, "x", customer="s3cr3t")
        create(kafka.bootstrap_servers, f"{unique}.{table}", 2, max_message_bytes="9000")
        said = f"`protect.{table}.{RANGE_KEY}`: it is part of the key"
        for command, options in (("check", ()), ("run", ("--until-caught-up",))):
            assert said in " ".join(relay(command, *options, rules={RANGE_KEY: "mask"}, code=2).output.split())
        for command, options in (("check", ()), ("run", ("--until-caught-up",))):
            said = " ".join(relay(command, *options, rules={"phon": "mask"}, code=2).output.split())
            assert (
                f"`protect.{table}.phon`: none of the items that were looked at has it; did you mean `phone`?" in said
            )
        rules["fax"] = {"absent": "mask"}
        logs = [relay("check").output, relay("run", "--until-caught-up").output]
        put(1, "x", "another s3cr3t")
        put(2, "long" * 5000)
        put(2, "x", customer="s3cr3t")
        client.delete_item(TableName=table, Key={HASH_KEY: {"S": "c"}, RANGE_KEY: {"N": "1"}})
        logs.append(relay("run", "--until-caught-up").output)

    config = load(path)
    with closing(open_schemas(config)) as schemas:
        found = read_changes(config.kafka.client(), config.topic(table), schemas)
    changes = [change for *_, change in sorted(found, key=lambda each: each[:2]) if change["key"]]
    email = hmac.digest(SALT.encode(), b"s3cr3t@a", "sha256").hex()
    item = {HASH_KEY: {"S": "c"}, RANGE_KEY: {"N": "1"}, "phone": {"S": "***"}, "email": {"S": email}}
    row: dict[str, Any] = {**item, "note": {"S": "x"}}
    if columns is not None:
        row = {HASH_KEY: "c", RANGE_KEY: 1, "email": email, "phone": "***", "rest": '{"note":{"S":"x"}}'}

    def image(given: Any) -> Any:
        return json.loads(given) if isinstance(given, str) else given

    seen = {(c["key"][RANGE_KEY], c["operation"]): (image(c["old"]), image(c["new"])) for c in changes}
    assert seen == {
        ("1", "READ"): (None, row),
        ("1", "INSERT"): (None, row),
        ("1", "UPDATE"): (row, row),
        ("1", "DELETE"): (row, None),
        ("2", "INSERT"): (None, None),
    }
    written = every_byte(kafka.bootstrap_servers, unique)
    assert b"longlong" in written, "the complete change is a dead letter"
    for secret in ("s3cr3t", "5551234567", SALT):
        assert secret.encode() not in written
        assert secret not in "".join(logs)

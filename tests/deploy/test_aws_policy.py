"""The policy for AWS allows the calls that the code makes, and no others."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import boto3
import pytest

import relay
from tests.deploy import DEPLOY

PACKAGE = Path(relay.__file__).parent
APPLICATIONS = ("cache/loaders.py", "dynamodb/models/")
"""What applications call, with credentials of their own."""


@pytest.fixture(scope="module")
def operations() -> dict[str, str]:
    """The operations of DynamoDB and its streams, by the names of their methods."""
    found: dict[str, str] = {}
    for service in ("dynamodb", "dynamodbstreams"):
        client = boto3.client(service, region_name="eu-west-1")
        found |= client.meta.method_to_api_mapping
        client.close()
    return found


def called(operations: dict[str, str]) -> set[str]:
    """Return the operations that the code calls, other than those that only the demo or an application needs."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE)
        if place.parts[0] not in ("dynamodb", "operations", "cache", "engine") or place.as_posix().startswith(
            APPLICATIONS
        ):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            first = node.args[0] if node.args else None
            if node.func.attr == "get_paginator" and isinstance(first, ast.Constant):
                found.add(operations[str(first.value)])
            # A method of the same name of ours has no argument in CamelCase.
            elif node.func.attr in operations and any((each.arg or "A")[:1].isupper() for each in node.keywords):
                found.add(operations[node.func.attr])
    return found


def test_the_policy_allows_what_the_code_calls(operations: dict[str, str]) -> None:
    policy = json.loads((DEPLOY / "aws" / "relay-policy.json").read_text())
    allowed = {action for statement in policy["Statement"] for action in statement["Action"]}
    assert allowed == {f"dynamodb:{name}" for name in called(operations)}


def test_only_what_cannot_be_restricted_is_allowed_on_everything() -> None:
    policy = json.loads((DEPLOY / "aws" / "relay-policy.json").read_text())
    (everywhere,) = (each for each in policy["Statement"] if each["Resource"] == "*")
    assert everywhere["Action"] == ["dynamodb:ListStreams", "dynamodb:ListTables"]


def test_the_policy_for_rds_allows_one_user_to_log_in() -> None:
    policy = json.loads((DEPLOY / "aws" / "rds-policy.json").read_text())
    (statement,) = policy["Statement"]
    assert statement["Action"] == ["rds-db:connect"]
    assert re.fullmatch(r"arn:aws:rds-db:[\w-]+:\d{12}:dbuser:(db|cluster)-[A-Z0-9]+/relay", statement["Resource"])


def test_the_policy_for_msk_allows_what_the_acls_of_kafka_do() -> None:
    """With those, the relay, its commands and a consumer run on a real Kafka."""
    names = {
        ("topic", "Create"): "CreateTopic",
        ("topic", "Describe"): "DescribeTopic",
        ("topic", "DescribeConfigs"): "DescribeTopicDynamicConfiguration",
        ("topic", "Read"): "ReadData",
        ("topic", "Write"): "WriteData",
        ("group", "Read"): "AlterGroup",
        ("transactional-id", "Describe"): "DescribeTransactionalId",
        ("transactional-id", "Write"): "AlterTransactionalId",
    }
    script = (DEPLOY / "kafka" / "acls.sh").read_text().replace("\\\n", "")
    allowed: set[tuple[str, str]] = set()
    for kind, prefix, rest in re.findall(r'^allow "\$@" --([\w-]+) "\$name(.)"(.*)$', script, re.MULTILINE):
        allowed |= {
            (f"{kind} {prefix}", names[kind, operation]) for operation in re.findall(r"--operation (\w+)", rest)
        }
    # Kafka's right to read a group implies that to describe it. AWS has one more right to log in at all, and one for
    # producers that are idempotent, which Kafka allows who may write to any topic.
    allowed |= {("group .", "DescribeGroup"), ("cluster", "Connect"), ("cluster", "WriteDataIdempotently")}
    found: set[tuple[str, str]] = set()
    for statement in json.loads((DEPLOY / "aws" / "msk-policy.json").read_text())["Statement"]:
        kind, _, name = statement["Resource"].split(":")[5].partition("/main/*")
        resource = f"{kind} {name.removeprefix('/shop').removesuffix('*')}".strip()
        found |= {(resource, action.removeprefix("kafka-cluster:")) for action in statement["Action"]}
    assert found == allowed

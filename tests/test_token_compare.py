"""`relay token compare`: what it prints, and with which exit code it ends."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.command_line import errors, relay

OLDER = '{"timestamp":1,"shard":"s/l/1","position":"DynamoDB/99","origin":null}'
NEWER = '{"timestamp":1,"shard":"s/l/1","position":"DynamoDB/100","origin":null}'
ELSEWHERE = '{"timestamp":1,"shard":"s/l/2","position":"DynamoDB/1","origin":null}'


@pytest.mark.parametrize(
    ("a", "b", "order"),
    [
        (OLDER, NEWER, "older"),
        (NEWER, OLDER, "newer"),
        (OLDER, OLDER, "equal"),
        (OLDER, ELSEWHERE, "unknown"),
        (OLDER, "null", "unknown"),
    ],
)
def test_two_tokens_are_compared(a: str, b: str, order: str) -> None:
    """I5."""
    result = relay("token", "compare", a, b)
    assert (result.exit_code, result.stdout) == (0, f"{order}\n")
    assert json.loads(relay("token", "compare", a, b, "--json").stdout) == {"order": order}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"timestamp":1}',
        "1",
        "",
        OLDER.replace("DynamoDB/99", "DynamoDB/last"),
        OLDER.replace("DynamoDB/99", "DynamoDB/"),
        OLDER.replace("DynamoDB/99", "99"),
        OLDER.replace("DynamoDB/99", "MySQL56/57"),
        OLDER.replace("DynamoDB/99", "MariaDB/"),
        OLDER.replace("DynamoDB/99", ""),
        OLDER.replace("null", '{"timestamp":1,"shard":"s/l/2","position":"MariaDB/0"}'),
    ],
)
def test_what_is_not_a_token_is_refused_by_its_name(text: str) -> None:
    result = relay("token", "compare", OLDER, text)
    assert result.exit_code == 2
    assert errors(result)[0].startswith("B is not a token: ")
    assert errors(result)[0].endswith(f": {text}" if len(text) <= 80 else f"{text[:80]}...")


def test_comparing_tokens_loads_nothing_heavy() -> None:
    code = (
        "import sys; from relay.cli import app; "
        "app(['token', 'compare', 'null', 'null'], standalone_mode=False); "
        "print([m for m in ('boto3', 'confluent_kafka', 'pyspark', 'redis', 'yaml') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "unknown\n[]\n"

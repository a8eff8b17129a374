"""Commands and imports without the packages of an extra: one line that names the extra, and exit code 3.

The packages are hidden from a process of its own. ``make package`` tries the same where they are not installed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from relay.errors import MissingExtra
from relay.extras import needs

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

OPTIONAL = (
    "authlib",
    "boto3",
    "botocore",
    "certifi",
    "cryptography",
    "google",
    "hpack",
    "msgspec",
    "psycopg",
    "py4j",
    "pymysql",
    "pyspark",
    "redis",
    "xxhash",
    "zstandard",
)

pytestmark = pytest.mark.processes

HIDDEN = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL!r}))\n"

COPY = 'copy: {url: "postgresql://u:p@127.0.0.1:1/db"}\n'
CONFIG = """
name: shop
kafka: {bootstrap_servers: "127.0.0.1:1"}
sources: [%s]
cache: {url: "redis://127.0.0.1:1/0", namespace: shop, keys: {orders: ["{id}"]}}
log: {path: "file:///nowhere/log"}
"""
DYNAMODB = "{name: orders, type: dynamodb, table: orders, region: eu-west-1}"
VITESS = '{name: commerce, type: vitess, vtgate: "127.0.0.1:1", keyspace: commerce, tables: [orders]}'
MYSQL = '{name: legacy, type: mysql, shards: {"-": ["127.0.0.1:1"]}, database: legacy, tables: [orders]}'


def without_extras(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HIDDEN + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def relay(*arguments: str) -> subprocess.CompletedProcess[str]:
    return without_extras("from relay.cli import main; main()", *arguments)


@pytest.mark.parametrize(
    ("command", "source", "said"),
    [
        ("run", DYNAMODB, "the source \"orders\" needs botocore: pip install 'change-relay[dynamodb]'"),
        ("run", VITESS, "the source \"commerce\" needs protobuf: pip install 'change-relay[vitess]'"),
        ("run", MYSQL, "the source \"legacy\" needs pymysql: pip install 'change-relay[mysql]'"),
        ("consume cache", DYNAMODB, "`relay consume cache` needs pyspark: pip install 'change-relay[spark]'"),
        ("consume cache --engine python", DYNAMODB, "`cache` needs redis: pip install 'change-relay[redis]'"),
    ],
)
def test_a_missing_extra_is_one_line_and_exits_3(command: str, source: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "relay.yaml"
    path.write_text(CONFIG % source)
    ran = relay(*command.split(), str(path))
    assert (ran.returncode, ran.stdout, ran.stderr) == (3, "", f"relay: error: {said}\n")


def test_a_command_needs_no_extra_of_a_source_that_it_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "relay.yaml"
    path.write_text(CONFIG % VITESS)
    ran = relay("verify", str(path), "cache")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "the values of orders cannot be compared with rows without the application's loader" in ran.stderr


def test_tokens_of_aws_name_their_extra(tmp_path: Path) -> None:
    path = tmp_path / "relay.yaml"
    path.write_text((CONFIG % DYNAMODB).replace("kafka: {", "kafka: {iam: {}, "))
    ran = relay("run", str(path))
    said = "relay: error: `kafka.iam` needs botocore: pip install 'change-relay[aws]'\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (3, "", said)


@pytest.mark.parametrize(("command", "extra"), [("demo", "all")])
def test_what_needs_several_packages_names_the_extra_with_all_of_them(command: str, extra: str) -> None:
    ran = relay(*command.split())
    assert ran.returncode == 3
    assert re.fullmatch(rf"relay: error: `relay \w+` needs \w+: pip install 'change-relay\[{extra}\]'\n", ran.stderr)


def test_check_names_every_missing_extra_at_once(tmp_path: Path) -> None:
    path = tmp_path / "relay.yaml"
    registry = 'schema_registry: {url: "http://127.0.0.1:1"}\n'
    path.write_text(
        CONFIG % ", ".join((DYNAMODB, VITESS.replace("[orders]", "[a]"), MYSQL.replace("[orders]", "[b]")))
        + registry
        + COPY
    )
    ran = relay("check", str(path))
    assert ran.returncode == 3, ran.stderr
    assert re.findall(r"change-relay\[(\w+)\]", ran.stdout) == [
        "dynamodb",
        "vitess",
        "mysql",
        "registry",
        "redis",
        "postgres",
        "spark",
    ]


def test_an_import_that_needs_an_extra_names_it() -> None:
    statements = {
        "from relay.cache import RedisStore": "relay.cache.RedisStore needs redis: pip install 'change-relay[redis]'",
        "from relay.dynamodb import Stream": "relay.dynamodb.Stream needs botocore: "
        "pip install 'change-relay[dynamodb]'",
        "from relay.dynamodb.models import Model": "relay.dynamodb.models needs botocore: "
        "pip install 'change-relay[dynamodb]'",
        "from relay.mysql import TokenQueries": "relay.mysql.TokenQueries needs pymysql: "
        "pip install 'change-relay[mysql]'",
        "from relay.vitess.vindex import keyspace_id": "relay.vitess.vindex needs xxhash: "
        "pip install 'change-relay[vitess]'",
    }
    ran = without_extras("".join(f"try:\n    {each}\nexcept ImportError as e:\n    print(e)\n" for each in statements))
    assert (ran.stdout.splitlines(), ran.stderr) == (list(statements.values()), "")


def test_the_core_needs_no_extra() -> None:
    statements = (
        "import relay.token, relay.gtid, relay.change, relay.config, relay.avro.decode, relay.avro.encode",
        "from relay.cache import DynamoDBLoader, Invalidator, MemoryStore, QueriesLoader, TokenCache, VitessLoader",
        "from relay.vitess.keyrange import KeyRange, shards_covering; from relay.vitess import KeyRange",
        "import relay.engine.relaying, relay.operations.check, relay.operations.status, relay.operations.tail",
        "import spark_consumers",
    )
    ran = without_extras("\n".join(statements))
    assert ran.returncode == 0, ran.stderr


def test_a_mistake_of_our_own_is_not_taken_for_a_missing_extra() -> None:
    code = "from relay.extras import needs\nwith needs('redis', 'this'):\n    import relay.nothing"
    assert "ModuleNotFoundError: No module named 'relay.nothing'" in without_extras(code).stderr


def test_every_extra_that_is_named_exists_and_all_has_each_of_them() -> None:
    extras = PROJECT["optional-dependencies"]
    named = set()
    for path in (*ROOT.glob("relay/**/*.py"), *ROOT.glob("spark_consumers/**/*.py"), *ROOT.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        named |= set(re.findall(r"\bneeds\(\"(\w+)\"", text))
        for found in re.findall(r"change-relay\[([\w,]+)\]", text):
            named |= set(found.split(","))
    assert named <= extras.keys()
    (everything,) = extras["all"]
    assert set(everything.removeprefix("change-relay[").removesuffix("]").split(",")) == extras.keys() - {"all"}


def test_a_pyspark_that_lacks_names_is_not_taken_for_a_bug() -> None:
    """It is an old one, or pyspark-client, which is for Spark Connect only. Names that others lack are our mistake."""
    with pytest.raises(MissingExtra, match=r"^this needs another pyspark: pip install 'change-relay\[spark\]'$"):
        lacks("pyspark")
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'redis'"):
        lacks("redis")


def lacks(package: str) -> None:
    with needs("spark", "this"):
        exec(f"from {package} import nothing")

"""The command line: what it prints, and with which exit code it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from relay import __version__
from relay.config.config import json_schema
from tests.command_line import errors, relay
from tests.listening import NOBODY, give_up_on_brokers_at_once


def content(**others: Any) -> dict[str, Any]:
    return {
        "name": "shop",
        "kafka": {"bootstrap_servers": NOBODY},
        "sources": [
            {
                "name": "orders",
                "type": "dynamodb",
                "table": "orders",
                "region": "us-east-1",
                "endpoint_url": f"http://{NOBODY}",
            }
        ],
        **others,
    }


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    give_up_on_brokers_at_once(monkeypatch)


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str | None = None, **others: Any) -> Path:
        path = tmp_path / "relay.yaml"
        path.write_text(yaml.safe_dump(content(**others)) if text is None else text)
        return path

    return write


COMMANDS = [
    (),
    ("run",),
    ("init",),
    ("check",),
    ("doctor",),
    ("tail",),
    ("status",),
    ("reset",),
    ("replay",),
    ("gaps",),
    ("gaps", "list"),
    ("gaps", "accept"),
    ("consume",),
    ("token",),
    ("token", "compare"),
    ("services",),
    ("services", "up"),
    ("services", "down"),
    ("services", "status"),
    ("demo",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help(command: tuple[str, ...]) -> None:
    result = relay(*command, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


def test_help_shows_the_extra_to_install_with_its_brackets() -> None:
    assert "'change-relay[spark]'" in " ".join(relay("consume", "--help").stdout.split())


@pytest.mark.processes
def test_the_module_is_the_command() -> None:
    ran = subprocess.run([sys.executable, "-m", "relay", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == relay("--version").stdout


@pytest.mark.processes
def test_a_shell_can_complete_commands() -> None:
    assert "--install-completion" in relay("--help").stdout
    asked = {"_RELAY_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "relay consume c"}
    program = "import sys; sys.argv[0] = 'relay'; from relay.cli import main; main()"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ | asked)
    assert re.findall("cache|copy|log", ran.stdout) == ["cache", "copy"], ran.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("fly",),
        ("run",),
        ("run", "a.yaml", "--workers", "0"),
        ("init",),
        ("init", "a.yaml", "--type", "oracle"),
        ("check",),
        ("consume", "everything", "a.yaml"),
        ("demo", "--source", "oracle"),
        ("demo", "--seconds", "0"),
        ("status",),
        ("reset", "a.yaml", "s"),
        ("gaps", "accept", "a.yaml", "0123", "perhaps"),
        ("token", "compare", "null"),
    ],
    ids=" ".join,
)
def test_wrong_arguments_exit_2(arguments: tuple[str, ...]) -> None:
    result = relay(*arguments)
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


@pytest.mark.parametrize(
    "command", [("run",), ("check",), ("tail",), ("consume", "cache"), ("consume", "log")], ids=" ".join
)
class TestBadFiles:
    def test_a_missing_file_exits_2(self, command: tuple[str, ...], tmp_path: Path) -> None:
        result = relay(*command, tmp_path / "none.yaml")
        assert result.exit_code == 2
        assert errors(result) == [f"{tmp_path}/none.yaml: no such file"]

    def test_broken_yaml_exits_2_with_line_and_column(
        self, command: tuple[str, ...], file: Callable[..., Path]
    ) -> None:
        path = file("name: shop\nkafka: [\n")
        result = relay(*command, path)
        assert result.exit_code == 2
        (said,) = errors(result)
        assert said.startswith(f"{path}:3:1: broken YAML: ")

    def test_an_unknown_key_exits_2_and_names_the_nearest(
        self, command: tuple[str, ...], file: Callable[..., Path]
    ) -> None:
        path = file(cahce={})
        result = relay(*command, path)
        assert result.exit_code == 2
        assert errors(result) == [f"{path}:1:1: unknown key `cahce`; did you mean `cache`?"]


def test_consuming_needs_its_part_of_the_config(file: Callable[..., Path]) -> None:
    path = file(log={"path": "file:///x"})
    result = relay("consume", "copy", path)
    assert result.exit_code == 2
    assert errors(result) == [f"{path}: no `copy:` section: add one to run this consumer"]


@pytest.mark.parametrize(
    "command",
    [
        "run FILE",
        "tail FILE",
        "status FILE",
        "gaps list FILE",
        "gaps accept FILE 0 skip",
        "reset FILE orders --to latest",
        "snapshot FILE orders",
        "snapshot FILE orders --stop",
    ],
)
def test_an_unreachable_broker_exits_3(command: str, file: Callable[..., Path]) -> None:
    path = file()
    address = yaml.safe_load(path.read_text())["kafka"]["bootstrap_servers"]
    result = relay(*command.replace("FILE", str(path)).split())
    assert result.exit_code == 3
    (said,) = errors(result)
    assert said.startswith(f"no Kafka broker answers at {address}: ")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("consume cache FILE --engine python --from soon", "--from soon: use earliest, latest, committed, "),
        ("consume log FILE --from soon", "--from soon: use earliest, latest, committed, "),
        ('consume log FILE --from {"a":{"0":-3}}', "--from: -3 is not an offset of a[0]"),
        ("consume log FILE --http h:65536", "--http: 'h:65536' is not an address to listen on"),
        ("consume log FILE --engine python", "--engine python: only the cache runs without Spark, not the log"),
        (
            "consume cache FILE --engine python --checkpoint c",
            "--checkpoint: without Spark, progress is kept in the offsets",
        ),
        ("consume log FILE --master spark://h:65536", "--master 'spark://h:65536' is not a Spark master"),
        ("replay log FILE --into /x --from soon", "--from soon: use earliest, latest, committed, "),
        ("replay log FILE --into /x --to soon", "--to soon: use earliest, latest, committed, "),
        ("replay log FILE --into /x --to watermark:soon", "--to watermark:soon: 'soon' is not a start; "),
        ("verify FILE --loader nowhere:x", "--loader nowhere:x: No module named 'nowhere'"),
        ("reset FILE legacy --to soon", "--to: 'soon' is not a start; "),
        ("reset FILE legacy --to gtid:x", "--to: 'gtid:x' is not a start; "),
        ("reset FILE legacy --to {gtid:", "--to:1:7: broken YAML: "),
        ('reset FILE legacy --to {"gtid":{"-":a,"-":b}}', "--to:1:16: duplicate key `-`; it is already set on line 1"),
        ('reset FILE legacy --to {"gtid":0123}', "--to:1:9: YAML reads this number differently from how it is written"),
        ('reset FILE legacy --to {"gtid":2020-13-45}', "--to: a start in braces must give a GTID set per shard: "),
        ("tail FILE t --from soon", "--from soon: use earliest, latest, committed:GROUP, an ISO time, "),
        ("tail FILE t --from committed", "--from committed: use earliest, latest, committed:GROUP, an ISO time, "),
        (
            "tail FILE t --from earliest --from-beginning",
            "--from-beginning and --from both say where to start: omit one",
        ),
        ("snapshot FILE other", "no source is called 'other'; the sources are legacy"),
        ("snapshot FILE legacy a --stop", "--stop: omit the tables: "),
    ],
)
def test_wrong_arguments_are_found_before_anything_is_connected_to(tmp_path: Path, command: str, said: str) -> None:
    """Neither the database, which would have to be asked for its tables, nor the broker is there."""
    path = tmp_path / "relay.yaml"
    source = '{name: legacy, type: mysql, database: d, shards: {"-": ["127.0.0.1:1"]}}'
    kept = 'cache: {url: "redis://h", namespace: n, keys: {t: [a]}}\nlog: {path: "file:///x"}\n'
    path.write_text(f'name: shop\nkafka: {{bootstrap_servers: "127.0.0.1:1"}}\nsources: [{source}]\n{kept}')
    result = relay(*(str(path) if word == "FILE" else word for word in command.split()))
    assert result.exit_code == 2
    assert errors(result)[0].startswith(said)


@pytest.mark.parametrize(
    ("code", "said"),
    [("raise KeyError('DATABASE_URL')", "KeyError('DATABASE_URL')"), ("x =", "SyntaxError('invalid syntax', ")],
)
def test_a_loader_whose_module_cannot_be_imported_is_refused_with_its_error(
    tmp_path: Path, file: Callable[..., Path], unique: str, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    (tmp_path / f"{unique}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    result = relay("verify", file(), "--loader", f"{unique}:load")
    assert result.exit_code == 2
    assert errors(result)[0].startswith(f"--loader {unique}:load: cannot be imported: {said}")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run x.yaml --workers 0", "'0' must be at least 1"),
        ("run x.yaml --workers 300", "'300' must be at most 256"),
        ("run x.yaml --workers two", "'two' must be an integer"),
        ("gaps accept x.yaml 5f3a skp", "'skp' is not one of"),
        ("dead-letters redrive x.yaml --all --max=-7", "'-7' must be at least 1"),
        ("verify x.yaml --within soon", "'soon' must be a number"),
        ("demo --seconds 1", "'1' must be at least 5"),
    ],
)
def test_a_value_that_an_option_cannot_have_is_shown(command: str, said: str) -> None:
    result = relay(*command.split())
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert "Value error" not in result.stderr
    assert "nput should" not in result.stderr


def test_a_setting_is_the_origin_of_its_error(file: Callable[..., Path]) -> None:
    result = relay("status", file(), "--set", "kafka.bootstrap_servers=x:99999")
    assert result.exit_code == 2
    (said,) = errors(result)
    assert said.startswith("--set kafka.bootstrap_servers: `kafka.bootstrap_servers`: 'x:99999' is not a broker")


@pytest.mark.processes
def test_workers_have_the_settings_too(file: Callable[..., Path]) -> None:
    address = NOBODY
    command = [sys.executable, "-m", "relay.cli", "run", str(file()), "--workers", "2"]
    command += ["--set", f"kafka.bootstrap_servers={address}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said = next(line for line in process.stderr if "no Kafka broker answers" in line)
        finally:
            process.terminate()
    assert f"no Kafka broker answers at {address}: " in said


def test_the_json_schema_is_printed_without_a_file() -> None:
    result = relay("check", "--schema")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json_schema()


def test_the_version_is_printed() -> None:
    result = relay("--version")
    assert (result.exit_code, result.stdout) == (0, f"relay {__version__}\n")


def test_a_missing_redis_exits_3_when_checked(file: Callable[..., Path]) -> None:
    address = NOBODY
    cache = {"url": f"redis://{address}/0", "namespace": "n", "keys": {"orders": ["{order_id}"]}}
    result = relay("check", file(cache=cache))
    assert result.exit_code == 3
    assert f"✗ cache redis://{address}/0: Redis at redis://{address}/0 is not available" in result.stdout


@pytest.mark.services
class TestOnServices:
    @pytest.fixture
    def path(self, kafka: Any, dynamodb: Any, unique: str, tmp_path: Path) -> Path:
        settings = content(name=unique)
        settings["kafka"]["bootstrap_servers"] = kafka.bootstrap_servers
        settings["sources"][0] |= {"endpoint_url": dynamodb.endpoint_url, "table": unique}
        path = tmp_path / "relay.yaml"
        path.write_text(yaml.safe_dump(settings))
        return path

    def create(self, dynamodb: Any, table: str, *, stream: bool) -> None:
        client = boto3.client("dynamodb", endpoint_url=dynamodb.endpoint_url, region_name="us-east-1")
        client.create_table(
            TableName=table,
            KeySchema=[{"AttributeName": "order_id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "order_id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
            if stream
            else {"StreamEnabled": False},
        )
        client.close()

    def test_a_wrong_table_exits_3_and_says_what_to_look_at(self, path: Path, unique: str) -> None:
        result = relay("run", path)
        assert result.exit_code == 3
        (said,) = errors(result)
        said, *_ = said.split("; did you mean")  # the random name may be like that of another test
        assert said.startswith(f"source orders: table '{unique}' does not exist in region us-east-1 at http://")
        assert said.endswith(": check `table`, `region` and `endpoint_url`")

    def test_a_disabled_stream_exits_3_and_says_how_to_enable_it(self, path: Path, dynamodb: Any, unique: str) -> None:
        self.create(dynamodb, unique, stream=False)
        result = relay("run", path)
        assert result.exit_code == 3
        (said,) = errors(result)
        assert f"`aws dynamodb update-table --table-name {unique} --region " in said
        assert f"--endpoint-url {dynamodb.endpoint_url} --stream-specification StreamEnabled=true" in said

    def test_caught_up_exits_0(self, path: Path, dynamodb: Any, unique: str) -> None:
        self.create(dynamodb, unique, stream=True)
        command = [sys.executable, "-m", "relay.cli", "run", str(path), "--until-caught-up"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout == ""


@pytest.mark.parametrize("command", [("status",), ("gaps", "list"), ("reset",)])
def test_what_looks_at_kafka_alone_does_not_ask_a_database_for_its_tables(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    """While it is down, `relay status` is wanted most. Neither it nor the broker is there."""
    config = tmp_path / "relay.yaml"
    source = '{name: legacy, type: mysql, database: d, shards: {"-": ["127.0.0.1:1"]}}'
    config.write_text(f'name: shop\nkafka: {{bootstrap_servers: "127.0.0.1:1"}}\nsources: [{source}]\n')
    more = ("legacy", "--to", "current") if command == ("reset",) else ()
    done = relay(*command, config, *more)
    assert done.exit_code == 3
    assert "no Kafka broker answers at 127.0.0.1:1" in done.output
    assert "no server of shard" not in done.output

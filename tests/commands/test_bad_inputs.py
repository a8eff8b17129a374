"""What people get wrong: each answer says what it is and where, has the exit code for it, and never a traceback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import Result

from tests.command_line import relay
from tests.listening import NOBODY

CONFIG = f"""\
name: shop
kafka:
  bootstrap_servers: "{NOBODY}"
  partitions: 6
sources:
  - name: orders
    type: dynamodb
    table: orders
    region: us-east-1
    endpoint_url: "http://{NOBODY}"
    start: trim_horizon
  - name: legacy
    type: mysql
    shards: {{"-": ["{NOBODY}"]}}
    database: legacy
    user: relay
    password: relay
    tables: [customers]
    start: current
  - name: commerce
    type: vitess
    vtgate: "{NOBODY}"
    keyspace: commerce
    tables: [products]
cache: {{url: "redis://{NOBODY}/0", namespace: shop, keys: {{orders: ["order:{{customer}}"]}}}}
log: {{path: "file://FOLDER/log"}}
copy: {{url: "delta://FOLDER/copy"}}
http: "127.0.0.1:9400"
"""

FILES = {
    "": "1:1: the file is empty",
    "# a comment\n": "1:1: the file is empty",
    "- a\n": "1:1: the file must be a mapping of keys to values",
    "a": "1:1: the file must be a mapping of keys to values",
    b"\x7fELF\x00\x01\x02\xff\xfe": "1:8: not UTF-8 text (at byte 7)",
    "name: café\n".encode("latin-1"): "1:10: not UTF-8 text (at byte 9)",
    CONFIG.encode("utf-16"): "1:1: not UTF-8 text (at byte 0)",
    "name: shop\nkafka:\n\tbootstrap_servers: a:1\n": "3:1: broken YAML: while scanning for the next token, found "
    "character '\\t' that cannot start any token; indent with spaces, not with tabs",
    "name: sh\x00op": "1:9: broken YAML: special characters are not allowed",
    f"{CONFIG}---\nname: other\n": "29:1: broken YAML: expected a single document in the stream",
    f"{CONFIG}name: again\n": "29:1: duplicate key `name`; it is already set on line 1",
    CONFIG.replace("  partitions", " partitions"): "4:2: broken YAML: while parsing a block mapping, expected <block "
    "end>, but found '<block mapping start>'; is the line indented like its neighbours?",
    CONFIG.replace("shop", "!!python/name:os.system", 1): "1:7: values of type tag:yaml.org,2002:python/name:os.system",
    CONFIG.replace("kafka:", "kafka: &k\n  x: *k"): "2:8: this alias (*) refers to the value that contains it",
}

VARIABLES = {
    "RELAY_STATE": ("services status", "the environment variable RELAY_STATE names FOLDER/empty.json, which is not a"),
    "RELAY_CACHE": ("services up kafka", "the environment variable RELAY_CACHE names FOLDER/empty.json, which is not"),
    "RELAY_NATIVE": ("check CONFIG --offline", "the environment variable RELAY_NATIVE is 'FOLDER/empty.json': use off"),
    "RELAY_LOG_FORMAT": ("check CONFIG --offline", "'FOLDER/empty.json' is not one of 'text', 'json'"),
    "AWS_PROFILE": ("check CONFIG --offline", "source orders: The config profile (FOLDER/empty.json) could not be"),
}


def table(name: str) -> list[tuple[str, int, str]]:
    """Return inputs, each with the exit code and the words of its answer."""
    _, _, found = Path(__file__).with_name("bad_inputs.txt").read_text().partition(f"== {name} ==\n")
    rows = re.findall(r"(.+)\n    (?:\((\d)\) )?(.+)\n", found.partition("\n\n")[0] + "\n")
    return [(given, int(code or 2), said) for given, code, said in rows]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("RELAY_STATE", str(tmp_path / "state"))
    (tmp_path / "empty.json").touch()
    (tmp_path / "binary.json").write_bytes(b"\xff")
    (tmp_path / "change.json").write_text('{"timestamp": 1, "shard": "s", "position": "DynamoDB/1", "origin": null}')
    write(tmp_path, CONFIG)
    (tmp_path / "nocopy.yaml").write_text((tmp_path / "relay.yaml").read_text().replace("copy:", "# copy:"))
    return tmp_path


def write(folder: Path, text: str) -> None:
    (folder / "relay.yaml").write_text(text.replace("FOLDER", str(folder)))


def run(folder: Path, command: str) -> Result:
    filled = command.replace("CONFIG", f"{folder}/relay.yaml").replace("FOLDER", str(folder))
    return relay(*filled.split())


def answer(folder: Path, result: Result) -> str:
    """Return what a command has said, without its file, and check that it has ended by itself."""
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    said = f"{result.stderr}{result.stdout}".replace(f"{folder}/relay.yaml:", "").replace(str(folder), "FOLDER")
    assert "Traceback" not in said
    return " ".join(said.replace("│", " ").split())


@pytest.mark.parametrize(("change", "code", "said"), table("values of the config: what is in the place of what"))
def test_a_wrong_value_is_named_with_its_line_and_what_may_stand_there(
    folder: Path, change: str, code: int, said: str
) -> None:
    old, new = (each.replace("\\n", "\n") for each in change.split(" ==> "))
    assert old in CONFIG
    write(folder, CONFIG.replace(old, new, 1))
    result = run(folder, "check CONFIG --offline")
    assert said in answer(folder, result)
    assert result.exit_code == code


@pytest.mark.parametrize(("content", "said"), FILES.items(), ids=range(len(FILES)))
def test_a_file_that_is_not_a_config_is_named_with_the_place(folder: Path, content: str | bytes, said: str) -> None:
    (folder / "relay.yaml").write_bytes(content.encode() if isinstance(content, str) else content)
    result = run(folder, "check CONFIG --offline")
    assert said in answer(folder, result)
    assert result.exit_code == 2


@pytest.mark.parametrize(("command", "code", "said"), table("commands"))
def test_a_wrong_argument_is_named_before_anything_is_connected_to(
    folder: Path, command: str, code: int, said: str
) -> None:
    result = run(folder, command)
    assert said in answer(folder, result)
    assert result.exit_code == code


@pytest.mark.parametrize(("name", "command", "said"), [(name, *row) for name, row in VARIABLES.items()])
def test_a_wrong_variable_of_the_environment_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, command: str, said: str
) -> None:
    monkeypatch.setenv(name, f"{folder}/empty.json")
    result = run(folder, command)
    assert said in answer(folder, result)
    assert result.exit_code == 2


@pytest.mark.parametrize("content", [b"\xef\xbb\xbf" + CONFIG.encode(), CONFIG.replace("\n", "\r\n").encode()])
def test_a_file_of_windows_is_read(folder: Path, content: bytes) -> None:
    (folder / "relay.yaml").write_bytes(content.replace(b"FOLDER", str(folder).encode()))
    assert run(folder, "check CONFIG --echo").exit_code == 0

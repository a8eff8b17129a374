"""Every key, with values that nobody expects there: the file is read, or refused by an error that names its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from relay.config import Config, DynamoDBConfig, MySQLConfig, VitessConfig
from relay.config.config import read
from relay.config.echo import echo, to_yaml
from relay.config.errors import fields_of, model_inside
from relay.config.yaml_file import Location
from relay.errors import ConfigError

# A section with the keys that it needs, so that the validators of the whole section run, too.
SECTIONS: dict[str, dict[str, Any]] = {
    "kafka": {"bootstrap_servers": "h:1"},
    "schema_registry": {"url": "http://h:1"},
    "cache": {"url": "redis://h", "namespace": "n", "keys": {"orders": ["a"]}},
    "log": {"path": "file:///log"},
    "copy": {"url": "delta:///copy"},
    "http": {"address": "127.0.0.1:1"},
}
SOURCES: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (DynamoDBConfig, {"name": "s", "type": "dynamodb", "table": "orders"}),
    (VitessConfig, {"name": "s", "type": "vitess", "vtgate": "h:1", "keyspace": "k", "tables": ["orders"]}),
    (MySQLConfig, {"name": "s", "type": "mysql", "database": "d", "shards": {"-": ["h:1"]}, "tables": ["orders"]}),
]

VALUES = [
    *["null", "''", "[]", "[null]", "[[]]", "{}", "{a: null}", "{orders: {a: {}}}", "{'': ''}", "true", "-1"],
    *[".nan", ".inf", "-1.0e+400", "9" * 400, "'" + "9" * 400 + "'", "[.nan]", "{orders: .inf}"],
    *["!!int ''", "!!float ''", "!!bool x", "!!timestamp x", "{token: ~nobody9/x}"],
    *[r'"\ud800"', r'{"\ud800": x}', r'"\0"', '"{"', '"://["'],
]


def keys(model: type[BaseModel], around: Location = ()) -> Iterator[Location]:
    for name, field in fields_of(model).items():
        yield (*around, name)
        if name != "sources" and (inside := model_inside(field.annotation)):
            yield from keys(inside, (*around, name))


KEYS = [(key, SOURCES[0][1]) for key in keys(Config)]
KEYS += [(key, source) for model, source in SOURCES for key in keys(model, ("sources", 0))]

every_key = pytest.mark.parametrize(
    ("key", "source"), KEYS, ids=[".".join(map(str, (source["type"], *key))) for key, source in KEYS]
)


@every_key
def test_a_key_with_an_odd_value_is_read_or_refused(file: Path, key: Location, source: dict[str, Any]) -> None:
    data, inside = _around(key, source)
    inside[key[-1]] = "ODD VALUE"
    text = json.dumps(data)
    for value in VALUES:
        file.write_text(text.replace('"ODD VALUE"', value))
        assert all(line.startswith(f"{file}:1:") for line in _problems(file)), value


@every_key
def test_a_key_that_is_set_to_an_odd_value_is_read_or_refused(
    file: Path, key: Location, source: dict[str, Any]
) -> None:
    data, inside = _around(key, source)
    inside.pop(key[-1], None)
    file.write_text(json.dumps(data))
    name = ".".join(map(str, key)).replace("sources.0", "sources[0]")
    for value in VALUES:
        said = _problems(file, f"{name}={value}")
        assert all(line.startswith((f"--set {name}:", f"{file}:1:")) for line in said), value


def _problems(file: Path, *settings: str) -> list[str]:
    try:
        config, document = read(file, settings)
    except ConfigError as error:
        return str(error).splitlines()
    assert to_yaml(echo(config, document))
    return []


def _around(key: Location, source: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return a config, and the mapping in it that has ``key``."""
    sections = {name: dict(SECTIONS[name]) for name in {"kafka", str(key[0])} & SECTIONS.keys()}
    data: dict[str, Any] = {"name": "shop", "sources": [dict(source)], **sections}
    inside: Any = data
    for part in key[:-1]:
        inside = inside[part] if isinstance(part, int) else inside.setdefault(part, {})
    return data, inside

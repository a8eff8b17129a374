"""Names that PostgreSQL, or a copy in it, would refuse are refused with the config, before anything is read."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from relay.cli import app
from relay.config import Config
from relay.errors import ConfigError
from spark_consumers.sinks.places import copy_target

NAME = "orders" * 11
# What a name of more than 63 bytes becomes.
SHORT = f"{NAME[:54]}_{hashlib.sha256(NAME.encode()).hexdigest()[:8]}"


def given(sources: dict[str, list[str]]) -> dict[str, Any]:
    of_one = {"type": "mysql", "shards": {"-": ["db:3306"]}, "database": "shop", "user": "u", "password": "p"}
    return {
        "name": "shop",
        "kafka": {"bootstrap_servers": "127.0.0.1:9"},
        "sources": [{"name": name, **of_one, "tables": tables} for name, tables in sources.items()],
        "copy": {"url": "postgresql://ann@h/d"},
    }


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        (
            {"shop": ["a"], "pg_shop": ["b"]},
            r"sources\[1\]\.name: pg_shop: PostgreSQL reserves the schema name pg_shop",
        ),
        ({"information_schema": ["a"]}, r"sources\[0\]\.name: information_schema: PostgreSQL reserves"),
        (
            {"shop": ["a"], "more": ["_relay_properties"]},
            r"sources\[1\]: the table _relay_properties: names that begin with _relay_ are reserved",
        ),
        (
            {"shop": [NAME, SHORT]},
            rf"sources\[0\]: .*{SHORT} and sources\[0\]: .* would have the same name in PostgreSQL, {SHORT}: give",
        ),
    ],
)
def test_a_name_that_postgres_would_refuse_is_refused_with_its_key(sources: dict[str, list[str]], said: str) -> None:
    config = Config.model_validate(given(sources))
    assert config.copy_ is not None
    with pytest.raises(ConfigError, match=said):
        copy_target(config, config.copy_)


def test_names_that_differ_are_not_refused() -> None:
    config = Config.model_validate(given({"shop": [NAME, "pg_a", "shop"], "more": ["b"], "pgshop": ["c"]}))
    assert config.copy_ is not None
    copy_target(config, config.copy_)


def test_check_refuses_them_without_a_connection(tmp_path: Path) -> None:
    path = tmp_path / "relay.yaml"
    path.write_text(yaml.safe_dump(given({"pg_shop": ["a"]})))
    result = CliRunner().invoke(app, ["check", "--offline", str(path)])
    assert result.exit_code == 2
    assert "sources[0].name: pg_shop" in result.output

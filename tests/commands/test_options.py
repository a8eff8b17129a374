"""Options that all commands of a kind have, and the tables of sources that name none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import typer

from relay.cli import app
from relay.commands.options import with_tables
from relay.config import Config
from relay.errors import Unavailable
from tests.listening import NOBODY


def commands_with(parameter: str | None = None) -> dict[str, set[str]]:
    """Return the options of each command that has ``parameter``; without one, of all commands."""
    found: dict[str, set[str]] = {}

    def walk(command: Any, name: str) -> None:
        for inner, each in getattr(command, "commands", {}).items():
            walk(each, f"{name} {inner}".strip())
        is_group = bool(getattr(command, "commands", {}))
        if any(each.name == parameter for each in command.params) or (parameter is None and not is_group):
            found[name] = {option for each in command.params for option in each.opts}

    walk(typer.main.get_command(app), "")
    return found


def test_every_command_that_takes_a_config_takes_settings_in_its_place() -> None:
    commands = commands_with("config")
    assert {"run", "check", "tail", "consume", "verify", "replay", "gaps accept"} <= commands.keys()
    assert [name for name, options in commands.items() if "--set" not in options] == []


def test_every_command_that_prints_data_prints_it_as_json_too() -> None:
    """The others only log what they do, or write a file."""
    without = {name for name, options in commands_with().items() if "--json" not in options}
    assert without == {"run", "init", "consume"}


def test_every_command_takes_the_format_of_its_log() -> None:
    assert [name for name, options in commands_with().items() if "--log-format" not in options] == []


DATABASE = {"type": "mysql", "shards": {"-": [NOBODY]}}


def two_databases() -> Config:
    sources = [{"name": name, "database": name, **DATABASE} for name in ("away", "there")]
    return Config.model_validate({"name": "shop", "kafka": {"bootstrap_servers": NOBODY}, "sources": sources})


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables of the source ``there``; ``away`` is down, and its table ``a.b`` was relayed before."""
    names = ["t"]

    def find(entry: Any) -> list[str]:
        if entry.name == "away":
            raise Unavailable("source away: nobody answers")
        return [name for name in names if not entry.without_topic(name)]

    monkeypatch.setattr("relay.engine.kinds.kind_of", lambda entry: SimpleNamespace(find_tables=find))
    monkeypatch.setattr("relay.operations.status.relayed_tables", lambda config: [("away", "a.b")])
    return names


def test_a_database_that_is_down_keeps_no_other_source_from_being_relayed(
    there: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """I12: it stays as it is, so that all of its tables are relayed once it is back."""
    found = with_tables(two_databases(), is_relay=True)
    assert [source.table_names for source in found.sources] == [[], ["t"]]
    assert "the tables of source away cannot be looked up: source away: nobody answers" in caplog.text


def test_a_table_of_a_database_that_is_down_keeps_its_topic(there: list[str]) -> None:
    """I8"""
    there.append("a_b")
    found = with_tables(two_databases(), is_relay=True)
    assert found.tables.keys() == {"t"}
    assert not found.sources[0].without_topic("a.b")


def test_what_reads_the_topics_has_the_tables_that_were_relayed_before_a_database_went_down(
    there: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = with_tables(two_databases())
    assert {table: source.name for table, source in found.tables.items()} == {"a.b": "away", "t": "there"}
    assert "taking those that were relayed before: source away: nobody answers" in caplog.text
    monkeypatch.setattr("relay.operations.status.relayed_tables", lambda config: [("there", "t")])
    with pytest.raises(Unavailable, match="source away: nobody answers"):
        with_tables(two_databases())


def test_tables_cannot_be_found_by_their_tags_while_the_region_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would be a source of its own."""

    def find(entry: Any) -> list[str]:
        raise Unavailable("no answer")

    monkeypatch.setattr("relay.engine.kinds.kind_of", lambda entry: SimpleNamespace(find_tables=find))
    source = {"name": "orders", "type": "dynamodb", "tags": {"relay": "yes"}, "region": "us-east-1"}
    config = {"name": "shop", "kafka": {"bootstrap_servers": NOBODY}, "sources": [source]}
    with pytest.raises(Unavailable, match="no answer"):
        with_tables(Config.model_validate(config), is_relay=True)

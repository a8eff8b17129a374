"""Options that all commands of a kind have."""

from __future__ import annotations

from typing import Any

import typer

from relay.cli import app


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

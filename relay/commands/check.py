"""``relay check``: options and output; ``relay.operations.check`` does the work."""

import json
from pathlib import Path
from typing import Annotated

import typer

from relay.commands.options import JsonOption, SetOption, read_config

_HELP = {
    "config": "The YAML file to check.",
    "offline": "Connect to nothing: check only the file and this machine.",
    "echo": "Print an equivalent config file instead: with all defaults, and with secrets hidden. This "
    "connects to nothing.",
    "schema": "Print the JSON schema of configs instead, for an editor.",
}


def check(
    config: Annotated[Path | None, typer.Argument(metavar="CONFIG", help=_HELP["config"], readable=False)] = None,
    offline: Annotated[bool, typer.Option("--offline", help=_HELP["offline"])] = False,
    echo: Annotated[bool, typer.Option("--echo", help=_HELP["echo"])] = False,
    schema: Annotated[bool, typer.Option("--schema", help=_HELP["schema"])] = False,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a config, then connect to everything in it and report what is missing.

    The command creates and changes nothing. Exit code 2: the file is wrong. Exit code 3: something that it needs is
    missing or unreachable.
    """
    if schema:
        from relay.config.config import json_schema

        typer.echo(json.dumps(json_schema(), indent=2))
        return
    if config is None:
        raise typer.BadParameter("name the CONFIG to check.", param_hint="CONFIG")
    loaded, document = read_config(config, settings)
    if echo:
        from relay.config import echo as echoes

        shown = echoes.echo(loaded, document)
        typer.echo(json.dumps(shown, ensure_ascii=False) if as_json else echoes.to_yaml(shown), nl=as_json)
        return
    from relay.operations.check import run

    findings = []
    for finding in run(loaded, offline=offline):
        findings.append(finding)
        if not as_json:
            _print_finding(finding.check, finding.detail, is_ok=finding.ok)
    if as_json:
        typer.echo(json.dumps([finding.to_json() for finding in findings], ensure_ascii=False))
    if codes := {finding.exit_code for finding in findings} - {0}:
        raise typer.Exit(min(codes))  # a setting that can never work outweighs a service that is only down


def _print_finding(check: str, detail: str, *, is_ok: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    mark = Text("✓ ", "green") if is_ok else Text("✗ ", "bold red")
    line = Text() + mark + Text(check, "bold") + Text(f": {detail}")
    Console(soft_wrap=True, highlight=False).print(line)

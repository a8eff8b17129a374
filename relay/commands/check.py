"""``relay check``: options and output; ``relay.operations.check`` does the work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from relay.commands.options import JsonOption, SetOption, load_config


def check(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="The YAML file to check.", show_default=False)
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of configs instead, for an editor.")
    ] = False,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a config, then connect to everything in it and report what is missing.

    Creates and changes nothing. Exit code 2: the file is wrong; 3: something that it needs is missing or unreachable.
    """
    if schema:
        from relay.config import Config

        typer.echo(json.dumps(Config.model_json_schema(), indent=2))
        return
    if config is None:
        raise typer.BadParameter("give the CONFIG to check", param_hint="CONFIG")
    loaded = load_config(config, settings)
    from relay.operations.check import run as run_checks

    findings = []
    for finding in run_checks(loaded):
        findings.append(finding)
        if not as_json:
            _print_finding(finding.ok, finding.check, finding.detail)
    if as_json:
        typer.echo(
            json.dumps(
                [{"check": found.check, "ok": found.ok, "detail": found.detail} for found in findings],
                ensure_ascii=False,
            )
        )
    # A setting that cannot be right outweighs a service that is only down.
    codes = {finding.exit_code for finding in findings} - {0}
    if codes:
        raise typer.Exit(min(codes))


def _print_finding(ok: bool, name: str, detail: str) -> None:
    from rich.console import Console
    from rich.text import Text

    mark = Text("✓ ", "green") if ok else Text("✗ ", "bold red")
    Console(soft_wrap=True, highlight=False).print(mark + Text(name, "bold") + Text(f": {detail}"))

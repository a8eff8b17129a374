"""``relay services``: options and output; ``relay.services.background`` does the work."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from relay.commands.logged import Commands
from relay.commands.options import JsonOption
from relay.extras import needs

if TYPE_CHECKING:
    from relay.services.background import Service

app = Commands(help="Run a broker, databases and a Redis on this machine, to try things out.", no_args_is_help=True)


@app.command("up")
def services_up(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Any of kafka, dynamodb, redis, memcached, postgres, registry, mariadb and vitess. Default: kafka, "
            "dynamodb and redis.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start services that are not running yet, and print their addresses. The services run in the background.

    The first time, the command downloads the services, and takes minutes to build Vitess. When a service ends, its data
    is removed.
    """
    _print_services(_background().up(names), as_json)


@app.command("down")
def services_down(as_json: JsonOption = False) -> None:
    """Stop all services, remove their data, and print which ones were running."""
    _print_services(_background().down(), as_json)


@app.command("status")
def services_status(as_json: JsonOption = False) -> None:
    """Print the services that were started, and whether they are still running."""
    _print_services(_background().status(), as_json)


def _background() -> ModuleType:
    with needs("services", "`relay services`"):
        from relay.services import background
    return background


def _print_services(found: Sequence[Service], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([service.as_dict() for service in found]))
        return
    if not found:
        typer.echo("no services are running")
    for service in found:
        state = "running" if service.running else "ended"
        typer.echo(f"{service.name:9} {state}  {service.address}  pid {service.pid}  {service.log}")
        if service.running and service.login:
            typer.echo(f"{'':9} log in: {service.login}")

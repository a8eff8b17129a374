"""``relay verify``: options and output; ``relay.operations.verify`` does the work."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from relay.commands.options import ConfigArgument, JsonOption, load_config
from relay.errors import CheckFailed

if TYPE_CHECKING:
    from relay.operations.verify import Verification


def verify(
    config: ConfigArgument,
    sample: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many entries of the cache to look at, picked at random.")
    ] = 1000,
    within: Annotated[
        float,
        typer.Option(
            min=0.1, metavar="SECONDS", help="How long the consumer may take to invalidate a value whose rows changed."
        ),
    ] = 30.0,
    loaders: Annotated[
        list[str] | None,
        typer.Option(
            "--loader",
            metavar="MODULE:NAME",
            help="The application's loader of cache keys, or a function of @cached, which has to read from primaries; "
            "several if each has keys of its own. Without one, only values that are DynamoDB items, as "
            "relay.cache.DynamoDBLoader makes them, are compared.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare values of the cache with the rows they come from, and find those that are stale.

    A value is stale if the cache still serves it after SECONDS, and its rows, which make another value, did not
    change meanwhile. Exit code 4: some are.
    """
    if loaders:
        sys.path.insert(0, os.getcwd())  # as `python -m` does; a console script has its own folder there
    loaded = load_config(config)
    from relay.operations.verify import verify as verify_cache

    found = verify_cache(
        loaded,
        sample=sample,
        within=within,
        loaders=loaders or [],
        say=lambda text: typer.echo(f"relay: {text}", err=True),
    )
    if as_json:
        typer.echo(json.dumps(found.to_json(), ensure_ascii=False))
    else:
        _show(found)
    if found.stale:
        raise CheckFailed(f"{len(found.stale)} of {found.checked} values in namespace {found.namespace} are stale")


def _show(found: Verification) -> None:
    typer.echo(f"namespace {found.namespace}: {found.sampled} entries sampled, {found.without_value} without a value")
    for count, text in (
        (found.checked, "checked"),
        (len(found.stale), "stale"),
        (found.unknown.total(), "unknown"),
    ):
        typer.echo(f"{count:8}  {text}")
    if found.ratio is not None:
        late = f"; {found.late} of them late, after up to {found.slowest:.1f} s" if found.late else ""
        typer.echo(
            f"consistent within {found.within:g} s: {found.consistent} of {found.checked} ({found.ratio:.4%}){late}"
        )
    for entry in found.stale:
        shown = entry.to_json()
        typer.echo(f"stale for {entry.seconds:.1f} s: {entry.key}")
        typer.echo(f"  cached: {shown['cached'] if entry.value is not None else '(there is no such item)'}")
        typer.echo(f"  now:    {shown['truth'] if entry.truth is not None else '(there is no such item)'}")
    for reason, count in found.unknown.items():
        typer.echo(f"unknown {count}: {reason}")
    if found.unmatched:
        typer.echo(
            f"{len(found.unmatched)} values have a key that no template in `cache.keys` gives, so nothing invalidates "
            f"them, such as {found.unmatched[0]!r}"
        )

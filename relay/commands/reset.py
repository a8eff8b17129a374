"""``relay reset``: options and output; what is done is in ``relay.operations.reset``."""

from __future__ import annotations

from typing import Annotated

import typer

from relay.commands.options import ConfigFile, load_config


def reset(
    config: ConfigFile,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Its name in the config.", show_default=False)],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="START",
            help="trim_horizon, latest, an ISO time, a time ago such as -30s, or token:PATH.",
            show_default=False,
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
) -> None:
    """Let the next run read a source from another place. Stop all workers first.

    Forgets its checkpoints and reports a gap, so that caches drop what they hold. What lies between the old place
    and the new one is published again, or never. The config stays as it is.
    """
    loaded = load_config(config, every_table=False)
    from relay.operations import reset as resets

    found = resets.look(loaded, source, to) if dry_run else resets.reset(loaded, source, to)
    would = "would be" if dry_run else "was"
    typer.echo(f"source {source}, stream {found.stream.label}: {would} reset to {found.gap.end['start']}")  # type: ignore[index]
    typer.echo(f"{len(found.forgotten)} records of checkpoints {would} removed, gap {found.gap.id} {would} published")
    if found.workers:
        typer.echo(f"stop the workers first: {', '.join(found.workers)}")

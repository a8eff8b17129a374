"""``relay doctor``: options and output; ``relay.operations.doctor`` does the work."""

import json
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from relay.commands.options import ConfigArgument, JsonOption, SetOption, read_config, with_tables

_HELP = {"into": "Where to write the bundle, a new .tar.gz. Default: relay-doctor-NAME-TIME.tar.gz here."}


def doctor(
    config: ConfigArgument,
    into: Annotated[Path | None, typer.Option(metavar="PATH", help=_HELP["into"])] = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make one bundle for a bug report: versions, the config, checks of each service, the status and the metrics.

    The bundle contains no secrets of the config or the environment, and nothing is sent anywhere. The command also
    works while services are down.
    """
    loaded, document = read_config(config, settings)
    from relay.operations import doctor as bundles

    target = into or Path(time.strftime(f"relay-doctor-{loaded.name}-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime()))
    bundles.refuse(target)
    parts = bundles.collect(loaded, document, partial(with_tables, every_table=False))
    bundles.write(parts, target)
    if as_json:
        typer.echo(json.dumps({"bundle": str(target), "files": list(parts)}))
        return
    typer.echo(f"{target}: {', '.join(parts)}")
    names = "it names tables, hosts, shards and the keys of accused rows"
    typer.echo(f"Secrets are left out. Read the bundle before you share it: {names}.")

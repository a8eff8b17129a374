"""``relay repartition``: options and output; ``relay.operations.repartition`` does the work."""

import json
from typing import Annotated

import typer

from relay.commands.options import ConfigArgument, JsonOption, SetOption, load_config
from relay.errors import with_file


def repartition(
    config: ConfigArgument,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table whose topic gets more partitions.")],
    partitions: Annotated[
        int, typer.Option("--partitions", min=1, max=100_000, help="How many partitions the topic will have.")
    ],
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Spread the changes of a table over more partitions of its topic, while the relay runs.

    The workers stop publishing this source for some seconds. Then each former partition ends with a mark, and the
    changes of every key stay in order. The relay's own consumers need no change.
    """
    loaded = load_config(config, settings, every_table=True)
    from relay.operations.repartition import repartition as spread

    found = spread(loaded, table, partitions)
    if as_json:
        typer.echo(json.dumps(found.to_json(), ensure_ascii=False))
        return
    if found.before == found.partitions:
        typer.echo(f"the changes of topic {found.topic} go to {found.partitions} partitions already")
    elif found.done:
        typer.echo(f"topic {found.topic}: changes now go to {found.partitions} partitions instead of {found.before}")
    elif found.workers:
        typer.echo(
            f"topic {found.topic} has {found.partitions} partitions; its changes still go to {found.before}, until "
            f"every worker has seen the request: repeat `{with_file('relay repartition CONFIG')} {table} --partitions "
            f"{partitions}` to see whether they have"
        )
    else:
        typer.echo(
            f"topic {found.topic} has {found.partitions} partitions. No worker is running: changes go to all of them "
            "from the next `relay run` on"
        )
    typer.echo(f"set `topic_settings: {{{table}: {{partitions: {partitions}}}}}` in the config, too")

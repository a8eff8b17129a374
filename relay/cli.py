"""The ``relay`` command. Heavy imports (Kafka, boto3, Spark) stay inside the commands: small ones start fast."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Literal

import typer

from relay.commands import (
    check,
    dead_letters,
    doctor,
    gaps,
    init,
    machine,
    options,
    repartition,
    replay,
    reset,
    services,
    snapshot,
    status,
    verify,
)
from relay.commands.logged import Commands, Group, wrong_usage_logged
from relay.errors import ConfigError, RelayError
from relay.extras import needs


class _Commands(Group):
    """Prints errors that are meant for the user without a traceback, and exits with their code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["relay.given"] = given = list(args)
        with _errors_shown(given):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with _errors_shown(ctx.meta["relay.given"]):
            return super().invoke(ctx)


@contextmanager
def _errors_shown(given: list[str]) -> Iterator[None]:
    try:
        with wrong_usage_logged(given), machine.local_failures():
            yield
    except RelayError as error:
        for line in str(error).splitlines() or [type(error).__name__]:
            typer.echo(f"relay: error: {line}", err=True)
        raise typer.Exit(error.exit_code) from error
    finally:
        RelayError.file = "CONFIG"


app = Commands(
    cls=_Commands,
    help="Relay the changes of a database to Kafka, exactly once and in order, and keep caches and copies of it "
    "up to date.",
    no_args_is_help=True,
    rich_markup_mode="markdown",  # rich would take the brackets of `change-relay[spark]` for its own markup
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
token = Commands(
    help="Compare event tokens: the positions of changes in the history of a database.", no_args_is_help=True
)
_BEGIN, _RUN, _LOOK, _REPAIR = "To begin", "To run", "To look", "To repair"
app.command("init", rich_help_panel=_BEGIN)(init.init)
app.command("check", rich_help_panel=_BEGIN)(check.check)
app.add_typer(services.app, name="services", rich_help_panel=_BEGIN)


def _version(wanted: bool) -> None:
    if wanted:
        from relay import __version__

        typer.echo(f"relay {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(rich_help_panel=_RUN)
def run(
    config: options.ConfigArgument,
    until_caught_up: options.UntilCaughtUpOption = False,
    workers: Annotated[
        int,
        typer.Option(min=1, max=256, help="The number of processes that share the work. If one dies, it is restarted."),
    ] = 1,
    log_format: options.LogFormatOption = "text",
    settings: options.SetOption = None,
) -> None:
    """Relay changes from the sources to Kafka, until stopped.

    After a crash or a stop, run the command again: it resumes where it was, and no change is lost or published twice.
    Run it on several machines with the same config, and they share the work. Stop it with SIGTERM or Ctrl-C.
    SIGHUP makes it read its config again: the shards and servers of `type: mysql` may change while it runs.

    With --until-caught-up, exit code 0 means that everything the sources had at the start is committed to Kafka. MySQL,
    MariaDB and Vitess report that position. DynamoDB reports it only for closed shards. An open shard counts as read
    once it returns a change from more than 5 seconds after the start, or if for 10 seconds it returns no record, but 50
    empty pages in a row. If DynamoDB shows a change later than that, the next run publishes it.
    """
    with options.logging_to_stderr(log_format), machine.local_failures(is_service=True):
        load = partial(options.load_config, config, settings, is_relay=True)
        loaded = load()
        if workers == 1:
            from relay.engine import relaying

            relaying.run(loaded, until_caught_up=until_caught_up, reload=load)
        else:
            from relay.process import supervisor

            command = [sys.executable, "-m", "relay", "run", str(config), "--log-format", log_format]
            command += [f"--set={setting}" for setting in settings or ()]
            if until_caught_up:
                command.append("--until-caught-up")
            supervisor.run(command, workers, until_done=until_caught_up)


_TAIL_HELP = {
    "topics": "Topics, tables (without others on the same topic), or one of: checkpoints, ddl, gaps, schemas, "
    "watermarks, dead_letters. Default: all changes.",
    "start": "Where to start: latest (the default), earliest, an ISO time, a relative time such as -10m, "
    "committed:GROUP, or offsets in JSON.",
    "as_json": "Print one JSON object per line: topic, partition, offset, key and value. Bytes, and keys that are not "
    "UTF-8, are base64; times are ISO 8601 in UTC.",
}


@app.command(rich_help_panel=_LOOK)
def tail(
    config: options.ConfigArgument,
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help=_TAIL_HELP["topics"])] = None,
    start: Annotated[str | None, typer.Option("--from", metavar="START", help=_TAIL_HELP["start"])] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="The same as --from earliest.")] = False,
    exit_at_end: Annotated[bool, typer.Option("--exit-at-end", help="Stop at the current end of the topics.")] = False,
    keyrange: options.KeyRangeOption = None,
    as_json: Annotated[bool, typer.Option("--json", help=_TAIL_HELP["as_json"])] = False,
    settings: options.SetOption = None,
) -> None:
    """Show changes as they arrive on Kafka, decoded.

    The command shows only committed records. If it cannot decode a value, it shows the value in base64, with the error.
    """
    if from_beginning and start is not None:
        raise ConfigError("--from-beginning and --from both say where to start: omit one of them")
    if start is not None:
        from relay.kafka.group_offsets import check_start

        check_start(start, has_group=False)
    loaded = options.load_config(config, settings)
    from relay.commands import tail_text
    from relay.operations import tail as tailing

    tailing.tail(
        loaded,
        topics or [],
        (lambda record: print(tail_text.json_line(record))) if as_json else tail_text.printer(),
        flush=sys.stdout.flush,
        start="earliest" if from_beginning else start or "latest",
        exit_at_end=exit_at_end,
        keyrange=keyrange,
    )


_CONSUME_HELP = {
    "consumers": "What to keep up to date.",
    "start": "Where a new checkpoint starts: earliest, latest, committed, committed:GROUP, an ISO time, a relative "
    "time such as -2h, or offsets in JSON.",
    "checkpoint": "The folder of the consumer's checkpoint, as a path or a URI such as hdfs://host/folder. Several "
    "consumers each use a folder inside it.",
    "master": "The Spark cluster to run on, such as spark://host:7077, in place of `spark.master` in the config.",
    "conf": "A setting of Spark, in place of the one in `spark.conf`; may be repeated.",
    "engine": "The engine. python: without Spark, only for the cache; the Kafka group is its checkpoint.",
    "http": "Serve /metrics, /healthz, /livez, /readyz and /status.json of these consumers here, such as "
    "127.0.0.1:9410. Default: a free port, if the config has `http` without a password.",
}


@app.command(rich_help_panel=_RUN)
def consume(
    consumers: Annotated[
        list[options.ConsumerKind], typer.Argument(metavar="cache|log|copy...", help=_CONSUME_HELP["consumers"])
    ],
    config: options.ConfigArgument,
    until_caught_up: options.UntilCaughtUpOption = False,
    start: Annotated[str | None, typer.Option("--from", metavar="START", help=_CONSUME_HELP["start"])] = None,
    checkpoint: Annotated[str | None, typer.Option(help=_CONSUME_HELP["checkpoint"], metavar="DIR")] = None,
    master: Annotated[str | None, typer.Option(help=_CONSUME_HELP["master"], metavar="URL")] = None,
    conf: Annotated[list[str] | None, typer.Option(help=_CONSUME_HELP["conf"], metavar="KEY=VALUE")] = None,
    engine: Annotated[Literal["spark", "python"], typer.Option(help=_CONSUME_HELP["engine"])] = "spark",
    keyrange: options.KeyRangeOption = None,
    http: Annotated[str | None, typer.Option(help=_CONSUME_HELP["http"], metavar="HOST:PORT")] = None,
    settings: options.SetOption = None,
) -> None:
    """Apply the changes on Kafka to the cache, the change log or the copy of the tables, until stopped.

    Several consumers share one Spark, on this machine or, with `--master`, on a cluster; when one fails, the others go
    on. Needs Java 17+ and `pip install 'change-relay[spark]'`, for the cache `'change-relay[spark,redis]'`. With
    `--engine python` the cache needs neither Java nor Spark.
    """
    loaded, _ = options.read_config(config, settings)
    for consumer in consumers:
        if {"cache": loaded.cache, "log": loaded.log, "copy": loaded.copy_}[consumer] is None:
            raise ConfigError(f"{config}: no `{consumer}:` section: add one to run this consumer")
    if engine == "python" and (master or conf):
        raise ConfigError("--engine python: it runs without Spark, so omit --master and --conf")
    loaded = loaded.model_copy(update={"spark": loaded.spark.overridden(master, conf or ())})
    if sys.stderr.isatty():
        typer.echo(f"relay: starting {', '.join(consumers)}; stop with Ctrl-C", err=True)
    import spark_consumers

    kinds: list[spark_consumers.Kind] = [kind.value for kind in consumers]
    given: dict[str, Any] = {"start": start, "checkpoint": checkpoint, "engine": engine}
    given |= {"http": http, "keyrange": keyrange}
    spark_consumers.check_arguments(kinds, **given)
    with machine.local_failures(is_service=True):
        spark_consumers.run(kinds, options.with_tables(loaded), until_caught_up=until_caught_up, **given)


app.command("status", rich_help_panel=_LOOK)(status.status)
app.command("verify", rich_help_panel=_LOOK)(verify.verify)
app.command("doctor", rich_help_panel=_LOOK)(doctor.doctor)
app.add_typer(token, name="token", rich_help_panel=_LOOK)
app.add_typer(gaps.app, name="gaps", rich_help_panel=_REPAIR)
app.add_typer(dead_letters.app, name="dead-letters", rich_help_panel=_REPAIR)
app.command("repartition", rich_help_panel=_RUN)(repartition.repartition)
app.command("snapshot", rich_help_panel=_REPAIR)(snapshot.snapshot)
app.command("replay", rich_help_panel=_REPAIR)(replay.replay)
app.command("reset", rich_help_panel=_REPAIR)(reset.reset)


@token.command("compare")
def token_compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A token as JSON, or null.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The other token.")],
    as_json: options.JsonOption = False,
) -> None:
    """Print whether A is `older`, `equal` or `newer` than B, or `unknown` if they cannot be compared."""
    from relay.token import EventToken, check_position, compare

    def read(name: str, text: str) -> EventToken | None:
        if text.strip() == "null":
            return None
        try:
            found = EventToken.from_json(text)
            check_position(found.position)
            if found.origin is not None:
                check_position(found.origin.position)
        except ValueError as error:
            shown = text if len(text) <= 80 else f"{text[:80]}..."
            raise ConfigError(f"{name} is not a token: {error}: {shown}") from error
        return found

    order = compare(read("A", a), read("B", b)).value
    typer.echo(f'{{"order": "{order}"}}' if as_json else order)


@app.command(rich_help_panel=_BEGIN)
def demo(
    source: Annotated[options.Database, typer.Option(help="The kind of database.")] = options.Database.DYNAMODB,
    seconds: Annotated[int, typer.Option(min=5, help="The length of the workload, in seconds.")] = 30,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, for programs; its progress is on stderr.")
    ] = False,
) -> None:
    """Run the complete system on this machine: a table, its changes, a cache, a log and a copy.

    Ends with counts, checks and latencies. Exits with code 0 only if every check passed.
    """
    with needs("all", "`relay demo`"):
        from relay.demo import demo as demonstration

    demonstration.run(source.value, seconds, as_json=as_json)


def main() -> None:
    machine.prepare_streams()
    os.umask(0o077)  # for this process and its children: configs, checkpoints and tables are nobody else's
    app()


if __name__ == "__main__":
    main()

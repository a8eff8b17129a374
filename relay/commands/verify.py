"""``relay verify``: options and output; ``relay.operations.verify_cache`` and ``verify_tables`` do the work."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from relay.commands.options import ConfigArgument, ConsumerKind, JsonOption, SetOption, read_config, with_tables
from relay.errors import CheckFailed, ConfigError, RelayError
from relay.extras import needs

if TYPE_CHECKING:
    from relay.config import Config
    from relay.observe.verifier import Accusation
    from relay.operations.verify_cache import Verification
    from relay.operations.verify_tables import TableVerification

_SAMPLE = 1000
_WITHIN = 30.0
_RATE = 5.0


_HELP = {
    "kind": "What to compare, by default the cache; with --forever, by default the cache and the copy, if the config "
    "has them.",
    "sample": f"How many entries of the cache to check, picked at random, {_SAMPLE} by default; or how many rows "
    f"of each table, by default all.",
    "within": "How long the consumer may take to apply a change, or to invalidate a value whose rows changed; "
    f"{_WITHIN:g} by default.",
    "loaders": "The application's loader of cache keys, or a function with @cached. It has to read from primaries. "
    "Repeat it if several loaders each have their own keys. Without a loader, only values that "
    "relay.cache.DynamoDBLoader stores are compared.",
    "forever": "Go on until SIGTERM: sample changes as they pass and keys at random, and accuse what stays wrong for "
    "ten minutes.",
    "rate": f"With --forever: how many rows it may read at the sources in a second, {_RATE:g} by default.",
    "http": "With --forever: where to serve /metrics, /healthz and /status.json, such as 127.0.0.1:9420.",
}


def verify(
    config: ConfigArgument,
    kind: Annotated[ConsumerKind | None, typer.Argument(metavar="cache|log|copy", help=_HELP["kind"])] = None,
    sample: Annotated[int | None, typer.Option(min=1, metavar="N", help=_HELP["sample"])] = None,
    within: Annotated[float | None, typer.Option(min=0.1, metavar="SECONDS", help=_HELP["within"])] = None,
    loaders: Annotated[list[str] | None, typer.Option("--loader", metavar="MODULE:NAME", help=_HELP["loaders"])] = None,
    forever: Annotated[bool, typer.Option("--forever", help=_HELP["forever"])] = False,
    rate: Annotated[float | None, typer.Option(min=0.1, metavar="ROWS", help=_HELP["rate"])] = None,
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help=_HELP["http"])] = None,
    as_json: JsonOption = False,
    settings: SetOption = None,
) -> None:
    """Compare the cache, the change log or the copy with the rows at the source, and report differences.

    A cached value is stale if the cache still serves it after SECONDS although the unchanged rows give another value. A
    row of the copy, or the newest row of an item in the log, is missing, extra or different if the difference lasts
    SECONDS after everything committed before is applied. Exit code 4: there are such values or rows.
    """
    given = {"--sample": sample, "--within": within} if forever else {"--rate": rate, "--http": http}
    for name in (name for name, value in given.items() if value is not None):
        raise ConfigError(f"{name}: cannot be used with{'' if forever else 'out'} --forever: omit it")
    if kind is None and not forever:
        kind = ConsumerKind.CACHE
    if loaders and kind not in (None, "cache"):
        raise ConfigError(f"--loader: only `verify CONFIG cache` uses one, not {kind}: omit it")
    address = None if http is None else _host_port(http)
    if loaders:
        sys.path.insert(0, os.getcwd())  # as `python -m` does; a console script finds its own folder there
    loaded, _ = read_config(config, settings)
    if loaders:
        from relay.operations.expected_values import imported

        for name in loaders:
            imported(name)
    loaded = with_tables(loaded)
    within = _WITHIN if within is None else within
    if forever:
        _verify_forever(loaded, kind, _RATE if rate is None else rate, loaders or [], address, as_json=as_json)
    elif kind == "cache":
        _verify_cache(loaded, _SAMPLE if sample is None else sample, within, loaders or [], as_json=as_json)
    elif kind is not None:
        _verify_tables(loaded, kind, sample, within, as_json=as_json)


def _say(text: str) -> None:
    typer.echo(f"relay: {text}", err=True)


def _host_port(http: str) -> tuple[str, int]:
    from relay.config.addresses import host_port

    try:
        return host_port(http)
    except ValueError as error:
        raise ConfigError(f"--http: {error}") from None


def _verify_forever(
    config: Config,
    kind: ConsumerKind | None,
    rate: float,
    loaders: Sequence[str],
    address: tuple[str, int] | None,
    *,
    as_json: bool,
) -> None:
    with needs("spark", "`relay verify --forever`"):
        from relay.operations.verify_forever import open_verifier
    from relay.observe.access import Access
    from relay.observe.server import serve
    from relay.observe.verifier import VerifierObserver
    from relay.process.folders import state_folder

    sections = {"cache": config.cache, "copy": config.copy_, "log": config.log}
    kinds = [str(kind)] if kind is not None else [each for each in ("cache", "copy") if sections[each]]
    if not kinds:
        raise ConfigError("the config has neither a `cache:` nor a `copy:` section: add one to verify it")
    for each in (each for each in kinds if sections[each] is None):
        raise ConfigError(f"the config has no `{each}:` section: add one to verify the {each}")
    file = None
    with suppress(RelayError):  # a user without a home folder, for example
        file = state_folder() / config.name / f"verify-{'-'.join(kinds)}.json"
    observer = VerifierObserver(config.name, kinds, file)

    def tell(accusation: Accusation) -> None:
        print(json.dumps(accusation.to_json(), ensure_ascii=False) if as_json else _told(accusation), flush=True)

    with ExitStack() as stack:
        if address is not None:
            at = stack.enter_context(serve(observer, *address, "--http", Access(config.http)))
            _say(f"serving /metrics, /healthz and /status.json at {at}")
        verifier = stack.enter_context(
            open_verifier(config, kinds, observer, rate=rate, loaders=loaders, tell=tell, say=_say)
        )
        observer.write()
        _say(f"watching {' and '.join(kinds)}")
        while True:
            verifier.round()


def _told(found: Accusation) -> str:
    what = f"{found.sink} of {found.table}" if found.table else found.sink
    if found.ended_at is not None:
        return f"right again: {what} {_shown(found.key)}"
    columns = f", in {', '.join(found.columns)}" if found.columns else ""
    lines = [f"accused: {what} {_shown(found.key)}: {found.kind} for {found.seconds:.0f} s{columns}: {found.reason}"]
    return "\n".join([*lines, *(f"  {json.dumps(each, ensure_ascii=False)}" for each in found.history)])


def _verify_cache(config: Config, sample: int, within: float, loaders: Sequence[str], *, as_json: bool) -> None:
    from relay.operations.verify_cache import verify as verify_cache

    found = verify_cache(config, sample=sample, within=within, loaders=loaders, say=_say)
    if as_json:
        typer.echo(json.dumps(found.to_json(), ensure_ascii=False))
    else:
        _show(found)
    if found.stale:
        raise CheckFailed(f"{len(found.stale)} of {found.checked} values in namespace {found.namespace} are stale")


def _verify_tables(config: Config, kind: str, sample: int | None, within: float, *, as_json: bool) -> None:
    with needs("spark", f"`relay verify CONFIG {kind}`"):
        from relay.operations.verify_tables import verify_tables
    results = []
    for found in verify_tables(config, kind, sample=sample, within=within, say=_say):
        results.append(found)
        if not as_json:
            _show_table(kind, found)
    if as_json:
        typer.echo(json.dumps({kind: [found.to_json() for found in results]}, ensure_ascii=False))
    wrong = [f"{found.table}: {found.problems}, of {found.checked} rows" for found in results if found.problems]
    if wrong:
        raise CheckFailed("\n".join(f"the {kind} of {each}" for each in wrong))


def _show_table(kind: str, found: TableVerification) -> None:
    typer.echo(f"{kind} of {found.table}, {found.where}")
    counts = [(found.checked, "checked"), *((found.wrong[each], each) for each in ("missing", "extra", "different"))]
    counts.append((found.duplicates, "duplicated"))
    for count, text in (*counts, (found.incomplete, "incomplete"), (found.unknown.total(), "unknown")):
        typer.echo(f"{count:8}  {text}")
    _show_consistent(found)
    for row in found.wrong_rows:
        typer.echo(f"{row.kind} for {row.seconds:.1f} s: {_shown(row.key)}")
        for column, (kept, truth) in row.columns.items():
            typer.echo(f"  {column}: {'null' if kept is None else kept} in the {kind}, ", nl=False)
            typer.echo(f"{'null' if truth is None else truth} at the source")
    for event_id, key in found.duplicated:
        typer.echo(f"duplicated: event id {event_id}, key {key}")
    for stub in found.incomplete_keys:
        typer.echo(f"incomplete: {_shown(stub)}; `relay dead-letters redrive` may complete it")
    _show_unknown(found)


def _show_consistent(found: Verification | TableVerification) -> None:
    if found.checked:
        late = f"; {found.late} of them late, after up to {found.slowest:.1f} s" if found.late else ""
        ratio = found.consistent / found.checked
        typer.echo(f"consistent within {found.within:g} s: {found.consistent} of {found.checked} ({ratio:.4%}){late}")


def _show_unknown(found: Verification | TableVerification) -> None:
    for reason, count in found.unknown.items():
        typer.echo(f"unknown {count}: {reason}")


def _shown(key: Mapping[str, str]) -> str:
    return json.dumps(key, ensure_ascii=False)


def _show(found: Verification) -> None:
    entries = "1 entry" if found.sampled == 1 else f"{found.sampled} entries"
    typer.echo(f"namespace {found.namespace}: {entries} sampled, {found.without_value} without a value")
    for count, text in ((found.checked, "checked"), (len(found.stale), "stale"), (found.unknown.total(), "unknown")):
        typer.echo(f"{count:8}  {text}")
    _show_consistent(found)
    for entry in found.stale:
        shown = entry.to_json()
        typer.echo(f"stale for {entry.seconds:.1f} s: {entry.key}")
        typer.echo(f"  cached: {shown['cached'] if entry.value is not None else '(no such item)'}")
        typer.echo(f"  now:    {shown['truth'] if entry.truth is not None else '(no such item)'}")
    _show_unknown(found)
    if found.unmatched:
        typer.echo(
            f"{len(found.unmatched)} values have a key that matches no template in `cache.keys`, so nothing "
            f"invalidates them, such as {found.unmatched[0]!r}"
        )

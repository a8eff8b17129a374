"""``relay init``: writes a config with comments, on request after a look at the tables."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from relay.config import Config
from relay.config.config import validate
from relay.config.hidden import redacted
from relay.config.yaml_file import parse
from relay.engine.kinds import open_source
from relay.errors import ConfigError

_COLUMN = 34  # the column at which comments after values begin


@dataclass(frozen=True)
class Wanted:
    """The content of the config. ``table``: empty means all tables of the database, except for DynamoDB."""

    type: Literal["dynamodb", "mysql", "vitess"]
    kafka: str
    name: str | None = None
    table: Sequence[str] = ()
    region: str | None = None
    endpoint_url: str | None = None
    server: Sequence[str] = ()
    database: str | None = None
    user: str | None = None
    vtgate: str | None = None
    keyspace: str | None = None
    cache: str | None = None
    log: str | None = None
    copy: str | None = None
    http: str | None = None

    @property
    def source(self) -> str:
        """The name of the source, which is the name of the database, keyspace or table."""
        read = self.database or self.keyspace or self.table[0]
        return re.sub(r"[^A-Za-z0-9._-]", "-", read).strip(".") or "source"

    @property
    def relay(self) -> str:
        return self.name or self.source

    @property
    def password(self) -> str:
        """The environment variable with the password of the database."""
        return re.sub(r"[^A-Za-z0-9]", "_", self.source).upper().lstrip("0123456789_") + "_PASSWORD"


_OF_SOURCE = {"tables": "table", "shards": "server", "endpoint_url": "endpoint-url"}
"""The options of the source's keys, where their names differ. The other keys begin with the name of their option."""

Keys = Mapping[str, Sequence[str]]  # the key columns of each table


def draft(path: str, wanted: Wanted, *, look: bool) -> str:
    """Return the text of a config. ``look``: ask the database for keys. Raises ``ConfigError``, ``Unavailable``."""
    if wanted.cache and not look:
        raise ConfigError("--cache: needs --look, since cache keys are made of the columns of a table's key")
    # The other values can be checked before the database is asked.
    bare = _text(wanted, {}, cache=False)
    config = _checked(path, bare, wanted, os.environ if look else {wanted.password: "?", **os.environ})
    if not look:
        return bare
    text = _text(wanted, keys_of(config), cache=True)
    _checked(path, text, wanted, os.environ)
    return text


def keys_of(config: Config) -> Keys:
    """Connect to the sources and return the key columns of each table. Raises ``RelayError``."""
    found: dict[str, list[str]] = {}
    for source in config.sources:
        with closing(open_source(source)) as opened:
            opened.connect()
            found |= {table.table: [column.name for column in table.key] for table in opened.tables()}
    return found


def _checked(path: str, text: str, wanted: Wanted, environment: Mapping[str, str]) -> Config:
    try:
        return validate(parse(path, text, environment), Path(path))
    except ConfigError as error:
        # The file does not exist yet, so its lines and columns would help nobody.
        lines = (re.sub(rf"^{re.escape(path)}:\d+:\d+: ", "", line) for line in str(error).splitlines())
        raise ConfigError("\n".join(_with_option(line, wanted) for line in lines)) from None


def _with_option(line: str, wanted: Wanted) -> str:
    """Return an error that names the option in place of the key, with its value unless it may contain a password."""
    key, _, problem = line.partition(": ")
    if problem and (inside := re.match(r"`sources\[0\]\.(\w+)", key)):
        return f"--{_OF_SOURCE.get(inside[1], inside[1])}: {problem}"
    name = key.strip("`").partition(".")[0]
    value: str | None = getattr(wanted, name, None)
    if value is None or not problem:
        return line
    shown = "" if value in problem or redacted(value) != value or "@" in value else f" {value}"
    return f"--{name}{shown}: {problem}"


def _text(wanted: Wanted, keys: Keys, *, cache: bool) -> str:
    tables = list(keys) or list(wanted.table)
    lines = [
        "# `relay check` validates this file, and connects to everything in it.",
        "# `relay check --schema` describes all keys.",
        "# ${NAME} takes a value from the environment.",
        _line(f"name: {_quoted(wanted.relay)}", "the prefix of the relay's own topics and groups; keep it"),
        "kafka:",
        f"  bootstrap_servers: {_quoted(wanted.kafka)}",
        _line("  partitions: 6", "per topic of changes; changing it later needs new topics"),
        "  # producer: {security.protocol: SASL_SSL, sasl.mechanism: SCRAM-SHA-512,",
        '  #   sasl.username: relay, sasl.password: "${KAFKA_PASSWORD}"}',
        '# schema_registry: {url: "http://registry:8081"}',
        "sources:",
        f"  - name: {_quoted(wanted.source)}",
        f"    type: {wanted.type}",
        *_SOURCES[wanted.type](wanted),
    ]
    lines += [f"    # {_quoted(table)}: key {', '.join(map(_quoted, columns))}" for table, columns in keys.items()]
    if cache and wanted.cache:
        lines += [
            "cache:",
            f"  url: {_quoted(wanted.cache)}",
            _line(f"  namespace: {_quoted(wanted.relay)}", "the prefix of every key in the cache"),
            _line("  keys:", "what your application calls the entries that a row is in"),
            *(f"    {_quoted(table)}: [{_quoted(_template(table, columns))}]" for table, columns in keys.items()),
        ]
    elif not wanted.cache:
        some = tables[0] if tables else "orders"
        example = f"{{{_quoted(some)}: [{_quoted(_template(some, keys.get(some) or ['id']))}]}}"
        url = '"redis://127.0.0.1:6379/0"'
        lines.append(f"# cache: {{url: {url}, namespace: {_quoted(wanted.relay)}, keys: {example}}}")
    log = f"log: {{path: {_quoted(wanted.log)}}}" if wanted.log else '# log: {path: "file:///var/lib/relay/log"}'
    copy = '# copy: {url: "delta:///var/lib/relay/copy"}      # or postgresql://user:password@host:5432/database'
    if wanted.copy:
        copy = f"copy: {{url: {_quoted(wanted.copy)}}}"
    http = f"http: {_quoted(wanted.http)}" if wanted.http else '# http: "127.0.0.1:9400"'
    return "\n".join([*lines, log, copy, _line(http, "metrics, health and the status page")]) + "\n"


def _dynamodb(wanted: Wanted) -> Iterable[str]:
    one = len(wanted.table) == 1
    yield f"    table: {_quoted(wanted.table[0])}" if one else f"    tables: {_list(wanted.table)}"
    yield f"    region: {_quoted(wanted.region)}"
    if wanted.endpoint_url:
        yield f"    endpoint_url: {_quoted(wanted.endpoint_url)}"
    yield _line("    start: trim_horizon", "all that the stream still has; or latest, or a time")
    yield _line("    # snapshot: initial", "also read the table, alongside its stream")
    yield _line("    # on_gap: resnapshot", "read the table again if changes were lost; default: stop")
    if one:
        yield _line("    # columns: {total: long}", "with the key columns: typed rows instead of DynamoDB's JSON")


def _mysql(wanted: Wanted) -> Iterable[str]:
    yield _line(f'    shards: {{"-": {_list(wanted.server)}}}', "a server and its replicas")
    yield f"    database: {_quoted(wanted.database)}"
    yield from _tables_and_account(wanted)
    yield _line("    start: current", "or a time, or {gtid: {...}}")
    yield _line("    # snapshot: initial", "also read the tables, alongside the binlog")
    yield _line("    # on_gap: resnapshot", "read the tables again if changes were lost; default: stop")
    yield "    # tls: {ca: /etc/relay/mysql-ca.pem}"


def _vitess(wanted: Wanted) -> Iterable[str]:
    yield f"    vtgate: {_quoted(wanted.vtgate)}"
    yield f"    keyspace: {_quoted(wanted.keyspace)}"
    yield from _tables_and_account(wanted)
    yield _line("    start: current", "or copy: all rows, and then their changes")
    yield "    # tls: {ca: /etc/relay/vtgate-ca.pem}"


def _tables_and_account(wanted: Wanted) -> Iterable[str]:
    named = f"tables: {_list(wanted.table)}" if wanted.table else "# tables: [orders]              # default: all"
    yield f"    {named}"
    if wanted.user:
        yield f"    user: {_quoted(wanted.user)}"
        yield f'    password: "${{{wanted.password}}}"'


_SOURCES = {"dynamodb": _dynamodb, "mysql": _mysql, "vitess": _vitess}


def _template(table: str, columns: Sequence[str]) -> str:
    """Return a template for the cache keys of a table, such as ``orders:{id}``."""
    return ":".join((table.replace("{", "{{").replace("}", "}}"), *(f"{{{column}}}" for column in columns)))


def _list(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(_quoted, texts))}]"


def _quoted(text: str | None) -> str:
    """Return ``text`` as YAML that is valid anywhere: plain if it is a word, otherwise in quotes."""
    text = text or ""
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", text) and yaml.safe_load(text) == text:
        return text
    return str(yaml.safe_dump(text, default_style='"', allow_unicode=True, width=1 << 20)).rstrip("\n")


def _line(code: str, comment: str) -> str:
    return f"{code:{_COLUMN}} # {comment}"

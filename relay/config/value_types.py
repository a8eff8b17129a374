"""Value types of the config: durations, starts, names, keys. Addresses and URLs are in ``addresses``."""

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, ValidationInfo, WithJsonSchema

from relay.config.model import TIME, TextForm, form, only, texts
from relay.gtid import GtidError
from relay.gtid import parse as parse_gtids
from relay.stream_token import InvalidPosition, StreamToken

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST_DURATION = 36_500 * _UNITS["d"]
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def duration(text: str) -> float:
    """Return the seconds of a duration such as ``30s``, ``5m``, ``1h`` or ``7d``. Raises ValueError for other text."""
    match = _DURATION.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a duration; write, for example, 30s, 5m, 1h or 7d")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > _LONGEST_DURATION:
        raise ValueError(f"{text!r} is too long; write at most {duration_text(_LONGEST_DURATION)}")
    return seconds


def duration_text(seconds: float) -> str:
    """Return the text of a duration, which ``duration`` can parse, in the largest unit without a fraction."""
    for unit, size in sorted(_UNITS.items(), key=lambda each: -each[1]):
        if seconds % size == 0:
            return f"{seconds // size:.0f}{unit}"
    return f"{Decimal(repr(seconds)):f}s"


def start_time(start: str, now: float) -> float | None:
    """Parse a ``start`` given at ``now``; return seconds since the epoch, or None for ``trim_horizon``.

    A time without an offset is UTC. Raises ValueError for anything else.
    """
    if start == "trim_horizon":
        return None
    if start == "latest":
        return now
    if start.startswith("-") and _DURATION.fullmatch(start[1:]):
        return now - duration(start[1:])
    try:
        time = datetime.fromisoformat(start)
        time = time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{start!r} is not a start; use trim_horizon, latest, an ISO time such as 2026-11-21T06:00:00Z, "
            "or a relative time such as -30s"
        ) from None
    return time.timestamp()


def iso_time(seconds: float, timespec: str = "seconds") -> str:
    """Return a time since the epoch as text that `start_time` can parse. ``timespec``: see ``datetime.isoformat``."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def _seconds(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str):
        value = duration(value)
    elif info.context is not None:
        # In Python a number means seconds; in a file its unit would be a guess.
        raise ValueError("a duration needs a unit: write, for example, 30s, 5m, 1h or 7d")
    if isinstance(value, (int, float)) and value <= 0:
        raise ValueError("a duration must be greater than zero")
    return value


_TEXT_OF_SECONDS = rf"(?!0+(?:\.0+)?[smhd]){_DURATION.pattern}"

# A default is written as in a file and validated (`validate_default`), because the JSON schema shows it to editors.
Seconds = Annotated[
    float,
    BeforeValidator(_seconds),
    PlainSerializer(duration_text, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": form(_TEXT_OF_SECONDS), "examples": ["30s", "5m", "1h", "7d"]}),
]


@dataclass(frozen=True, slots=True)
class StartAtToken:
    """A start at the position of a stream token (``relay.stream_token``). ``content``: the validated token."""

    path: str
    content: Mapping[str, Any]

    def __str__(self) -> str:
        """Name the token by its content: its file may move, but not change once the source has a plan."""
        text = json.dumps(self.content, sort_keys=True, separators=(",", ":"))
        return f"token:{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"

    @property
    def stream_arn(self) -> str:
        return str(self.content["stream_arn"])

    def as_in_file(self) -> dict[str, Any]:
        return {"token": self.path}

    @classmethod
    def read(cls, path: str, folder: Path) -> Self:
        """Read the token at ``path``, relative to ``folder``. Raises ValueError, which names the file and the line."""
        try:
            file = folder / Path(path).expanduser()
        except RuntimeError:
            raise ValueError(f"{path}: the home folder is unknown: write the path in full") from None
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(f"{file}: no such file") from None
        except OSError as error:
            raise ValueError(f"{file}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: not UTF-8 text (at byte {error.start})") from error
        except json.JSONDecodeError as error:
            raise ValueError(f"{file}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}") from error
        try:
            return cls(path, StreamToken.from_json(content).to_json())
        except InvalidPosition as error:
            raise ValueError(f"{file}:1:1: {error}") from error


def _starts(words: str, key: str, inside: dict[str, Any]) -> WithJsonSchema:
    """Return the JSON schema of starts: words, times, and a mapping with one key."""
    return WithJsonSchema({"anyOf": [texts(rf"{words}|-{_DURATION.pattern}|{TIME}"), only(key, inside)]})


def _start_in_file(start: Any) -> Any:
    return start if isinstance(start, str) else start.as_in_file()


def _start(value: Any, info: ValidationInfo) -> str | StartAtToken:
    if isinstance(value, StartAtToken):
        return value
    if isinstance(value, dict):
        if set(value) != {"token"} or not isinstance(value["token"], str):
            raise ValueError("a start in braces must name a token file: {token: path.json}")
        file = (info.context or {}).get("file")
        return StartAtToken.read(value["token"], Path(file).parent if file is not None else Path())
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise ValueError("a start needs a unit, such as -30s")
    if not isinstance(value, str):
        raise ValueError("a start must be trim_horizon, latest, an ISO time, a relative time, or {token: path.json}")
    start_time(value, 0.0)
    return value


Start = Annotated[
    str | StartAtToken,
    PlainValidator(_start),
    PlainSerializer(_start_in_file, when_used="json"),
    _starts("trim_horizon|latest", "token", {"type": "string"}),
]


@dataclass(frozen=True, slots=True)
class StartAtGtids:
    """A start at a GTID set per shard, with flavour prefix. ``word``: the config's key, `vgtid` or `gtid`."""

    word: str
    positions: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.word}:{json.dumps(self.positions, sort_keys=True, separators=(',', ':'))}"

    def as_in_file(self) -> dict[str, Any]:
        if self.word == "gtid":
            return {"gtid": dict(self.positions)}
        return {"vgtid": [{"shard": shard, "gtid": gtid} for shard, gtid in self.positions.items()]}

    @classmethod
    def parse(cls, word: str, positions: Mapping[str, str]) -> Self:
        """Parse the GTID set of each shard. Raises ValueError, which names the shard whose set is invalid or empty."""
        found = {}
        for shard, text in positions.items():
            try:
                gtids = parse_gtids(text)
            except GtidError as error:
                raise ValueError(f"shard {shard!r}: {error}") from error
            if not gtids:
                raise ValueError(
                    f"shard {shard!r}: the GTID set {text!r} is empty; to start at the head, use `current`"
                )
            found[str(shard)] = gtids.position
        if not found:
            raise ValueError("must list at least one shard")
        return cls(word, found)


def parse_vstream_start(value: Any) -> str | StartAtGtids:
    """Parse the start of a Vitess source. Raises ValueError unless it is ``current``, ``copy``, a time or GTID sets."""
    if isinstance(value, StartAtGtids) or value in ("current", "copy") or _is_time(value):
        return value  # type: ignore[no-any-return]
    if not isinstance(value, dict) or set(value) != {"vgtid"} or not isinstance(value["vgtid"], list):
        raise ValueError(
            f"{value!r} is not a start; use `current`, `copy`, an ISO time such as 2026-11-21T06:00:00Z, "
            'a relative time such as -30s, or {vgtid: [{shard: "-80", gtid: "MySQL56/..."}, ...]}'
        )
    positions: dict[str, str] = {}
    for each in value["vgtid"]:
        if not isinstance(each, dict) or not {"shard", "gtid"} <= set(each) <= {"keyspace", "shard", "gtid"}:
            raise ValueError(f"an entry of `vgtid` must have the keys `shard` and `gtid`, not {each!r}")
        shard = str(each["shard"])
        if shard in positions:
            raise ValueError(f"`vgtid` lists shard {shard!r} twice")
        positions[shard] = str(each["gtid"])
    return StartAtGtids.parse("vgtid", positions)


def parse_binlog_start(value: Any) -> str | StartAtGtids:
    """Parse the start of a MySQL source. Raises ValueError unless it is ``current``, a time or GTID sets."""
    if isinstance(value, StartAtGtids) or value == "current" or _is_time(value):
        return value  # type: ignore[no-any-return]
    if isinstance(value, dict):
        if set(value) != {"gtid"} or not isinstance(value["gtid"], dict):
            raise ValueError('a start in braces must give a GTID set per shard: {gtid: {"-80": "MariaDB/0-1-5"}}')
        return StartAtGtids.parse("gtid", {str(shard): str(text) for shard, text in value["gtid"].items()})
    raise ValueError(
        f"{value!r} is not a start; use `current`, an ISO time such as 2026-11-21T06:00:00Z, "
        'a relative time such as -30s, or {gtid: {"-80": "MariaDB/0-1-5"}}'
    )


def _is_time(value: Any) -> bool:
    if isinstance(value, str) and value not in ("trim_horizon", "latest"):
        with suppress(ValueError):
            start_time(value, 0.0)
            return True
    return False


_VGTID = {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["shard", "gtid"]}}
StartOfVStream = Annotated[
    str | StartAtGtids,
    PlainValidator(parse_vstream_start),
    PlainSerializer(_start_in_file, when_used="json"),
    _starts("current|copy", "vgtid", _VGTID),
]
StartOfBinlogs = Annotated[
    str | StartAtGtids,
    PlainValidator(parse_binlog_start),
    PlainSerializer(_start_in_file, when_used="json"),
    _starts("current", "gtid", {"type": "object", "minProperties": 1}),
]


UserName = Annotated[str, Field(min_length=1), TextForm("[^:]*", "cannot contain a colon, which ends the name in HTTP")]
"""A name for HTTP basic authentication."""

_NAME = r"(?!\.{1,2}$)[A-Za-z0-9._-]+"
Name = Annotated[str, TextForm(_NAME, "{} may contain only letters a-z and A-Z, digits, dots, underscores and dashes")]
"""A name that may be part of a Kafka topic, and of a token's shard before the slash."""


def _keys(value: Any) -> Any:
    of_tables = list(value.values()) if isinstance(value, dict) else [value]
    if value in ("hash", "item") or (of_tables and all(map(_are_columns, of_tables))):
        return value
    raise ValueError(
        "must be `hash`, `item`, a list of columns that serve as the primary key, such as [a, b], or {table: [a, b]}"
    )


def _are_columns(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(column, str) for column in value)


_COLUMNS = {"type": "array", "minItems": 1, "items": {"type": "string"}}
_BY_TABLE = {"type": "object", "minProperties": 1, "additionalProperties": _COLUMNS}
Keys = Annotated[
    Literal["hash", "item"] | list[str] | dict[str, list[str]],
    BeforeValidator(_keys),
    WithJsonSchema({"anyOf": [texts("hash|item"), _COLUMNS, _BY_TABLE]}),
]
"""The Kafka key of an SQL table, or the columns that serve as its primary key."""

"""The kinds of values the configuration holds, and how one is shown without its secrets.

Change here what counts as a duration, a start, a legal name or a secret.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
)

from relay.config_errors import later, refuse

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_LEGAL = re.compile(r"[A-Za-z0-9._-]+")
_SECRET = re.compile(r"password|secret|\.pem$|jaas|oauthbearer\.config", re.IGNORECASE)
_WITH_HOST = frozenset({"http", "https", "redis", "rediss"})
_HOST_PORT = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([\w.-]+)):(\d{1,5})")
_USER_INFO = re.compile(r"(?<=://)[^/\s]+@")


class Part(BaseModel):
    """A mapping of the configuration: known keys only, right types only, secrets never shown."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
        validate_by_alias=True,
        validate_by_name=True,
    )

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Show a part without its passwords, in logs and tracebacks as well."""
        for name, value in super().__repr_args__():
            yield name, redacted(value)


def redacted(value: Any) -> Any:
    """Return ``value`` as it may be shown: without secret settings and what a URL says before ``@``."""
    if isinstance(value, str):
        return _USER_INFO.sub("***@", value)
    if isinstance(value, dict):
        return {key: "***" if _SECRET.search(str(key)) else redacted(inner) for key, inner in value.items()}
    return value


def duration(text: str) -> float:
    """Return the seconds that ``30s``, ``5m``, ``1h`` or ``7d`` means. ValueError on anything else."""
    match = _DURATION.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a duration such as 30s, 5m, 1h or 7d")
    return float(match[1]) * _UNITS[match[2]]


def since(start: str, now: float) -> float | None:
    """Return the epoch seconds that ``start`` means at ``now``, None for everything there is.

    A time without an offset is UTC. ValueError on anything that is not a start.
    """
    if start == "trim_horizon":
        return None
    if start == "latest":
        return now
    if start.startswith("-") and _DURATION.fullmatch(start[1:]):
        return now - duration(start[1:])
    try:
        time = datetime.fromisoformat(start)
    except ValueError:
        raise ValueError(
            f"{start!r} is not a start: trim_horizon, latest, an ISO time such as 2026-11-21T06:00:00Z, "
            "or a time ago such as -30s"
        ) from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _seconds(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str):
        try:
            value = duration(value)
        except ValueError as error:
            raise refuse(str(error)) from error
    elif info.context is not None:
        # In a file a bare number says nothing about its unit; in Python a float is seconds.
        raise refuse("a duration needs its unit, such as 30s, 5m, 1h or 7d")
    if isinstance(value, (int, float)) and value <= 0:
        raise refuse("a duration has to be longer than nothing")
    return value


Seconds = Annotated[
    float,
    BeforeValidator(_seconds),
    WithJsonSchema({"type": "string", "pattern": f"^{_DURATION.pattern}$", "examples": ["30s", "5m", "1h", "7d"]}),
]


@dataclass(frozen=True, slots=True)
class StartAtToken:
    """A start where a stream's token says (see ``relay.dynamodb.stream_token``). ``content``: the token, checked."""

    path: str
    content: Mapping[str, Any]

    def __str__(self) -> str:
        """Name the token by what it says: the file may move, and must not change once reading has begun."""
        text = json.dumps(self.content, sort_keys=True, separators=(",", ":"))
        return f"token:{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"

    @property
    def stream_arn(self) -> str:
        return str(self.content["stream_arn"])

    @classmethod
    def read(cls, path: str, folder: Path) -> StartAtToken:
        """Read the token at ``path``, relative to ``folder``. ValueError with the file and the line."""
        from relay.dynamodb.stream_token import InvalidPosition, StreamToken  # brings botocore with it

        file = folder / Path(path).expanduser()
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(f"{file}: there is no such file") from None
        except OSError as error:
            raise ValueError(f"{file}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: is not UTF-8 text (byte {error.start})") from error
        except json.JSONDecodeError as error:
            raise ValueError(f"{file}:{error.lineno}:{error.colno}: is not JSON: {error.msg}") from error
        try:
            return cls(path, StreamToken.from_json(content).to_json())
        except InvalidPosition as error:
            raise ValueError(f"{file}:1:1: {error}") from error


def _start(value: Any, info: ValidationInfo) -> str | StartAtToken:
    try:
        if isinstance(value, StartAtToken):
            return value
        if isinstance(value, dict):
            if set(value) != {"token"} or not isinstance(value["token"], str):
                raise ValueError("a start in braces is the file of a token, such as {token: path.json}")
            file = (info.context or {}).get("file")
            return StartAtToken.read(value["token"], Path(file).parent if file is not None else Path())
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            raise ValueError("a start needs its unit, such as -30s")
        if not isinstance(value, str):
            raise ValueError("a start is trim_horizon, latest, an ISO time, a time ago, or {token: path.json}")
        since(value, 0.0)
    except ValueError as error:
        raise refuse(str(error)) from error
    return value


Start = Annotated[
    str | StartAtToken,
    PlainValidator(_start),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "properties": {"token": {"type": "string"}},
                    "required": ["token"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]


def _name(value: str) -> str:
    if not _LEGAL.fullmatch(value) or value in (".", ".."):
        raise refuse(f"{value!r} may hold only letters a-z and A-Z, digits, dots, underscores and dashes")
    return value


Name = Annotated[str, AfterValidator(_name)]
"""A name that Kafka allows in a topic, and a token in front of a slash."""


def url(*schemes: str, unbuilt: tuple[str, ...] = ()) -> BeforeValidator:
    """Accept URLs of ``schemes``; say of those of ``unbuilt`` that they come later."""

    def check(value: Any) -> Any:
        if isinstance(value, str):
            scheme = urlsplit(value).scheme if "://" in value else ""
            if scheme.split("+")[0] in unbuilt:
                raise later(f"a URL that begins with `{scheme}://`")
            if scheme not in schemes:
                raise refuse("has to begin with " + " or ".join(f"{s}://" for s in schemes))
            if scheme in _WITH_HOST and not _has_host(value):
                raise refuse(f"needs a host, and a port that is a number: {scheme}://host:port")
        return value

    return BeforeValidator(check)


def host_port(text: str) -> tuple[str, int]:
    """Return the host and the port of an address to listen on. ValueError on anything else."""
    match = _HOST_PORT.fullmatch(text)
    if not match or int(match[3]) > 65535:
        raise ValueError(f"{text!r} is not an address to listen on, such as 127.0.0.1:9400 or [::1]:9400")
    return match[1] or match[2], int(match[3])


def _address(value: str) -> str:
    try:
        host_port(value)
    except ValueError as error:
        raise refuse(str(error)) from error
    return value


Address = Annotated[str, AfterValidator(_address)]
"""A host and a port to listen on; port 0 leaves the choice to the system."""


def _has_host(value: str) -> bool:
    try:
        parts = urlsplit(value)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False

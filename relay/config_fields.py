"""The kinds of values the configuration holds, and how one is shown without its secrets.

Change here what counts as a duration, a start, a legal name or a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationInfo, WithJsonSchema

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


def _start(value: Any) -> Any:
    if isinstance(value, dict):
        raise later("`start` with " + (" and ".join(f"`{key}`" for key in value) or "a mapping"))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise refuse("a start needs its unit, such as -30s")
    if isinstance(value, str):
        try:
            since(value, 0.0)
        except ValueError as error:
            raise refuse(str(error)) from error
    return value


Start = Annotated[str, BeforeValidator(_start)]


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

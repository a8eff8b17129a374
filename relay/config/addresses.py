"""Value types of the config: URLs, and addresses of hosts and ports."""

import re
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from relay.config.hidden import is_secret
from relay.config.model import TextForm, form, like

POSTGRES = ("postgresql", "postgres")

ICEBERG = "iceberg"
"""The scheme of the URL of a catalog of Iceberg."""

PORT = r"(?:6553[0-5]|655[0-2]\d|65[0-4]\d{2}|6[0-4]\d{3}|[1-5]\d{4}|[1-9]\d{0,3})"
_HOST = r"(?:\[[0-9A-Fa-f:.%]+\]|[\w.-]+)"
_HOST_PORT = re.compile(rf"({_HOST}):(0|{PORT})")
_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")  # librdkafka's, in upper or lower case
_PROTOCOL = "|".join(re.sub("[a-z]", lambda each: f"[{each[0]}{each[0].upper()}]", name) for name in _PROTOCOLS)
_BROKER = rf"\s*(?:(?:{_PROTOCOL})://)?{_HOST}(?::{PORT})?\s*"

_USER = r"(?:[^/?#]*@)?"
_URL_HOST = rf"(?:\[[^\]]+\]|[^\s/?#@:,\[\]]+)(?::{PORT})?"
_URL_HOSTS = rf"{_USER}{_URL_HOST}(?:,{_URL_HOST})*"
_HOSTS = "hosts with ports from 1 to 65535"
# The schemes of URLs, the pattern of what follows `scheme://`, and the words for it.
_FORMS = (
    (
        POSTGRES,
        rf"{_URL_HOSTS}/+[^/?#].*",
        "a host, a port from 1 to 65535, and a database: {}://user:password@host:port/database",
    ),
    (
        ("redis+sentinel", "rediss+sentinel"),
        rf"{_URL_HOSTS}/+[^/?#].*",
        f"{_HOSTS} and a service: {{}}://host:port,host:port/service",
    ),
    (
        ("memcached", "memcacheds", "redis+cluster", "rediss+cluster"),
        rf"{_URL_HOSTS}(?:[/?#].*)?",
        f"{_HOSTS}: {{}}://host:port,host:port",
    ),
    (
        ("http", "https", "redis", "rediss"),
        rf"{_USER}{_URL_HOST}(?:[/?#].*)?",
        "a host and a port from 1 to 65535: {}://host:port",
    ),
    # I6: Redis' client would read another path as database 0.
    (("redis", "rediss"), rf"{_USER}{_URL_HOST}(?:/\d*)?(?:[?#].*)?", "a number for the database: {}://host:port/0"),
)


@dataclass(frozen=True)
class Url:
    """Annotates texts that are URLs with one of ``schemes``, or URLs that begin with ``prefix``."""

    schemes: tuple[str, ...]
    prefix: str | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        forms = [f"{scheme.replace('+', '[+]')}://{_after(scheme)}" for scheme in self.schemes]
        if self.prefix:
            forms.append(rf"{self.prefix.replace('+', '[+]')}(?!(?:file|delta):)[\w.+-]+://.*")
        return {**handler(schema), "pattern": form("|".join(forms))}

    def _checked(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            scheme = urlsplit(value).scheme if "://" in value else ""
        except ValueError:  # whose text may contain the password
            raise _wrong(value, "is not a URL") from None
        if scheme not in self.schemes and not (
            self.prefix and scheme.startswith(self.prefix) and scheme != self.prefix
        ):
            ways = [f"{each}://" for each in self.schemes]
            if self.prefix:
                ways.append(f"{self.prefix} and the URL of another store, such as {self.prefix}s3a://bucket/folder")
            raise _wrong(value, f"must start with {' or '.join(ways)}")
        for schemes, after, needs in _FORMS:
            # As urlsplit does: a line break at the end comes with a secret.
            if scheme in schemes and not re.fullmatch(after, re.sub(r"[\t\r\n]", "", value).partition("://")[2]):
                raise _wrong(value, f"needs {needs.format(scheme)}")
        return value


def _wrong(value: str, problem: str) -> ValueError:
    """Return the error about a URL. It shows the URL unless that may contain a secret, such as a password with a slash.

    A port that is not a number may in fact be a password in a URL without a host.
    """
    shown = re.sub(r":(?!//|\d+(?:[,/]|$))[^,/]*", ":***", re.split("[?#]", value)[0])
    return ValueError(problem if "@" in value or "://" not in value or is_secret(shown) else f"{shown!r} {problem}")


def _after(scheme: str) -> str:
    """Return the pattern of the part after ``scheme://``."""
    found = [after for schemes, after, _ in _FORMS if scheme in schemes]
    return found[-1] if found else "/.*" if scheme == "delta" else ".*"


def hosts_of(url: str) -> list[str]:
    """Return the hosts of a URL, each as written, with or without a port. Raises ValueError."""
    return urlsplit(url).netloc.rpartition("@")[2].split(",")


def at_port(host: str, port: int) -> str:
    """Return an address as text, which `host_port` can parse."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_port(text: str) -> tuple[str, int]:
    """Parse the host and the port of an address to listen on. Raises ValueError for anything else."""
    match = _HOST_PORT.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not an address to listen on, such as 127.0.0.1:9400 or [::1]:9400")
    return match[1].strip("[]"), int(match[2])


def _address(value: str) -> str:
    host_port(value)
    return value


Address = Annotated[str, AfterValidator(_address), like(rf"{_HOST}:(?:0|{PORT})")]
"""A host and a port to listen on; with port 0 the system picks one."""


RemoteAddress = Annotated[
    str, TextForm(rf"{_HOST}:{PORT}", "{} is not an address to connect to, such as db1:3306 or [::1]:3306")
]


def _brokers(value: str) -> str:
    for broker in value.split(","):
        if not re.fullmatch(_BROKER, broker):
            shown = "a text with @" if "@" in broker else repr(broker)  # the value may contain a password
            raise ValueError(f"{shown} is not a broker address, such as 127.0.0.1:9092 or ssl://[::1]:9093")
    return value


Brokers = Annotated[str, AfterValidator(_brokers), like(f"{_BROKER}(?:,{_BROKER})*")]
"""Addresses of brokers, separated by commas."""

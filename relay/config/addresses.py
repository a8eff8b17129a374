"""Value types of the config: URLs, and addresses of hosts and ports."""

import re
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from relay.config.hidden import is_secret
from relay.config.schema_forms import form, like

POSTGRES = ("postgresql", "postgres")
"""The URL schemes for PostgreSQL."""

ICEBERG = "iceberg"
"""The scheme of the URL of a catalog of Iceberg."""

_WITH_HOST = frozenset({"http", "https", "redis", "rediss"})
_WITH_NUMBER = frozenset({"redis", "rediss"})
_WITH_HOSTS = frozenset({"memcached", "memcacheds", "redis+cluster", "rediss+cluster"})
_WITH_SERVICE = frozenset({"redis+sentinel", "rediss+sentinel"})
_HOST_PORT = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([\w.-]+)):(\d{1,5})")
# librdkafka's protocols, in upper or lower case.
_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_PROTOCOL = "|".join(re.sub("[a-z]", lambda each: f"[{each[0]}{each[0].upper()}]", name) for name in _PROTOCOLS)
_BROKER = re.compile(rf"\s*(?:(?:{_PROTOCOL})://)?(\[[0-9A-Fa-f:.%]+\]|[\w.-]+)(?::(\d{{1,5}}))?\s*")

# For the JSON schema.
PORT = r"(?:6553[0-5]|655[0-2]\d|65[0-4]\d{2}|6[0-4]\d{3}|[1-5]\d{4}|[1-9]\d{0,3})"
_HOST = r"(?:\[[0-9A-Fa-f:.%]+\]|[\w.-]+)"
_URL_HOST = rf"(?:\[[^\]]*\]|[^\s/?#@:,\[\]]+)(?::{PORT})?"
_URL_HOSTS = rf"(?:[^\s/?#]*@)?{_URL_HOST}(?:,{_URL_HOST})*"


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
        if scheme in _WITH_HOSTS and not _has_hosts(value):
            raise _wrong(value, f"needs hosts with ports from 1 to 65535: {scheme}://host:port,host:port")
        if scheme in POSTGRES and not (_has_hosts(value) and urlsplit(value).path.strip("/")):
            raise _wrong(
                value,
                f"needs a host, a port from 1 to 65535, and a database: {scheme}://user:password@host:port/database",
            )
        if scheme in _WITH_SERVICE and not (_has_hosts(value) and urlsplit(value).path.strip("/")):
            raise _wrong(
                value, f"needs hosts with ports from 1 to 65535 and a service: {scheme}://host:port,host:port/service"
            )
        if scheme in _WITH_HOST and not _has_host(value):
            raise _wrong(value, f"needs a host and a port from 1 to 65535: {scheme}://host:port")
        if scheme in _WITH_NUMBER and not re.fullmatch(r"/?\d*", urlsplit(value).path):
            # I6: Redis' client would read another path as database 0.
            raise _wrong(value, f"needs a number for the database: {scheme}://host:port/0")
        return value


def _wrong(value: str, problem: str) -> ValueError:
    """Return the error about a URL. It shows the URL unless that may contain a secret, such as a password with a slash.

    A port that is not a number may in fact be a password in a URL without a host.
    """
    shown = re.sub(r":(?!//|\d+(?:[,/]|$))[^,/]*", ":***", re.split("[?#]", value)[0])
    return ValueError(problem if "@" in value or "://" not in value or is_secret(shown) else f"{shown!r} {problem}")


def _after(scheme: str) -> str:
    """Return the pattern of the part after ``scheme://``."""
    if scheme in POSTGRES or scheme in _WITH_SERVICE:
        return rf"{_URL_HOSTS}/+[^/?#].*"
    if scheme in _WITH_HOSTS:
        return rf"{_URL_HOSTS}(?:[/?#].*)?"
    if scheme in _WITH_NUMBER:
        return rf"(?:[^\s/?#]*@)?{_URL_HOST}(?:/\d*)?(?:[?#].*)?"
    if scheme in _WITH_HOST:
        return rf"(?:[^\s/?#]*@)?{_URL_HOST}(?:[/?#].*)?"
    return "/.*" if scheme == "delta" else ".*"


def _has_host(value: str) -> bool:
    try:
        parts = urlsplit(value)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _has_hosts(value: str) -> bool:
    """Whether a URL has one host or several, separated by commas, each with a port or without."""
    try:
        hosts = hosts_of(value)
    except ValueError:
        return False
    return all(_has_host(f"host://{host}") for host in hosts)


def hosts_of(url: str) -> list[str]:
    """Return the hosts of a URL, each as written, with or without a port. Raises ValueError."""
    return urlsplit(url).netloc.rpartition("@")[2].split(",")


def at_port(host: str, port: int) -> str:
    """Return an address as text, which `host_port` can parse."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_port(text: str) -> tuple[str, int]:
    """Parse the host and the port of an address to listen on. Raises ValueError for anything else."""
    match = _HOST_PORT.fullmatch(text)
    if not match or int(match[3]) > 65535:
        raise ValueError(f"{text!r} is not an address to listen on, such as 127.0.0.1:9400 or [::1]:9400")
    return match[1] or match[2], int(match[3])


def _address(value: str) -> str:
    host_port(value)
    return value


Address = Annotated[str, AfterValidator(_address), like(rf"{_HOST}:(?:0|{PORT})")]
"""A host and a port to listen on; with port 0 the system picks one."""


def _remote(value: str) -> str:
    match = _HOST_PORT.fullmatch(value)
    if not match or not 0 < int(match[3]) <= 65535:
        raise ValueError(f"{value!r} is not an address to connect to, such as db1:3306 or [::1]:3306")
    return value


RemoteAddress = Annotated[str, AfterValidator(_remote), like(rf"{_HOST}:{PORT}")]
"""A host and a port to connect to."""


def _brokers(value: str) -> str:
    for broker in value.split(","):
        match = _BROKER.fullmatch(broker)
        if not match or not 0 < int(match[2] or 9092) <= 65535:
            shown = "a text with @" if "@" in broker else repr(broker)  # the value may contain a password
            raise ValueError(f"{shown} is not a broker address, such as 127.0.0.1:9092 or ssl://[::1]:9093")
    return value


_ONE_BROKER = rf"\s*(?:(?:{_PROTOCOL})://)?{_HOST}(?::{PORT})?\s*"
Brokers = Annotated[str, AfterValidator(_brokers), like(f"{_ONE_BROKER}(?:,{_ONE_BROKER})*")]
"""Addresses of brokers, separated by commas."""

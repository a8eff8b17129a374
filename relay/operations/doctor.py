"""``relay doctor``: everything that a bug report needs, each part or its error, without secrets."""

import io
import json
import os
import platform
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

from relay import __version__
from relay.config import Config, HttpConfig
from relay.config.echo import echo, to_yaml
from relay.config.hidden import HIDDEN, is_secret, secrets_in
from relay.config.yaml_file import Document
from relay.errors import ConfigError, RelayError
from relay.observe.access import Access
from relay.observe.peers import Peers
from relay.operations import check, status
from relay.process.folders import state_folder
from relay.source import Finding

_SHORTEST = 3  # characters that a secret has at least: a shorter text would be found everywhere

_OTHER_URLS = re.compile(r"(?<=://)[^/\s\"\\]+(?=@)|(?<=password=)[^&\s\"\\]+")
"""Users and passwords in URLs that are not from the config. It never matches the quote that ends a JSON string."""

_ANSWER = 8_000_000  # bytes
_TIMEOUT = 5.0  # seconds
_PATHS = {"metrics.txt": "/metrics", "healthz.json": "/healthz", "readyz.json": "/readyz", "live.json": "/status.json"}


def collect(config: Config, document: Document, with_tables: Callable[[Config], Config]) -> dict[str, str]:
    """Return the parts of the bundle by file name, without secrets.

    ``with_tables``: finds the tables of sources that name none. Raises nothing: errors are in the bundle.
    """
    parts: dict[str, Callable[[], str]] = {
        "versions.json": lambda: _json(_versions()),
        "config.yaml": lambda: to_yaml(echo(config, document)),
        "check-offline.json": lambda: _findings(check.run(config, offline=True)),
        "check.json": lambda: _findings(check.run(with_tables(config))),
        "status.json": lambda: _json(status.status(config).to_json()),
    }
    if config.http is not None:
        parts |= {name: partial(_asked, config.http, path) for name, path in _PATHS.items()}
    parts |= {path.name: partial(path.read_text, "utf-8") for path in _accusations(config)}
    secrets = {*secrets_in(document.data), *(value for name, value in os.environ.items() if is_secret(name))}
    return {name: without(_made(make), secrets) for name, make in parts.items()}


def refuse(into: Path) -> None:
    """Raise ``ConfigError`` for a bundle that cannot be written, before collecting takes a minute."""
    if not into.name.endswith((".tar.gz", ".tgz")):
        raise ConfigError(f"--into {into}: the bundle is an archive: choose a name that ends with .tar.gz")
    if os.path.lexists(into):
        raise ConfigError(f"--into {into}: already exists: choose another name")
    if not os.access(into.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"--into {into}: {into.parent} is not a writable folder: choose another place")


def write(parts: dict[str, str], into: Path) -> None:
    """Write the bundle to a new ``.tar.gz``. Raises ``RelayError`` if it cannot."""
    try:
        with (
            open(os.open(into, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream,
            tarfile.open(fileobj=stream, mode="w:gz") as archive,
        ):
            for name, text in parts.items():
                data = text.encode()
                member = tarfile.TarInfo(f"{into.name.partition('.')[0]}/{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    except OSError as error:
        if not isinstance(error, FileExistsError):  # an unfinished bundle would be in the way of the next attempt
            into.unlink(missing_ok=True)
        raise RelayError(f"cannot write {into}: {error.strerror}") from error


def without(text: str, secrets: Iterable[str]) -> str:
    """Return ``text`` with ``***`` in place of each secret, also where it is escaped for JSON or a URL."""
    forms = {form for each in secrets for form in (each, json.dumps(each)[1:-1], quote(each), quote(each, safe=""))}
    for form in sorted(forms, key=len, reverse=True):
        if len(form) >= _SHORTEST:
            text = text.replace(form, HIDDEN)
    return _OTHER_URLS.sub(HIDDEN, text)


def _made(make: Callable[[], str]) -> str:
    try:
        return make()
    except Exception as error:  # whatever the error is, the other parts are still useful
        kind = "" if isinstance(error, RelayError) else f"{type(error).__name__}: "
        return f"not available: {kind}{error}\n"


def _versions() -> dict[str, Any]:
    return {
        "relay": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {each.name: each.version for each in sorted(distributions(), key=lambda each: each.name.lower())},
    }


def _findings(found: Iterator[Finding]) -> str:
    return _json([finding.to_json() for finding in found])


def _asked(settings: HttpConfig, path: str) -> str:
    """Return the answer of the relay on this machine for ``path``."""
    _, _, body = Peers((), settings, Access(settings)).fetch(settings.address, path, _TIMEOUT, _ANSWER)
    return body.decode(errors="replace")


def _accusations(config: Config) -> list[Path]:
    """Return the files in which `relay verify --forever` keeps whom it has accused."""
    with suppress(RelayError, OSError):  # a user without a home folder, for example
        return sorted((state_folder() / config.name).glob("verify-*.json"))
    return []


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"

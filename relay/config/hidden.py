"""A config as it may be shown: without passwords and other secrets."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from relay.config.yaml_file import VARIABLE, Location

HIDDEN = "***"

_SECRET = re.compile(
    r"passw|pass$|^bearer$|secret|^salt$|\.pem$|jaas|oauthbearer\.config|credential|authorization|sas[._-]token|connection-string|.token$|(access|account|api|private)[._]?key",
    re.IGNORECASE,
)
_USER_INFO = re.compile(r"""(?<=://)[^/\s]+(?=@)|(?<=(?i:password)=)(?:"(?:[^"\\]|\\.)*"|[^&\s]+)""")
_MARK = re.compile(r"\0(\d+)\0")


def is_secret(name: str) -> bool:
    return _SECRET.search(name) is not None


def holds_secret(location: Location) -> bool:
    """Whether the value at ``location`` in the file is a secret. Tables and columns may have any name."""
    match location:
        case ("http", "user" | "password" | "bearer") | ("schema_registry", "password" | "bearer"):
            return True
        case ("kafka", "producer", str(name)) | ("spark", "conf", str(name)) | ("sources", int(), str(name)):
            return is_secret(name)
        case ("sources", int(), "protect", *_, "salt"):
            return True
    return False


def secrets_in(value: Any, location: Location = ()) -> Iterator[str]:
    """Yield the secrets in the data of a file, also those inside URLs, both as written and decoded."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from secrets_in(each, (*location, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from secrets_in(each, (*location, number))
    elif value is not None and holds_secret(location):
        yield str(value)
    elif isinstance(value, str):
        for found in _USER_INFO.findall(value):
            password = found.partition(":")[2] or found
            yield from (found, password, unquote(password))


def redacted(value: Any) -> Any:
    """Return ``value`` without secret settings and without the user and password of a URL."""
    if isinstance(value, str):
        return _USER_INFO.sub(HIDDEN, value)
    if isinstance(value, dict):
        return {key: HIDDEN if is_secret(str(key)) else redacted(inner) for key, inner in value.items()}
    return value


def as_written(text: str) -> str:
    """Return a text that is not a secret as the file has it, without user and password: ``redis://***@${HOST}``."""
    variables = [redacted(match[0]) for match in VARIABLE.finditer(text)]
    numbers = iter(range(len(variables)))
    marked = VARIABLE.sub(lambda _: f"\0{next(numbers)}\0", text)
    return _MARK.sub(lambda mark: variables[int(mark[1])], redacted(marked))

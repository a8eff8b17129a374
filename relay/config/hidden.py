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


def reference(text: str, *, secret: bool) -> str:
    """Return a text as the file has it, such as ``redis://:${PASSWORD}@h``, without literal secrets.

    ``secret``: all of the text is a secret, so only the names of its variables are shown.
    """
    variables = [match[0] for match in VARIABLE.finditer(text)]
    numbers = iter(range(len(variables)))
    marked = VARIABLE.sub(lambda _: f"\0{next(numbers)}\0", text)

    def restored(part: str, *, secret: bool) -> str:
        if secret and _MARK.sub("", part):
            return HIDDEN
        return _MARK.sub(lambda mark: _variable(variables[int(mark[1])], secret=secret), part)

    def user_info(match: re.Match[str]) -> str:
        user, colon, password = match[0].rpartition(":")
        return f"{restored(user, secret=False)}{colon}{restored(password, secret=True)}"

    if secret:
        return restored(marked, secret=True)
    return restored(_USER_INFO.sub(user_info, marked), secret=False)


def _variable(text: str, *, secret: bool) -> str:
    name, has_default, default = text.partition(":-")
    if not has_default:
        return text
    return f"{name}:-{HIDDEN}}}" if secret else f"{name}:-{redacted(default)}"

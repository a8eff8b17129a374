"""Numbers, and true or false, from variables: the value of a variable is text, until a key wants something else."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from relay.config.errors import without_type_tag
from relay.config.yaml_file import Document, Location, parse
from relay.errors import ConfigError

_WANTED: dict[str, type | tuple[type, ...]] = {"int_type": int, "float_type": (int, float), "bool_type": bool}

# YAML reads 010 as eight, 0x10 as sixteen, 1:30 as ninety, and drops what follows ` #`.
_PLAIN = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)(?:\.[0-9_]+)?|[A-Za-z]+")


def read_as_wanted(document: Document, error: ValidationError) -> bool:
    """Replace the texts from variables that ``error`` refuses by what YAML reads in them, if that is wanted there.

    Return whether there were any. Texts that the file itself has stay as they are: there, quotes decide.
    """
    found = False
    for detail in error.errors(include_url=False):
        location, _ = without_type_tag(detail["loc"])
        wanted = _WANTED.get(detail["type"])
        if wanted is None or location not in document.variables or not isinstance(detail["input"], str):
            continue
        value = _plain(detail["input"])
        # In Python, True is an integer.
        if isinstance(value, wanted) and isinstance(value, bool) == (wanted is bool):
            _put(document.data, location, value)
            found = True
    return found


def _plain(text: str) -> Any:
    if not _PLAIN.fullmatch(text.strip()):  # I8
        return None
    try:
        return parse("", text, {}).data
    except ConfigError:
        return None


def _put(data: Any, location: Location, value: Any) -> None:
    *parents, last = location
    for part in parents:
        data = data[part]
    data[last] = value

"""Overrides of the config file: ``--set key=value``, and variables where numbers or booleans are expected."""

import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from relay.config.errors import did_you_mean, fields_of, model_inside, without_type_tag
from relay.config.yaml_file import Document, Location, parse
from relay.errors import ConfigError

_NUMBERED = re.compile(r"\[(\d+)\]\.(.+)")
_WANTED: dict[str, type | tuple[type, ...]] = {"int_type": int, "float_type": (int, float), "bool_type": bool}

# YAML would also take quotes, tags and anchors, and drop what follows ` #`.
_PLAIN = re.compile(r"[-+]?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?|[A-Za-z]+")


def apply(document: Document, settings: Sequence[str], root: type[BaseModel]) -> None:
    """Apply ``settings``, texts ``key=value`` with a YAML value. Raises ``ConfigError``, which names the key."""
    for text in settings:
        key, equals, value = text.partition("=")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"--set {key!a}: not UTF-8 text") from None
        option = f"--set {key}"
        if not equals or not key:
            raise ConfigError(f"{option}: must be key=value, such as http=127.0.0.1:9401")
        _put(document, _location(key, option, document.data, root), parse(option, value), option)


def _location(key: str, option: str, data: dict[str, Any], root: type[BaseModel]) -> Location:
    """Return the location of ``key``. In a mapping with free names, such as Kafka's, the rest is one name."""
    if not key.startswith(("sources.", "sources[")):
        return _in_model(key, root)
    listed = data.get("sources")
    entries = listed if isinstance(listed, list) else []
    inside = key.removeprefix("sources")
    names = [str(entry.get("name")) if isinstance(entry, dict) else "" for entry in entries]
    for number, name in enumerate(names):
        if inside.startswith(f".{name}."):
            return ("sources", number, *_in_source(inside.removeprefix(f".{name}.")))
    if (match := _NUMBERED.fullmatch(inside)) and int(match[1]) < len(entries):
        return ("sources", int(match[1]), *_in_source(match[2]))
    wanted = inside.lstrip(".").partition(".")[0]
    known = did_you_mean(wanted, names, "the sources are ") if names else "the file has no sources"
    raise ConfigError(f"{option}: must be sources.NAME.KEY, or sources[NUMBER].KEY with a number from 0; {known}")


def _in_source(key: str) -> Location:
    """Sources have no nested keys, only mappings with free names."""
    return tuple(part for part in key.partition(".")[::2] if part)


def _in_model(key: str, model: type[BaseModel]) -> Location:
    name, dot, rest = key.partition(".")
    if not dot:
        return (name,)
    field = fields_of(model).get(name)
    inside = model_inside(field.annotation) if field else None
    return (name, *(_in_model(rest, inside) if inside else (rest,)))


def _put(document: Document, location: Location, value: Document, option: str) -> None:
    *parents, last = location
    target = document.data
    for depth, part in enumerate(parents):
        if isinstance(target, dict) and target.get(str(part)) is None:
            target[str(part)] = {}
        target = target[part]
        if not isinstance(target, (dict, list)):
            place = ".".join(map(str, parents[: depth + 1]))
            raise ConfigError(f"{option}: `{place}` in the file is a single value, so nothing can be set inside it")
    target[last] = value.data
    for replaced in [each for each in document.variables if each[: len(location)] == location]:
        del document.variables[replaced]
    document.variables |= {(*location, *inside): text for inside, text in value.variables.items()}
    document.options[location] = option


def read_as_wanted(document: Document, error: ValidationError) -> bool:
    """Parse texts from variables as YAML where ``error`` shows that the config wants another type.

    Return whether there were any. Texts in the file itself stay as they are: there, quotes decide.
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
            *parents, last = location
            document.value(tuple(parents))[last] = value
            found = True
    return found


def _plain(text: str) -> Any:
    if not _PLAIN.fullmatch(text.strip()):  # I8
        return None
    try:
        return parse("", text, {}).data
    except ConfigError:
        return None

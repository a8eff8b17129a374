"""Reads YAML into plain data, expands ``${NAME}``, and records the place of every key and value."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import yaml

from relay.errors import ConfigError

Location = tuple[str | int, ...]
"""The keys and indexes that lead to a value, outermost first."""

VARIABLE = re.compile(r"\$(\$\{)|\$\{([^}]*)(\}?)")
"""A variable, or the escape for `${`. Groups: the text without its first `$`; what is in the braces; `}`."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCALARS = {"tag:yaml.org,2002:" + kind for kind in ("null", "bool", "int", "float")}
# YAML reads 0123 as 83, 12:30 as 750 and 0x1F as 31, and drops the underscores of 1_000.
_AS_WRITTEN = {
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(?:0|[1-9][0-9]*)"),
    "tag:yaml.org,2002:float": re.compile(r"[^_:]+"),
}
# A time is kept as text: each key decides what the text means.
_TEXTS = {"tag:yaml.org,2002:" + kind for kind in ("str", "timestamp", "value")}
_MERGE = "tag:yaml.org,2002:merge"


@dataclass
class Document:
    """The data of a file, with the line and column, from 1, of every key and value."""

    name: str  # the file, or the option of the command line
    data: Any = None
    values: dict[Location, tuple[int, int]] = field(default_factory=dict)
    keys: dict[Location, tuple[int, int]] = field(default_factory=dict)
    variables: dict[Location, str] = field(default_factory=dict)  # the texts that contain a ${NAME}, as written
    options: dict[Location, str] = field(default_factory=dict)  # the options, by the locations that they have set

    def value(self, location: Location) -> Any:
        return reduce(getitem, location, self.data)

    def place(self, location: Location, *, key: bool = False) -> tuple[int, int]:
        """Return the place of ``location``, or of the innermost known value around it."""
        if key and location in self.keys:
            return self.keys[location]
        while location not in self.values and location:
            location = location[:-1]
        return self.values.get(location, (1, 1))

    def error(self, place: tuple[int, int], message: str) -> ConfigError:
        return ConfigError(f"{self.name}:{place[0]}:{place[1]}: {message}")

    def problem(self, location: Location, message: str) -> str:
        """Return a message that begins with the origin of the value at ``location``."""
        if option := self.option(location):
            return f"{option}: {message}"
        return str(self.error(self.place(location), message))

    def option(self, location: Location) -> str | None:
        """Return the option that set ``location``, a value around it, or all that is in it. None if the file did."""
        for length in range(len(location), 0, -1):
            if option := self.options.get(location[:length]):
                return option
        while location and location not in self.values:
            for each, option in self.options.items():
                if each[: len(location)] == location:
                    return option
            location = location[:-1]
        return None


def read(path: Path, environment: Mapping[str, str] | None = None) -> Document:
    """Read the YAML file at ``path``, as ``parse`` does. Raises ``ConfigError``."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        raise ConfigError(f"{path}:{line}:{column}: not UTF-8 text (at byte {error.start})") from error
    return parse(str(path), text, environment)


def parse(name: str, text: str, environment: Mapping[str, str] | None = None) -> Document:
    """Read YAML and expand ``${NAME}`` in its strings from ``environment``, by default this process's.

    ``${NAME:-text}`` expands to the text if the variable is unset or empty. Raises ``ConfigError`` with name, line and
    column for broken YAML, a duplicate key, a missing variable, or a value that is not plain data.
    """
    document = Document(name)
    try:
        loader = yaml.SafeLoader(text)
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = (before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise document.error(place, f"broken YAML: {error.reason}") from error
    try:
        root = loader.get_single_node()
        if root is not None:
            nodes = _NodeReader(document, loader, os.environ if environment is None else environment)
            document.data = nodes.value(root, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        if any("${" in line for line in text.splitlines()[place[0] - 1 : place[0]]):
            problem += "; inside {...}, quote text that contains ${NAME}"
        elif "'\\t'" in problem:
            problem += "; indent with spaces, not with tabs"
        elif "<document start>" in problem:
            problem += "; quote text that begins with { or [, also inside the quotes of a shell"
        elif "<block end>" in problem:
            problem += "; is the line indented like its neighbours?"
        raise document.error(place, f"broken YAML: {problem}") from error
    except RecursionError:
        raise ConfigError(f"{name}: its values are nested too deeply") from None
    finally:
        loader.dispose()
    return document


@dataclass
class _NodeReader:
    """Turns YAML nodes into plain data, and records their places in ``document``."""

    document: Document
    loader: yaml.SafeLoader
    environment: Mapping[str, str]
    # The nodes around the current one: following an alias to one of them would never end.
    enclosing: list[yaml.Node] = field(default_factory=list)

    def value(self, node: yaml.Node, location: Location) -> Any:
        self.document.values[location] = _place(node)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, location)
        if node in self.enclosing:
            raise self._wrong(node, "this alias (*) refers to the value that contains it")
        self.enclosing.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, location)
            if node.tag != "tag:yaml.org,2002:seq":
                raise self._wrong(node, f"values of type {node.tag} are not allowed here")
            return [self.value(item, (*location, i)) for i, item in enumerate(node.value)]
        finally:
            self.enclosing.pop()

    def _mapping(self, node: yaml.MappingNode, location: Location) -> dict[str, Any]:
        if node.tag != "tag:yaml.org,2002:map":
            raise self._wrong(node, f"values of type {node.tag} are not allowed here")
        seen: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._wrong(key, "a key must be plain text")
            if key.tag == _MERGE:
                continue
            if key.value in seen:
                line = _place(seen[key.value])[0]
                raise self._wrong(key, f"duplicate key `{key.value}`; it is already set on line {line}")
            seen[key.value] = key
        self.loader.flatten_mapping(node)
        found: dict[str, Any] = {}
        for key, value in node.value:
            # Every key is text: a table may be called `on` or `2024`.
            inside = (*location, self._encodable(key, key.value))
            self.document.keys[inside] = _place(key)
            found[key.value] = self.value(value, inside)
        return found

    def _scalar(self, node: yaml.ScalarNode, location: Location) -> Any:
        if node.tag in _TEXTS:
            if VARIABLE.search(node.value):
                self.document.variables[location] = node.value
            return self._encodable(node, self._expand(node))
        if node.tag not in _SCALARS:
            raise self._wrong(node, f"values of type {node.tag} are not allowed here")
        try:
            found = self.loader.construct_object(node)
        except (ValueError, LookupError):
            # The errors contain the value, which may be a password.
            kind = node.tag.rpartition(":")[2]
            raise self._wrong(node, f"cannot read this value as {kind}") from None
        if (form := _AS_WRITTEN.get(node.tag)) and not form.fullmatch(node.value):  # I8
            problem = "YAML reads this number differently from how it is written"  # it may be a password, too
            raise self._wrong(node, f"{problem}: quote it, or write it in plain decimals")
        return found

    def _encodable(self, node: yaml.ScalarNode, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise self._wrong(node, "this text, or a variable in it, is not valid UTF-8") from None
        return text

    def _expand(self, node: yaml.ScalarNode) -> str:
        def replace(match: re.Match[str]) -> str:
            escaped, inside, closed = match.groups()
            if escaped:
                return "${"
            name, has_default, default = inside.partition(":-")
            if not closed or not _NAME.fullmatch(name):
                hint = "such as ${NAME} or ${NAME:-default}; write a literal `${` as `$${`"
                raise self._wrong(node, f"`${{` must start a variable {hint}")  # the text may be a password
            if has_default:
                return self.environment.get(name) or default
            if name not in self.environment:
                raise self._wrong(node, f"the environment variable {name} is not set")
            return self.environment[name]

        return VARIABLE.sub(replace, node.value)

    def _wrong(self, node: yaml.Node, problem: str) -> ConfigError:
        return self.document.error(_place(node), problem)


def _place(node: yaml.Node) -> tuple[int, int]:
    return (node.start_mark.line + 1, node.start_mark.column + 1)

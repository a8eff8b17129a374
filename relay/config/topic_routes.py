"""Which topic the changes of a table go to, as `topics` of the config says, and which table owns a topic."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticKnownError

from relay.config.errors import did_you_mean, refuse
from relay.config.locations import legal
from relay.config.model import texts
from relay.config.template import Template
from relay.config.yaml_file import Location

DEFAULT = "{name}.{table}"
OTHERS = "default"
"""The key of all tables that no other key of the mapping names."""

LONGEST = 249
"""How many characters Kafka allows in the name of a topic."""

EMPTY = "must name at least one table, or be left out"

_TEMPLATE = texts(r"(?:[^{}]|\{(?:name|table)\}|\{\{|\}\})+")


def _checked(value: Any) -> Any:
    if isinstance(value, str):
        refuse(((), problem) for problem in _problems(value))
    elif not isinstance(value, dict):
        raise PydanticKnownError("string_type")
    elif not value:
        raise ValueError(EMPTY)
    else:
        refuse(((key,), problem) for key, template in value.items() for problem in _problems(template))
    return value


def _problems(template: Any) -> Iterator[str]:
    if not isinstance(template, str):
        yield "must be text, such as sales.orders.v1"
        return
    try:
        columns = set(Template.parse(template).columns)
    except ValueError as error:
        yield str(error)
        return
    if unknown := columns - {"name", "table"}:
        yield f"unknown placeholder {{{min(unknown)}}}; use {{name}} and {{table}}"


Topics = Annotated[
    str | dict[str, str],
    BeforeValidator(_checked),
    WithJsonSchema({"anyOf": [_TEMPLATE, {"type": "object", "minProperties": 1, "additionalProperties": _TEMPLATE}]}),
]
"""A template for the topics of all tables, or one for each table: by its name, by a pattern with `*`, or `default`."""


def by_table(topics: str | Mapping[str, str]) -> Mapping[str, str]:
    """Return `topics` as the mapping for which it stands."""
    return {OTHERS: topics} if isinstance(topics, str) else topics


def route(topics: str | Mapping[str, str], table: str) -> tuple[Location, str]:
    """Return the template of a table's topic, and its place in the config."""
    if isinstance(topics, str):
        return ("topics",), topics
    keys = matching(topics, table)
    return (("topics", keys[0]), topics[keys[0]]) if keys else (("topics",), DEFAULT)


def topic_of(name: str, topics: str | Mapping[str, str], table: str) -> str:
    """Return the topic of the changes of a ``table`` of the relay ``name``, with a name that Kafka allows."""
    template = Template.parse(route(topics, table)[1])
    excess = len(template.render({"name": name, "table": legal(table)})) - LONGEST
    return template.render({"name": name, "table": legal(table, max(0, excess))})


def is_common(topics: str | Mapping[str, str], table: str) -> bool:
    """Whether the topic of ``table`` does not depend on its name, so that other tables may have it, too."""
    return "table" not in Template.parse(route(topics, table)[1]).columns


def matching(by_table: Mapping[str, Any], table: str) -> list[str]:
    """Return the keys that apply to a table, in the order in which they count: its name, patterns, `default`."""
    keys = [table] if table in by_table and table != OTHERS else []
    keys += [key for key in by_table if "*" in key and matches(key, table)]
    return [*keys, OTHERS] if OTHERS in by_table else keys


def unknown_tables(name: str, keys: Iterable[str], tables: Collection[str]) -> Iterator[tuple[Location, str]]:
    """Yield a problem for each of the ``keys`` of the mapping ``name`` that is neither a pattern nor in ``tables``."""
    for key in keys:
        if key != OTHERS and "*" not in key and key not in tables:
            yield (name, key), f"no source reads table {key!r}; {did_you_mean(key, tables, 'known tables: ')}"


def matches(pattern: str, table: str) -> bool:
    """Whether a name, which may have `*` in it, is the name of ``table`` or stands for it."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), table, re.DOTALL) is not None


Place = tuple[str, str]
"""A source and one of its tables."""


@dataclass
class TopicClaims:
    """The owners of topics, by `topics` of the config. ``own``: those of the relay ``name``. Any thread may use it.

    ``settings``: returns what the config says about a table's topic, each with its place in the file.
    """

    name: str = field(compare=False)
    topics: str | Mapping[str, str] = field(compare=False)
    own: Iterable[str] = field(compare=False, repr=False)
    settings: Callable[[str], Mapping[str, tuple[Location, str]]] = field(compare=False, repr=False)
    is_contested: bool = field(default=False, compare=False)  # whether a table lacks its topic, which another has
    # By the topic's name as Kafka compares it. The relay's own topics have no source.
    _owners: dict[str, Place] = field(default_factory=dict, compare=False, repr=False)
    refused: set[str] = field(default_factory=set, compare=False, repr=False)  # the tables that lack their topic
    # By table, of those whose topic others may have, too.
    _sources: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    def begin(self, tables: Iterable[Place]) -> None:
        """Start over with ``tables``. The first table to claim a topic gets it."""
        self._owners, self._sources = {topic_key(topic): ("", "") for topic in self.own}, {}
        for table in tables:
            self.refusal(*table)
        self.is_contested = False
        self.refused.clear()

    def refusal(self, source: str, table: str) -> str:
        """Claim the topic of a table. Return "" if the table has it now, otherwise whose topic it is."""
        topic, place = self.topic(table), (source, table)
        owner = self._owners.setdefault(topic_key(topic), place)  # in one step, because several threads may claim it
        if owner[0] and self._have_common(topic, table, owner[1]):
            if differing := different_settings(self.settings(table), self.settings(owner[1])):  # I8
                self.is_contested = True
                self.refused.add(table)
                same = f"so `{min(differing)}` must be the same for both"
                return f"it shares its topic {topic!r} with table {owner[1]} of source {owner[0]}, {same}"
            owner = self._sources.setdefault(table, source), table
        if owner == place:  # I8
            return ""
        self.is_contested |= bool(owner[0])
        self.refused.add(table)
        of = f"the topic of table {owner[1]} of source {owner[0]}" if owner[0] else "one of the relay's own"
        return f"its topic would be {topic!r}, which is {of}"

    def topic(self, table: str, topics: Mapping[str, str] | None = None) -> str:
        """Return the topic of a table, by `topics` of the config or by others."""
        return topic_of(self.name, self.topics if topics is None else topics, table)

    def _have_common(self, topic: str, *tables: str) -> bool:
        """Whether the config gives all ``tables`` the same ``topic``, whatever their names."""
        return all(is_common(self.topics, each) and self.topic(each) == topic for each in tables)  # I8


def different_settings(*said: Mapping[str, tuple[Location, str]]) -> set[str]:
    """Return the names of the settings that the topics of two tables do not have in common."""
    first, second = ({(name, value) for name, (_, value) in each.items()} for each in said)
    return {name for name, _ in first ^ second}


def topic_key(topic: str) -> str:
    """Return the part of a topic's name that must be unique: Kafka treats dots and underscores as equal."""
    return topic.replace(".", "_")

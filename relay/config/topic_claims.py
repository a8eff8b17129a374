"""Whose each topic is, also of tables that appear while the relay runs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

Place = tuple[str, str]
"""A source, and a table of it."""


@dataclass
class TopicClaims:
    """``topic``: the topic of a table. ``own``: the relay's own. Any thread may use it.

    ``is_contested``: a table lacks the topic that another one has.
    """

    topic: Callable[[str], str] = field(compare=False, repr=False)
    own: Iterable[str] = field(compare=False, repr=False)
    is_contested: bool = field(default=False, compare=False)
    # By the topic's name as Kafka compares it; without a source for the relay's own.
    _owners: dict[str, Place] = field(default_factory=dict, compare=False, repr=False)

    def begin(self, tables: Iterable[Place]) -> None:
        """Begin with ``tables``, of which the first ones get their topics."""
        self._owners = {topic_key(topic): ("", "") for topic in self.own}
        for table in tables:
            self.refusal(*table)
        self.is_contested = False

    def refusal(self, source: str, table: str) -> str:
        """Take the topic of a table for it, or return whose it is; "" if it has it now."""
        topic, place = self.topic(table), (source, table)
        owner = self._owners.setdefault(topic_key(topic), place)  # in one step, for several threads
        if owner == place:  # I8
            return ""
        self.is_contested |= bool(owner[0])
        of = f"that of table {owner[1]} of source {owner[0]}" if owner[0] else "one of the relay's own"
        return f"its topic would be {topic!r}, which is {of}"


def topic_key(topic: str) -> str:
    """Return what two topics must not have in common: Kafka takes dots and underscores for the same."""
    return topic.replace(".", "_")

"""Recognizes topics that were created again, while they are read or since a group committed offsets of their ids.

It also finds partitions that are added while topics are read.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from relay.config import Config
from relay.errors import Unavailable
from relay.kafka.created_again import created_again
from relay.kafka.group_offsets import Answers, answered_ids, ask_topic_ids, read_before, topic_ids
from relay.kafka.partition_offsets import Partition

_LOOK = 15.0  # seconds between two looks


class SameTopics:
    """Compares topics with their state when it was created, which raises ``Unavailable``. Used by one thread."""

    def __init__(self, admin: AdminClient, config: Config, topics: Sequence[str]) -> None:
        self._admin = admin
        self._config = config
        self._topics = topics
        # The ids that the topics had, by name.
        self.ids: Mapping[str, str] = topic_ids(admin, config, topics)
        self._looked_at = time.monotonic()
        self._asked: Answers | None = None  # the last request, until its answer is read
        self._again: set[str] = set()  # the topics that were created again, once known: no reader continues then
        self._found: set[Partition] = set()  # the partitions in the last answer, until `read_added`

    def created_again(self) -> Collection[str]:
        """Return the topics that were created again, as far as known. Does not wait for a slow broker's answer."""
        if self._asked is None:
            if time.monotonic() - self._looked_at > _LOOK:
                self._asked = ask_topic_ids(self._admin, self._topics)
        elif all(answer.done() for answer in self._asked.values()):
            with suppress(Unavailable):  # the answer is read again
                self._again |= created_again(self.ids, answered_ids(self._asked, self._config)).keys()
                self._found = {(t, each.id) for t, one in self._asked.items() for each in one.result().partitions}
            self._asked, self._looked_at = None, time.monotonic()
        return self._again

    def read_added(self, consumer: Consumer) -> None:
        """Have ``consumer``, which is in no group, also read the partitions that were added, as far as known."""
        self.created_again()
        if self._found:
            added = self._found - {(each.topic, each.partition) for each in consumer.assignment()}
            self._found = set()
            if added:
                consumer.incremental_assign([TopicPartition(*place, 0) for place in added])  # I1: from their beginning

    def compare(self, committed: Iterable[TopicPartition]) -> None:
        """Note whether the committed offsets of a group belong to former topics with the same names."""
        self._again |= read_before(committed, self.ids)

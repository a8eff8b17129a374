"""Looks now and then whether topics that are read were created again."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import suppress

from confluent_kafka.admin import AdminClient

from relay.config import Config
from relay.errors import Unavailable
from relay.kafka.created_again import created_again
from relay.kafka.group_offsets import Answers, answered_ids, ask_topic_ids, topic_ids

_LOOK = 15.0  # seconds between two looks


class SameTopics:
    """Knows topics as they were when this was made, which raises ``Unavailable``. Used by one thread."""

    def __init__(self, admin: AdminClient, config: Config, topics: Sequence[str]) -> None:
        self._admin = admin
        self._config = config
        self._topics = topics
        self._ids = topic_ids(admin, config, topics)
        self._looked_at = time.monotonic()
        # The last question, until its answer was looked at.
        self._asked: Answers | None = None

    def __repr__(self) -> str:
        return f"<SameTopics[{len(self._topics)} topics]>"

    def created_again(self) -> Collection[str]:
        """Return the topics that were created again. Nothing waits for an answer, which a broker that hangs delays."""
        if self._asked is None:
            if time.monotonic() - self._looked_at > _LOOK:
                self._asked = ask_topic_ids(self._admin, self._topics)
            return ()
        if not all(answer.done() for answer in self._asked.values()):
            return ()
        found: Collection[str] = ()
        with suppress(Unavailable):  # it is looked at again
            found = created_again(self._ids, answered_ids(self._asked, self._config))
        if not found:
            self._asked, self._looked_at = None, time.monotonic()
        return found

"""How far a consumer has applied what was committed at the sources: by the watermark and its group's offsets."""

from __future__ import annotations

import time

import orjson

from relay.config import Config
from relay.kafka import topics
from relay.kafka.committed import read_all_committed
from relay.kafka.group import members
from relay.kafka.group_offsets import GroupOffsets, Offsets
from relay.stream.watermark_records import OVERALL


class AppliedTime:
    """Of the consumer ``kind``: the log or the copy. Methods raise ``Unavailable``.

    ``is_running``: whether the relay was, when it was last looked at.
    """

    def __init__(self, config: Config, kind: str) -> None:
        self._config = config
        self._admin = topics.connect(config)
        self._group = GroupOffsets(config, kind, [*dict.fromkeys(map(config.topic, config.tables))])
        self._through = 0.0
        # A time up to which everything was on the topics when they had these ends.
        self._awaited: tuple[float, Offsets] | None = None
        self.group = self._group.group
        self.is_running = True

    def close(self) -> None:
        self._group.close()

    def through(self) -> float:
        """Return a time in seconds: what was committed at the sources before it is applied; 0 while that is not known.

        If no relay runs, nothing more comes to the topics, so only their ends count.
        """
        if self._awaited is None:
            published = self._published()  # before the ends
            self._awaited = published, self._group.locate({})[1]
        published, ends = self._awaited
        committed = self._group.committed() or {}
        if all(
            max(0, committed.get(topic, {}).get(partition, 0)) >= end
            for topic, of_topic in ends.items()
            for partition, end in of_topic.items()
        ):
            self._through, self._awaited = max(self._through, published), None
        return self._through

    def _published(self) -> float:
        now, config = time.time(), self._config
        self.is_running = bool(members(self._admin, f"{config.name}.relay", config.internal("checkpoints")))
        if not self.is_running:
            return now
        found = 0.0
        for message in read_all_committed(self._admin, config, config.internal("watermarks")):
            if message.key() == OVERALL and message.value():
                found = max(found, float(orjson.loads(message.value() or b"")["watermark"]))
        return found

"""The settings of the relay's own clients."""

from __future__ import annotations

from relay.kafka.settings import KafkaSettings
from tests.kafka.configs import config


def test_the_queue_of_the_producer_is_bounded_in_bytes() -> None:
    """I11: librdkafka's own bound is a gigabyte. Whoever has the memory may set it."""
    assert KafkaSettings.from_config(config("shop", "b:1")).producer["queue.buffering.max.kbytes"] <= 128 << 10
    given = config("shop", "b:1", producer={"queue.buffering.max.kbytes": 1 << 20})
    assert KafkaSettings.from_config(given).producer["queue.buffering.max.kbytes"] == 1 << 20

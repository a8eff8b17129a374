"""Writes records of ``checkpoints`` without a fence: decisions of people, never what decides what is published (I3)."""

import time
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from relay.errors import Unavailable
from relay.kafka.checkpoints import partition_of
from relay.kafka.settings import KafkaSettings
from relay.kafka.topics import SILENT_LOG

_WRITE_SECONDS = 30.0
_SLICE = 0.5  # seconds; while a producer flushes, Python handles no signals


def write_unfenced(
    settings: KafkaSettings, key: bytes, value: bytes | None, look: str, check: Callable[[], object] = lambda: None
) -> None:
    """Write or remove a record, and wait until that is stored. Raises ``Unavailable``, and what ``check`` raises.

    ``look``: the command that shows whether it was stored after all. ``check``: called while waiting.
    """
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    reliable = {"enable.idempotence": True, "acks": "all", "delivery.timeout.ms": int(_WRITE_SECONDS * 1000)}
    try:
        producer = Producer({**settings.client, **reliable}, logger=SILENT_LOG)
        producer.produce(settings.checkpoints, key=key, value=value, partition=partition_of(key), on_delivery=delivered)
        deadline = time.monotonic() + _WRITE_SECONDS + 5
        while (left := producer.flush(_SLICE)) and time.monotonic() < deadline:
            check()
    except KafkaException as error:
        raise Unavailable(f"cannot write to {settings.checkpoints}: {error}") from error
    if left or failures:
        reason = failures[0].str() if failures else f"the broker did not answer in {_WRITE_SECONDS:.0f} s"
        raise Unavailable(
            f"cannot write to {settings.checkpoints}: {reason}. The record may have been stored: run `{look}`"
        )

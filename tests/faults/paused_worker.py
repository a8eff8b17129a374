"""Runs a relay that stops itself at a step of its commit path: CONFIG STEP NUMBER DELAY TRANSACTION_TIMEOUT.

The last, in milliseconds, is given to the producer alone. Longer than the pause, it keeps the broker from ending
the paused transaction, so that nothing but the fence is left to keep two workers apart.
"""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import replace
from pathlib import Path

from relay.config import load
from relay.engine.relaying import run
from relay.kafka.settings import KafkaSettings
from tests.faults.harness import stop_self


def main(path: str, step: str, number: str, delay: str, transaction_timeout: str) -> None:
    left = int(number)

    def probe(name: str) -> None:
        nonlocal left
        if name == step:
            left -= 1
            if left == 0:
                stop_self()
                # Time for librdkafka's own thread to learn that the group has expelled this worker.
                time.sleep(float(delay))

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    config = load(Path(path))
    settings = KafkaSettings.from_config(config)
    producer = {**settings.producer, "transaction.timeout.ms": int(transaction_timeout)}
    run(config, settings=replace(settings, producer=producer), probe=probe)


if __name__ == "__main__":
    main(*sys.argv[1:])

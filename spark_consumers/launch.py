"""Starts one consumer, or several in one Spark: their checkpoints, their locks, the session, and their end."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

from pyspark.sql import SparkSession

from relay.config import Config
from relay.errors import RelayError
from spark_consumers.checkpoint import ConsumerCheckpoint
from spark_consumers.runner import Consumer, Runner
from spark_consumers.running import signals
from spark_consumers.session import another_session, close_session, open_session

_POLL = 0.1  # seconds


def state_folder(config: Config, consumer: str) -> Path:
    """Return the default folder of a consumer's checkpoint."""
    base = os.environ.get("RELAY_STATE")
    return (Path(base) if base else Path.home() / ".local" / "state" / "relay") / config.name / consumer


def run(
    consumers: Sequence[Consumer], config: Config, *, until_caught_up: bool, start: str | None, checkpoint: Path | None
) -> None:
    """Run until SIGTERM (returns), SIGINT (raises ``KeyboardInterrupt``), or, if asked, until caught up.

    Several consumers share one Spark session. One that fails is started again a while later, and the others go on;
    ``until_caught_up`` raises its failure at the end. ``checkpoint``: the folder of the only consumer; of several, that
    of their folders. Raises ``RelayError``. Only the main thread can handle the signals.
    """
    with ExitStack() as stack:
        runners = [
            Runner(each, config, _checkpoint(each, config, checkpoint, consumers), until_caught_up, stack)
            for each in consumers
        ]
        for runner in runners:
            runner.refuse_start(start)

        def stop(signum: int) -> None:
            for runner in runners:
                runner.stop(signum)

        with signals(stop):
            locks = [lock for runner in runners for lock in runner.take_locks()]
            for runner in runners:
                runner.connect(start)
            name, delta = "relay " + " ".join(each.name for each in consumers), any(each.delta for each in consumers)
            memory = "1g" if len(consumers) == 1 else "2g"
            # The JVM holds the locks too, since it may go on writing for a moment after this process ends.
            session = open_session(name, delta=delta, keep_open=[lock.descriptor for lock in locks], memory=memory)
            stack.callback(close_session, session)
            if len(runners) == 1:
                runners[0].run(session)
            else:
                _run_together(runners, session)
    if any(runner.stopping == signal.SIGINT for runner in runners):
        raise KeyboardInterrupt


def _checkpoint(
    consumer: Consumer, config: Config, given: Path | None, consumers: Sequence[Consumer]
) -> ConsumerCheckpoint:
    if given is None:
        return ConsumerCheckpoint(state_folder(config, consumer.name).absolute())
    return ConsumerCheckpoint((given if len(consumers) == 1 else given / consumer.name).absolute())


def _run_together(runners: Sequence[Runner], session: SparkSession) -> None:
    """Run each in a thread of its own. Raises the first failure that no new start can repair."""
    threads = [
        Thread(target=runner.keep_running, args=(another_session(session, delta=runner.consumer.delta),), daemon=True)
        for runner in runners
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if any(runner.failure is not None and not isinstance(runner.failure, RelayError) for runner in runners):
            for runner in runners:
                runner.stop(signal.SIGTERM)  # a mistake of ours: nobody knows what else is wrong
        for thread in threads:
            thread.join(_POLL)  # handles signals in between
    for runner in runners:
        if runner.failure is not None:
            raise runner.failure

"""Starts one consumer, or several in one Spark: their checkpoints, their locks, the session, and their end."""

import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

from pyspark.sql import SparkSession

from relay.config import Config
from relay.errors import RelayError
from relay.kafka.group_offsets import check_start, own_name
from relay.process import folders
from spark_consumers.checkpoint import ConsumerCheckpoint
from spark_consumers.consumer import Consumer
from spark_consumers.consumer_http import served
from spark_consumers.executors import check
from spark_consumers.locations import Lock, below, local_folder, refuse_on_cluster
from spark_consumers.runner import Runner
from spark_consumers.running import log_event, signals
from spark_consumers.session import (
    another_session,
    close_session,
    existing_session,
    is_cluster,
    open_session,
    refuse_contradiction,
    refuse_lack_of_delta,
    refuse_other_meanings,
    use_local_checkpoint,
)
from spark_consumers.sinks.delta import refuse_replaced

_POLL = 0.1  # seconds


def state_folder(config: Config, consumer: str) -> str:
    """Return the default location of a consumer's checkpoint."""
    base = os.environ.get("RELAY_STATE") or str(folders.state_folder())  # which may be a URI
    return below(base, config.name, own_name(config, consumer))


def run(
    consumers: Sequence[Consumer],
    config: Config,
    *,
    until_caught_up: bool,
    start: str | None,
    checkpoint: Path | str | None,
    session: SparkSession | None = None,
    http: str | None = None,
    is_program: bool = False,
) -> None:
    """Run consumers as `spark_consumers.run` does, several in one Spark session.

    If one of several fails, it is restarted a while later, and the others continue; ``until_caught_up`` raises its
    failure at the end. ``is_program``: whether ``start`` comes from a program, which passes it at each start, and not
    from a person, who has to know if a checkpoint continues elsewhere.
    """
    if start is not None:
        check_start(start, option="start" if is_program else "--from")
    with ExitStack() as stack:
        watches = stack.enter_context(served(config, [(each.name, each.topics) for each in consumers], http))
        runners = [
            Runner(each, config, _checkpoint(each, config, checkpoint, consumers), until_caught_up, watch)
            for each, watch in zip(consumers, watches, strict=True)
        ]
        for each, watch in zip(consumers, watches, strict=True):
            watch.set_aside = each.set_aside
        existing = existing_session(session)
        master = config.spark.master if existing is None else str(existing.sparkContext.master)
        if is_cluster(master) and not config.spark.shared_folders:
            _refuse_local_folders(runners, master)
        refused = None if is_program else start
        for runner in runners:
            if runner.checkpoint.local is not None:
                runner.refuse_start(refused)

        def stop(signum: int) -> None:
            for runner in runners:
                runner.stop(signum)

        with signals(stop):
            locks = [lock for runner in runners for lock in runner.take_locks(stack)]
            for runner in runners:
                runner.connect(stack)
                if runner.checkpoint.local is not None:
                    runner.refuse_start(refused)  # another process may have begun it while this one waited
                    _begin(runner, start, stack)
            opened = session_for(consumers, config, session, locks, stack)
            if is_cluster(master):
                modules = sorted({name for each in consumers for name in each.executor_modules})
                check(opened, modules, lambda: any(runner.stopping for runner in runners))
            for runner in runners:
                if runner.checkpoint.local is None:
                    runner.checkpoint.open(opened)
                    runner.refuse_start(refused)
                    _begin(runner, start, stack)
                for location in (runner.checkpoint.location, runner.consumer.location):
                    if location is not None and local_folder(location) is None:
                        problem = "nothing here prevents a second driver: run only one"
                        log_event("no lock", runner.consumer.name, location=location, error=problem)
            _run(runners, opened, is_ours=session is None)
    if any(runner.stopping == signal.SIGINT for runner in runners):
        raise KeyboardInterrupt
    for each in consumers if until_caught_up else ():
        for table, (_, why) in each.set_aside().items():
            raise RelayError(f"{each.name}: table {table} is set aside: {why}")  # I12


def _begin(runner: Runner, start: str | None, stack: ExitStack) -> None:
    """Store where a new checkpoint starts, or report that an existing one continues where it is."""
    point, name = runner.checkpoint, runner.consumer.name
    if start is not None and point.exists:
        log_event("goes on", name, start=start, checkpoint=point.location, offsets=point.resume())
    runner.begin(start, stack)


def session_for(
    consumers: Sequence[Consumer], config: Config, given: SparkSession | None, locks: Sequence[Lock], stack: ExitStack
) -> SparkSession:
    """Return the ``given`` session once it is checked, otherwise a new one, which ``stack`` closes if we own it.

    ``locks``: locks that the JVM holds, too: it may write for a moment after this process ends.
    """
    delta = any(each.delta for each in consumers)
    if given is not None:
        refuse_contradiction(given, config.spark)
        refuse_other_meanings(given)
        refuse_replaced(given, (each.location or "" for each in consumers))
        refuse_lack_of_delta(given, delta)
        return given
    name = "relay " + " ".join(each.name for each in consumers)
    memory = "1g" if len(consumers) == 1 else "2g"
    held = [lock.descriptor for lock in locks]
    opened = open_session(name, delta=delta, spark=config.spark, keep_open=held, memory=memory)
    stack.callback(close_session, opened)
    return opened


def _refuse_local_folders(runners: Sequence[Runner], master: str) -> None:
    for runner in runners:
        refuse_on_cluster(f"{runner.consumer.name}: its checkpoint (--checkpoint)", runner.checkpoint.location, master)
        if runner.consumer.location is not None:
            key = {"log": "log.path", "copy": "copy.url"}.get(runner.consumer.name.partition(".")[0], "its target")
            refuse_on_cluster(f"{runner.consumer.name}: its table (`{key}`)", runner.consumer.location, master)


def _checkpoint(
    consumer: Consumer, config: Config, given: Path | str | None, consumers: Sequence[Consumer]
) -> ConsumerCheckpoint:
    if given is None:
        return ConsumerCheckpoint(state_folder(config, consumer.name))
    return ConsumerCheckpoint(str(given) if len(consumers) == 1 else below(str(given), consumer.name))


def _run(runners: Sequence[Runner], session: SparkSession, *, is_ours: bool) -> None:
    """Run each consumer in its own session, if the session is ours, with suitable settings."""
    sessions = [session] * len(runners)
    if len(runners) > 1:
        sessions = [another_session(session, delta=each.consumer.delta) if is_ours else session for each in runners]
    for runner, own in zip(runners, sessions, strict=True):
        if is_ours and runner.checkpoint.local is not None:
            use_local_checkpoint(own)
    if len(runners) == 1:
        runners[0].run(session)
    else:
        _run_together(runners, sessions)


def _run_together(runners: Sequence[Runner], sessions: Sequence[SparkSession]) -> None:
    """Run each consumer in its own thread. Raises the first failure that a restart cannot repair."""
    threads = [
        Thread(target=runner.keep_running, args=(session,), daemon=True)
        for runner, session in zip(runners, sessions, strict=True)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if any(runner.failure is not None and not isinstance(runner.failure, RelayError) for runner in runners):
            for runner in runners:
                runner.stop(signal.SIGTERM)  # our own bug: it is unknown what else is wrong
        for thread in threads:
            thread.join(_POLL)  # handles signals in between
    for runner in runners:
        if runner.failure is not None:
            raise runner.failure

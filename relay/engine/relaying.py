"""Relays the sources of a config: opens what a worker needs, runs the worker, and restarts it where that helps."""

import gc
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

from relay.avro.registry import open_schemas
from relay.config import Config
from relay.engine.config_reload import ReloadedConfig
from relay.engine.connected_sources import ConnectedSources
from relay.engine.topic_writers import open_topic_writers
from relay.engine.worker import Worker
from relay.errors import NotDrained, RelayError
from relay.kafka import topics
from relay.kafka.checkpoints import requested_partitions
from relay.kafka.freshness import MissedDeletions
from relay.kafka.limits import largest_records, with_batches
from relay.kafka.publisher import Probe
from relay.kafka.settings import KafkaSettings
from relay.observe.observer import Observer
from relay.observe.server import serve_observer
from relay.process.signals import Signals
from relay.stream.lost_state import LostState

log = logging.getLogger(__name__)

# The longest that a thread waits for Python's lock while another one computes. A change passes several threads.
_SWITCH_SECONDS = 0.001


def run(
    config: Config,
    *,
    until_caught_up: bool = False,
    settings: KafkaSettings | None = None,
    probe: Probe | None = None,
    reload: Callable[[], Config] | None = None,
) -> None:
    """Relay the sources of ``config`` until SIGTERM (returns) or SIGINT (raises ``KeyboardInterrupt``).

    ``settings``: settings of the Kafka clients that replace the config's. ``reload``: reads the config again on SIGHUP.
    Raises ``RelayError``. Call it from the main thread, since it handles signals.
    """
    reloaded = ReloadedConfig(config, reload or (lambda: config))
    connections = ConnectedSources(reloaded)
    # I10: the observer's knowledge outlives a worker
    with Signals(reloaded.request) as signals, closing(reloaded), serve_observer(config) as observer:
        while True:
            dropped, is_over = "", False  # text, because an error would keep alive the frames it was raised in
            try:
                is_over = _run(connections, reloaded, observer, signals, until_caught_up, settings, probe)
            except MissedDeletions as error:
                dropped = str(error)
                log.warning("%s; starting again from the checkpoints in Kafka", dropped)
                observer.liveness.failed(f"dropped with its worker: {dropped}")
            except RelayError as error:
                if error.source is None:
                    raise
                dropped = str(error)
                connections.refuse_plan(error.source, error)
            signals.stop = None  # that worker has ended
            if dropped and signals.stopping is not None:
                raise NotDrained(f"{dropped}; the next start publishes the open transaction again")
            if is_over or signals.stopping is not None:
                how = "stopped; everything published is committed" if signals.stopping else "everything is caught up"
                log.info(how)
                if signals.stopping == signal.SIGINT:
                    raise KeyboardInterrupt
                return
            gc.collect()  # objects of that run in reference cycles, with its Kafka clients


def _run(
    connections: ConnectedSources,
    reloaded: ReloadedConfig,
    observer: Observer,
    signals: Signals,
    until_caught_up: bool,
    settings: KafkaSettings | None,
    probe: Probe | None,
) -> bool:
    """Run a worker. Return whether the relay should end, instead of starting again with other sources."""
    config = reloaded.config
    with ExitStack() as opened:
        connections.begin()
        admin = topics.connect(config)
        connected = connections.connect()
        sources = list(connected.values())
        names = [table.table for source in sources for table in source.tables()]
        found = topics.create_missing(admin, config, names, partial(requested_partitions, config, admin))
        settings = settings or KafkaSettings.from_config(config)
        limits = largest_records(found, settings.producer)
        settings = replace(settings, producer=with_batches(settings.producer, limits), limits=limits)
        # Open for as long as tables may change.
        schemas = opened.enter_context(closing(open_schemas(config)))
        tables = [table for source in sources for table in source.tables()]
        lost = LostState(admin, config)
        lost.require_schemas(schemas, tables)
        writers = open_topic_writers(config, admin, settings, schemas, tables)
        worker = Worker(
            settings,
            connected,
            writers,
            observer=observer,
            config=reloaded,
            connections=connections,
            until_caught_up=until_caught_up,
            probe=probe,
        )
        signals.stop = worker.stop
        # Objects created from here on live as long as a page, and hardly ever form cycles.
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        sys.setswitchinterval(_SWITCH_SECONDS)
        try:
            return worker.run(lost)
        finally:
            gc.unfreeze()

"""Serves what consumers show of themselves over HTTP, and looks at the ends of their topics meanwhile."""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from ipaddress import ip_address
from threading import Event, Thread

from relay.cache import open_store
from relay.config import Config
from relay.config.addresses import at_port, host_port
from relay.errors import RelayError
from relay.kafka.group_offsets import GroupOffsets
from relay.observe.access import Access
from relay.observe.consumers import STALLED_AFTER, ConsumersObserver, ConsumerWatch
from relay.observe.server import serve, stalled_after
from spark_consumers.running import log_event

_LOOK = 5.0  # seconds between two looks at the ends of the topics
_ANYWHERE = ("192.0.2.1", 9)  # an address for documentation


@contextmanager
def served(
    config: Config, consumers: Sequence[tuple[str, Sequence[str]]], http: str | None
) -> Iterator[list[ConsumerWatch]]:
    """Yield a watch for each consumer, by name and topics, and serve them at the address ``http``, if there is one.

    Who may look, and TLS, are as in ``http`` of the config. Raises ``ConfigError``, and ``Unavailable`` if it cannot
    listen there.
    """
    observer, limit = ConsumersObserver(config.name), stalled_after(STALLED_AFTER)
    ttls = {"cache": config.cache.tombstone_ttl} if config.cache else {}
    waits = {name: each.apply_every for name, each in (("log", config.log), ("copy", config.copy_)) if each}
    observer.watches = watches = [
        ConsumerWatch(
            name,
            topics,
            observer.counted,
            tombstone_ttl=ttls.get(name),
            apply_every=waits.get(name, 0.0),
            stalled_after=limit,
        )
        for name, topics in consumers
    ]
    if config.cache and any(watch.name == "cache" for watch in watches):
        with suppress(RelayError), open_store(config.cache.url) as store:  # else the consumer says what is wrong
            log_event("memory", "cache", servers=[f"{each.server}: {each}" for each in store.memory()])
    if http is None:
        yield watches
        return
    host, port = host_port(http)
    stop = Event()
    threads = [Thread(target=_look, args=(config, watch, stop), daemon=True, name="lag") for watch in watches]
    with serve(observer, host, port, "--http", Access(config.http)) as address:
        for watch in watches:
            watch.address = _from_elsewhere(address)
            log_event("http", watch.name, address=address)
        for thread in threads:
            thread.start()
        try:
            yield watches
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def _from_elsewhere(address: str) -> str:
    """Return an address that other machines can use if they can reach this one, and the name of this one."""
    host, port = host_port(address)
    name = socket.gethostname()
    if ip_address(host).is_unspecified:
        # Sends nothing: it only chooses the address of the route to others. The name may have a loopback address.
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(_ANYWHERE)
            host = probe.getsockname()[0]
    return f"{at_port(host, port)}@{name}"


def _look(config: Config, watch: ConsumerWatch, stop: Event) -> None:
    """Look at the topics' ends, and at the memory of a cache, until ``stop``.

    Brokers that do not answer are noticed by the time of the last look.
    """
    with closing(GroupOffsets(config, watch.name, watch.topics)) as group:
        while not stop.wait(0 if watch.reached is None else _LOOK):
            reached, at = watch.reached, time.monotonic()
            if reached is None:
                stop.wait(0.2)
                continue
            with suppress(RelayError):
                watch.look(*group.locate(reached), at)
            if config.cache and watch.name == "cache":
                with suppress(RelayError), open_store(config.cache.url) as store:
                    watch.memory = store.memory()

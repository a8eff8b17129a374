"""Serves the consumers' state over HTTP, and looks up the ends of their topics meanwhile."""

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from ipaddress import ip_address
from threading import Event, Thread

from relay.cache import open_store
from relay.config import Config
from relay.config.addresses import at_port, host_port
from relay.errors import ConfigError, RelayError, Unavailable
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
    """Yield a watch for each consumer, by name and topics, and serve them at the address ``http``.

    Without it they are served on a free port beside the relay's, so that its page finds them; see ``_served_at``.
    Access and TLS are as in ``http`` of the config. Raises ``ConfigError``, and ``Unavailable`` if it cannot listen at
    ``http``.
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
            apply_every=waits.get(name.partition(".")[0], 0.0),  # log.-80 is the log of a key range
            stalled_after=limit,
        )
        for name, topics in consumers
    ]
    if config.cache and any(watch.name == "cache" for watch in watches):
        with suppress(RelayError), open_store(config.cache.url) as store:  # the consumer itself reports errors
            log_event("memory", "cache", servers=[f"{each.server}: {each}" for each in store.memory()])
    with ExitStack() as stack:
        if (address := _served_at(config, observer, http, stack)) is not None:
            stop = Event()
            threads = [Thread(target=_look, args=(config, watch, stop), daemon=True, name="lag") for watch in watches]
            for watch, thread in zip(watches, threads, strict=True):
                watch.address = _from_elsewhere(address)
                log_event("http", watch.name, address=address)
                thread.start()
                stack.callback(thread.join)
            stack.callback(stop.set)
        yield watches


def _served_at(config: Config, observer: ConsumersObserver, http: str | None, stack: ExitStack) -> str | None:
    """Serve ``observer``, and return the address; None if it cannot be served and ``http`` is None."""
    access = config.http
    if http is not None:
        return stack.enter_context(serve(observer, *host_port(http), "--http", Access(access)))
    if access is None or access.user or access.bearer:  # with a password, the relay asks only those in its config
        return None
    try:
        return stack.enter_context(serve(observer, host_port(access.address)[0], 0, "http", Access(access)))
    except (ConfigError, Unavailable) as error:  # the address or the certificate may be the relay's machine's alone
        log_event("http", observer.watches[0].name, error=str(error))
        return None


def _from_elsewhere(address: str) -> str:
    """Return an address for other machines that can reach this one, and this machine's name."""
    host, port = host_port(address)
    name = socket.gethostname()
    if ip_address(host).is_unspecified:
        # Sends nothing: it only chooses the address of the route to others. The name may have a loopback address.
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(_ANYWHERE)
            host = probe.getsockname()[0]
    return f"{at_port(host, port)}@{name}"


def _look(config: Config, watch: ConsumerWatch, stop: Event) -> None:
    """Look at the topics' ends, and a cache's store and group, until ``stop``. A look's time shows silent brokers."""
    cache = config.cache if watch.name == "cache" else None
    with closing(GroupOffsets(config, watch.name, watch.topics, cache=cache.place if cache else "")) as group:
        while not stop.wait(0.2 if watch.reached is None else _LOOK):
            reached, at = watch.reached, time.monotonic()
            if reached is None:
                continue
            with suppress(RelayError):
                watch.look(*group.locate(reached), at)
                # Two consumers that start at once both find the group empty.
                watch.store.rival = group.other_cache() if cache else None
            if cache:
                try:
                    with open_store(cache.url) as store:
                        watch.store.look(store.memory())
                except RelayError as error:
                    watch.store.look(error)

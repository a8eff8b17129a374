"""The transactional producers of one worker, which are used in turns."""

import fcntl
import logging
import math
import re
import secrets
import socket
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import suppress
from functools import partial
from typing import IO, Self, TypeVar

from relay.errors import NoAnswer, RelayError, Unavailable
from relay.kafka.publisher import Aborted, Fenced, Probe, Publisher
from relay.kafka.settings import KafkaSettings
from relay.process.folders import state_folder
from relay.process.slow_call import SlowCall

log = logging.getLogger(__name__)
T = TypeVar("T")

_SLOTS = 256


class Identity:
    """The ``transactional.id`` of a worker: a numbered slot of this host, which saves a timeout after a crash."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock: IO[str] | None = None
        instance = re.sub(r"[^a-zA-Z0-9._-]", "_", socket.gethostname()) or "host"
        slot = self._claim()
        own = f".{secrets.token_hex(4)}-0" if slot is None else f"-{slot}"
        self.transactional_id = f"{name}-{instance}{own}"

    def renew(self) -> None:
        """Switch to a random id, because another worker has fenced this one (with the same host name, for example)."""
        self.transactional_id = f"{self.name}-{secrets.token_hex(8)}-0"

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _claim(self) -> int | None:
        # Without a folder to write to, a random id works too, but recovers more slowly from a crash.
        with suppress(OSError, Unavailable):
            folder = state_folder() / self.name
            folder.mkdir(parents=True, exist_ok=True)
            for slot in range(_SLOTS):
                lock = (folder / f"slot-{slot}.lock").open("w")
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    lock.close()
                    continue
                self._lock = lock
                return slot
        return None


_TRIES = 3
_GIVE_UP_AFTER = 120.0
_TELL_EVERY = 10.0  # seconds


class Producers:
    """Opens two producers under the worker's name, which take turns, and replaces each one that is spent."""

    def __init__(
        self, settings: KafkaSettings, *, probe: Probe | None = None, stop_by: Callable[[], float] = lambda: math.inf
    ) -> None:
        self.settings = settings
        self._probe = probe
        self.stop_by = stop_by
        # Called with the reason while no producer can be opened, by the thread that opens all.
        self.tell: Callable[[str], None] = lambda why: None
        self._identity = Identity(settings.name)
        # In the order of their turns, including the places of producers that are being opened.
        self._ready: list[Publisher] = []
        self._opening: list[SlowCall[Publisher]] = []
        self._is_closing = False

    @property
    def name(self) -> str:
        return self._identity.transactional_id

    def open(self) -> None:
        """Open the producers, which aborts what a predecessor with this name left open. Raises ``Unavailable``."""
        try:
            self._open_all()
        except Unavailable:
            self.release()  # at the start, there is no worker yet that would notice
            raise

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Publisher:
        """Return the producer of the next transaction. Raises ``Fenced``, ``Unavailable`` and ``NotDrained``."""
        while True:
            while self._opening and not (self._ready or wait(self._opening, _TELL_EVERY, FIRST_COMPLETED).done):
                self.tell(f"{self.name}: no broker has given its producers a new epoch yet")  # I10: see `_patiently`
            for each in [each for each in self._opening if each.done()]:
                self._opening.remove(each)
                try:
                    self._ready.append(each.result())
                except Aborted as error:  # I10: nothing is left to abort or retry
                    raise Fenced(f"cannot take a new epoch: {error}") from error
            publisher = self._ready.pop(0)
            if not publisher.is_spent:
                self._ready.append(publisher)
                return publisher
            log.info("%s: one of its requests may still be under way; taking a new epoch", publisher.transactional_id)
            self._opening.append(SlowCall(publisher.transactional_id, partial(self._patiently, publisher.renew)))

    def start_over(self, *, under_a_new_name: bool) -> None:
        """Open all producers again. Under the old name, this aborts an open transaction at once."""
        self.close()
        if under_a_new_name:
            self._identity.renew()
        self._open_all()

    def close(self) -> None:
        """End the producers. An open transaction stays open until the broker or a successor aborts it."""
        self._is_closing = True
        while self._opening:
            try:
                self._ready.append(self._opening.pop().result())
            except (Aborted, Fenced, RelayError) as error:
                log.info("%s: another producer was not opened: %s", self.name, error)
        self._is_closing = False
        while self._ready:
            self._ready.pop().close()

    def release(self) -> None:
        """Let another process on this machine use the name."""
        self._identity.release()

    def _open_all(self) -> None:
        settings = self.settings
        make = partial(Publisher, settings.producer, limits=settings.limits, probe=self._probe, stop_by=self.stop_by)
        for _ in range(_TRIES):
            try:
                for transactional_id in (self.name, f"{self.name}.2"):
                    self._ready.append(self._patiently(partial(make, transactional_id), self.tell))
                return
            except (Aborted, Fenced) as error:
                log.info("the transactional id %s is in use (%s); taking another", self.name, error)
                self.close()
                self._identity.renew()
        raise Unavailable(
            f"cannot get a transactional id from {settings.client['bootstrap.servers']} in {_TRIES} tries"
        )

    def _patiently(self, connect: Callable[[], T], tell: Callable[[str], None] = lambda why: None) -> T:
        """Try several clients: a new one may get through where another did not."""
        deadline = time.monotonic() + _GIVE_UP_AFTER
        while True:
            try:
                return connect()
            except NoAnswer as error:
                if self._is_closing:  # I10: the worker waits for this attempt
                    raise
                if time.monotonic() > deadline:
                    what = f"{error}; other clients got no answer for {_GIVE_UP_AFTER:.0f} s either"
                    raise Unavailable(what) from error
                log.info("%s; trying with another client", error)
                tell(str(error))  # I10: the worker waits here, and nothing else would say why

"""The transactional producers of one worker, which take turns."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from relay.errors import Unavailable
from relay.kafka.identity import Identity
from relay.kafka.publisher import Aborted, Fenced, Probe, Publisher
from relay.kafka.settings import KafkaSettings

log = logging.getLogger(__name__)

_TRIES = 3


class Producers:
    """Opens producers under the worker's name. ``probe``, ``stop_by``: see ``Publisher``."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        probe: Probe | None = None,
        stop_by: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self.settings = settings
        self._probe = probe
        self._stop_by = stop_by
        self._identity = Identity(settings.name)

    def __repr__(self) -> str:
        return f"<Producers[{self.name}]>"

    @property
    def name(self) -> str:
        return self._identity.transactional_id

    def open(self) -> list[Publisher]:
        """Open the producers, and so abort what a predecessor of this name left open. Raises ``Unavailable``."""
        try:
            return self._opened()
        except Unavailable:
            self.release()  # at a start there is no worker yet that would
            raise

    def _opened(self) -> list[Publisher]:
        for _ in range(_TRIES):
            publishers: list[Publisher] = []
            try:
                publishers.extend(map(self._open, self._identity.transactional_ids))
                return publishers
            except (Aborted, Fenced) as error:
                log.info("the transactional id %s is in use (%s); taking another", self.name, error)
                for publisher in publishers:
                    publisher.close()
                self._identity.renew()
        raise Unavailable(
            f"cannot get a transactional id from {self.settings.client['bootstrap.servers']} in {_TRIES} tries"
        )

    def _open(self, transactional_id: str) -> Publisher:
        return Publisher(
            self.settings.producer,
            transactional_id,
            limits=self.settings.limits,
            probe=self._probe,
            stop_by=self._stop_by,
        )

    def renew(self) -> None:
        """Take another name: another worker has fenced this one."""
        self._identity.renew()

    def release(self) -> None:
        """Let another process of this machine have the name."""
        self._identity.release()

"""How long a consumer waits for a value's schema before it considers the value foreign, and makes it a dead letter.

The relay publishes a schema before it uses it, so a missing one is delayed, for example by a mirror of the topics, or
was never published.
"""

import math
import time
from collections.abc import Callable, Iterable
from itertools import chain, repeat

from relay.avro.decode import WriterSchemas
from relay.errors import Unavailable
from spark_consumers.dead_letters import UnknownSchemas
from spark_consumers.running import RETRY_DELAYS, log_event, pause

PATIENCE = 300.0  # seconds for which a schema has to stay unknown while the registry or topic answers all the time
# The share of the time since a schema was given up that later ones may take: a foreign writer may send many.
_SHARE = 0.1
_REMEMBERED = 1000  # headers given up


class SchemaWait:
    """Looks for missing schemas in ``schemas``. ``given_up``: the headers whose values are foreign.

    If ``waits`` is False, a header is given up at the first look. Used by one thread at a time.
    """

    def __init__(
        self, schemas: WriterSchemas, consumer: str, *, waits: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._schemas = schemas
        self._consumer = consumer
        self._waits = waits
        self._clock = clock
        self.given_up: tuple[bytes, ...] = ()
        # When each header was first found to be unknown, and when the last one was given up.
        self._since: dict[bytes, float] = {}
        self._expired_at = math.inf

    def wait(self, unknown: UnknownSchemas, stopping: Callable[[], object]) -> None:
        """Return once each schema is known or given up, or a signal came. Raises ``Unavailable``."""
        for delay in chain(RETRY_DELAYS, repeat(RETRY_DELAYS[-1])):
            if self.look(unknown.headers):
                return
            log_event("retry", self._consumer, wait=delay, error=str(unknown))
            if pause(delay, stopping):
                return

    def look(self, headers: Iterable[bytes]) -> bool:
        """Look again, and return whether each schema is known or given up. Raises ``Unavailable``."""
        try:
            missing = [header for header in headers if self._schemas.lookup(header) is None]
        except Unavailable:
            self._since.clear()  # I1: nobody could publish it meanwhile
            raise
        now = self._clock()
        self._since = {header: self._since.get(header, now) for header in missing}
        expired = [header for header, since in self._since.items() if self._is_expired(now - since, since)]
        self._expired_at = now if expired else self._expired_at
        given_up = [header for header in missing if header in expired or header in self.given_up]
        earlier = [header for header in self.given_up if header not in headers]
        self.given_up = (*earlier[-_REMEMBERED:], *given_up)
        return len(given_up) == len(missing)

    def _is_expired(self, waited: float, since: float) -> bool:
        of_all = self._expired_at <= since and waited > _SHARE * (since - self._expired_at)  # I11
        return not self._waits or waited >= PATIENCE or of_all

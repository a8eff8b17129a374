"""The texts that SELECT prints of values, and the values that a binlog has in their place."""

from __future__ import annotations

import ipaddress
import uuid
from collections.abc import Callable
from datetime import UTC, datetime


def stored(base: str) -> Callable[[bytes], bytes]:
    """Return what turns the text of a ``uuid``, ``inet4`` or ``inet6`` into its stored bytes."""
    if base == "uuid":
        return lambda raw: uuid.UUID(raw.decode("ascii")).bytes
    return lambda raw: ipaddress.ip_address(raw.decode("ascii")).packed


class _Microseconds(dict[bytes, int]):
    """Microseconds of TIMESTAMPs by their text, which is UTC. Neighbouring rows often have the same.

    Shared by the readers' threads without a lock: an entry that two of them add is the same.
    """

    def __missing__(self, text: bytes) -> int:
        if len(self) > 10_000:
            self.clear()
        whole, _, fraction = text.decode("ascii").partition(".")
        if whole == "0000-00-00 00:00:00":
            made = 0
        else:
            seconds = int(datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp())
            made = seconds * 1_000_000 + int(fraction.ljust(6, "0"))
        self[text] = made
        return made


MICROSECONDS = _Microseconds()

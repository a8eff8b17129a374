"""Connections that work, but are lost again and again, because something between the two ends them."""

ADVICE = (
    "source %s: shard %s: its connection is lost every few seconds. Look for a time limit on connections in a proxy or "
    "load balancer (`timeout server` of HAProxy, `mysql-wait_timeout` of ProxySQL), and for a job that ends sessions. "
    "The last error: %s"
)

_MANY = 10
_SECONDS = 60.0


class LostOften:
    """Whether the last losses of a connection, each after it had worked, were ten within a minute."""

    def __init__(self) -> None:
        self.is_often = False
        self._at: list[float] = []

    def note(self, now: float) -> bool:
        """Note a loss at ``now``, monotonic seconds. Return whether losses have become frequent, to be told once."""
        was = self.is_often and now - self._at[-1] < _SECONDS  # until a minute has passed without a loss
        self._at = [*self._at[-_MANY + 1 :], now]
        self.is_often = was or (len(self._at) == _MANY and now - self._at[0] < _SECONDS)
        return self.is_often and not was

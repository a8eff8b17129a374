"""What statements have done to tables without a change: which records say so, and which are out of date."""

from collections.abc import Callable

from relay.kafka.checkpoints import CheckpointView, partition_of

_Of = tuple[str, str, int]  # a source, one of its tables, and a partition of the checkpoints


class AlteredTables:
    """The keys of the records, by table and partition, also of those that the ``view`` does not show yet.

    Of each table and partition the first and the last are kept: the first says since when.
    """

    def __init__(self, view: CheckpointView) -> None:
        self._view = view
        # As the open transaction leaves them; and as earlier ones did, until the view shows that.
        self._open: dict[_Of, list[bytes]] = {}
        self._committed: dict[_Of, list[bytes]] = {}
        self._is_shown: Callable[[], bool] = bool

    def add(self, source: str, table: str, place: int, key: bytes) -> list[bytes]:
        """Add a record in the open transaction. Return the keys of those to remove there."""
        known = [each for each in self._keys((source, table, place)) if each != key]  # I12: it may come again
        self._open[source, table, place] = [*known[:1], key]
        return known[1:]

    def forget(self, source: str, table: str, place: int) -> list[bytes]:
        """Return the keys of the records to remove in the open transaction, since nobody can read the table again."""
        found = self._keys((source, table, place))
        self._open[source, table, place] = []
        return found

    def committed(self) -> None:
        """The transaction was committed."""
        if self._open:
            self._committed.update(self._open)
            self._open.clear()
            self._is_shown = self._view.watch({place for _, _, place in self._committed})

    def aborted(self) -> None:
        """The transaction was aborted, and what was added or forgotten in it."""
        self._open.clear()  # I12

    def start_over(self) -> None:
        self._open.clear()
        self._committed.clear()

    def _keys(self, of: _Of) -> list[bytes]:
        if self._committed and self._is_shown():
            self._committed.clear()  # I12: others remove records too
        if (found := self._open.get(of, self._committed.get(of))) is not None:
            return found
        source, table, place = of
        seen = (each.key for each in self._view.altered_of(source) if each.tables == (table,))
        return [key for key in seen if partition_of(key) == place]

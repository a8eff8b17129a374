"""The statements of one transaction of a binlog: which tables they empty, and which of them are published."""

import logging
from collections.abc import Iterable

from relay.gtid import GtidSet
from relay.mysql.binlog.events import Statement
from relay.mysql.layouts import Layouts
from relay.mysql_dialect.followed_tables import AppliedStatement
from relay.mysql_dialect.statements import Classified
from relay.mysql_dialect.tables import Table

log = logging.getLogger(__name__)

REMOVED_UNSEEN = "nothing in the binlog has removed the one before, as with `sql_log_bin = 0`"


class LoggedStatements:
    """Follows the statements of a shard.

    ``emptied``: the tables that the open transaction empties. ``gone``: those of them that it creates, and that nothing
    in the binlog has removed. ``published``: its statements that are published.
    """

    def __init__(self, layouts: Layouts) -> None:
        self.source = layouts.source
        self.layouts = layouts
        self.followed = layouts.followed()
        self.emptied: list[Table] = []
        self.gone: list[str] = []
        self.published: list[AppliedStatement] = []

    def begin(self) -> None:
        self.emptied = []
        self.gone = []
        self.published = []

    def read(self, event: Statement, said: Classified, executed: GtidSet, gtid: str) -> None:
        """Follow a statement of the transaction ``gtid``. ``said``: what it does. ``executed``: before it."""
        self.followed.begin(said, executed, event.timestamp)
        self.gone += (gone := self.followed.gone_unseen(said))
        applied = self.followed.apply(said, event.sql, event.sql_mode, self.layouts.known())
        if not event.is_published:
            return
        if applied is not None:
            self.published.append(applied)
        if said.temporary:
            return
        for name in gone:
            log.warning(
                "source %s: table %s is created at %s, but %s: it is taken for emptied here. Check that no other "
                "changes are missing",
                self.source,
                name,
                gtid,
                REMOVED_UNSEEN,
            )
        self._empty([*self.layouts.emptied(said), *gone], gtid)  # I1

    def _empty(self, names: Iterable[str], gtid: str) -> None:
        for name in names:
            table = self.layouts.last(name)
            if table is not None:
                self.emptied.append(table)
                continue
            # A TRUNCATE needs the layout of its table.
            log.warning(
                "source %s: cannot relay that table %s.%s was emptied at %s: no row of it was read before, and it no "
                "longer exists",
                self.source,
                self.layouts.database,
                name,
                gtid,
            )

"""A server's own filters, which leave changes out of its binlog or its replication without any event."""

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

from relay.mysql.connection import FILTERS, LEAVE_NOTHING_OUT, ServerConnection
from relay.mysql.errors import Denied
from relay.mysql_dialect.charsets import lowered

log = logging.getLogger(__name__)

_BY_DATABASE = (
    "source %s: %s: this %s is filtered by database: a TRUNCATE, DROP or ALTER of tables of %s that is executed in "
    "another database may not be in its binlog. Remove `%s_do_db` and `%s_ignore_db` from its configuration"
)
_NO_REWRITES = (
    "source %s: %s: this MariaDB %s does not say whether `replicate_rewrite_db` renames %s, whose changes would be "
    "missing: look at its configuration, or upgrade it to 10.11"
)
# Databases of the servers themselves.
_SYSTEM = {"information_schema", "innodb_memcache", "mysql", "performance_schema", "sys"}


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of a binlog or replication. ``shows_rewrites``: whether they have ``Rewrite_DB`` (MariaDB 10.11+)."""

    texts: Mapping[str, str]
    shows_rewrites: bool = True

    @classmethod
    def of(cls, status: Mapping[str, object], prefix: str) -> Self:
        """Read them from a status. ``prefix``: ``Binlog`` or ``Replicate``."""
        start = f"{prefix}_"
        named = {name.removeprefix(start): text for name, text in status.items() if name.startswith(start)}
        return cls({name: str(text) for name, text in named.items() if text}, "Rewrite_DB" in named)

    @classmethod
    def of_settings(cls, settings: Mapping[str, str]) -> Self:
        """Read them from the settings of a MariaDB server, which keeps them after it stops replicating."""
        return cls({name: text for name in FILTERS if (text := settings.get(f"replicate_{name.lower()}", ""))})

    def as_stored(self) -> Self:
        """Return them for a server that stores names in lower case."""
        return replace(self, texts={name: lowered(text) for name, text in self.texts.items()})

    def against(self, database: str) -> str | None:
        """Return the name of the filter that leaves out all rows of a database, or None."""
        if wanted := self._listed("Do_DB"):
            return None if database in wanted else "Do_DB"
        return "Ignore_DB" if database in self._listed("Ignore_DB") else None

    def unproven(self, database: str) -> str | None:
        """Return the name of a filter that may leave out changes of a database, or None if all certainly arrive.

        Statements are filtered by other rules than rows. So a filter certainly leaves nothing out only if it includes
        all tables of the database, or ignores only the servers' own tables.
        """
        whole = ("Wild_Do_Table", f"{database}.%")
        others = {name: text for name, text in self.texts.items() if not self._ignores_system_tables(name, database)}
        return next((name for name, text in others.items() if (name, text.replace("\\", "")) != whole), None)

    def _ignores_system_tables(self, name: str, database: str) -> bool:
        """Whether a filter leaves out only the servers' own tables, and none of ``database``."""
        patterns = {each.partition(".")[0] for each in self._listed(name)}
        stored = database.partition(".")[0].lower()  # servers compare `database.table` as one text, ignoring case
        is_about_system = name in ("Ignore_Table", "Wild_Ignore_Table") and patterns <= _SYSTEM
        return is_about_system and not any(_matches(each, stored) for each in patterns)

    def is_of_others(self, database: str) -> bool:
        """Whether a replication carries no rows of any table of a database."""
        wanted = [*self._listed("Do_Table"), *self._listed("Wild_Do_Table")]
        has_none = bool(wanted) and not any(_matches(each.partition(".")[0], database) for each in wanted)
        return has_none or self.against(database) is not None

    def _listed(self, name: str) -> list[str]:
        return [each.strip() for each in self.texts.get(name, "").split(",") if each.strip()]


def require_unfiltered(
    server: ServerConnection, replications: Iterable[Filters], database: str, *, is_origin: bool = False
) -> None:
    """Raise ``Denied`` unless a server's answers prove that it leaves out no change of ``database`` (I1).

    ``is_origin``: whether ``database`` may be written on this server, besides its ``replications``.
    """
    address, stored = server.account.address, database
    binlog = Filters.of(server.binlog_status(), "Binlog")
    if server.stores_lower_case:
        stored, binlog, replications = lowered(stored), binlog.as_stored(), [each.as_stored() for each in replications]
    if (name := binlog.against(stored)) is not None:
        raise Denied(
            f"{address}: its binlog leaves out changes of tables of {database}: remove `binlog_{name.lower()}` from "
            "its configuration and restart it"
        )
    may_bring = [each for each in replications if not (is_origin and each.is_of_others(stored))]
    said = [f"Replicate_{name} is {each.texts[name]}" for each in may_bring if (name := each.unproven(stored))]
    said += [
        f"{name} is {value}, not {' or '.join(filter(None, values))}"
        for name, values in LEAVE_NOTHING_OUT.items()
        if may_bring and (value := server.settings.get(name, values[0]).upper()) not in values
    ]
    if said:
        raise Denied(
            f"{address}: it may leave out changes that it replicates: its {said[0]}: remove this setting, or leave the "
            f"server out of `shards`. If {database} is written here, and not replicated, list this server alone"
        )


def warn_of_filters(source: str, server: ServerConnection, replications: Iterable[Filters], database: str) -> None:
    """Log a warning if a server may leave out statements without showing it."""
    address = server.account.address
    filtered = [
        ("binlog", "binlog", Filters.of(server.binlog_status(), "Binlog")),
        *(("replica", "replicate", each) for each in replications),
    ]
    for what, prefix, filters in filtered:
        if filters.texts.keys() & {"Do_DB", "Ignore_DB"}:
            log.warning(_BY_DATABASE, source, address, what, database, prefix, prefix)
        if what == "replica" and not filters.shows_rewrites:
            log.warning(_NO_REWRITES, source, address, server.version, database)


def _matches(pattern: str, name: str) -> bool:
    """Whether a pattern of LIKE matches."""
    parts = re.findall(r"\\?.", pattern, re.DOTALL)
    signs = {"%": ".*", "_": "."}
    return re.fullmatch("".join(signs.get(each) or re.escape(each[-1]) for each in parts), name, re.DOTALL) is not None

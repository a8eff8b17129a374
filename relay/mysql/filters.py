"""What a server leaves out by filters of its own, of its binlog or of what it replicates. No event shows it."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from relay.mysql.connection import ServerConnection
from relay.mysql.errors import Denied

log = logging.getLogger(__name__)

_LEAVE_NOTHING_OUT = {
    "replica_exec_mode": "STRICT",
    "replica_skip_errors": "OFF",
    "replicate_events_marked_for_skip": "REPLICATE",
    "slave_exec_mode": "STRICT",
    "slave_skip_errors": "OFF",
}
"""Settings of a replica, and the only value of each that lets it apply all that it gets."""

_NAMES = ("Do_DB", "Ignore_DB", "Do_Table", "Ignore_Table", "Wild_Do_Table", "Wild_Ignore_Table")


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of a binlog or of one replication, by their names in its status. Tables are ``database.table``.

    ``others``: what its status says of filters that are not known here.
    """

    lists: Mapping[str, Sequence[str]]
    others: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, status: Mapping[str, object], prefix: str) -> Filters:
        """Read them from a status. ``prefix``: ``Binlog`` or ``Replicate``."""
        found = {name: str(status.get(f"{prefix}_{name}") or "").split(",") for name in _NAMES}
        lists = {name: [each.strip() for each in listed if each.strip()] for name, listed in found.items()}
        named = {name.removeprefix(f"{prefix}_"): str(text) for name, text in status.items() if text}
        others = {name: text for name, text in named.items() if f"{prefix}_{name}" in status and name not in _NAMES}
        return cls(lists, others)

    def lower(self) -> Filters:
        lists = {name: [each.lower() for each in listed] for name, listed in self.lists.items()}
        return Filters(lists, {name: text.lower() for name, text in self.others.items()})

    def unknown(self, database: str) -> str | None:
        """Return the name of a filter that may leave out changes of a database: any but other databases'."""
        for name, text in self.others.items():
            if name != "Rewrite_DB" or database in re.split(r"[(),\s]|->", text):
                return name
        return None

    def against(self, database: str, table: str) -> str | None:
        """Return the name of the filter that leaves out changes of a table, or None if none does.

        ``table``: "" for all tables of the database, including future ones.
        """
        lists, name = self.lists, f"{database}.{table}"
        if lists["Do_DB"]:
            if database not in lists["Do_DB"]:
                return "Do_DB"
        elif database in lists["Ignore_DB"]:
            return "Ignore_DB"
        if table and name in lists["Do_Table"]:
            return None
        if any(each == name or (not table and each.startswith(name)) for each in lists["Ignore_Table"]):
            return "Ignore_Table"
        if any(_matches(each, f"{database}.{table or '%'}") for each in lists["Wild_Do_Table"]):
            return None
        if any(_matches(each if table else each.partition(".")[0] + ".", name) for each in lists["Wild_Ignore_Table"]):
            return "Wild_Ignore_Table"
        return next((wanted for wanted in ("Do_Table", "Wild_Do_Table") if lists[wanted]), None)

    def is_of_others(self, database: str) -> bool:
        """Whether a replication brings no change of any table of a database."""
        lists = self.lists
        if database in lists["Ignore_DB"] or (lists["Do_DB"] and database not in lists["Do_DB"]):
            return True
        wanted = [*lists["Do_Table"], *lists["Wild_Do_Table"]]
        return bool(wanted) and not any(_matches(each.partition(".")[0], database) for each in wanted)


def require_unfiltered(
    server: ServerConnection,
    replications: Iterable[Filters],
    database: str,
    tables: Collection[str],
    *,
    is_origin: bool = False,
) -> None:
    """Raise ``Denied`` if a server leaves out changes of ``tables``, or of any in ``database`` if none is named (I1).

    ``replications``: the filters of each replication. A table may come by any of them. ``is_origin``: whether the
    server may be the one in which ``database`` is written, beside what it replicates.
    """
    address, chosen = server.account.address, list(tables) or [""]
    binlog = _as_stored(server, Filters.of(server.binlog_status, "Binlog"))
    replicated = [_as_stored(server, each) for each in replications]
    may_bring = [each for each in replicated if not (is_origin and each.is_of_others(database))]
    said = [f"Replicate_{name} is {each.others[name]}" for each in may_bring if (name := each.unknown(database))]
    said += [
        f"{name} is {value}, not {all_}"
        for name, all_ in _LEAVE_NOTHING_OUT.items()
        if may_bring and (value := server.settings.get(name, all_).upper()) != all_
    ]
    if said:
        raise Denied(
            f"{address}: it may leave out changes that it replicates: its {said[0]}: remove this setting, or leave the "
            "server out of `shards`"
        )
    for table in chosen:
        what = f"{database}.{table}" if table else f"tables of {database}"
        if (name := binlog.against(database, table)) is not None:
            raise Denied(
                f"{address}: its binlog leaves out changes of {what}: remove `binlog_{name.lower()}` from its "
                "configuration and restart it"
            )
        left_out = [(each, name) for each in replicated if (name := each.against(database, table)) is not None]
        # The same table may come by another replication, but a part of the database that comes by this one is missing.
        is_missing = any(not each.is_of_others(database) for each, _ in left_out)
        if left_out and (is_missing or len(left_out) == len(replicated)):
            if all(each.is_of_others(database) for each in replicated) and is_origin:
                continue
            filters, name = left_out[0]
            choice = "" if table or name.endswith("_DB") else ", name the relayed tables in `tables`"
            raise Denied(
                f"{address}: it does not replicate changes of {what}: its Replicate_{name} is "
                f"{','.join(filters.lists[name])}: remove this filter{choice}, or leave the server out of `shards`. If "
                f"{database} is written here, and not replicated, list this server alone"
            )


def warn_of_filters(source: str, server: ServerConnection, replications: Iterable[Filters], database: str) -> None:
    """Log a warning if a server leaves out statements because of the database that they are executed in."""
    filtered = [
        ("binlog", "binlog", Filters.of(server.binlog_status, "Binlog")),
        *(("replica", "replicate", each) for each in replications),
    ]
    for what, prefix, filters in filtered:
        if filters.lists["Do_DB"] or filters.lists["Ignore_DB"]:
            log.warning(
                "source %s: %s: this %s is filtered by database: a TRUNCATE, DROP or ALTER of tables of %s that is "
                "executed in another database may not be in its binlog. Remove `%s_do_db` and `%s_ignore_db` from its "
                "configuration",
                source,
                server.account.address,
                what,
                database,
                prefix,
                prefix,
            )


def _as_stored(server: ServerConnection, filters: Filters) -> Filters:
    return filters.lower() if server.stores_lower_case else filters


def _matches(pattern: str, name: str) -> bool:
    """Whether a pattern of LIKE matches."""
    parts = re.findall(r"\\?.", pattern, re.DOTALL)
    signs = {"%": ".*", "_": "."}
    return re.fullmatch("".join(signs.get(each) or re.escape(each[-1]) for each in parts), name, re.DOTALL) is not None

"""A keyspace of a real Vitess whose tables have lookup vindexes, and queries of the databases below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relay.keyspace import KeyspaceQueries
from relay.mysql.connection import ServerConnection, connect
from relay.services.mariadb import PASSWORD, USER
from relay.services.vitess import Vitess, database
from relay.vitess import LookupVindex

SHARDS = {"-80": ["low:1"], "80-": ["high:1"]}
_DATABASES = {"low:1": database("shop", "-80"), "high:1": database("shop", "80-")}
_TO = {"lookup": "varbinary(64)", "consistent_lookup": "varbinary(64)"}
"""By type, that of the column with the keyspace ids; else it has what `hash` makes them of."""


def _types(kind: str) -> tuple[str, str]:
    """Return the types of the columns of a lookup table: what is looked up, and what is found."""
    of_value = "bigint unsigned" if kind.startswith("lookup_unicodeloosemd5") else "varchar(20)"
    return of_value, _TO.get(kind.removesuffix("_unique"), "bigint unsigned")


def tables_of(kinds: Sequence[str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return tables and vschemas, by keyspace: for each kind of vindex a table that owns one, and one that does not."""
    tables, lookups = {}, {}
    vindexes: dict[str, Any] = {"hash": {"type": "hash"}}
    for kind in kinds:
        of_value, found = _types(kind)
        key = "v" if kind.endswith("_unique") else "v, keyspace_id"
        lookups[kind] = f"create table {kind}_rows (v {of_value}, keyspace_id {found}, primary key ({key}))"
        params = {"table": f"lookups.{kind}_rows", "from": "v", "to": "keyspace_id"}
        vindexes[f"by_{kind}"] = {"type": kind, "params": params, "owner": f"of_{kind}"}
        vindexes[f"not_own_{kind}"] = {"type": kind, "params": params}
        tables[f"of_{kind}"] = [{"column": "id", "name": "hash"}, {"column": "v", "name": f"by_{kind}"}]
        if kind.endswith("_unique"):
            tables[f"part_of_{kind}"] = [{"column": "v", "name": f"not_own_{kind}"}]
    created = "; ".join(f"create table {name} (id bigint primary key, v varchar(20), n int)" for name in tables)
    vschema = {
        "sharded": True,
        "vindexes": vindexes,
        "tables": {name: {"column_vindexes": columns} for name, columns in tables.items()},
    }
    unsharded = {"sharded": False, "tables": {f"{kind}_rows": {} for kind in kinds}}
    return {"shop": (created, vschema), "lookups": ("; ".join(lookups.values()), unsharded)}


def queries(cluster: Vitess, vindex: LookupVindex | str | None) -> KeyspaceQueries:
    def watch(address: str) -> ServerConnection:
        return connect("127.0.0.1", cluster.mariadb.port, USER, PASSWORD)

    def opened(address: str) -> Any:
        return cluster.mariadb.connect(database=_DATABASES[address], autocommit=True)

    return KeyspaceQueries("shop/shop", SHARDS, vindex, connect=opened, watch=watch)

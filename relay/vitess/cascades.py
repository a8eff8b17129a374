"""Warns of foreign keys whose actions are not logged: InnoDB changes those rows below the binlog."""

import logging
from collections.abc import Collection

from relay.errors import RelayError
from relay.vitess.tablets import Tablets

log = logging.getLogger(__name__)

_KEYS = (
    "select table_name, constraint_name, referenced_table_name, delete_rule, update_rule"
    " from information_schema.referential_constraints where constraint_schema = database()"
)
_UNLOGGED = ("CASCADE", "SET NULL", "SET DEFAULT")


def warn_of_cascades(source: str, tablets: Tablets, tables: Collection[str]) -> None:
    """Log a warning for each foreign key that changes rows of ``tables`` without logging it.

    ``tablets``: the tablets of one shard of the keyspace. The relay does not depend on the answer.
    """
    try:
        found = [[str(value) for value in row.values()] for row in tablets.execute(_KEYS)]
    except RelayError as error:
        log.warning("source %s: whether foreign keys change rows without logging it is not known: %s", source, error)
        return
    for table, key, referenced, on_delete, on_update in found:
        rules = (("ON DELETE", on_delete), ("ON UPDATE", on_update))
        actions = [f"{event} {rule}" for event, rule in rules if rule in _UNLOGGED]
        if table in tables and actions:
            log.warning(
                "source %s: changes by the foreign key %s to %s are not relayed: when rows of %s change, InnoDB runs "
                "%s without logging it. Make these changes in the application, or let vtgate make them with "
                "`foreignKeyMode: managed` in the VSchema",
                source,
                key,
                table,
                referenced,
                " and ".join(actions),
            )

"""The relay's source of MySQL and MariaDB, and queries that say how fresh they are: see ``relay/mysql/README.md``."""

from typing import TYPE_CHECKING

from relay.extras import lazily

if TYPE_CHECKING:
    from relay.mysql.queries import TokenQueries
    from relay.mysql.watcher import ReplicationWatcher

__all__ = ["ReplicationWatcher", "TokenQueries"]

if not TYPE_CHECKING:  # without this check, a type checker would accept any name
    __getattr__ = lazily(
        __name__, {"relay.mysql.queries": "TokenQueries", "relay.mysql.watcher": "ReplicationWatcher"}, "mysql"
    )

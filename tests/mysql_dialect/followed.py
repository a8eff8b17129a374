"""Two tables that are followed through rows and statements."""

from __future__ import annotations

from typing import Any

from relay.change import AlteredTable
from relay.config.protection import Protect
from relay.mysql_dialect.followed_tables import AppliedStatement, FollowedTables
from relay.mysql_dialect.statements import classify
from relay.mysql_dialect.tables import lay_out
from relay.table import Column

ITEMS = [Column("id", "long"), Column("name", "string"), Column("ssn", "string")]


class Followed:
    """The relayed tables ``items`` and ``new`` of the database ``shop``."""

    def __init__(
        self, protect: Protect | None = None, *, text: bool | None = True, rereads: Any = lambda *_: False
    ) -> None:
        self.rules = protect or {}
        self.tables = FollowedTables(
            "shop",
            ("items", "new").__contains__,
            self._rules_of,
            lambda: text,
            hides_values=bool(protect),
            rereads=rereads,
        )

    def _rules_of(self, table: str) -> Any:
        return self.rules.get(table, {})

    def read(self, table: str = "items") -> None:
        self.tables.read(lay_out("s", table, ITEMS, ["id"], rules=self._rules_of(table)))

    def apply(
        self, sql: str, existing: tuple[str, ...] = (), *, database: str = "shop", lower_case: bool = False
    ) -> AppliedStatement | None:
        said = classify(sql, database, lower_case=lower_case)
        applied = self.tables.apply(said, sql, False, existing)
        self.tables.keep()
        return applied

    def tables_of(self, sql: str) -> list[tuple[Any, ...]]:
        """Return name, new name, and the columns before and after of each table."""
        applied = self.apply(sql)
        return [] if applied is None else [shown(table) for table in applied.tables]


def shown(table: AlteredTable) -> tuple[Any, ...]:
    """Return the names of a table, and its columns before and after; ``"?"`` if not known, None if there is none."""

    def side(columns: Any, by: str | None) -> Any:
        return "?" if by is None else columns and " ".join(column.name for column in columns.columns)

    return (table.table, table.renamed_to, side(table.before, table.before_by), side(table.after, table.after_by))


ALL = "id name ssn"

"""The known tables of one shard between two of its statements, and the effect of each statement on them.

A table is known by rows that were read, or by statements whose effect follows from earlier knowledge.
``information_schema`` may be ahead of the stream. So its answer counts only for the first statement that began after
it, once everything executed before the answer has been read, and no statement was about the table (I8).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Self

from relay.change import AlteredTable, KnownBy, StatementText, TableColumns
from relay.config.protection import ColumnRules
from relay.gtid import GtidSet, MariaDBSet
from relay.mysql_dialect.alter_effects import keeps_values
from relay.mysql_dialect.altered import Shape, altered, created
from relay.mysql_dialect.protection import published_columns, rules_of
from relay.mysql_dialect.statement_text import Name, without_values
from relay.mysql_dialect.statements import Classified, Kind
from relay.mysql_dialect.tables import Table
from relay.table import Column

_KEPT = 20_000
# Words in each ALTER TABLE that removes a primary key, or adds a column that not every snapshot can read.
_MAY_REFUSE = re.compile("drop|float|real", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Known:
    """A known table. ``shape``: None if it does not exist. ``by``: how that is known."""

    shape: Shape | None
    by: KnownBy


@dataclass(frozen=True, slots=True)
class AppliedStatement:
    """A statement as it is published. ``kind``: such as ``ALTER``. ``tables``: the relayed ones that it changes.

    ``unseen``: tables whose rows may have changed unseen, with reasons. ``reread``: those that a snapshot reads again.
    ``shown``: its text without values, if it has changed any unseen.
    """

    kind: str
    sql: str
    text: StatementText
    tables: tuple[AlteredTable, ...]
    unseen: Mapping[str, str] = field(default_factory=dict)
    reread: tuple[str, ...] = ()
    shown: str = ""

    def noting_only(self, is_relayed: Callable[[str], bool]) -> Self:
        """Return it without a word of other tables whose rows it may have changed: no snapshot could read these."""
        unseen = {table: why for table, why in self.unseen.items() if is_relayed(table)}  # I12
        return replace(self, unseen=unseen, reread=tuple(table for table in self.reread if table in unseen))

    @property
    def size(self) -> int:
        """The approximate bytes of its record, including the columns of the tables."""
        columns = (len(each.columns) for table in self.tables for each in (table.before, table.after) if each)
        return 1000 + len(self.sql) + 60 * sum(columns)


@dataclass(frozen=True, slots=True)
class TablesNow:
    """The tables of the database now. ``executed``: the server's GTID set later. ``at``: its time, still later."""

    tables: dict[str, Shape]
    executed: GtidSet
    at: float


@dataclass(eq=False, repr=False)
class FollowedTables:
    """Follows the tables of one shard. Used by the thread that reads the shard.

    ``database``: the database's name in statements. ``is_relayed``: whether a table of it is. ``rules``: the rules of a
    table's protected columns. ``text``: whether a text column without a character set is text, see `Shape`.
    ``hides_values``: publish statements without their values, which may be values of protected columns. ``rereads``:
    whether a table is read again if its rows have changed unseen, by its name and its published columns, or None if
    those are unknown; a table known to lack a primary key never is.
    """

    database: str
    is_relayed: Callable[[str], bool]
    rules: Callable[[str], ColumnRules]
    text: Callable[[], bool | None]
    _: KW_ONLY
    hides_values: bool = False
    rereads: Callable[[str, Sequence[Column] | None], bool] = lambda name, columns: False

    def __post_init__(self) -> None:
        # The effects of the open statement on relayed tables, as in `AppliedStatement`.
        self._unseen: dict[str, str] = {}
        self._reread: set[str] = set()
        self._known: dict[str, _Known] = {}
        # What was known at `keep` about tables that have changed since; None if nothing was known.
        self._before: dict[str, _Known | None] = {}
        # The last layout of each table whose rows were read since the last statement that changed the table.
        self.layouts: dict[str, Table] = {}
        self._now: TablesNow | None = None  # the present tables, until that knowledge counts
        self._has_json = True  # MariaDB has no such type: it makes a LONGTEXT

    def keep(self) -> None:
        """Note that everything up to here is, or will be, published."""
        self._before.clear()
        if len(self._known) > _KEPT:  # I11
            self.forget()

    def undo(self) -> None:
        """Go back to the last `keep`: everything after it will be read again."""
        for name, known in self._before.items():
            self._know(name, known)
            self.layouts.pop(name, None)
        self._before.clear()

    def forget(self) -> None:
        self._known.clear()
        self._before.clear()
        self.layouts.clear()
        self._now = None

    def read(self, table: Table) -> None:
        """Note that rows with this layout were read. Only needed if it is not among `layouts`."""
        shape = self._known.get(table.name, _GONE).shape
        types = shape.types if shape is not None and shape.columns == table.columns else {}
        self._set(table.name, _Known(Shape(table.columns, table.primary, types=types), "rows"))
        self.layouts[table.name] = table

    def look(self, now: TablesNow) -> None:
        """Take the server's answer from when reading begins."""
        self._now = now if len(now.tables) <= _KEPT else None

    def begin(self, said: Classified, executed: GtidSet, began_at: int) -> None:
        """Use or correct the server's answer, before `apply`. ``executed``: the transactions before the statement.

        ``began_at``: when the statement began, in whole seconds (rounded down) by the clock of its server.
        """
        self._has_json = not isinstance(executed, MariaDBSet)
        now = self._now
        if now is None:
            return
        if began_at >= now.at + 1 and executed.contains(now.executed):  # I8
            for name, shape in now.tables.items():
                if name not in self._before:
                    known = self._known.setdefault(name, _Known(shape, "database"))
                    if known.shape is not None and known.shape.columns == shape.columns:
                        self._known[name] = replace(known, shape=replace(known.shape, types=shape.types))
            self._now = None
            return
        about = _names(said)
        for name in [name for name in now.tables if name.lower() in about]:
            del now.tables[name]
        if said.kind is Kind.DROP_DATABASE:
            self._now = None

    def gone_unseen(self, said: Classified) -> list[str]:
        """Return the relayed tables that were dropped unlogged, as a CREATE TABLE shows. Call it before `apply`."""
        if said.kind is not Kind.CREATE or said.temporary or said.replaces or said.if_absent:
            return []
        here = [name for database, name in said.tables if database == self.database and self.is_relayed(name)]
        return [name for name in here if (known := self._known.get(name)) is not None and known.shape is not None]

    def apply(self, said: Classified, sql: str, sql_mode: int, existing: Iterable[str] = ()) -> AppliedStatement | None:
        """Return a statement to publish, or None. ``existing``: what a DROP DATABASE drops besides known tables."""
        about = _names(said)
        for name in list(self._known):
            # I8: a server may ignore the case of names; then it is the same table.
            if name.lower() in about and name not in about[name.lower()]:
                self._set(name, None)
        self._unseen, self._reread = {}, set()
        tables = self._apply(said, sql, sql_mode, existing)
        if not tables:
            return None
        kind = "INDEX" if said.indexed is not None else "ALTER" if said.kind is Kind.CHANGE else said.kind.value.upper()
        text, shown = StatementText.COMPLETE, without_values(sql, sql_mode) if self.hides_values or self._unseen else ""
        if self.hides_values:
            sql, text = shown, StatementText.WITHOUT_VALUES
        reread = tuple(name for name in self._unseen if name in self._reread)
        return AppliedStatement(kind, sql, text, tuple(tables), self._unseen, reread, shown)

    def _apply(self, said: Classified, sql: str, sql_mode: int, existing: Iterable[str]) -> list[AlteredTable]:
        """Return the relayed tables that a statement changes, in its order."""
        if said.temporary:
            return []
        if said.indexed is not None:
            drops = said.drops_primary
            return self._each([said.indexed], lambda before: _without_primary(before) if drops else before)
        if said.kind is Kind.TRUNCATE:
            return self._each(said.tables, lambda before: before)
        if said.kind is Kind.DROP:
            return self._each(said.tables, lambda before: _GONE)
        if said.kind is Kind.DROP_DATABASE:
            if said.tables[0][0] != self.database:
                return []
            present = [name for name, known in self._known.items() if known.shape]
            names = dict.fromkeys([*existing, *present])
            return self._each([(self.database, name) for name in names], lambda before: _GONE)
        if said.kind is Kind.RENAME:
            return self._rename(said)
        if said.kind is Kind.CREATE:
            if not said.replaces and not said.if_absent:
                for database, name in said.tables:
                    if database == self.database:
                        self._set(name, _GONE)  # otherwise the statement would have failed
            return self._each(said.tables, lambda before: self._created(before, said, sql, sql_mode))
        if said.kind in (Kind.ALTER, Kind.CHANGE) and said.tables:
            return self._alter(said, sql, sql_mode)
        return []

    def _each(self, names: Iterable[Name], change: Callable[[_Known | None], _Known | None]) -> list[AlteredTable]:
        """Change each table of the database. ``change``: maps the table before the statement to the table after it."""
        found = []
        for database, name in names:
            if database != self.database:
                continue
            before = self._known.get(name)
            after = change(before)
            self._set(name, after)
            if self.is_relayed(name):
                found.append(self._published(name, before, name, after))
        return found

    def _rename(self, said: Classified) -> list[AlteredTable]:
        """Rename one table after the other, so that tables can be exchanged."""
        found = []
        for (old_database, old), (new_database, new) in said.renamed:
            is_here, stays = old_database == self.database, new_database == self.database
            moved = self._known.get(old) if is_here else None
            if is_here:
                self._set(old, _GONE)
                self._unseen.pop(old, None)
                self._reread.discard(old)
            if stays:
                self._set(new, moved)
                if self.is_relayed(new):
                    self._note_unseen(new, f"has the rows of {old} now", moved)  # I7
            if (is_here and self.is_relayed(old)) or (stays and self.is_relayed(new)):
                was = old if is_here else f"{old_database}.{old}"
                now = new if stays else f"{new_database}.{new}"
                found.append(replace(self._published(old, moved, new, moved), table=was, renamed_to=now))
        return found

    def _alter(self, said: Classified, sql: str, sql_mode: int) -> list[AlteredTable]:
        (_, name), before = said.tables[0], self._known.get(said.tables[0][1])
        changed = self._each(said.tables[:1], lambda before: self._altered(before, sql, sql_mode))
        shape = (before or _GONE).shape
        types = shape.types if shape is not None and (self.text() if shape.text is None else shape.text) else {}
        if changed and not keeps_values(types, sql, sql_mode):  # I7
            after = self._known.get(name)
            if after is None and before is not None:
                after = _UNREADABLE if _MAY_REFUSE.search(sql) else before
            self._note_unseen(name, "may have different values now", after)
        renamed = self._rename(said)
        if not renamed or said.tables[0][0] != self.database:
            return changed or renamed
        was = self._published(name, before, name, before)
        return [replace(renamed[0], before=was.before, before_by=was.before_by)]

    def _note_unseen(self, name: str, why: str, known: _Known | None) -> None:
        self._unseen[name] = why
        now = self._columns(name, known)
        # I10: no snapshot can read a table without one
        if (now is None or now.primary) and self.rereads(name, None if now is None else now.columns):
            self._reread.add(name)

    def _created(self, before: _Known | None, said: Classified, sql: str, sql_mode: int) -> _Known | None:
        if said.if_absent and not said.replaces and (before is None or before.shape is not None):
            return before
        if said.copied is None:
            shape = created(sql, sql_mode, self.text())
        else:
            database, name = said.copied
            known = self._known.get(name) if database == self.database else None
            shape = known.shape if known is not None else None
        return self._from_statement(shape)

    def _altered(self, before: _Known | None, sql: str, sql_mode: int) -> _Known | None:
        if before is None or before.shape is None:
            return None
        shape = before.shape if before.shape.text is not None else replace(before.shape, text=self.text())
        after = altered(shape, sql, sql_mode)
        return self._from_statement(after)

    def _from_statement(self, shape: Shape | None) -> _Known | None:
        if shape is None:
            return None
        if not self._has_json:
            columns = tuple(replace(each, sql="") if each.sql == "json" else each for each in shape.columns)
            types = {name: "longtext" if type_ == "json" else type_ for name, type_ in shape.types.items()}
            shape = replace(shape, columns=columns, types=types)
        return _Known(shape, "statement")

    def _set(self, name: str, known: _Known | None) -> None:
        self._before.setdefault(name, self._known.get(name))
        self._know(name, known)
        self.layouts.pop(name, None)

    def _know(self, name: str, known: _Known | None) -> None:
        if known is None:
            self._known.pop(name, None)
        else:
            self._known[name] = known

    def _published(self, name: str, before: _Known | None, new: str, after: _Known | None) -> AlteredTable:
        was_by, by = (None if known is None else known.by for known in (before, after))
        return AlteredTable(name, self._columns(name, before), was_by, self._columns(new, after), by)

    def _columns(self, name: str, known: _Known | None) -> TableColumns | None:
        if known is None or known.shape is None:
            return None
        shape = known.shape
        rules = rules_of(shape.columns, self.rules(name))
        protected = tuple((each.name, rules[each.name].kind) for each in shape.columns if each.name in rules)
        return TableColumns(published_columns(shape.columns, rules), shape.primary, protected)


_GONE = _Known(None, "statement")
_UNREADABLE = _Known(Shape((), ()), "statement")


def _names(said: Classified) -> dict[str, set[str]]:
    """Return the tables that a statement is about, by their name in lower case."""
    found: dict[str, set[str]] = {}
    for _, name in said.about:
        found.setdefault(name.lower(), set()).add(name)
    return found


def _without_primary(before: _Known | None) -> _Known | None:
    if before is None or before.shape is None:
        return None
    return _Known(replace(before.shape, primary=()), "statement")

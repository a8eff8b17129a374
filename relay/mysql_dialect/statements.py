"""What a logged statement does to tables: which ones it empties, drops, renames, creates or alters.

Not a parser: it knows how the statements that matter start.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from relay.mysql_dialect.alter_parts import discards, has_rows_elsewhere, part_of, takes_rows
from relay.mysql_dialect.charsets import lowered
from relay.mysql_dialect.statement_text import END, UNKNOWN_MODE, Token, is_sign, tokens

Name = tuple[str, str]
"""Database and table. A name without a database gets the one in which the statement was executed."""


class Kind(Enum):
    TRUNCATE = "truncate"
    DROP = "drop"
    RENAME = "rename"
    ALTER = "alter"
    CREATE = "create"
    DROP_DATABASE = "drop database"
    CHANGE = "change"  # rows, logged as a statement
    SAVEPOINT = "savepoint"
    ROLLBACK = "rollback"
    ROLLBACK_TO = "rollback to"
    XA_START = "xa start"
    XA_END = "xa end"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Classified:
    """What a statement does, and to which tables.

    ``tables``: those it empties, drops, alters, creates or renames. ``renamed``: the old and new name of each.
    ``names``: every name in a CHANGE that may be a table's. ``temporary``: it affects only temporary tables.
    ``calls``: a CHANGE that may be to tables it does not name: by a function, or the names were not all read.
    ``replaces``: a CREATE OR REPLACE, which leaves the table empty. ``indexed``: the table that an OTHER statement,
    CREATE INDEX or DROP INDEX, is about; ``drops_primary``: it drops the primary key. ``copied``: the table that a
    CREATE TABLE names after LIKE. ``if_absent``: a CREATE TABLE that does nothing if there is such a table already.
    ``creates``: a CHANGE that creates its table, with rows that are elsewhere. ``repairs``: a CHANGE only in an engine
    that has REPAIR TABLE.
    """

    kind: Kind
    tables: tuple[Name, ...] = ()
    renamed: tuple[tuple[Name, Name], ...] = ()
    names: tuple[Name, ...] = ()
    temporary: bool = False
    replaces: bool = False
    indexed: Name | None = None
    calls: bool = False
    copied: Name | None = None
    if_absent: bool = False
    drops_primary: bool = False
    creates: bool = False
    repairs: bool = False

    @property
    def about(self) -> tuple[Name, ...]:
        """The tables that it defines, changes or empties, by their names before and after it."""
        if self.temporary:
            return ()
        return (*self.tables, *(new for _, new in self.renamed), *([self.indexed] if self.indexed else []))

    @property
    def emptied(self) -> tuple[Name, ...]:
        """The tables that it empties, even if it fills them again, or that it renames; not a dropped database's.

        Not a table whose name another one takes in the same statement, as at the end of an online schema change.
        """
        if self.temporary:
            return ()
        if self.kind in (Kind.TRUNCATE, Kind.DROP) or self.replaces:
            return self.tables
        before: dict[Name, bool] = {}
        after: dict[Name, bool] = {}
        for old, new in self.renamed:
            before.setdefault(old, True)
            before.setdefault(new, False)
            after |= {old: False, new: True}
        return tuple(name for name, was_there in before.items() if was_there and not after[name])  # I1


# Common words of statements that change rows. They are names only if they are quoted.
# fmt: off
_RESERVED = (
    "AND", "AS", "BETWEEN", "BY", "CASE", "DELAYED", "DELETE", "FROM", "GROUP", "HAVING", "HIGH_PRIORITY",
    "IGNORE", "IN", "INNER", "INSERT", "INTERVAL", "INTO", "IS", "JOIN", "KEY", "LEFT", "LIKE", "LIMIT",
    "LOAD", "LOW_PRIORITY", "NOT", "NULL", "ON", "OR", "ORDER", "REPLACE", "RETURNING", "RIGHT", "SELECT",
    "SET", "TABLE", "THEN", "UPDATE", "USING", "VALUES", "WHEN", "WHERE", "WITH",
)
# fmt: on


class StatementScanner:
    """Reads a statement token by token. ``now``: the next token."""

    def __init__(self, sql: str, database: str, sql_mode: int, lower_case: bool = False) -> None:
        self._tokens = tokens(sql, sql_mode, with_literals=True)
        self._lower_case = lower_case
        self._database = self._stored(database)
        self.now = next(self._tokens, END)

    def step(self) -> Token:
        passed, self.now = self.now, next(self._tokens, END)
        return passed

    def at(self, sign: str) -> bool:
        return self.now.text == sign and not self.now.is_name

    def skip(self, *words: str) -> bool:
        """Skip the next word if it is one of these, and return whether it was."""
        if self.now.is_word(*words):
            self.step()
            return True
        return False

    def skip_if_exists(self) -> bool:
        found = self.skip("IF")
        if found:
            self.skip("NOT")
            self.skip("EXISTS")
        return found

    def skip_wait(self) -> None:
        if not self.skip("NOWAIT") and self.skip("WAIT"):
            while self.at(".") or self.now.text[:1].isdigit():  # any number
                self.step()

    @property
    def is_at_end(self) -> bool:
        return self.now is END or self.at(";")

    def name(self) -> Name | None:
        """Read ``table``, ``database.table``, or ``.table``, which servers take for ``table``."""
        database = None if self.at(".") or not self.now.is_name else self.named()
        if not self.at("."):
            return None if database is None else (self._database, database)
        self.step()
        if database is None and not self.now.is_quoted and self.now.text[:1].isdigit():
            return None  # a number
        return (self._database if database is None else database, self.named()) if self.now.is_name else None

    def named(self) -> str:
        """Skip a name, and return it as the server has it."""
        return self._stored(self.step().text)

    def _stored(self, name: str) -> str:
        return lowered(name) if self._lower_case else name  # I1

    def names(self) -> list[Name]:
        found = []
        while (name := self.name()) is not None:
            found.append(name)
            self.skip_wait()
            if not self.at(","):
                break
            self.step()
        return found

    def all_names(self) -> tuple[Name, ...]:
        found: dict[Name, None] = {}
        while self.now is not END:
            is_number = not self.now.is_quoted and self.now.text.isascii() and self.now.text.isdigit()
            name = None if is_number or self.now.is_word(*_RESERVED) else self.name()
            if name is None:
                self.step()
            else:
                found[name] = None
        return tuple(found)

    def unknown(self, *, is_unread: bool = False) -> Classified:
        """Return what a statement does that is not known here: it may change each table whose name is in its rest.

        ``is_unread``: not all names could be read, so it may change any table.
        """
        names = self.all_names()
        return Classified(Kind.CHANGE, names=names, calls=is_unread or not names)  # I1


_CHANGES = ("INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH")
# Logged only for the rows that a function changes.
_CALLS = ("SELECT", "DO", "CALL", "(", "VALUES", "TABLE")
# How other statements begin that servers log and that change no rows.
# fmt: off
_HARMLESS = (
    "", "BEGIN", "CHECK", "CHECKSUM", "COMMIT", "FLUSH", "GRANT", "INSTALL", "OPTIMIZE", "REVOKE", "START",
    "UNINSTALL",
)
# What CREATE, ALTER, DROP and RENAME may be about beside tables and indexes, and the words that may come before it.
_OBJECTS = (
    "AGGREGATE", "ALGORITHM", "CATALOG", "COMPRESSION_DICTIONARY", "DATABASE", "DEFINER", "EVENT", "FUNCTION",
    "INSTANCE", "JSON", "LIBRARY", "LOGFILE", "MATERIALIZED", "PACKAGE", "PROCEDURE", "REFERENCE", "RESOURCE",
    "ROLE", "SCHEMA", "SEQUENCE", "SERVER", "SQL", "TABLESPACE", "TRIGGER", "UNDO", "USER", "VIEW",
)
# fmt: on
# The first words of a statement that every session reads alike: the next sign may begin a text, a name or a comment.
_PLAIN = re.compile(r"[\x09-\x0d\x20]*(?:[0-9A-Za-z_]+(?:[\x09-\x0d\x20]+|(?==)))*")


def classify(sql: str, database: str, sql_mode: int = 0, *, lower_case: bool = False) -> Classified:
    """Return what a statement does. ``database``: the one in which it was executed. ``sql_mode``: of its session.

    ``lower_case``: the server has the names of tables and databases in lower case, however they are written.
    """
    is_unknown = sql_mode == UNKNOWN_MODE
    reader = StatementScanner(next(_PLAIN.finditer(sql))[0] if is_unknown else sql, database, sql_mode, lower_case)
    said = _read(reader)
    # Its first words are enough if they say that it is about no table, and are not all that was read of it.
    is_about_none = said == Classified(Kind.OTHER) and reader.now is not END
    if said is None or (is_unknown and not is_about_none):  # I1: it may be about a table whose name was not found
        return StatementScanner(sql, database, sql_mode, lower_case).unknown(is_unread=True)
    return said


def _read(reader: StatementScanner) -> Classified | None:
    """Return what a statement does; None if it is about tables whose names are not all read."""
    if reader.skip("SET"):
        if not reader.skip("STATEMENT"):
            return Classified(Kind.OTHER)
        while reader.now is not END and not reader.now.is_word("FOR"):
            if reader.step().text.upper() == "SQL_MODE":  # I1: it is logged with this mode, and was read in another
                return None
        reader.step()
    first = reader.step()
    if first.is_word("TRUNCATE"):
        return _truncate(reader)
    if first.is_word("DROP"):
        return _drop(reader)
    if first.is_word("RENAME"):
        return _rename(reader) if reader.skip("TABLE", "TABLES") else _object(reader)
    if first.is_word("ALTER"):
        return _alter(reader)
    if first.is_word("CREATE"):
        return _create(reader)
    if first.is_word(*_CHANGES, *_CALLS):
        return Classified(Kind.CHANGE, names=reader.all_names(), calls=first.is_word(*_CALLS))
    if first.is_word("SAVEPOINT", "RELEASE"):
        return Classified(Kind.SAVEPOINT)
    if first.is_word("ROLLBACK"):
        reader.skip("WORK")
        return Classified(Kind.ROLLBACK_TO if reader.now.is_word("TO") else Kind.ROLLBACK)
    if first.is_word("XA"):
        if reader.skip("START", "BEGIN"):
            return Classified(Kind.XA_START)
        return Classified(Kind.XA_END if reader.now.is_word("END") else Kind.OTHER)
    if first.is_word("REPAIR"):  # I1: without the rows that it cannot find, in an engine that has it
        reader.skip("NO_WRITE_TO_BINLOG", "LOCAL")
        names = tuple(reader.names()) if reader.skip("TABLE", "TABLES") else ()
        while reader.skip("QUICK", "EXTENDED"):
            continue
        return Classified(Kind.CHANGE, names, names=names, repairs=reader.is_at_end) if names else _object(reader)
    if first.is_word("ANALYZE"):  # a table, or a statement, which it executes
        reader.skip("NO_WRITE_TO_BINLOG", "LOCAL")
        return Classified(Kind.OTHER) if reader.now.is_word("TABLE", "TABLES") else reader.unknown()
    return Classified(Kind.OTHER) if first.is_word(*_HARMLESS) else reader.unknown()


def _truncate(reader: StatementScanner) -> Classified | None:
    reader.skip("TABLE")
    table = reader.name()
    reader.skip_wait()
    if reader.skip("DROP", "REUSE"):
        reader.skip("STORAGE")
    return Classified(Kind.TRUNCATE, (table,)) if table is not None and reader.is_at_end else None


def _drop(reader: StatementScanner) -> Classified | None:
    temporary = reader.skip("TEMPORARY")
    if reader.skip("DATABASE", "SCHEMA"):
        reader.skip_if_exists()
        dropped = _database(reader)
        return dropped if reader.is_at_end else None
    if not reader.skip("TABLE", "TABLES"):
        return _index(reader, drops=True)
    reader.skip_if_exists()
    names = tuple(reader.names())
    reader.skip("RESTRICT", "CASCADE")
    return Classified(Kind.DROP, names, temporary=temporary) if names and reader.is_at_end else None


def _database(reader: StatementScanner) -> Classified | None:
    """Read the name of a database whose tables are dropped."""
    return Classified(Kind.DROP_DATABASE, ((reader.named(), ""),)) if reader.now.is_name else None


def _rename(reader: StatementScanner) -> Classified | None:
    reader.skip_if_exists()
    pairs: list[tuple[Name, Name]] = []
    while (old := reader.name()) is not None:
        reader.skip_wait()
        new = reader.name() if reader.skip("TO") else None
        if new is None:
            return None
        pairs.append((old, new))
        if not reader.at(","):
            break
        reader.step()
    return Classified(Kind.RENAME, tuple(old for old, _ in pairs), tuple(pairs)) if reader.is_at_end and pairs else None


def _alter(reader: StatementScanner) -> Classified | None:
    ignores = False
    while reader.now.is_word("ONLINE", "IGNORE"):
        ignores = reader.step().is_word("IGNORE") or ignores
    if not reader.skip("TABLE"):
        return _object(reader)
    reader.skip_if_exists()
    table = reader.name()
    if table is None:
        return None
    reader.skip_wait()
    renamed: Sequence[tuple[Name, Name]] = ()
    # Tables whose rows are added or removed without a row event.
    silently: list[Name] = []
    depth = 0
    # The first token of its part.
    first = token = END
    while not reader.is_at_end:
        before, token = token, reader.step()
        if depth == 0:
            first = part_of(first, token)
        depth += is_sign(token, "(") - is_sign(token, ")")
        if depth == 0 and token.is_word("RENAME") and not reader.now.is_word("COLUMN", "INDEX", "KEY"):
            if not reader.skip("TO", "AS") and reader.at("="):
                reader.step()
            new = reader.name()
            if new is None:
                return None
            renamed = ((table, new),)
        elif depth == 0 and (
            (silently and token.is_word("WITH", "TO") and reader.skip("TABLE"))
            or (token.is_word("CONVERT") and reader.skip("TABLE"))
        ):
            # The table that a partition is exchanged with or becomes, or that becomes a partition.
            silently += [name for name in (table, reader.name()) if name is not None and name not in silently]
        elif table not in silently and (
            (depth == 0 and first is not END and takes_rows(first, before, token, reader))
            or (ignores and discards(token, reader.now))
        ):
            silently.append(table)
    return Classified(Kind.CHANGE if silently else Kind.ALTER, (table,), tuple(renamed), tuple(silently))


def _create(reader: StatementScanner) -> Classified | None:
    replaces = reader.skip("OR") and reader.skip("REPLACE")
    temporary = reader.skip("TEMPORARY")
    if replaces and reader.skip("DATABASE", "SCHEMA"):
        return _database(reader)
    if replaces and not temporary and reader.skip("SEQUENCE"):  # I1: also a table of this name
        name = reader.name()
        return None if name is None else Classified(Kind.DROP, (name,))
    if not reader.skip("TABLE"):
        return _index(reader)
    if_absent = reader.skip_if_exists()
    table = reader.name()
    if table is None:
        return None
    depth = int(reader.at("("))
    if depth:
        reader.step()
    copied = reader.name() if reader.skip("LIKE") else None
    while not temporary and reader.now is not END:
        token = reader.step()
        depth += is_sign(token, "(") - is_sign(token, ")")
        if depth == 0 and has_rows_elsewhere(token, reader):  # I1
            return Classified(Kind.CHANGE, (table,), names=(table,), creates=True)
        is_list = token.is_word("VALUES") and not reader.now.is_word("LESS", "IN")  # and not a partition's
        if is_list or token.is_word("SELECT", "TABLE"):  # I1: logged as rows, it is a CREATE without this
            return Classified(Kind.CHANGE, names=(table,))
    return Classified(Kind.CREATE, (table,), temporary=temporary, replaces=replaces, copied=copied, if_absent=if_absent)


def _index(reader: StatementScanner, *, drops: bool = False) -> Classified:
    """Read the rest of CREATE INDEX or DROP INDEX, or of a statement about something else that is not a table."""
    while reader.now.is_word("ONLINE", "OFFLINE", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR"):
        reader.step()
    if not reader.skip("INDEX"):
        return _object(reader)
    reader.skip_if_exists()
    drops_primary = drops and reader.now.text.upper() == "PRIMARY"
    while reader.now is not END and not reader.skip("ON"):
        reader.step()
    return Classified(Kind.OTHER, indexed=reader.name(), drops_primary=drops_primary)


def _object(reader: StatementScanner) -> Classified:
    return Classified(Kind.OTHER) if reader.now.is_word(*_OBJECTS) else reader.unknown()

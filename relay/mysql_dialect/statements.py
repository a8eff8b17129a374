"""The effects of a logged statement on tables, by how relevant statements begin: this is not a parser."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from relay.mysql_dialect.alter_effects import discards, has_rows_elsewhere, part_of, takes_rows
from relay.mysql_dialect.statement_text import END, UNKNOWN_MODE, Name, StatementScanner


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
        """The tables that it empties, even if it fills them again, or renames; no tables of a dropped database.

        Excludes a table whose name another one takes in the same statement, as at the end of an online schema change.
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


_CHANGES = ("INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH")
_CALLS = ("SELECT", "DO", "CALL", "(", "VALUES", "TABLE")  # logged only because of rows that a function changes
# How other statements begin that servers log and that change no rows.
# fmt: off
_HARMLESS = (
    "", "BEGIN", "CHECK", "CHECKSUM", "COMMIT", "FLUSH", "GRANT", "INSTALL", "OPTIMIZE", "REVOKE", "START",
    "UNINSTALL",
)
# The objects of CREATE, ALTER, DROP and RENAME besides tables and indexes, and the words that may precede them.
_OBJECTS = (
    "AGGREGATE", "ALGORITHM", "CATALOG", "COMPRESSION_DICTIONARY", "DATABASE", "DEFINER", "EVENT", "FUNCTION",
    "INSTANCE", "JSON", "LIBRARY", "LOGFILE", "MATERIALIZED", "PACKAGE", "PROCEDURE", "REFERENCE", "RESOURCE",
    "ROLE", "SCHEMA", "SEQUENCE", "SERVER", "SQL", "TABLESPACE", "TRIGGER", "UNDO", "USER", "VIEW",
)
# fmt: on
# The first words of a statement that every session reads alike: the next sign may begin a text, a name or a comment.
_PLAIN = re.compile(r"[\x09-\x0d\x20]*(?:[0-9A-Za-z_]+(?:[\x09-\x0d\x20]+|(?==)))*")


def classify(sql: str, database: str, sql_mode: int = 0, *, lower_case: bool = False) -> Classified:
    """Return what a statement executed in ``database`` does. ``lower_case``: whether the server stores names so."""
    is_unknown = sql_mode & UNKNOWN_MODE == UNKNOWN_MODE
    reader = StatementScanner(next(_PLAIN.finditer(sql))[0] if is_unknown else sql, database, sql_mode, lower_case)
    said = _read(reader)
    # Its first words are enough if they show that it is about no table, and are not everything that was read.
    is_about_none = said == Classified(Kind.OTHER) and reader.now is not END
    if said is None or (is_unknown and not is_about_none):  # I1: it may be about a table whose name was not found
        return _unknown(StatementScanner(sql, database, sql_mode, lower_case), is_unread=True)
    return said


def _read(reader: StatementScanner) -> Classified | None:
    """Return what a statement does; None if it is about tables whose names could not all be read."""
    if reader.skip("SET"):
        if not reader.skip("STATEMENT"):
            return Classified(Kind.OTHER)
        while reader.now is not END and not reader.now.is_word("FOR"):
            if reader.step().text.upper() == "SQL_MODE":  # I1: it is logged with this mode, but was read in another
                return None
        reader.step()
    first = reader.step()
    if first.is_word(*_DEFINES):
        return _DEFINES[first.text.upper()](reader)
    if first.is_word(*_CHANGES, *_CALLS):
        return Classified(Kind.CHANGE, names=reader.all_names(), calls=first.is_word(*_CALLS))
    if first.is_word("SAVEPOINT", "RELEASE"):
        return Classified(Kind.SAVEPOINT)
    if first.is_word("ROLLBACK"):
        reader.skip("WORK")
        return Classified(Kind.ROLLBACK_TO if reader.now.is_word("TO") else Kind.ROLLBACK)
    if first.is_word("XA"):
        is_start, is_end = reader.now.is_word("START", "BEGIN"), reader.now.is_word("END")
        return Classified(Kind.XA_START if is_start else Kind.XA_END if is_end else Kind.OTHER)
    if first.is_word("REPAIR"):  # I1: rows that it cannot find are lost, in an engine that has REPAIR TABLE
        reader.skip("NO_WRITE_TO_BINLOG", "LOCAL")
        names = tuple(reader.names()) if reader.skip("TABLE", "TABLES") else ()
        while reader.skip("QUICK", "EXTENDED"):
            continue
        return Classified(Kind.CHANGE, names, names=names, repairs=reader.is_at_end) if names else _object(reader)
    if first.is_word("ANALYZE"):  # a table, or a statement that it executes
        reader.skip("NO_WRITE_TO_BINLOG", "LOCAL")
        return Classified(Kind.OTHER) if reader.now.is_word("TABLE", "TABLES") else _unknown(reader)
    return Classified(Kind.OTHER) if first.is_word(*_HARMLESS) else _unknown(reader)


def _unknown(reader: StatementScanner, *, is_unread: bool = False) -> Classified:
    """Return that it may change each table named in the rest, or any if ``is_unread``: some names were not read."""
    names = reader.all_names()
    return Classified(Kind.CHANGE, names=names, calls=is_unread or not names)  # I1


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
    return Classified(Kind.DROP_DATABASE, ((reader.named(), ""),)) if reader.now.is_name else None


def _rename(reader: StatementScanner) -> Classified | None:
    if not reader.skip("TABLE", "TABLES"):
        return _object(reader)
    is_conditional = reader.skip_if_exists()
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
    old_names = tuple(old for old, _ in pairs)
    if is_conditional and {*old_names} & {new for _, new in pairs}:  # I1: which of them existed is not logged
        return None
    return Classified(Kind.RENAME, old_names, tuple(pairs)) if reader.is_at_end and pairs else None


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
    silently: list[Name] = []  # tables whose rows are added or removed without a row event
    depth = 0
    first = token = END  # the first token of its part
    while not reader.is_at_end:
        before, token = token, reader.step()
        if depth == 0:
            first = part_of(first, token)
        depth += token.is_sign("(") - token.is_sign(")")
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
        depth += token.is_sign("(") - token.is_sign(")")
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
    return Classified(Kind.OTHER) if reader.now.is_word(*_OBJECTS) else _unknown(reader)


_DEFINES = {"TRUNCATE": _truncate, "DROP": _drop, "RENAME": _rename, "ALTER": _alter, "CREATE": _create}

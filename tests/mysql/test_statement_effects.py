"""After a statement the topic has the rows of the tables, or a warning or the end of the relay says that it has not."""

from __future__ import annotations

import os
import random
import re
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import pytest
from pymysql.err import MySQLError

from relay.change import Change
from relay.mysql.errors import NotCarried
from tests.mysql.reading import is_mysql, session
from tests.mysql.shards import begin, open_at, read_to_head, source_of
from tests.mysql.statement_effects import BOTH, COMMENTS, MARIADB, MYSQL, TABLES, Effect, written

pytestmark = pytest.mark.services

Rows = dict[str, dict[Any, Any]]
"""The column ``v`` by ``id``, of each table that has rows."""


def copied(changes: Iterable[Change]) -> Rows:
    rows: Rows = defaultdict(dict)
    for change in changes:
        if change.key is None:
            rows[change.table].clear()
        elif change.new is None:
            rows[change.table].pop(change.key["id"], None)
        else:
            rows[change.table][change.key["id"]] = change.new.get("v")
    return {table: found for table, found in rows.items() if found}


def keyed(server: Any, database: str) -> set[str]:
    """Return the tables with a key."""
    found = server.execute(
        "SELECT table_name FROM information_schema.columns WHERE column_key = 'PRI' AND column_name = 'id'"
        f" AND table_schema = '{database}'"
    )
    return {str(name) for (name,) in found}


class Played:
    """Statements that are executed in a database, each beside tables of its own, and read from there."""

    def __init__(self, server: Any, database: str, log: pytest.LogCaptureFixture, chance: random.Random | None) -> None:
        self.server, self.database, self.log, self.chance = server, database, log, chance
        self.failed: set[str] = set()  # statements that the server does not take

    def __call__(self, *statements: str) -> dict[str, Effect | str]:
        """Return what the relay makes of each, or which tables differ in silence."""
        self.log.clear()
        self.server.execute(f"DROP DATABASE IF EXISTS {self.database}")
        with session(self.server, self.database) as execute:
            source = source_of(self.database, self.server)
            with closing(open_at(source, begin(source)["-"])) as reader:
                for number, statement in enumerate(statements):
                    self._execute(execute, statement, number)
                try:
                    changes, _ = read_to_head(reader)
                except NotCarried:
                    return dict.fromkeys(statements, Effect.REFUSED)
        found = copied(changes)
        stored = {
            name: dict(self.server.execute(f"SELECT id, v FROM {self.database}.{name}"))
            for name in keyed(self.server, self.database)
        }
        rows = {name: each for name, each in stored.items() if each}
        differs = {name for name in found | rows if found.get(name) != rows.get(name)}
        warned = set(re.findall(r"table (\w+) has the rows of \w+ now, which no change shows", self.log.text))
        effects: dict[str, Effect | str] = {}
        for number, statement in enumerate(statements):
            own = {name for name in differs if name.endswith(f"_{number}")}
            in_silence = {name: (found.get(name), rows.get(name)) for name in own - warned}
            effects[statement] = repr(in_silence) if in_silence else Effect.WARNED if own else Effect.SHOWN
        return effects

    def _execute(self, execute: Any, statement: str, number: int) -> None:
        for name in sorted({"t", *re.findall(r"@(\w+)", statement)}, reverse=True):
            for sql in TABLES.get(name, ()):
                execute(written(sql, self.database, number))
        try:
            execute(written(statement, self.database, number, self.chance))
        except MySQLError:
            self.failed.add(statement)
        for table in keyed(self.server, self.database) & {f"t_{number}", f"u_{number}"}:
            self.server.execute(f"INSERT INTO {self.database}.{table} (id, v) VALUES (77, 7)")


def check(server: Any, database: str, log: pytest.LogCaptureFixture, chance: random.Random | None = None) -> None:
    expected = BOTH | (MYSQL if is_mysql(server) else MARIADB)
    play = Played(server, database, log, chance)
    alone = [sql for sql, effect in expected.items() if effect is Effect.REFUSED or " DATABASE " in sql]
    found = play(*(sql for sql in expected if sql not in alone))
    for sql in alone:
        found |= play(sql)
    assert (found, play.failed) == (expected, set())


def test_a_statement_has_the_same_effect_on_the_topic_as_on_the_tables_or_it_is_said(
    mariadb: Any, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I1, I7."""
    check(mariadb, unique, caplog)


@pytest.mark.faults("the same statements, written otherwise, and on another server")
@pytest.mark.parametrize("form", range(4))
def test_a_statement_has_the_same_effect_however_it_is_written(
    server: Any, unique: str, form: int, caplog: pytest.LogCaptureFixture
) -> None:
    """I1, I7. Its seed is ``RELAY_SEED``."""
    seed = int(os.environ.get("RELAY_SEED") or 40)
    check(server, unique, caplog, random.Random(seed + form) if form else None)


def test_a_comment_that_the_server_executes_is_read_and_no_other(
    server: Any, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I1, I7: neither server takes all of them, and each takes some that the other does not."""
    play = Played(server, unique, caplog, None)
    found = play(*COMMENTS)
    taken = {sql: effect for sql, effect in found.items() if sql not in play.failed}
    assert {sql: effect for sql, effect in taken.items() if effect not in (Effect.SHOWN, Effect.WARNED)} == {}
    assert len(taken) > len(COMMENTS) / 2
    assert {"CALL @renames()", "EXECUTE @prepared"} <= {*taken}
    assert ("TRUNCATE TABLE /*M! x. */ @t" in taken) == is_mysql(server)
    assert ("TRUNCATE TABLE /*!50708 x. */ @t" in taken) != is_mysql(server)

"""Text columns of a keyspace that hold bytes which are not characters, through the complete relay (I8)."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.services.vitess import Vitess, database
from tests import needs
from tests.command_line import run_until_caught_up
from tests.operations.unpublishable import tail

pytestmark = pytest.mark.services

_TABLE = "create table t (id bigint primary key, v varchar(9) character set greek, w text character set ucs2)"


def test_the_row_becomes_a_dead_letter_and_all_others_go_on(kafka: Any, unique: str, tmp_path: Path) -> None:
    """I8, I12: rows of a copy, and changes. By default the shard stops, and says at which row."""
    needs.vitess()
    unsharded = {"sharded": False, "tables": {"t": {}}}
    with Vitess(keyspaces={"one": ["0"]}, schemas={"one": (_TABLE, unsharded)}) as cluster:
        below = cluster.mariadb.connect(database=database("one", "0"), autocommit=True)
        with closing(below) as connection, connection.cursor() as cursor:
            path = tmp_path / "relay.yaml"

            def run(code: int, on_unencodable: str) -> str:
                entry = {"name": "s", "type": "vitess", "vtgate": cluster.vtgate, "keyspace": "one", "start": "copy"}
                servers = {"bootstrap_servers": kafka.bootstrap_servers, "partitions": 1}
                sources = [{**entry, "on_unencodable": on_unencodable}]
                path.write_text(yaml.safe_dump({"name": unique, "kafka": servers, "sources": sources}))
                return run_until_caught_up(path, code)

            cursor.execute("insert into t values (1, 'a', null), (2, _greek x'a4', null)")
            said = run(1, "fail")
            assert "the READ of t, key {'id': 2} in snapshot " in said
            assert "column 'v': b'\\xa4' is not text in the column's character set" in said
            run(0, "dead_letter")
            cursor.execute("insert into t values (3, 'b', null), (4, 'c', _ucs2 x'd800'), (5, 'd', null)")
            said = run(1, "fail")
            assert "the INSERT of t, key {'id': 4} at " in said
            assert "column 'w': b'\\xd8\\x00' is not text in the column's character set" in said
            run(0, "dead_letter")
            found = [
                (each["value"]["operation"], each["value"]["key"]["id"], each["value"]["images"])
                for each in tail(path, f"{unique}.t")
                if each["value"]["key"]
            ]
    assert found == [
        ("READ", 1, "NEW"),
        ("READ", 2, "OMITTED"),
        ("INSERT", 3, "NEW_AND_OLD"),
        ("INSERT", 4, "OMITTED"),
        ("INSERT", 5, "NEW_AND_OLD"),
    ]

"""Text columns that hold bytes which are not characters, and which the server itself shows as a question mark (I8)."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from relay.change import Uncarriable
from relay.errors import RelayError
from relay.mysql.kind import MySQLTableRows
from relay.services.mariadb import PASSWORD, USER
from tests.command_line import relay, run_until_caught_up
from tests.mysql.reading import Execute, session
from tests.mysql.shards import begin, open_at, read_until, short, source_of
from tests.operations.unpublishable import tail
from tests.reads import read_page

pytestmark = pytest.mark.services

GREEK = "varchar(9) character set greek"


@pytest.fixture(params=["off", "required"])
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_NATIVE", request.param)


def made(execute: Execute) -> None:
    execute(f"create table t (id int primary key, v {GREEK}, w text character set ucs2)")
    execute("create table u (id int primary key)")


@pytest.mark.usefixtures("native")
def test_the_row_becomes_a_dead_letter_and_all_others_go_on(
    kafka: Any, server: Any, unique: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """I8, I12: rows of a snapshot, and changes, each to and from such a text."""
    path = tmp_path / "relay.yaml"
    path.write_text(
        f"""name: {unique}
kafka: {{bootstrap_servers: "{kafka.bootstrap_servers}", partitions: 1}}
sources:
  - {{name: shop, type: mysql, database: {unique}, user: {USER}, password: {PASSWORD}, snapshot: initial,
     on_unencodable: dead_letter, shards: {{"-": ["{server.address}"]}}}}
"""
    )
    with session(server, unique) as execute:
        made(execute)
        execute("insert t values (1, 'a', null), (2, _greek x'a4', null)")
        run_until_caught_up(path)
        execute("insert t values (4, _greek x'61a4', null), (5, 'z', _ucs2 x'd800')")
        execute("update t set v = 'b' where id = 4")
        execute("update t set w = 'c' where id = 1")
        execute("delete from t where id = 2")
        execute("insert u values (1)")
    run_until_caught_up(path)
    found = [
        (each["value"]["operation"], each["value"]["key"]["id"], each["value"]["images"], each["value"]["new"])
        for each in tail(path, f"{unique}.t")
        if each["value"]["key"]
    ]
    assert found == [
        ("READ", 1, "NEW", {"id": 1, "v": "a", "w": None}),
        ("READ", 2, "OMITTED", None),
        ("INSERT", 4, "OMITTED", None),
        ("INSERT", 5, "OMITTED", None),
        ("UPDATE", 4, "OMITTED", None),
        ("UPDATE", 1, "NEW_AND_OLD", {"id": 1, "v": "a", "w": "c"}),
        ("DELETE", 2, "OMITTED", None),
    ]
    assert [each["value"]["operation"] for each in tail(path, f"{unique}.u") if each["value"]["key"]] == ["INSERT"]
    assert "column 'v': b'a\\xa4' is not text in the column's character set" in caplog.text
    letters = json.loads(relay("dead-letters", "list", path, "--json").stdout)
    kept = relay("dead-letters", "show", path, letters[0]["id"]).stdout
    assert json.loads(kept)["change"]["new"] == {"id": 2, "v": "pA==", "w": None}


@pytest.mark.usefixtures("native")
def test_by_default_the_shard_stops_before_the_row_and_says_which_it_is(server: Any, unique: str) -> None:
    """I8, I12: what was before it is published, and the error shows no other value."""
    with session(server, unique) as execute:
        made(execute)
        source = source_of(unique, server)
        start = begin(source)["-"]
        execute("insert t values (1, 'a', null), (4, _greek x'a4', 'secret')")
        reader = open_at(source, start)
        assert short(read_until(reader, bool)[0]) == [("INSERT", 1, "a")]
        with pytest.raises(RelayError) as refused:
            read_page(reader)
        said = "the INSERT of t, key {'id': 4} at ", f" of shop/{unique}/-", "column 'v': b'\\xa4'", "dead_letter"
        assert [part for part in said if part not in str(refused.value)] == []
        assert "secret" not in str(refused.value)
        reader.close()
        with closing(MySQLTableRows(source, ["-"], "t")) as rows:
            (_, (_, image)) = rows.all()
        assert isinstance(image, Uncarriable), "`relay verify` would compare it"


@pytest.mark.usefixtures("native")
def test_a_row_whose_key_is_such_a_text_is_refused_in_any_case(server: Any, unique: str) -> None:
    """I8: nothing could stand for it on the topic."""
    with session(server, unique) as execute:
        execute(f"create table k (name {GREEK} primary key, v int)")
        source = source_of(unique, server, on_unencodable="dead_letter")
        start = begin(source)["-"]
        execute("insert k values ('a', 1), (_greek x'a4', 2)")
        reader = open_at(source, start)
        assert [change.key for change in read_until(reader, bool)[0]] == [{"name": "a"}]
        said = r"shop/.*/-: \S+: source shop: \{'name': b'\\xa4'\} cannot be a key of k: b'\\xa4' is not text in "
        with pytest.raises(RelayError, match=said):
            read_page(reader)
        reader.close()

"""Foreign keys that change rows without logging it are warned of (I1)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from relay.config import VitessConfig
from relay.services.vitess import Vitess
from relay.source import Opening
from relay.vitess.source import VitessSource
from tests import needs
from tests.reads import pages_of

pytestmark = pytest.mark.services

_TABLES = (
    "create table parent (id int primary key);"
    "create table kept (id int primary key, parent int, foreign key (parent) references parent (id));"
    "create table child (id int primary key, parent int, constraint of_parent foreign key (parent)"
    " references parent (id) on delete cascade on update set null)"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Vitess]:
    needs.vitess()
    with Vitess(keyspaces={"shop": ["0"]}, schemas={"shop": (_TABLES, {"sharded": False})}) as own:
        yield own


def connected(cluster: Vitess, **settings: Any) -> VitessSource:
    entry = {"name": "s", "type": "vitess", "vtgate": cluster.vtgate, "keyspace": "shop", **settings}
    source = VitessSource(VitessConfig.model_validate(entry))
    source.connect()
    return source


def test_a_keyspace_gets_a_warning_for_each_foreign_key_that_changes_rows(
    cluster: Vitess, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        connected(cluster).close()
        said = [record.getMessage() for record in caplog.records]
        caplog.clear()
        connected(cluster, tables=["parent", "kept"]).close()
        assert caplog.records == []
    (warning,) = said
    assert "changes by the foreign key of_parent to child are not relayed" in warning
    assert "when rows of parent change, InnoDB runs ON DELETE CASCADE and ON UPDATE SET NULL" in warning


def test_rows_that_a_cascade_deletes_are_not_in_the_stream(cluster: Vitess) -> None:
    """If a later version has them, the warning must be removed."""
    with closing(connected(cluster)) as source:
        (shard,) = source.shards()
        start = source.starting_points([shard]).shards[shard.name]
        for statement in ("insert parent values (1)", "insert child values (10, 1)", "delete from parent"):
            cluster.execute(statement)
        assert cluster.execute("select * from child") == ()
        found: list[tuple[str, str]] = []
        with closing(source.open(Opening(shard, start))) as reader:
            while ("parent", "DELETE") not in found:
                for page in pages_of([reader.read()]):
                    found += [(change.table, change.operation.value) for change in page.changes]
    assert found == [("parent", "INSERT"), ("child", "INSERT"), ("parent", "DELETE")]

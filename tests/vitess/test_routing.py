"""Keyspace ids agree with the routing of a real Vitess: each row is in the shard of its keyspace id."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from random import Random
from typing import Any

import pytest

from relay.keyrange import shard_range
from relay.services.vitess import KEYSPACES, Vitess
from relay.vitess.vindex import keyspace_id
from tests import needs

pytestmark = pytest.mark.services

_RANDOM = Random(7)
_WHOLE: list[Any] = [
    0,
    1,
    2,
    -1,
    255,
    1 << 62,
    -(1 << 63),
    (1 << 63) - 1,
    *(_RANDOM.getrandbits(62) for _ in range(60)),
]
_NATURAL: list[Any] = [number for number in _WHOLE if number >= 0]
_TEXT: list[Any] = ["", "a", "A", "é", "Été", "ß", " b ", "日本", *(f"user-{n}" for n in range(60))]
_BYTES: list[Any] = [b"", b"\0", b"\xff" * 9, *(_RANDOM.randbytes(8) for _ in range(60))]
_KINDS: dict[str, tuple[str, list[Any]]] = {
    "hash": ("bigint", _WHOLE),
    "xxhash": ("bigint", _WHOLE),
    "numeric": ("bigint unsigned", [*_NATURAL, (1 << 64) - 1]),
    "reverse_bits": ("bigint unsigned", [*_NATURAL, (1 << 64) - 1]),
    "binary": ("varbinary(20)", _BYTES[1:]),
    "binary_md5": ("varbinary(20)", _BYTES),
    "unicode_loose_xxhash": ("varchar(60) collate utf8mb4_bin", _TEXT),
    "unicode_loose_md5": ("varchar(60) collate utf8mb4_bin", _TEXT),
}
SHARDS = KEYSPACES["commerce"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Vitess]:
    needs.vitess()
    tables = ";".join(f"create table by_{name} (k {kind} not null primary key)" for name, (kind, _) in _KINDS.items())
    columns = {f"by_{name}": {"column_vindexes": [{"column": "k", "name": name}]} for name in _KINDS}
    vschema = {"sharded": True, "vindexes": {name: {"type": name} for name in _KINDS}, "tables": columns}
    with Vitess(schemas={"commerce": (tables, vschema)}) as own:
        yield own


@pytest.mark.parametrize("vindex", list(_KINDS))
def test_every_row_is_in_the_shard_of_its_keyspace_id(cluster: Vitess, vindex: str) -> None:
    values = _KINDS[vindex][1]
    for value in values:
        cluster.execute(f"insert into by_{vindex} (k) values (%s)", "commerce", (value,))
    found: dict[Any, str] = {}
    for shard in SHARDS:
        with closing(cluster.connect(f"commerce:{shard}")) as connection, connection.cursor() as cursor:
            cursor.execute(f"select k from by_{vindex}")
            found |= {row[0]: shard for row in cursor.fetchall()}
    assert found.keys() == set(values)
    expected = {
        value: next(shard for shard in SHARDS if shard_range(shard).contains(keyspace_id(vindex, value)))
        for value in values
    }
    assert found == expected
    assert len(set(found.values())) > 1

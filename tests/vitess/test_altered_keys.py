"""Copies of tables whose primary key is altered between two batches: no row is left out (I1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from relay.services.vitess import Vitess
from relay.vitess.client import Vtgate
from tests import needs
from tests.vitess.interrupted_copies import copy_of, numbers, started
from tests.vitess.reading import until

pytestmark = pytest.mark.services

ROWS = 200
FIRST = 850  # so that texts have another order than numbers
ALTERED = {
    "another_order": "drop primary key, add primary key (w, id)",
    "another_column": "drop primary key, add primary key (w)",
    "texts": "modify id varchar(9)",
    "a_name": "change id number bigint",
    "wider": "add more int first",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Vitess]:
    needs.vitess()
    with started(1000) as cluster:
        yield cluster


@pytest.mark.parametrize("name", ALTERED)
def test_every_row_is_copied_although_the_key_is_altered_between_two_batches(cluster: Vitess, name: str) -> None:
    """I1, I7: a copy would delete at the end mark what was left out."""
    rows = ", ".join(f"({n + FIRST}, {ROWS - n}, {n})" for n in range(ROWS))
    made = (
        f"create table {name} (id bigint primary key, w int not null, n int unique)",
        f"insert into {name} values {rows}",
    )
    with copy_of(cluster, name, *made) as opened:
        with closing(opened(None)) as reader:
            pages = until(reader, lambda page: bool(page.changes))
        assert 0 < len(numbers(pages)) < ROWS
        with closing(Vtgate(cluster.vtgate)) as vtgate:
            vtgate.execute(f"alter table {name} {ALTERED[name]}", "shop", timeout=60)
        with closing(opened(pages[-1].position)) as reader:
            pages += until(reader, lambda page: page.finished, most=400)
    assert set(numbers(pages)) == set(range(ROWS))
